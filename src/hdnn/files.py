"""Writing files so that a reader sees the old one or the new one, and reading lines of JSON."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import secrets
import shutil
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from hdnn.errors import FileFormatError, HdnnError, StorageError

T = TypeVar("T")


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends without an error.

    A reader, or a machine that loses power, sees the old file or the new one, whole. Symbolic
    links are followed and stay; an existing file keeps its permissions. What is no regular file
    (a FIFO, a device, `/dev/stdout`) stays too: the finished content is written into it. A FIFO
    makes the writer wait for a reader, as everywhere.

    Args:
        path: the file to write.

    Yields:
        The temporary path, an empty file.

    Raises:
        HdnnError: nothing can be written there.
        StorageError: the writing failed; the old file is as it was.

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
    temporary: Path | None = None
    try:
        try:
            stream = _is_stream(path)
            folder = Path(tempfile.gettempdir()) if stream else target.parent
            temporary = folder / _temporary_name(target.name)
            mode = _create(temporary, target)
        except OSError as error:
            raise HdnnError(
                f"cannot write {path}: {error.strerror or error}; choose a folder that exists and "
                "can be written to"
            ) from error
        yield temporary
        if stream:
            _write_through(temporary, path)
        else:
            temporary.chmod(mode)
            replace(temporary, target)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
            _being_written.discard(temporary.name)


def _create(temporary: Path, target: Path) -> int:
    """Make an empty file; its permissions are the target's, or those of any new file."""
    mode = stat.S_IMODE(target.stat().st_mode) if target.is_file() else None
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    os.close(os.open(temporary, flags, 0o666 if mode is None else mode))
    return stat.S_IMODE(temporary.stat().st_mode) if mode is None else mode


# --- what is not a regular file -------------------------------------------------------------------


def _is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether a path names something to write into, not a file to replace."""
    if _descriptor(path) is not None:
        return True
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False


def _descriptor(path: str | os.PathLike[str]) -> int | None:
    """The open file of this process that a path such as /dev/stdout stands for, or None.

    Opened by name, a file to which the output was redirected would be written from its beginning.
    """
    place, own = os.path.abspath(path), rf"/(?:dev|proc/(?:self|{os.getpid()}))/fd/(\d+)"
    for _ in range(40):  # as many links as the system follows
        match = re.fullmatch(own, place)
        if match:
            return int(match[1])
        if not os.path.islink(place):
            break
        place = os.path.normpath(os.path.join(os.path.dirname(place), os.readlink(place)))
    return None


def _write_through(source: Path, path: str | os.PathLike[str]) -> None:
    number = _descriptor(path)
    descriptor = os.open(path, os.O_WRONLY) if number is None else os.dup(number)
    with open(descriptor, "wb") as stream, open(source, "rb") as content:
        shutil.copyfileobj(content, stream)


# --- durability -----------------------------------------------------------------------------------


def replace(source: Path, target: Path) -> None:
    """Rename a finished file or folder so that after a loss of power it is there, whole, or not.

    Args:
        source: the file, or the folder with all that is in it; it is written to the disk first.
        target: its name from now on, in a folder of the same file system.

    Raises:
        OSError: the disk is full or broken.
    """
    sync(source)
    os.replace(source, target)
    sync_folder(target.parent)


def sync(path: Path) -> None:
    """Write a file, or a folder with all that is in it, to the disk.

    Raises:
        OSError: the disk is full or broken.
    """
    if path.is_dir():
        for inner in sorted(path.iterdir()):
            sync(inner)
        sync_folder(path)
    else:
        with open(path, "rb+") as file:
            os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk, after files were made, renamed or removed in it.

    Where the platform or the file system cannot do that, it does nothing.
    """
    if os.name == "nt":  # folders cannot be opened there
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder may be written to but not read
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EROFS):
            raise
    finally:
        os.close(descriptor)


# --- temporary files ------------------------------------------------------------------------------

_TEMPORARY = re.compile(r"\..+\.(\d{1,19})-[0-9a-f]{8}\.tmp", re.DOTALL)
"""Their names: that of the file to be, the process that writes it, and something random."""

_being_written: set[str] = set()
"""The names of those that this process writes now."""


def _temporary_name(name: str) -> str:
    fresh = f".{name[:40]}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    _being_written.add(fresh)
    return fresh


def remove_stale(folder: Path) -> None:
    """Remove the temporary files that killed processes left in a folder; only those."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        match = _TEMPORARY.fullmatch(path.name)
        if match and not _is_used(path.name, int(match[1])):
            with suppress(OSError):  # another process was faster, or on Windows still writes it
                path.unlink()


def _is_used(name: str, pid: int) -> bool:
    if pid == os.getpid():
        return name in _being_written
    if os.name == "nt":  # signal 0 ends a process there, and open files cannot be removed
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


# --- lines of JSON --------------------------------------------------------------------------------


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
        if path.exists() and not path.is_file():  # reading a FIFO would wait for ever
            raise FileFormatError(f"cannot read {path}: it is not a file")
        content = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror or error}") from error
    *lines, _ = content.split(b"\n")
    result: JsonLines[T] = JsonLines([], [])
    first = ""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            result.objects.append(parse(_object(line)))
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
            first = first or f"line {number}: {str(error)[:100]}"
            result.damaged.append(line)
    if result.damaged:
        warnings.warn(
            f"{path}: {len(result.damaged)} of {len(lines)} lines cannot be read and are left out "
            f"({first})",
            DamagedFileWarning,
            stacklevel=3,
        )
    return result


def _object(line: bytes) -> dict[str, Any]:
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def write_json_lines(
    path: Path, lines: Sequence[dict[str, Any]], damaged: Sequence[bytes] = ()
) -> None:
    """Replace a file of JSON lines; damaged lines of the old one are kept in ``<name>.damaged``.

    They are there before the file is replaced, and once, however often this is repeated.
    """
    if damaged:
        aside = path.with_name(f"{path.name}.damaged")
        with atomic(aside) as temporary:
            before = aside.read_bytes().split(b"\n") if aside.is_file() else []
            unique = dict.fromkeys(line for line in [*before, *damaged] if line)
            temporary.write_bytes(b"".join(line + b"\n" for line in unique))
    with atomic(path) as temporary:
        temporary.write_text("".join(json.dumps(line) + "\n" for line in lines))


def finite(value: Any) -> Any:
    """A record with None in place of numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
