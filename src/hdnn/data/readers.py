"""Files and objects that hold tables, read by pandas into data frames."""

from __future__ import annotations

import codecs
import csv
import gzip
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hdnn.errors import FileFormatError, HdnnError, listed, optional, shortened, shown
from hdnn.files import check_file

DELIMITERS = (",", ";", "\t", "|")

BLOCK_ROWS, BLOCK_CELLS = 20_000, 1_000_000
"""At most this many rows and cells are in memory at once where a file is read in blocks."""

EXPANSION, FREE = 100, 2**24
"""A compressed file may hold so many times its size in bytes; and so many bytes in any case."""

_HEADER_LINES = 100  # a header may have line breaks in quotes, and blank lines above it
_CHARACTERS = 2**20  # decoded at once, to find out the encoding

_DECIMAL_COMMA = r"^\s*([+-]?\d*),(\d+(?:[eE][+-]?\d+)?)\s*$"


# --- the boundary to other people's readers -------------------------------------------------------


@contextmanager
def reading(path: str | os.PathLike[str], kind: str, remedy: str = "") -> Iterator[None]:
    """Turn any exception raised in the block into one error that names the file.

    Args:
        path: the file. It must be a regular one, so that no reader waits for a FIFO.
        kind: the expected format, such as "CSV".
        remedy: what the user can do.

    Raises:
        MissingFileError: there is no such file.
        FileFormatError: it is not a regular file, or the block failed.
    """
    check_file(path)
    try:
        yield
    except HdnnError:
        raise
    except Exception as error:  # readers raise anything, up to MemoryError and RecursionError
        reason = shortened(str(getattr(error, "strerror", None) or error), 200).strip()
        tail = f"; {remedy}" if remedy else ""
        raise FileFormatError(
            f"cannot read {path} as {kind}: {reason or type(error).__name__}{tail}"
        ) from error


def check_expansion(path: Path, size: int | None = None) -> None:
    """Raise for a compressed file that is a bomb: a few kilobytes that fill the memory.

    Args:
        path: of the file.
        size: of its content in bytes, if known; None decompresses a .gz, and passes other files.

    Raises:
        FileFormatError: it holds more than `EXPANSION` times its size, and more than `FREE` bytes.
    """
    most = max(FREE, EXPANSION * path.stat().st_size)
    if size is None and path.suffix.lower() == ".gz":
        with gzip.open(path) as file:
            file.seek(most)
            size = most + len(file.read(1))
    if size is not None and size > most:
        raise FileFormatError(
            f"cannot read {path}: it holds more than {most / 2**20:.0f} MB, {EXPANSION} times its "
            "size; if you trust it, decompress it first, or write it as CSV"
        )


