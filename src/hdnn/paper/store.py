"""The store: one JSON object a line, each training once, however often a sweep is interrupted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, get_args, get_origin, get_type_hints

from hdnn.data.reading import short
from hdnn.errors import HdnnError, StorageError
from hdnn.files import read_json_lines, write_json_lines

Key = tuple[Any, ...]
LARGEST = 1e100
"""Numbers of records are smaller, so that no mean of them overflows."""
LOCK = ".lock"
"""The file that a process holds locked while it adds records; it may stay there."""


class Keyed(Protocol):
    """A dataclass of texts, numbers and lists of numbers, with what tells it from others."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def key(self) -> Key:
        """What makes it the record of one training."""


R = TypeVar("R", bound=Keyed)
D = TypeVar("D")


@dataclass(frozen=True)
class Record:
    """One training of a classifier: accuracies are fractions, seconds are wall time a network."""

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
        return (self.data, self.architecture, self.layers, self.protocol, self.split, self.seed)


class Store(Generic[R]):
    """The file ``records.jsonl`` of a folder; several processes of a machine may write to it.

    Args:
        folder: made if it is not there.
        kind: of the records.
    """

    def __init__(self, folder: str | os.PathLike[str], kind: type[R]) -> None:
        self.folder, self.parse = Path(folder), parser(kind)
        self.path = self.folder / "records.jsonl"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HdnnError(f"cannot make {folder}: {error.strerror or error}") from error

    def read(self) -> dict[Key, R]:
        """All records by key; lines that are none are reported by a warning and left out."""
        return {record.key: record for record in read_json_lines(self.path, self.parse).objects}

    def add(self, records: Iterable[R]) -> None:
        """Add records; the file is replaced whole, so a reader never sees a part of one.

        A record that is there stays. Lines that are no records go to ``records.jsonl.damaged``.
        """
        with self.locked():
            known = read_json_lines(self.path, self.parse)
            by_key = {record.key: record for record in (*records, *known.objects)}
            ordered = sorted(by_key.values(), key=lambda record: record.key)
            write_json_lines(self.path, [asdict(r) for r in ordered], known.damaged)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Wait for other processes that add to the folder; a killed process leaves no lock."""
        from filelock import FileLock

        try:
            lock = FileLock(self.folder / LOCK)
            lock.acquire()
        except OSError as error:
            raise StorageError(
                f"cannot write to {self.folder}: {error.strerror or error}"
            ) from error
        try:
            yield
        finally:
            lock.release()


def parser(kind: type[D]) -> Callable[[dict[str, Any]], D]:
    """What makes a dataclass of texts, numbers and lists of numbers from what JSON gave.

    Args:
        kind: the dataclass.

    Returns:
        A function that raises a `TypeError` or a `ValueError` where a field is missing, unknown or
        of another type.
    """
    types = get_type_hints(kind)

    def parse(line: dict[str, Any]) -> D:
        for name, value in line.items():
            if name in types and not is_of_type(value, types[name]):
                raise TypeError(f"{name} is {short(value)}")
        return kind(**line)

    return parse


def is_of_type(value: Any, kind: Any) -> bool:
    """Whether a value of JSON is of a type: an integer of 64 bits, a number that is no NaN, ..."""
    if get_origin(kind) is list:
        return isinstance(value, list) and all(
            is_of_type(part, get_args(kind)[0]) for part in value
        )
    if kind is float:
        return type(value) in (int, float) and abs(value) < LARGEST
    return type(value) is kind and (kind is not int or abs(value) < 2**63)
