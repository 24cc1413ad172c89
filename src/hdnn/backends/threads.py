"""A small pool of threads for kernels that release the interpreter's lock; the caller works too."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from hdnn.errors import HdnnError

_pool: ThreadPoolExecutor | None = None


def _drop_pool() -> None:
    global _pool  # noqa: PLW0603 (a forked child has none of its parent's threads)
    _pool = None


os.register_at_fork(after_in_child=_drop_pool)


def thread_count() -> int:
    """`HDNN_NUM_THREADS`, or else as many threads as torch uses."""
    given = os.environ.get("HDNN_NUM_THREADS")
    if given is None:
        return torch.get_num_threads()
    if not given.isdigit() or int(given) < 1:
        raise HdnnError(f"HDNN_NUM_THREADS must be a positive integer, got {given!r}")
    return int(given)


def share(work: Callable[[int, int], None], count: int, threads: int, lead: float = 0.0) -> None:
    """Do work(first, last) for ranges that cover 0 .. count, one for every thread.

    Args:
        work: releases the interpreter's lock for most of its time.
        count, threads: how many pieces there are, and how many threads may take part.
        lead: so many pieces the caller does before the others have woken up.
    """
    threads = min(threads, count)
    if threads <= 1:
        work(0, count)
        return
    own = count - (threads - 1) * max(1, int((count - lead) / threads))
    bounds = [own + k * (count - own) // (threads - 1) for k in range(threads)]
    pool = _get_pool()
    others = [pool.submit(work, *pair) for pair in itertools.pairwise(bounds)]
    work(0, own)
    for other, pair in zip(others, itertools.pairwise(bounds), strict=True):
        if other.cancel():  # a busy machine: it has not even begun
            work(*pair)
        else:
            other.result()


def _get_pool() -> ThreadPoolExecutor:
    global _pool  # noqa: PLW0603
    if _pool is None:
        _pool = ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 1), "hdnn")
    return _pool
