"""The errors that a user can meet: each says what was given, what is allowed, and a remedy."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable


class HdnnError(ValueError):
    """Something was asked for that cannot be done as given."""


class IncompatibleError(HdnnError):
    """Two parts that do not fit: a scheme and a field, a backend and a program."""


class ConvergenceError(HdnnError):
    """An iterative solve did not reach its tolerance."""


class StorageError(HdnnError):
    """A file could not be written: the disk is full, the folder is gone."""


class FileFormatError(HdnnError):
    """A file that cannot be read as what it should be: truncated, corrupted, foreign, too new."""


class DivergenceError(HdnnError):
    """The loss of a training is no longer a finite number."""


class LostRankError(HdnnError):
    """Another process of a training has failed, or does not answer."""


class FetchError(HdnnError):
    """A data set could not be fetched from any of its sources."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> HdnnError:
    """The error for a name that is in no catalogue, with the known names and the nearest one.

    >>> print(unknown_name("architecture", "MS0", ["H1", "H2", "MS1"]))
    unknown architecture 'MS0': known are H1, H2, MS1; did you mean 'MS1'?
    """
    names = list(known)
    text = f"unknown {kind} {reprlib.repr(name)}: known are {', '.join(names)}"
    lowered = {name.lower(): name for name in names}
    near = difflib.get_close_matches(str(name).lower()[:100], lowered, n=1, cutoff=0.4)
    return HdnnError(f"{text}; did you mean {lowered[near[0]]!r}?" if near else text)
