"""Helping threads for kernels that release the interpreter's lock; the caller works too.

Pieces of work are taken one by one by whoever is free: a thread that wakes up late, or has to share
its core, does less, and the caller never waits for one that has not begun. How they share one call,
and why no exception can part them while they do, is in `hdnn.kernels.team`.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np
import torch

from hdnn.errors import HdnnError

PAUSE, ATTEMPTS = 1e-4, 20
"""Seconds that a helper waits for a caller that has not begun, and how often."""

Work = Callable[[np.ndarray, bool], None]
"""work(team, caller) runs a kernel with its last two arguments, see `hdnn.kernels.team`."""


def thread_count() -> int:
    """`HDNN_NUM_THREADS`, or else as many threads as torch uses."""
    text = os.environ.get("HDNN_NUM_THREADS")
    if text is None:
        return torch.get_num_threads()
    if not text.isdigit() or int(text) < 1:
        raise HdnnError(f"HDNN_NUM_THREADS must be a positive integer, got {text!r}")
    return int(text)


def parallel_for(work: Work, pieces: int, threads: int) -> None:
    """Run a kernel over all pieces, on so many threads.

    Returns, or raises, when no thread works on it any more, whatever is raised meanwhile.

    Args:
        work: runs the kernel, once on every thread that takes part.
        pieces: how many there are.
        threads: how many may take part.
    """
    from hdnn.kernels.team import leave, new_team  # loads numba

    helpers = min(threads, pieces) - 1
    if helpers < 1:
        work(new_team(pieces), True)
        return
    ticket = _Ticket(work, new_team(pieces, _latch().address))
    if _started < helpers:
        _start(helpers)
    for _ in range(helpers):
        _queue.put(ticket)
    try:
        work(ticket.team, True)
    except BaseException:
        # The kernel itself has failed (there is no memory). Other exceptions find that it has not
        # begun or that everybody has left; then this does nothing.
        leave(ticket.team, True)
        raise
    ticket.work = None  # a helper that comes late need not keep the tensors alive
    if ticket.error is not None:
        raise ticket.error


class _Ticket:
    """A call that helpers may take part in."""

    __slots__ = ("error", "team", "work")

    def __init__(self, work: Work, team: np.ndarray) -> None:
        self.work: Work | None = work
        self.team = team
        self.error: BaseException | None = None

    def use(self) -> None:
        """Take part; in a helper."""
        from hdnn.kernels.team import GATE, NOT_YET, leave

        work = self.work
        if work is None:
            return
        try:
            work(self.team, False)
            for _ in range(ATTEMPTS):
                if self.team[GATE] != NOT_YET:
                    break
                time.sleep(PAUSE)  # perhaps on the core that the caller was about to work on
                work(self.team, False)
        except BaseException as error:  # of the kernel: signals and the like go to other threads
            self.error = error
            leave(self.team, False)


class _Latch:
    """A lock of CPython's by its address, locked, as compiled code waits for it."""

    def __init__(self) -> None:
        self.address, self._free = _allocate(), _free  # also where the module is gone at exit
        _acquire(self.address, 1)

    def __del__(self) -> None:
        self._free(self.address)


_allocate = ctypes.pythonapi.PyThread_allocate_lock
_allocate.restype = ctypes.c_void_p
_acquire = ctypes.pythonapi.PyThread_acquire_lock
_acquire.argtypes = [ctypes.c_void_p, ctypes.c_int]
_free = ctypes.pythonapi.PyThread_free_lock
_free.argtypes = [ctypes.c_void_p]

_local = threading.local()


def _latch() -> _Latch:
    """That of this thread, which makes one call at a time."""
    try:
        latch: _Latch = _local.latch
    except AttributeError:
        latch = _local.latch = _Latch()
    return latch


_queue: SimpleQueue[_Ticket] = SimpleQueue()
_started = 0  # helpers that serve it
_lock = threading.Lock()


def _start(count: int) -> None:
    """Let at least so many helpers serve the queue."""
    global _started  # noqa: PLW0603 (one set of helpers for the process)
    with _lock:
        while _started < count:
            # Not threading.Thread, whose start() waits for the thread, and may wait for ever if an
            # exception has cut an earlier one short.
            _thread.start_new_thread(_serve, (_queue,))
            _started += 1


def _serve(queue: SimpleQueue[_Ticket]) -> None:
    while True:
        queue.get().use()


def _forget_helpers() -> None:
    global _queue, _started, _lock
    _queue, _started, _lock = SimpleQueue(), 0, threading.Lock()


if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(after_in_child=_forget_helpers)
