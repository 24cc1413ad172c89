"""How many threads torch's own operations use: one, where they are small.

OpenMP's threads wait actively for each other at the end of every operation. While another process
has one of the cores, each of them waits until that thread has its turn, some milliseconds, and a
decomposition of a small matrix is hundreds of operations: 0.1 s become a minute. The kernels of
hdnn are not concerned: their threads sleep while they wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

LARGE = 2**20
"""Numbers from which an operation takes longer than a wait for the other threads."""


@contextmanager
def one_thread(numbers: int = 0) -> Iterator[None]:
    """Let torch compute on the calling thread only, unless its operations are large.

    The number of threads belongs to the calling thread; another thread keeps its own. One that uses
    torch for the first time in the meantime begins with one thread, too.

    Args:
        numbers: entries of the tensors that a single operation gives; 0 where it is a sequence of
            many small ones, such as the decomposition of a matrix of any size.

    Yields:
        Nothing; afterwards there are as many threads as before.

    >>> import torch
    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    """
    count = torch.get_num_threads()
    if count == 1 or numbers >= LARGE:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)
