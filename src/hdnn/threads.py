"""How many threads compute: torch's own operations only use several where they are large.

OpenMP's threads wait for each other at the end of every operation. While other processes use the
cores, that takes until each of them has had its turn, some milliseconds or tens of them; and a
decomposition of a small matrix is hundreds of operations, so that 0.1 s become a minute. The
threads of hdnn's kernels sleep while they wait.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch

LARGE = 2**26
"""Multiplications of an operation that takes some milliseconds on one thread."""


@contextmanager
def one_thread(multiplications: float = 0, large: float = LARGE) -> Iterator[None]:
    """Let torch's operations run on the calling thread only, unless they are large.

    It concerns this thread only, and does nothing where torch computes without OpenMP.

    Args:
        multiplications: of the largest single operation, about; 0 for a sequence of many small
            ones, such as the decomposition of a matrix of any size.
        large: from how many on all threads are used.

    Yields:
        Nothing; afterwards there are as many threads as before.

    >>> import torch
    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    """
    threads = torch.get_num_threads()
    if threads == 1 or multiplications >= large:
        yield
        return
    set_openmp, set_mkl = _setters()
    set_openmp(1)
    mkl = set_mkl(1)
    try:
        yield
    finally:
        set_mkl(mkl)
        set_openmp(threads)


@cache
def _setters() -> tuple[Callable[[int], int], Callable[[int], int]]:
    """What sets the threads that OpenMP and MKL use for the calling thread.

    Not `torch.set_num_threads`: it also forbids MKL to use fewer than that, after which MKL's LU
    decomposition of some hundred rows is wrong on several threads (torch 2.13).
    """
    library = ctypes.CDLL(torch._C.__file__)  # symbols of the libraries that it loads count, too
    names = ("omp_set_num_threads", "MKL_Set_Num_Threads_Local")
    openmp, mkl = (getattr(library, name, lambda number: 0) for name in names)
    return openmp, mkl
