"""Room for the activations of small calls, which going backward then need not recompute.

All of it together stays below `LIMIT`, whatever the depth and however many graphs are alive: a call
that finds no room recomputes.

Room is free again when nobody holds its lease: it remembers by a weak reference to whom it is lent.
Nothing has to be given back, so no exception, wherever it strikes, can lose room or lend it twice.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

import numpy as np

from hdnn.kernels.build import aligned

LIMIT = 16 * 2**20
"""Bytes of all room, lent or free."""

LARGEST = 8 * 2**20
"""Bytes that are lent at once: beyond, memory is slower than computing again."""


class _Room:
    """An array, and to whom it is lent.

    Attributes:
        array: the numbers.
        lock: of two backward passes of one graph at once, one waits.
        holder: a weak reference to the lease.
    """

    __slots__ = ("array", "holder", "lock")

    def __init__(self, length: int, dtype: str) -> None:
        self.array, self.lock = aligned(length, dtype), threading.Lock()
        self.holder: Callable[[], Lease | None] = _nobody


def _nobody() -> None:
    return None


class Lease:
    """Room that one call holds."""

    __slots__ = ("__weakref__", "room")

    def __init__(self, room: _Room) -> None:
        self.room = room
        room.holder = weakref.ref(self)


_rooms: dict[tuple[int, str], list[_Room]] = {}
_lock = threading.Lock()


def lend(length: int, dtype: str) -> Lease | None:
    """Room for so many numbers, or None where there is none."""
    with _lock:
        rooms = _rooms.get((length, dtype), ())
        for room in rooms:
            if room.holder() is None:
                return Lease(room)
        return _make(length, dtype)


def _make(length: int, dtype: str) -> Lease | None:
    size = length * np.dtype(dtype).itemsize
    if not 0 < size <= LARGEST or not _fits(size):
        return None
    room = _Room(length, dtype)
    _rooms.setdefault((length, dtype), []).append(room)
    return Lease(room)


def _fits(size: int) -> bool:
    """Whether so many bytes more stay below the limit, if need be without what nobody holds."""
    if bytes_held() + size <= LIMIT:
        return True
    for rooms in _rooms.values():
        rooms[:] = [room for room in rooms if room.holder() is not None]
    return bytes_held() + size <= LIMIT


def bytes_held() -> int:
    """Bytes of all room, lent or free."""
    return sum(room.array.nbytes for rooms in _rooms.values() for room in rooms)


def _after_fork() -> None:
    """No other thread of the parent is in the child, so none holds a lock."""
    global _lock  # noqa: PLW0603 (one pool for the process)
    _lock = threading.Lock()
    for rooms in _rooms.values():
        for room in rooms:
            room.lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(after_in_child=_after_fork)
