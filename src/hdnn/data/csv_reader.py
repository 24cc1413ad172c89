"""CSV files: opened, checked and read block by block, in constant memory."""

from __future__ import annotations

import csv
import io
import itertools
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO

import numpy as np
from numpy.typing import NDArray

from hdnn.data.cells import number, numbers
from hdnn.data.names import find, refuse_many
from hdnn.data.reading import reading
from hdnn.errors import FileFormatError, HdnnError

DELIMITERS = (",", ";", "\t")
SUFFIXES = (".csv", ".tsv", ".txt")
BLOCK, BLOCK_CELLS = 10_000, 250_000
"""Rows and cells that are in memory at once: a cell takes 60 bytes or more as a text."""

Rows = list[list[str]]
Block = tuple[Sequence[int], Rows]
"""Line numbers in the file, and the rows that end there, as texts."""


@dataclass(frozen=True)
class CsvFile:
    """A CSV file: UTF-8, a header, fields between commas, semicolons or tabs, quotes as needed.

    Args:
        path: the file.
        delimiter: what separates its fields.
        header: the first row, as it is in the file.
        file: the same, if it is open already; it is read instead of opening the path again.
    """

    path: Path
    delimiter: str
    header: tuple[str, ...]
    file: BinaryIO | None = None

    @classmethod
    def open(cls, path: str | os.PathLike[str], file: BinaryIO | None = None) -> CsvFile:
        """Find the delimiter and read the header; a file that is opened here is closed again."""
        path = Path(path)
        delimiter = _sniff(path, file)
        with closing(_records(path, delimiter, file)) as records:
            header = next(records, None)
        if header is None:
            raise FileFormatError(
                f"{path} is empty; expected a line of column names, then one line for every row"
            )
        refuse_many(str(path), len(header[1]))
        return cls(path, delimiter, tuple(header[1]), file)

    @property
    def names(self) -> tuple[str, ...]:
        """The column names: the header without spaces around them."""
        return tuple(name.strip() for name in self.header)

    def blocks(self, size: int = BLOCK) -> Iterator[Block]:
        """The rows below the header, at most ``size`` at a time; blank lines are skipped."""
        size = max(1, min(size, BLOCK_CELLS // len(self.header)))
        with closing(_records(self.path, self.delimiter, self.file)) as records:
            next(records)
            rows = map(self._checked, records)
            while block := list(itertools.islice(rows, size)):
                yield [line for line, _ in block], [row for _, row in block]

    def _checked(self, record: tuple[int, list[str]]) -> tuple[int, list[str]]:
        line, row = record
        if len(row) != len(self.header):
            raise FileFormatError(
                f"{self.path}, line {line}: {len(row)} fields, but the header has "
                f"{len(self.header)}; put quotes around text that holds {self.delimiter!r}, and "
                "write nothing between delimiters for a missing value"
            )
        return record

    def looks_headless(self) -> bool:
        """Whether the first line holds numbers only; 0, 1, 2, ..., as pandas numbers, are names."""
        if self.names == tuple(map(str, range(len(self.names)))):
            return False
        try:
            return not all(np.isnan([number(name) for name in self.names]))
        except ValueError:
            return False


@dataclass(frozen=True)
class NamedRows:
    """The rows of a CSV file with the columns of a model, block by block; see `iter_rows`.

    Args:
        file: the file, with its raw `header` and its `delimiter`.
        feature_names: the columns of X.
        positions: where they are in the file.
        chunk: rows in a block.
    """

    file: CsvFile
    feature_names: tuple[str, ...]
    positions: tuple[int, ...]
    chunk: int = BLOCK

    @property
    def header(self) -> tuple[str, ...]:
        """The first row of the file."""
        return self.file.header

    def __iter__(self) -> Iterator[tuple[Rows, NDArray[np.float64]]]:
        for lines, rows in self.file.blocks(self.chunk):
            yield rows, features(rows, lines, self.feature_names, self.positions)


def iter_rows(
    path: str | os.PathLike[str], feature_names: Sequence[str], chunk: int = BLOCK
) -> NamedRows:
    r"""Read a CSV file for prediction: its raw rows, and X, block by block in constant memory.

    Columns are found by name, in any order; others are ignored. Missing values are NaN. The header
    is checked at once, the rows as they are read; iterating again reads the file again.

    Args:
        path: a CSV file with a header.
        feature_names: the columns of X, in this order.
        chunk: rows in a block.

    Returns:
        Something to iterate over, which gives ``(rows, X)``: up to ``chunk`` rows as lists of
        texts, as they are in the file, and X ``(rows, len(feature_names))``. Its ``header`` is the
        file's first row.

    >>> path = getfixture("tmp_path") / "new.csv"
    >>> _ = path.write_text("id,b,a\nfirst,2,1\nsecond,,3\n")
    >>> for rows, X in iter_rows(path, ["a", "b"]):
    ...     print(rows[1], X.tolist())
    ['second', '', '3'] [[1.0, 2.0], [3.0, nan]]
    """
    if chunk < 1:
        raise HdnnError(f"chunk is a positive number of rows, got {chunk}")
    suffix = Path(path).suffix.lower()
    if suffix in (".parquet", ".pq", ".npz"):
        raise HdnnError(f"{path}: only CSV files are read row by row, not {suffix}; save it as CSV")
    file = CsvFile.open(path)
    positions = tuple(find(file.names, name, str(file.path)) for name in feature_names)
    return NamedRows(file, tuple(feature_names), positions, chunk)


def features(
    rows: Rows, lines: Sequence[int], names: Sequence[str], positions: Sequence[int]
) -> NDArray[np.float64]:
    """``(rows, len(names))``: the columns at these positions as numbers."""
    X = np.empty((len(rows), len(names)))
    for j, (name, position) in enumerate(zip(names, positions, strict=True)):
        X[:, j] = numbers(name, [row[position] for row in rows], lines, "line")
    return X


def _sniff(path: Path, file: BinaryIO | None) -> str:
    """The delimiter that splits header and first row alike, into the most fields."""

    def rank(delimiter: str) -> tuple[bool, int]:
        try:
            with closing(_records(path, delimiter, file)) as records:
                widths = [len(row) for _, row in itertools.islice(records, 2)]
        except FileFormatError:
            return False, 0
        return len(widths) == 2 and widths[0] == widths[1] > 1, widths[0] if widths else 0

    return max(DELIMITERS, key=rank)


@contextmanager
def _text(path: Path, file: BinaryIO | None) -> Generator[TextIO, None, None]:
    """The text of a file from its start; one that was open before stays open."""
    if file is None:
        with open(path, encoding="utf-8-sig", newline="") as text:
            yield text
        return
    file.seek(0)
    wrapper = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    try:
        yield wrapper
    finally:
        wrapper.detach()


def _records(
    path: Path, delimiter: str, file: BinaryIO | None
) -> Generator[tuple[int, list[str]], None, None]:
    """Every row that is not blank, with the number of the line it ends on."""
    with reading(path, "CSV"), _text(path, file) as text:
        reader = csv.reader(text, delimiter=delimiter, strict=True, skipinitialspace=True)
        try:
            for row in reader:
                if row:
                    yield reader.line_num, row
        except csv.Error as error:
            raise FileFormatError(
                f"{path}, line {reader.line_num}: {error}; check the quotes of this line"
            ) from error
        except UnicodeDecodeError as error:
            raise FileFormatError(
                f"{path}, line {reader.line_num + 1} or below, is not UTF-8 text ({error.reason}); "
                "save it again with the encoding UTF-8"
            ) from error
