"""Records: one JSON object a line, each training once, however often a sweep is interrupted."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from hdnn.errors import FileFormatError, HdnnError
from hdnn.files import atomic

Key = tuple[str, str, int, str, str, int]


@dataclass(frozen=True)
class Record:
    """One training: accuracies are fractions, seconds are wall time a network."""

    data: str
    architecture: str
    layers: int
    protocol: str
    split: str
    seed: int
    T: float
    train_accuracy: float
    test_accuracy: float
    seconds: float
    version: str

    @property
    def key(self) -> Key:
        """What makes it the record of one training."""
        return (
            self.data, self.architecture, self.layers, self.protocol, self.split, self.seed,
        )  # fmt: skip


class Store:
    """The file ``records.jsonl`` of a folder; several processes of a machine may write to it.

    Args:
        folder: made if it is not there.
        kind: of the records.
    """

    def __init__(self, folder: str | os.PathLike[str], kind: type[Record] = Record) -> None:
        self.folder, self.kind = Path(folder), kind
        self.path = self.folder / "records.jsonl"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HdnnError(f"cannot make {folder}: {error.strerror or error}") from error

    def read(self) -> dict[Key, Record]:
        """All records by key; a last line that was cut off does not count."""
        found: dict[Key, Record] = {}
        if not self.path.exists():
            return found
        lines = self.path.read_text().splitlines()
        for number, line in enumerate(lines, 1):
            try:
                record = self.kind(**json.loads(line))
            except (ValueError, TypeError) as error:
                if number == len(lines):
                    break
                raise FileFormatError(
                    f"{self.path}, line {number}, is no record: {error}"
                ) from error
            found[record.key] = record
        return found

    def add(self, records: Iterable[Record]) -> None:
        """Add records; the file is replaced whole, so a reader never sees a part of one."""
        with self._alone():
            found = self.read()
            for record in records:
                found.setdefault(record.key, record)
            ordered = sorted(found.values(), key=lambda record: record.key)
            with atomic(self.path) as temporary:
                temporary.write_text("".join(json.dumps(asdict(r)) + "\n" for r in ordered))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait for other processes that add records; a killed process leaves no lock."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
