"""Writing files so that a reader sees the old one or the new one, and reading lines of JSON."""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

from hdnn.errors import FileFormatError, HdnnError, StorageError

T = TypeVar("T")


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends without an error.

    A reader, or a machine that loses power, sees the old file or the new one, whole. Symbolic
    links are followed and stay; an existing file keeps its permissions. What is no regular file
    (a FIFO, a device, `/dev/stdout`) stays too: the finished content is written into it.

    Args:
        path: the file to write.

    Yields:
        The temporary path, an empty file.

    Raises:
        HdnnError: it is a folder.
        StorageError: nothing can be written there, or the writing failed; an old file is as it was.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "note.txt"
    >>> with atomic(target) as temporary:
    ...     _ = temporary.write_text("whole")
    >>> target.read_text()
    'whole'
    """
    if os.path.isdir(path):
        raise HdnnError(f"cannot write {path}: it is a folder; give the name of a file")
    target = Path(os.path.realpath(path))
    try:
        now = None
        with suppress(FileNotFoundError):
            now = os.stat(path)
        mode = None if now is None else stat.S_IMODE(now.st_mode)
        into = None if now is None else _stream(path, now)
        folder = target.parent if into is None else Path(tempfile.gettempdir())
        temporary = folder / f".{target.name[:40]}.{secrets.token_hex(4)}.tmp"
        temporary.touch(0o666 if mode is None else mode & 0o666, exist_ok=False)
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}; choose a folder that exists and "
            "can be written to"
        ) from error
    try:
        yield temporary
        if into is not None:
            with open(temporary, "rb") as content, open(into(), "wb") as stream:
                shutil.copyfileobj(content, stream)
            return
        if mode is not None:
            temporary.chmod(mode)
        sync(temporary)
        os.replace(temporary, target)
        sync(target.parent)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # what the disk says of it is no news
            temporary.unlink(missing_ok=True)


def _stream(path: str | os.PathLike[str], now: os.stat_result) -> Callable[[], int] | None:
    """Opens what is written into; None for a file that is replaced."""
    for own in (1, 2):  # opened by name, a file that output goes to would be written from its start
        with suppress(OSError):
            if os.path.samestat(os.fstat(own), now):
                return lambda: os.dup(own)
    return None if stat.S_ISREG(now.st_mode) else lambda: os.open(path, os.O_WRONLY)


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk, so that they survive a loss of power.

    Args:
        path: the file or folder. Not every platform and file system can sync folders.

    Raises:
        OSError: the file cannot be written.
    """
    folder = path.is_dir()
    with suppress(OSError) if folder else nullcontext():
        descriptor = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_json_lines(path: Path, parse: Callable[[dict[str, Any]], T]) -> list[T]:
    """Read a file with one JSON object a line; a file that is not there has no lines.

    A last line without its end is what a killed process leaves, and is passed over.

    Args:
        path: the file.
        parse: makes something of an object, and raises if a key is missing or a value is wrong.

    Returns:
        What ``parse`` made of the lines, in order.

    Raises:
        FileFormatError: the file, or a line of it, cannot be read.
    """
    try:
        if path.exists() and not path.is_file():  # reading a FIFO would wait for ever
            raise FileFormatError(f"cannot read {path}: it is not a file")
        content = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror or error}") from error
    *lines, _ = content.split(b"\n")
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(parse(_object(line)))
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
            raise FileFormatError(
                f"cannot read line {number} of {path}: {str(error)[:100]}; correct it or remove it"
            ) from error
    return found


def _object(line: bytes) -> dict[str, Any]:
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def write_json_lines(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Replace a file of JSON lines."""
    with atomic(path) as temporary:
        temporary.write_text("".join(json.dumps(line) + "\n" for line in lines))


def finite(value: Any) -> Any:
    """A record with None in place of numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
