"""Tapes: room for activations and rows of small calls, which going backward then need not make.

All tapes of a process together stay below `LIMIT`, whatever the depth and however many graphs are
alive: a call that finds no room recomputes.
"""

from __future__ import annotations

import threading
from contextlib import suppress

import numpy as np

from hdnn.backends.kernels import aligned

LIMIT = 16 * 2**20
"""Bytes of all tapes, in use or free."""

LARGEST = 8 * 2**20
"""Bytes of one tape: beyond, memory is slower than computing again."""

_free: dict[tuple[int, str], list[Tape]] = {}
_lock = threading.Lock()  # around making one; taking and giving back are one step each
_taken = 0  # bytes of all tapes


class Tape:
    """Room of one call, until it is given back."""

    __slots__ = ("array", "lock", "shelf")

    def __init__(self, length: int, number: str, shelf: list[Tape]) -> None:
        self.array, self.shelf = aligned(length, number), shelf
        self.lock = threading.Lock()  # of two backward passes at once, one waits

    def give_back(self) -> None:
        """Nobody needs what is on it any more."""
        self.shelf.append(self)


def take(length: int, number: str) -> Tape | None:
    """A tape of so many numbers, or None where there is no room."""
    shelf = _free.get((length, number))
    if shelf:
        with suppress(IndexError):  # another thread has taken the last one
            return shelf.pop()
    return _make(length, number)


def _make(length: int, number: str) -> Tape | None:
    global _taken  # noqa: PLW0603 (one pool for the process)
    size = length * np.dtype(number).itemsize
    if not 0 < size <= LARGEST:
        return None
    with _lock:
        if _taken + size > LIMIT:
            _taken -= _drop()
        if _taken + size > LIMIT:
            return None
        _taken += size
        shelf = _free.setdefault((length, number), [])
    return Tape(length, number, shelf)


def _drop() -> int:
    """Forget the tapes that nobody uses; returns their bytes."""
    bytes_ = 0
    for shelf in list(_free.values()):
        while shelf:
            bytes_ += shelf.pop().array.nbytes
    return bytes_
