"""Records of trainings: one JSON object a line, each training once.

pandas.read_json("records.jsonl", lines=True)
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from hdnn.errors import FileFormatError, HdnnError, StorageError, shown
from hdnn.files import read_json_lines, write_json_lines

Record = dict[str, Any]
Key = tuple[Any, ...]


class Records:
    """The file ``records.jsonl`` of a folder; several processes may add to it.

    Args:
        folder: made if it does not exist.
        key: fields that identify a training, without the seed.

    Raises:
        HdnnError: the folder cannot be made.

    >>> import tempfile
    >>> store = Records(tempfile.mkdtemp(), ("layers",))
    >>> store.add([{"layers": 4, "seed": 0, "test_accuracy": 0.97}])
    >>> list(store.read())
    [(4, 0)]
    """

    def __init__(self, folder: str | os.PathLike[str], key: Sequence[str]) -> None:
        self.folder, self.key = Path(folder), (*key, "seed")
        self.path = self.folder / "records.jsonl"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HdnnError(f"cannot make {folder}: {error.strerror or error}") from error

    def read(self) -> dict[Key, Record]:
        """All records by key, in the order of the file.

        Raises:
            FileFormatError: a line is not a record.
        """
        return dict(read_json_lines(self.path, self._with_key))

    def add(self, records: Iterable[Record]) -> None:
        """Add records; where the key of one is known, the known record stays.

        The file is replaced as a whole, so that a reader or a killed process never leaves a part.

        Args:
            records: of trainings.

        Raises:
            StorageError: the folder cannot be written to.
        """
        try:
            # The operating system drops the lock of a process that dies; the file may stay.
            with FileLock(self.folder / ".lock"):
                by_key = dict(map(self._with_key, records)) | self.read()
                order = sorted(by_key, key=_order)
                write_json_lines(self.path, [by_key[key] for key in order])
        except OSError as error:
            raise StorageError(
                f"cannot write to {self.folder}: {error.strerror or error}"
            ) from error

    def _with_key(self, record: Record) -> tuple[Key, Record]:
        key = tuple(record[name] for name in self.key)
        if not all(isinstance(value, str | int | float) for value in key):
            raise FileFormatError(
                f"{', '.join(self.key)} of a record are texts and numbers, got {shown(key)}"
            )
        return key, record


def _order(key: Key) -> list[tuple[bool, Any]]:
    """Numbers before texts, as Python does not compare them."""
    return [(isinstance(value, str), value) for value in key]
