"""The boundary of every reader: whatever a file holds, it is read, or it is one clear error."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from hdnn.errors import FileFormatError, HdnnError, unknown_name

UNPACK_RATIO, UNPACK_MEGABYTES = 10, 64
"""What a file unpacks to is at most this many times its size, plus this many megabytes."""

LARGE, LARGE_RATIO = 2**20, 100
"""A file of so many bytes may unpack to more: honest tables of small integers do."""

MOST_SHOWN = 200
"""Characters of a foreign error in a message."""

MOST_NAMES, MOST_COLUMNS = 30, 100_000
"""Column names in a message, and columns of a table."""


class Readable(Protocol):
    """An open binary file."""

    def read(self, size: int, /) -> bytes:
        """Up to ``size`` bytes, none at the end."""


@contextmanager
def reading(
    path: str | os.PathLike[str],
    kind: str,
    remedy: str = "",
    error_type: type[HdnnError] = FileFormatError,
) -> Iterator[None]:
    """Turn every error that a file can cause in the block into one that names the file.

    Errors of hdnn and interrupts pass through. Anything else is the file's fault: the readers of
    other packages raise whatever their parsing runs into, up to `MemoryError` and `RecursionError`.

    Args:
        path: the file, which must be a regular one, so that no reader waits for a FIFO.
        kind: what it should be: "CSV", "NPZ".
        remedy: what to do about it.
        error_type: of the error.

    Raises:
        HdnnError: there is no such regular file.
        FileFormatError: the block failed.
    """
    path = Path(path)
    try:
        if not path.is_file():
            reason = "not a regular file" if path.exists() else "No such file or directory"
            raise HdnnError(f"cannot read {path}: {reason}; check the path")
        yield
    except HdnnError:
        raise
    except Exception as error:
        tail = f"; {remedy}" if remedy else ""
        raise error_type(f"cannot read {path} as {kind}: {reason_of(error)}{tail}") from error


def reason_of(error: BaseException) -> str:
    r"""What an error says, on one line of limited length; its kind where it says nothing.

    >>> reason_of(ValueError("bad\nmagic")), reason_of(KeyError("X")), reason_of(MemoryError())
    ('bad magic', "KeyError: 'X'", 'MemoryError')
    """
    said = str(getattr(error, "strerror", None) or error).partition(" <_io.")[0]  # of Pillow
    text = cut(" ".join(said.split()), MOST_SHOWN)
    speaks = isinstance(error, (OSError, ValueError))
    return text if text and speaks else ": ".join(filter(None, (type(error).__name__, text)))


def cut(text: str, most: int = 60) -> str:
    """A text of limited length.

    >>> cut("abcdefgh", 6)
    'abc...'
    """
    return text if len(text) <= most else f"{text[: most - 3]}..."


def short(value: Any, most: int = 60) -> str:
    """The representation of a value, of limited length.

    >>> short("a" * 100, 10)
    "'aaaaaa..."
    """
    try:
        return cut(repr(value[:most] if isinstance(value, (str, bytes)) else value), most)
    except ValueError:  # an integer of thousands of digits has none
        return f"a very long {type(value).__name__}"


def unpack_limit(path: Path) -> int:
    """How many bytes of memory the content of a file may take: a small file cannot fill it.

    HDNN_UNPACK_MB, in the environment, raises the limit for files that one trusts.
    """
    given = os.environ.get("HDNN_UNPACK_MB", "")
    if given and not given.isdecimal():
        raise HdnnError(f"HDNN_UNPACK_MB is a number of megabytes, got {short(given)}")
    return _ratio(path) * path.stat().st_size + int(given or UNPACK_MEGABYTES) * 2**20


def _ratio(path: Path) -> int:
    return UNPACK_RATIO if path.stat().st_size < LARGE else LARGE_RATIO


def check_unpacked(path: Path, needed: int) -> None:
    """Raise an error if the content of a file takes more memory than `unpack_limit`."""
    if needed > unpack_limit(path):
        raise FileFormatError(
            f"{path} has {path.stat().st_size} bytes and would take {needed >> 20} MB of memory, "
            f"more than {_ratio(path)} times its size plus {UNPACK_MEGABYTES} MB; if you trust the "
            f"file, set HDNN_UNPACK_MB={(needed >> 20) + 1} in the environment"
        )


def read_at_most(file: Readable, limit: int) -> bytes | None:
    """All bytes of an open file; None if there are more than ``limit``.

    A single ``read(limit)`` would allocate the limit, whatever the file holds.
    """
    parts, total = [], 0
    while part := file.read(min(2**20, limit + 1 - total)):
        parts.append(part)
        total += len(part)
        if total > limit:
            return None
    return b"".join(parts)


# --- columns by name ------------------------------------------------------------------------------


def find(names: Sequence[str], name: str, where: str) -> int:
    """The position of a column, or an error that names the nearest one."""
    count = names.count(name) if isinstance(name, str) else 0
    if count == 1:
        return names.index(name)
    if count:
        raise _repeated(where, name, count)
    kind, known = f"column of {where}", list(names)
    if len(known) > MOST_NAMES:
        kind = f"{kind} ({len(known)} columns, of which the nearest are shown)"
        known = difflib.get_close_matches(str(name), names, n=MOST_NAMES, cutoff=0.0)
    raise unknown_name(kind, name, map(cut, known))


def _repeated(where: str, name: str, count: int) -> HdnnError:
    return HdnnError(f"{where}: {count} columns are named {short(name)}; rename all but one")


def refuse_many(where: str, count: int) -> None:
    """Raise an error where there are more columns than any network could read."""
    if count > MOST_COLUMNS:
        raise HdnnError(
            f"{where} has {count} columns, and at most {MOST_COLUMNS} are read; remove some, or, "
            "if its columns are samples, transpose it"
        )


def refuse_duplicates(where: str, names: Sequence[str]) -> None:
    """Raise an error where a column has no name or the name of another."""
    for position, name in enumerate(names):
        if not name:
            raise HdnnError(
                f"{where}: column {position + 1} has no name; name it or remove it (pandas writes "
                "such a column unless told to_csv(..., index=False))"
            )
    for name, count in Counter(names).items():
        if count > 1:
            raise _repeated(where, name, count)
