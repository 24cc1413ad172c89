"""Numbers that users give, and the memory they ask for, checked before anything is made of them."""

from __future__ import annotations

import functools
import math
import os
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real

from hdnn.errors import HdnnError

LAYER = 1000
"""Bytes that a layer takes at least, even one that shares its weights: the views of its arrays."""

TABLE = 48
"""Bytes that an entry of a pattern takes while it is checked (`Pattern.of`)."""

ADDRESSABLE = 2**62


@functools.cache
def memory() -> int:
    """The bytes of this machine's memory, as far as that is known."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return ADDRESSABLE


def number(name: str, value: object, *, positive: bool = False) -> float:
    """A finite number, as a float; an integer of hundreds of digits is none."""
    try:
        converted = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        converted = math.inf
    if isinstance(value, bool) or not math.isfinite(converted) or (positive and converted <= 0):
        kind = "positive and finite" if positive else "a finite number"
        raise HdnnError(f"{name} must be {kind}, got {reprlib.repr(value)}")
    return converted


def check(what: str, size: int, limit: int | None = None) -> None:
    """Refuse what takes more bytes than there are.

    Args:
        what: what takes them.
        size: how many.
        limit: how many there are (default: this machine's memory).
    """
    if size > (memory() if limit is None else limit):
        raise _too_large(what, size)


@contextmanager
def allocation(what: str, size: int, limit: int | None = None) -> Iterator[None]:
    """A block that takes so many bytes; an error names them if there are not, or not given."""
    check(what, size, limit)
    try:
        yield
    except MemoryError as error:
        raise _too_large(what, size) from error
    except RuntimeError as error:  # torch has no type of its own for it, except on a GPU
        if "allocate" not in str(error):
            raise
        raise _too_large(what, size) from error


def _too_large(what: str, size: int) -> HdnnError:
    return HdnnError(
        f"{what:.80} would take about {min(size, 10**300) / 1e9:.3g} GB of memory, "
        f"and there are {memory() / 1e9:.3g} GB; "
        "use fewer layers, a smaller width or a smaller kernel"
    )
