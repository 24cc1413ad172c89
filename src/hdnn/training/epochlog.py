"""A file of JSON lines that grows by an epoch at a time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hdnn.errors import StorageError
from hdnn.files import read_json_lines, write_json_lines


class EpochLog:
    """Lines of JSON with the epoch that they belong to, in order.

    The log knows where its last whole epoch ends, and writes from there: whatever an interrupted
    write has left behind it is written over.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = (0, 0)

    def cut(self, epoch: int, first: dict[str, Any] | None = None) -> None:
        """Cut the file back to the end of an epoch.

        Args:
            epoch: the last that is kept.
            first: the line in front of all epochs, where there is one.

        Raises:
            FileFormatError: a line cannot be read.
            StorageError: the file cannot be written.
        """
        try:
            self._cut(epoch, first)
        except OSError as error:
            raise StorageError(f"cannot write {self.path}: {error.strerror or error}") from error

    def _cut(self, epoch: int, first: dict[str, Any] | None) -> None:
        lines = read_json_lines(self.path, lambda line: line if line == first else with_epoch(line))
        kept = [] if first is None else [first]
        kept += [line for line in lines if 0 < line.get("epoch", 0) <= epoch]
        *raw, _ = (self.path.read_bytes() if self.path.exists() else b"").split(b"\n")
        if len(raw) != len(lines) or lines[: len(kept)] != kept:
            write_json_lines(self.path, kept)
            size = self.path.stat().st_size
        else:  # what is kept stays as it is, byte for byte
            size = sum(len(line) + 1 for line in raw[: len(kept)])
            if self.path.exists():
                os.truncate(self.path, size)
        self._written = (epoch, size)

    def extend(self, epoch: int, text: str) -> None:
        """Add the lines of an epoch, unless they are there already.

        Raises:
            StorageError: the file cannot be written.
        """
        last, end = self._written
        if epoch <= last:
            return
        left = memoryview(text.encode())
        try:
            # Without a buffer, of which an interrupted write could leave something for later.
            with open(self.path, "ab", buffering=0) as file:
                if file.tell() > end:
                    file.truncate(end)
                while left:
                    left = left[file.write(left) :]
                end = file.tell()
        except OSError as error:
            raise StorageError(f"cannot write {self.path}: {error.strerror or error}") from error
        self._written = (epoch, end)


def with_epoch(line: dict[str, Any]) -> dict[str, Any]:
    """A line, if it says which epoch it belongs to."""
    if type(line.get("epoch")) is not int or line["epoch"] < 1:
        raise ValueError("its epoch is no positive integer")
    return line
