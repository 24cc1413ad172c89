"""The errors that a user can meet: each says what was given, what is allowed, and a remedy."""

from __future__ import annotations

import difflib
import json
import re
import reprlib
import shlex
from collections.abc import Callable, Iterable

_SETTING = re.compile("\ufdd0(.*?)\ufdd1", re.DOTALL)  # two code points that no text has


def setting(name: str, value: str | list[str]) -> str:
    """A setting in the message of an error, which each front end writes in its own syntax.

    >>> error = HdnnError(f"leave it out: {setting('drop', ['city'])}")
    >>> print(error)
    leave it out: drop=['city']
    >>> print(error.text(as_flag))
    leave it out: --drop city
    """
    return f"\ufdd0{json.dumps([name, value])}\ufdd1"


def as_argument(name: str, value: str | list[str]) -> str:
    """A setting in the syntax of Python."""
    return f"{name}={value!r}"


def as_flag(name: str, value: str | list[str]) -> str:
    """A setting in the syntax of the command line."""
    values = [value] if isinstance(value, str) else value
    return " ".join(f"--{name} {shlex.quote(each)}" for each in values)


class HdnnError(ValueError):
    """Something was asked for that cannot be done as given.

    >>> import hdnn
    >>> try:
    ...     hdnn.network("H1", features=3, layers=4, T=1.0)
    ... except hdnn.HdnnError as error:
    ...     print("H1 needs an even width" if "even" in str(error) else error)
    H1 needs an even width
    """

    def text(self, write: Callable[[str, str | list[str]], str] = as_argument) -> str:
        """The message, its settings written by a function of name and value.

        Args:
            write: gives the text of a setting from its name and value; `as_argument` or `as_flag`.

        Returns:
            The message.
        """
        return _SETTING.sub(lambda found: write(*json.loads(found[1])), super().__str__())

    def __str__(self) -> str:
        return self.text()


class IncompatibleError(HdnnError):
    """Two parts that do not fit: a scheme and a field, a backend and a program."""


class ConvergenceError(HdnnError):
    """An iterative solve did not reach its tolerance."""


class StorageError(HdnnError):
    """A file could not be written: the disk is full, the folder is gone."""


class FileFormatError(HdnnError):
    """A file that cannot be read as what it should be: truncated, corrupted, foreign, too new."""


class DivergenceError(HdnnError):
    """The loss of a training is no longer a finite number.

    >>> import hdnn
    >>> issubclass(hdnn.training.DivergenceError, hdnn.HdnnError)
    True
    """


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
