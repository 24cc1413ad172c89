"""The errors that a user can meet: each says what was given, what is allowed, and a remedy."""

from __future__ import annotations

import difflib
import importlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, TypeVar

T = TypeVar("T")

_CONTROLS = re.compile(
    "[\0-\t\x0b-\x1f\x7f-\x9f"  # all but the line feed
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # the order and the lines of text
    "\ufeff\U000e0000-\U000e007f\ud800-\udfff]"  # invisible, or no character at all
)


def printable(text: str) -> str:
    r"""A text as people may see it: control characters but line breaks are escaped, as by `repr`.

    Names in tables and models are anybody's: raw, they could clear the terminal or change its
    title, and show a text in another order than it has.

    Args:
        text: any text.

    Returns:
        The text in which each such character is an escape sequence of Python.

    >>> print(printable("class \x1b[2J"))
    class \x1b[2J
    """
    return _CONTROLS.sub(lambda match: repr(match[0])[1:-1], text)


def shortened(text: str, most: int = 60) -> str:
    r"""One line of a text, cut in the middle where it is too long.

    >>> shortened("a long\n text", 7)
    'a l…ext'
    """
    text = " ".join(text.splitlines())
    if len(text) <= most:
        return text
    head, tail = most // 2, (most - 1) // 2
    return f"{text[:head]}…{text[len(text) - tail :]}"


def shown(value: object) -> str:
    """The representation of a value as a message has it, of any length.

    >>> shown("short")
    "'short'"
    """
    return shortened(repr(value), 80)


def listed(items: Sequence[str], most: int = 10) -> str:
    """Join the first few texts, and say how many more there are.

    >>> listed(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(map(shortened, items[:most])) + more


class HdnnError(ValueError):
    """Something was asked for that cannot be done as given.

    >>> import hdnn
    >>> try:
    ...     hdnn.network("H1", features=3, layers=4, T=1.0)
    ... except hdnn.HdnnError as error:
    ...     print("H1 needs an even width" if "even" in str(error) else error)
    H1 needs an even width
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class IncompatibleError(HdnnError):
    """Two parts that do not fit: a scheme and a field, a backend and a program."""


class ConvergenceError(HdnnError):
    """An iterative solve did not reach its tolerance."""


class StorageError(HdnnError):
    """A file could not be written: the disk is full, the folder is gone."""


class MissingFileError(HdnnError, FileNotFoundError):
    """There is no file of that name.

    >>> import hdnn
    >>> try:
    ...     hdnn.load("nothing.safetensors")
    ... except FileNotFoundError as error:
    ...     print(error)
    cannot read nothing.safetensors: No such file or directory; check the path
    """


class FileFormatError(HdnnError):
    """A file that cannot be read as what it should be: truncated, corrupted, foreign, too new."""


class DivergenceError(HdnnError):
    """The loss of a training is no longer a finite number.

    >>> import hdnn
    >>> issubclass(hdnn.training.DivergenceError, hdnn.HdnnError)
    True
    """


class MissingPackageError(HdnnError, ImportError):
    """A package of an extra is not installed."""


class FetchError(HdnnError):
    """A data set could not be fetched from any of its sources."""


def optional(module: str, extra: str) -> Any:
    """Import a module of an extra, or name the extra to install.

    Args:
        module: its name in Python.
        extra: the extra of hdnn that installs it.

    Returns:
        The module.

    Raises:
        MissingPackageError: it is not installed.

    >>> optional("json", "app").dumps([1])
    '[1]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise MissingPackageError(f"this needs {package}: pip install 'hdnn[{extra}]'") from error


def unknown_name(kind: str, name: object, known: Iterable[str]) -> HdnnError:
    """The error for a name that is in no catalog, with the known names and the nearest one.

    Args:
        kind: what is named, as "architecture".
        name: the unknown name.
        known: the names in the catalog.

    Returns:
        The error, to be raised.

    >>> print(unknown_name("architecture", "MS0", ["H1", "H2", "MS1"]))
    unknown architecture 'MS0': known are H1, H2, MS1; did you mean 'MS1'?
    """
    names = list(known)
    text = f"unknown {kind} {shown(name)}: known are {', '.join(names)}"
    lowered = {name.lower(): name for name in names}
    wanted = str(name).lower()[:100]
    near = difflib.get_close_matches(wanted, lowered, n=2, cutoff=0.4)
    ratios = {difflib.SequenceMatcher(None, known, wanted).ratio() for known in near}
    unique = len(near) == len(ratios) > 0  # H7 is as near to H1 as to H2
    return HdnnError(f"{text}; did you mean {lowered[near[0]]!r}?" if unique else text)


def is_count(value: object, least: int = 1) -> bool:
    """Whether a value is an integer of at least `least`; a bool is not."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def finite_number(name: str, value: object, *, positive: bool = False) -> float:
    """A finite number, as a float."""
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    if not math.isfinite(number) or (positive and number <= 0):
        kind = "positive and finite" if positive else "a finite number"
        raise HdnnError(f"{name} must be {kind}, got {shown(value)}")
    return number


def named(kind: str, name: object, catalog: Mapping[str, T]) -> T:
    """What has a name in a catalog, whatever its case; `unknown_name` where nothing has."""
    by_name = {known.lower(): value for known, value in catalog.items()}
    if not isinstance(name, str) or name.lower() not in by_name:
        raise unknown_name(kind, name, catalog)
    return by_name[name.lower()]
