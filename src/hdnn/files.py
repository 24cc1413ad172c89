"""Reading regular files only, and writing them so that a reader sees the old one or the new one."""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

from hdnn.errors import FileFormatError, HdnnError, MissingFileError, StorageError, shortened

T = TypeVar("T")


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends without an error.

    A reader, or a machine that loses power, sees the old file or the new one, whole. Symbolic
    links are followed and stay; an existing file keeps its permissions.

    Args:
        path: the file to write.

    Yields:
        The temporary path, an empty file.

    Raises:
        HdnnError: there is a folder or a device of that name.
        StorageError: the file cannot be written; an existing one stays as it was.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "note.txt"
    >>> with atomic(target) as temporary:
    ...     _ = temporary.write_text("whole")
    >>> target.read_text()
    'whole'
    """
    target = Path(os.path.realpath(path))
    # Renaming would replace a device such as /dev/null by a file.
    if os.path.exists(target) and not os.path.isfile(target):
        raise HdnnError(f"cannot write {path}: it is a folder or a device; give the name of a file")
    temporary = target.with_name(f".{target.name[:40]}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.touch(exist_ok=False)
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}; choose a folder that exists and "
            "can be written to"
        ) from error
    try:
        if os.path.exists(target):
            shutil.copymode(target, temporary)  # before it has content, which may be private
        yield temporary
        sync(temporary)
        os.replace(temporary, target)
        sync(target.parent)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # the first error is the one to report
            temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk, so that they survive a loss of power.

    Args:
        path: the file or folder. Not every platform and file system can sync folders.

    Raises:
        OSError: the file cannot be written.
    """
    folder = path.is_dir()
    # Windows syncs only what is open for writing.
    with suppress(OSError) if folder else nullcontext():
        descriptor = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_file(path: str | os.PathLike[str]) -> None:
    """Raise unless there is a regular file of that name.

    A reader would wait for a FIFO forever, and read a device until memory ends.

    Args:
        path: the file; symbolic links are followed.

    Raises:
        MissingFileError: there is none.
        FileFormatError: it is a folder, a FIFO or a device, or nobody may look at it.
    """
    try:
        regular = stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError as error:
        raise MissingFileError(f"cannot read {path}: {error.strerror}; check the path") from error
    except (OSError, ValueError) as error:  # ValueError: no file can have that name
        reason = getattr(error, "strerror", None) or error
        raise FileFormatError(f"cannot read {path}: {reason}; check the path") from error
    if not regular:
        raise FileFormatError(f"cannot read {path}: not a regular file; check the path")


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The content of a regular file.

    Args:
        path: the file.

    Returns:
        Its bytes.

    Raises:
        MissingFileError: there is none.
        FileFormatError: it is no regular file, or cannot be read.
    """
    check_file(path)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror or error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Args:
        path: the file.

    Returns:
        The object.

    Raises:
        MissingFileError: there is no such file.
        FileFormatError: it cannot be read.
    """
    content = read_bytes(path)
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError, RecursionError) as error:
        raise FileFormatError(
            f"{path} is not a JSON object: {shortened(str(error), 100)}"
        ) from error


def read_json_lines(path: Path, parse: Callable[[dict[str, Any]], T]) -> list[T]:
    """Read a file with one JSON object a line; a file that is not there has no lines.

    A last line without a line break is what a killed process leaves, and is skipped.

    Args:
        path: the file.
        parse: converts an object, and raises if a key is missing or a value is wrong.

    Returns:
        What ``parse`` returned for the lines, in order.

    Raises:
        FileFormatError: the file, or a line of it, cannot be read.
    """
    try:
        content = read_bytes(path)
    except MissingFileError:
        return []
    *lines, _ = content.split(b"\n")
    records = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            records.append(parse(dict(json.loads(line))))
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
            reason = shortened(str(error), 100)
            raise FileFormatError(
                f"cannot read line {number} of {path}: {reason}; correct it or remove it"
            ) from error
    return records


def write_json_lines(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Replace a file of JSON lines; a number that JSON does not have is null."""
    with atomic(path) as temporary:
        temporary.write_text("".join(json.dumps(finite(line)) + "\n" for line in lines))


def finite(value: Any) -> Any:
    """A record with None in place of numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def rounded(value: Any, digits: int) -> Any:
    """Numbers with so many significant digits, in lists, too; anything else as it is.

    >>> rounded([1 / 3, 2], 3)
    [0.333, 2]
    """
    if isinstance(value, list):
        return [rounded(item, digits) for item in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value
