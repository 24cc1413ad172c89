"""Helping threads for kernels that release the interpreter's lock; the caller works too.

Pieces of work are taken one by one by whoever is free: a thread that wakes up late, or has to share
its core, does less, and the caller never waits for one that has not begun.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

import torch

from hdnn.errors import HdnnError


def thread_count() -> int:
    """`HDNN_NUM_THREADS`, or else as many threads as torch uses."""
    given = os.environ.get("HDNN_NUM_THREADS")
    if given is None:
        return torch.get_num_threads()
    if not given.isdigit() or int(given) < 1:
        raise HdnnError(f"HDNN_NUM_THREADS must be a positive integer, got {given!r}")
    return int(given)


def share(work: Callable[[int, int], None], count: int, threads: int) -> None:
    """Do work(first, last) for ranges that cover 0 .. count, on so many threads.

    Args:
        work: releases the interpreter's lock for most of its time.
        count, threads: how many pieces there are, and how many threads may take part.
    """
    threads = min(threads, count)
    if threads <= 1:
        work(0, count)
        return
    pieces = iter(range(count))

    def take() -> None:
        for piece in pieces:
            work(piece, piece + 1)

    tickets = [_Ticket(take) for _ in range(threads - 1)]
    queue = _helpers()
    for ticket in tickets:
        queue.put(ticket)
    try:
        take()
    finally:
        for _ in pieces:  # after an error, nobody begins another piece
            pass
        errors = [error for ticket in tickets if (error := ticket.end()) is not None]
    if errors:
        raise errors[0]


class _Ticket:
    """A call that one helper makes, unless it is ended before it begins."""

    __slots__ = ("begun", "call", "done", "error")

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.error: BaseException | None = None
        self.begun, self.done = threading.Lock(), threading.Lock()
        self.done.acquire()

    def use(self) -> None:
        """Make the call; in a helper."""
        if not self.begun.acquire(blocking=False):
            return
        try:
            self.call()
        except BaseException as error:
            self.error = error
        finally:
            self.done.release()

    def end(self) -> BaseException | None:
        """Wait until the call is over, or see to it that it never begins; what it raised."""
        if not self.begun.acquire(blocking=False):
            self.done.acquire()
        return self.error


_queue: SimpleQueue[_Ticket] | None = None
_lock = threading.Lock()


def _helpers() -> SimpleQueue[_Ticket]:
    """The queue that the helpers serve; they start when first needed."""
    global _queue  # noqa: PLW0603 (one set of helpers for the process)
    if _queue is None:
        with _lock:
            if _queue is None:
                queue: SimpleQueue[_Ticket] = SimpleQueue()
                for k in range(max(1, (os.cpu_count() or 2) - 1)):
                    name = f"hdnn-{k}"
                    threading.Thread(target=_serve, args=(queue,), name=name, daemon=True).start()
                _queue = queue
    return _queue


def _serve(queue: SimpleQueue[_Ticket]) -> None:
    while True:
        queue.get().use()


def _drop_helpers() -> None:
    global _queue, _lock
    _queue, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_drop_helpers)
