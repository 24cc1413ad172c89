"""Writing files so that a reader sees the old one or the new one, and reading lines of JSON."""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from hdnn.errors import FileFormatError, HdnnError, StorageError

T = TypeVar("T")


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends without an error.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "note.txt"
    >>> with atomic(target) as temporary:
    ...     _ = temporary.write_text("whole")
    >>> target.read_text()
    'whole'
    """
    target = Path(path)
    if target.is_dir():
        raise HdnnError(f"cannot write {target}: it is a folder; give the name of a file")
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        os.close(handle)
    except OSError as error:
        raise HdnnError(
            f"cannot write {target}: {error.strerror or error}; choose a folder that exists and "
            "can be written to"
        ) from error
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        os.replace(temporary, target)
    except OSError as error:
        raise StorageError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


class DamagedFileWarning(UserWarning):
    """Lines of a file that cannot be read; the others are used."""


class JsonLines(NamedTuple, Generic[T]):
    """What `read_json_lines` found.

    Attributes:
        objects: one for every good line, in order.
        damaged: the other lines, as they are in the file.
    """

    objects: list[T]
    damaged: list[bytes]


def read_json_lines(path: Path, parse: Callable[[dict[str, Any]], T]) -> JsonLines[T]:
    """Read a file with one JSON object a line; a file that is not there has no lines.

    A last line without its end is what a killed process leaves, and is passed over. Other lines
    that cannot be read are reported by a `DamagedFileWarning`, and the good ones are used.

    Args:
        path: the file.
        parse: makes something of an object, and raises if a key is missing or a value is wrong.

    Returns:
        What ``parse`` made of the good lines, and the damaged lines.

    Raises:
        FileFormatError: the file itself cannot be read.
    """
    try:
        content = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror or error}") from error
    *lines, _ = content.split(b"\n")
    found: JsonLines[T] = JsonLines([], [])
    first = ""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.objects.append(parse(_object(line)))
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
            first = first or f"line {number}: {str(error)[:100]}"
            found.damaged.append(line)
    if found.damaged:
        warnings.warn(
            f"{path}: {len(found.damaged)} of {len(lines)} lines cannot be read and are left out "
            f"({first})",
            DamagedFileWarning,
            stacklevel=3,
        )
    return found


def _object(line: bytes) -> dict[str, Any]:
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def write_json_lines(
    path: Path, lines: Sequence[dict[str, Any]], damaged: Sequence[bytes] = ()
) -> None:
    """Replace a file of JSON lines; damaged lines of the old one are kept in ``<name>.damaged``."""
    if damaged:
        with open(path.with_name(f"{path.name}.damaged"), "ab") as file:
            file.writelines(line + b"\n" for line in damaged)
    with atomic(path) as temporary:
        temporary.write_text("".join(json.dumps(line) + "\n" for line in lines))
