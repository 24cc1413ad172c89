"""Tapes: room for the activations of small calls, so that going backward need not recompute them.

All tapes of a process together stay below `LIMIT`, whatever the depth and however many graphs are
alive: a call that finds no room recomputes.
"""

from __future__ import annotations

import threading

import numpy as np

from hdnn.backends.kernels import aligned

LIMIT = 16 * 2**20
"""Bytes of all tapes, in use or free."""

LARGEST = 8 * 2**20
"""Bytes of one tape: beyond, memory is slower than computing again."""

_free: dict[tuple[int, str], list[np.ndarray]] = {}
_lock = threading.Lock()  # around `take`; giving back is one append
_taken = 0  # bytes of all tapes


class Tape:
    """Room of one call; given back when nothing refers to it any more."""

    __slots__ = ("array", "lock", "shelf")

    def __init__(self, array: np.ndarray, shelf: list[np.ndarray]) -> None:
        self.array, self.shelf = array, shelf
        self.lock = threading.Lock()  # of two backward passes at once, one waits

    def __del__(self) -> None:
        self.shelf.append(self.array)


def take(length: int, number: str) -> Tape | None:
    """A tape of so many numbers, or None where there is no room."""
    global _taken  # noqa: PLW0603 (one pool for the process)
    size = length * np.dtype(number).itemsize
    if not 0 < size <= LARGEST:
        return None
    shelf = _free.setdefault((length, number), [])
    with _lock:
        if shelf:
            return Tape(shelf.pop(), shelf)
        if _taken + size > LIMIT:
            _taken -= _drop()
        if _taken + size > LIMIT:
            return None
        _taken += size
    return Tape(aligned(length, number), shelf)


def _drop() -> int:
    """Forget the tapes that nobody uses; returns their bytes."""
    bytes_ = 0
    for shelf in list(_free.values()):
        while shelf:
            bytes_ += shelf.pop().nbytes
    return bytes_
