"""Writing files so that a reader sees the old one or the new one, never a part."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hdnn.errors import HdnnError, StorageError


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