# --- CSV ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CsvFile:
    """A CSV file with its detected encoding, delimiter and header.

    Args:
        path: of the file.
        encoding: by its byte order mark, else UTF-8 if all of it is, else Latin-1.
        delimiter: the one of `DELIMITERS` that splits the header into the most fields.
        names: of the columns, stripped; "Unnamed: 0" and so on where the header is empty.
    """

    path: Path
    encoding: str
    delimiter: str
    names: list[str]

    @classmethod
    def open(cls, path: Path) -> CsvFile:
        """Detect encoding, delimiter and header.

        Raises:
            FileFormatError: the file is empty, or its first row is longer than the header.
        """
        with reading(path, "CSV"):
            check_expansion(path)
            encoding = _encoding(path)
            with _open(path, encoding) as file:
                head = list(itertools.islice(file, _HEADER_LINES))
            heads = {d: list(_rows(head, d)) for d in DELIMITERS}
        if not any(heads.values()):
            raise FileFormatError(
                f"{path} is empty; expected a line of column names, then one line for every row"
            )
        delimiter = max(DELIMITERS, key=lambda d: len(heads[d][0][1]))
        (_, header), *rows = heads[delimiter]
        # pandas reports the other rows that are too long, but takes the first one as the width.
        if rows and len(rows[0][1]) > len(header):
            raise FileFormatError(
                f"{path}: expected {len(header)} fields, as in the header, in line {rows[0][0]}, "
                f"saw {len(rows[0][1])}; name every column, or remove the extra delimiters"
            )
        names = [name.strip() or f"Unnamed: {k}" for k, name in enumerate(header)]
        return cls(path, encoding, delimiter, names)

    def blocks(self, rows: int) -> Iterator[pd.DataFrame]:
        """Read the cells as text, at most ``rows`` rows at a time.

        Blank lines are skipped, and a row that is too short ends with empty cells.

        Raises:
            FileFormatError: a row has too many fields, or a quote is not closed.
        """
        # All cells stay text: `read_column` decides on types, and `hdnn predict` repeats the cells.
        remedy = f"close every quote, and put quotes around text that contains {self.delimiter!r}"
        with reading(self.path, "CSV", remedy), _open(self.path, self.encoding) as file:
            frames = pd.read_csv(
                file,
                sep=self.delimiter,
                header=0,
                names=range(len(self.names)),  # as the same name twice is reported later
                index_col=False,
                dtype=object,
                keep_default_na=False,
                skipinitialspace=True,
                chunksize=min(rows, 1 + BLOCK_CELLS // len(self.names)),
            )
            for frame in frames:
                yield frame.set_axis(self.names, axis=1)

    def line(self, row: int) -> int:
        """The line on which a row ends; the file is read again, which only errors do."""
        with _open(self.path, self.encoding) as file:
            lines = (line for line, _ in _rows(file, self.delimiter))
            return next(itertools.islice(lines, row + 1, None))


def _rows(lines: Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, each with the number of its last line; "" is not blank."""
    last = [""]

    def remembered() -> Iterator[str]:
        for last[0] in lines:
            yield last[0]

    reader = csv.reader(remembered(), delimiter=delimiter, skipinitialspace=True)
    return ((reader.line_num, row) for row in reader if row not in ([], [""]) or last[0].strip())


def _open(path: Path, encoding: str | None = None) -> Any:
    """Open a file, decompressed: as text if an encoding is passed, else as bytes."""
    opener: Any = gzip.open if path.suffix.lower() == ".gz" else open
    if encoding is None:
        return opener(path, "rb")
    return opener(path, "rt", encoding=encoding, newline="")


def _encoding(path: Path) -> str:
    with _open(path) as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "utf-16"
    # All of the file is decoded: the first accent may come after the first rows are predicted.
    try:
        with _open(path, "utf-8-sig") as text:
            while text.read(_CHARACTERS):
                pass
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8-sig"


# --- tables as their source has them --------------------------------------------------------------


@dataclass(frozen=True)
class RawTable:
    """Named columns as their source has them.

    Args:
        frame: the columns; the index numbers the rows of the source.
        where: the name of the source in messages.
        is_text: whether all cells are text, so that nothing but their look says what they are.
        decimal_comma: whether a comma in a number is the decimal sign.
        line: the line of a row in a file of text, for messages.
        notes: remarks for people.
    """

    frame: pd.DataFrame
    where: str
    is_text: bool = False
    decimal_comma: bool = False
    line: Callable[[int], int] | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        repeated = [name for name, count in Counter(self.frame.columns).items() if count > 1]
        if repeated:
            names = listed([shown(name) for name in repeated])
            raise HdnnError(f"{self.where}: several columns are named {names}; rename all but one")

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return list(self.frame.columns)

    def column(self, name: str) -> pd.Series:
        """A column to read: with points in its numbers, where the frame has what was written."""
        cells = self.frame[name]
        return cells.replace(_DECIMAL_COMMA, r"\1.\2", regex=True) if self.decimal_comma else cells

    def row_name(self, row: int) -> str:
        """Name a row of the frame by its line in the file, or by its number, from 1."""
        number = int(self.frame.index[row])
        return f"row {number + 1}" if self.line is None else f"line {self.line(number)}"


def _csv_blocks(path: Path, rows: int | None) -> Iterator[RawTable]:
    file = CsvFile.open(path)
    warning = "the file is not UTF-8 and was read as Latin-1; check letters with accents"
    notes = (warning,) if file.encoding == "latin-1" else ()
    frames = file.blocks(rows or BLOCK_ROWS)
    for frame in frames if rows else [pd.concat(frames)]:
        yield RawTable(frame, str(path), True, file.delimiter != ",", file.line, notes)


def _parquet_blocks(path: Path, rows: int | None) -> Iterator[RawTable]:
    parquet = optional("pyarrow.parquet", "data")
    first = 0
    with reading(path, "Parquet"), parquet.ParquetFile(path) as file:
        # At least as many bytes as a CSV file would have, with a digit and a comma in every cell.
        check_expansion(path, 2 * file.metadata.num_rows * file.metadata.num_columns)
        empty = file.schema_arrow.empty_table()  # so that a file without rows has a block
        if rows is not None:
            rows = min(rows, 1 + BLOCK_CELLS // max(1, len(empty.column_names)))
        parts = [file.read()] if rows is None else file.iter_batches(rows)
        for part in itertools.chain(parts, [empty]):
            frame = part.to_pandas(ignore_metadata=True)
            frame.index += first
            first += len(frame)
            yield RawTable(frame, str(path))


READERS: dict[str, Callable[[Path, int | None], Iterator[RawTable]]] = {
    **dict.fromkeys((".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz"), _csv_blocks),
    **dict.fromkeys((".parquet", ".pq"), _parquet_blocks),
}
"""By the end of a file's name, what reads it: a new format is one row here and one function.

A reader takes the path, and the most rows of a block (None: all rows are one block). It yields at
least one block, which may have no rows, for the names of the columns.
"""


def raw_blocks(path: Path, rows: int | None = None) -> Iterator[RawTable]:
    """Read a file, at most ``rows`` rows at a time or at once; the first block may be empty.

    Raises:
        HdnnError: its suffix is unknown, or it cannot be read.
    """
    for suffix, reader in READERS.items():
        if path.name.lower().endswith(suffix):
            return reader(path, rows)
    raise HdnnError(f"{path}: unknown kind of file; save the table as one of {', '.join(READERS)}")


def read_raw(source: Any) -> RawTable:
    """Read a path, a data frame, a dict of columns or a 2-D array.

    Args:
        source: what to read.

    Raises:
        HdnnError: it is none of these, or cannot be read.
    """
    if isinstance(source, (str, os.PathLike)):
        return next(raw_blocks(Path(source)))
    if isinstance(source, np.ndarray) and source.ndim == 2:
        source = {f"x{j}": column for j, column in enumerate(source.T)}
    if not isinstance(source, (pd.DataFrame, Mapping)):
        raise HdnnError(
            "a table is a path, a pandas DataFrame, a 2-D numpy array or a dict of columns, got "
            f"{type(source).__name__}"
        )
    try:
        frame = pd.DataFrame(source).infer_objects()
    except ValueError as error:
        raise HdnnError(f"these columns make no table: {shortened(str(error), 200)}") from error
    frame = frame.set_axis(list(map(str, frame.columns)), axis=1).reset_index(drop=True)
    return RawTable(frame, "the table")
