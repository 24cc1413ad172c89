"""Files and objects that hold tables, read by pandas and numpy into frames."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import itertools
import lzma
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hdnn.errors import FileFormatError, HdnnError, optional
from hdnn.progress import note

DELIMITERS = (",", ";", "\t", "|")
SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", ".pq", ".npz")
COMPRESSED: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
"""Endings after those of CSV files, and what unpacks them."""

LARGE = 20
"""Megabytes from which on reading a file is announced."""

BLOCK_ROWS, BLOCK_CELLS = 20_000, 1_000_000
"""Most rows and cells of a file in memory at once, where it is read in blocks."""

_HEAD_LINES, _BLOCK, _MOST_LISTED = 20, 2**20, 10


# --- the boundary to other people's readers -------------------------------------------------------


@contextmanager
def reading(path: str | os.PathLike[str], kind: str, remedy: str = "") -> Iterator[None]:
    """Turn whatever a reader raises in the block into one error that names the file.

    Args:
        path: the file, which must be a regular one, so that no reader waits for a FIFO.
        kind: what it should be: "CSV", "NPZ".
        remedy: what to do about it.

    Raises:
        HdnnError: there is no such regular file.
        FileFormatError: the block failed.
    """
    path = Path(path)
    try:
        if not path.is_file():
            reason = "not a regular file" if path.exists() else "No such file or directory"
            raise HdnnError(f"cannot read {path}: {reason}; check the path")
        yield
    except HdnnError:
        raise
    except Exception as error:  # readers raise anything, up to MemoryError and RecursionError
        said = cut(" ".join(str(getattr(error, "strerror", None) or error).split()), 200)
        named = said if isinstance(error, (OSError, ValueError)) and said else ""
        reason = named or f"{type(error).__name__} {said}".strip()
        tail = f"; {remedy}" if remedy else ""
        raise FileFormatError(f"cannot read {path} as {kind}: {reason}{tail}") from error


def cut(text: str, most: int = 60) -> str:
    """A text of limited length.

    >>> cut("abcdefgh", 6)
    'abc...'
    """
    return text if len(text) <= most else f"{text[: most - 3]}..."


def short(value: Any, most: int = 60) -> str:
    """The representation of a value, of limited length.

    >>> short("a" * 100, 10)
    "'aaaaaa..."
    """
    try:
        return cut(repr(value[:most] if isinstance(value, (str, bytes)) else value), most)
    except ValueError:  # an integer of thousands of digits has none
        return f"a very long {type(value).__name__}"


def listed(items: Sequence[str], most: int = _MOST_LISTED) -> str:
    """The first of some texts, and how many more there are.

    >>> listed(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(map(cut, items[:most])) + more


# --- CSV ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CsvFile:
    """A CSV file whose encoding, delimiter and header are known.

    Args:
        path: of the file.
        encoding: by its byte order mark, else UTF-8 if all of it is, else Latin-1.
        delimiter: one of `DELIMITERS`.
        names: of the columns, without spaces around them; "" for one that has none.
    """

    path: Path
    encoding: str
    delimiter: str
    names: list[str]

    @classmethod
    def open(cls, path: Path) -> CsvFile:
        """Find out how a file is written, from its first lines."""
        with reading(path, "CSV"):
            encoding = _encoding(path)
            with _open(path, encoding) as file:
                head = list(itertools.islice(filter(str.strip, file), _HEAD_LINES))
            if not head:
                raise FileFormatError(
                    f"{path} is empty; expected a line of column names, then one line for every row"
                )
            delimiter = max(DELIMITERS, key=lambda d: _rank(head, d))
            header, *rows = csv.reader(head, delimiter=delimiter, skipinitialspace=True)
        names = [name.strip() for name in header]
        if len(rows) > 1 and all(len(row) == len(names) + 1 for row in rows):
            # R does not name the row names, and others end every line but the header by a comma.
            names.insert(len(names) if all(row[-1] == "" for row in rows) else 0, "")
        return cls(path, encoding, delimiter, names)

    def frames(self, rows: int) -> Iterator[pd.DataFrame]:
        """The cells as texts, at most ``rows`` rows at a time; blank lines are skipped.

        The index is the number of the line that a row ends on.

        Raises:
            FileFormatError: rows have more or fewer fields than there are columns.
        """
        width = len(self.names)
        size = min(rows, 1 + BLOCK_CELLS // width)
        with reading(self.path, "CSV"), _open(self.path, self.encoding) as file:
            if (megabytes := self.path.stat().st_size / 1e6) > LARGE:
                note(f"reading {self.path.name}, {megabytes:.0f} MB ...")
            reader = csv.reader(file, delimiter=self.delimiter, skipinitialspace=True)
            numbered = ((reader.line_num, row) for row in reader if row not in ([], [""]))
            next(numbered)
            more = True
            while more:
                block = list(itertools.islice(numbered, size))
                more = len(block) == size
                lines, cells = [line for line, _ in block], [row for _, row in block]
                if {*map(len, cells)} - {width}:
                    raise self._wrong_fields(itertools.chain(block, numbered))
                yield pd.DataFrame(cells, lines, self.names, dtype=object)

    def _wrong_fields(self, numbered: Iterable[tuple[int, list[str]]]) -> FileFormatError:
        width, wrong, last = len(self.names), [], None
        for line, row in numbered:
            if len(row) != width:
                # A quote that is not closed swallows lines.
                long = last is not None and last + 2 < line
                where = (
                    f"lines {last + 1} to {line}" if long and last is not None else f"line {line}"
                )
                wrong.append(f"{where}: {len(row)} fields")
            last = line
        return FileFormatError(
            f"{self.path}, {listed(wrong)}, but the header has {width}; close every quote, put "
            f"quotes around text that holds {self.delimiter!r}, and write nothing between "
            "delimiters for a missing value"
        )


def _open(path: Path, encoding: str | None = None) -> Any:
    """A file, unpacked: as text where an encoding is given, else as bytes."""
    opener = COMPRESSED.get(path.suffix.lower(), open)
    if encoding is None:
        return opener(path, "rb")
    return opener(path, "rt", encoding=encoding, newline="")


def _encoding(path: Path) -> str:
    with _open(path) as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "utf-16"
    try:
        with _open(path, "utf-8-sig") as text:
            while block := text.read(_BLOCK):
                if "\0" in block:
                    raise ValueError("it holds NUL characters, so it is no text; save it in UTF-8")
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8-sig"


def _rank(head: Sequence[str], delimiter: str) -> tuple[bool, int]:
    """A delimiter should split header and first row alike, into many fields."""
    widths = [len(row) for row in csv.reader(head[:2], delimiter=delimiter, skipinitialspace=True)]
    return len(widths) == 2 and widths[0] == widths[1] > 1, widths[0]


# --- anything that holds a table ------------------------------------------------------------------


@dataclass(frozen=True)
class RawTable:
    """Named columns as they are in their source, and how to name a place in it.

    Args:
        frame: the columns, of a CSV file as texts. Its index is the lines of that, or counts rows.
        where: what the source is called in messages.
        csv: the file, if it is one of CSV.
    """

    frame: pd.DataFrame
    where: str
    csv: CsvFile | None = None

    @property
    def names(self) -> list[str]:
        """Of the columns, which may repeat."""
        return list(self.frame.columns)

    @property
    def has_decimal_comma(self) -> bool:
        """Whether 1,234 is rather a number with decimals than one of thousands."""
        return self.csv is not None and self.csv.delimiter != ","

    def place(self, row: int) -> str:
        """A row of the frame by its line in the file, or by its number there, from 1."""
        number = int(self.frame.index[row])
        return f"row {number + 1}" if self.csv is None else f"line {number}"


def read_raw(source: Any) -> RawTable:
    """The columns of a path, a data frame, a dict of columns or a 2-D array.

    Args:
        source: what to read.

    Raises:
        HdnnError: it is none of these, or cannot be read.
    """
    if isinstance(source, (str, os.PathLike)):
        return next(raw_parts(Path(source)))
    return RawTable(_frame(source, "the table"), "the table")


def raw_parts(path: Path, rows: int | None = None) -> Iterator[RawTable]:
    """A file, about ``rows`` rows at a time or all at once; one part at least, which may be empty.

    Raises:
        HdnnError: its ending is unknown, or it cannot be read.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = len(suffixes) > 1 and suffixes[-1] in COMPRESSED
    suffix = suffixes[-2] if packed else "".join(suffixes[-1:])
    if suffix not in SUFFIXES:
        raise HdnnError(
            f"{path}: unknown kind of file {suffix!r}; save the table as one of "
            f"{', '.join(SUFFIXES)}, or as CSV compressed ({', '.join(COMPRESSED)})"
        )
    if suffix == ".npz":
        remedy = "write it with numpy.savez, texts as dtype str and not object"
        with reading(path, "NPZ", remedy), np.load(path, allow_pickle=False) as arrays:
            yield RawTable(_frame(dict(arrays), str(path)), str(path))
    elif suffix in (".parquet", ".pq"):
        for frame in _parquet_frames(path, rows):
            yield RawTable(frame, str(path))
    else:
        csv_file = CsvFile.open(path)
        frames = csv_file.frames(rows or BLOCK_ROWS)
        # Even a whole file is read in blocks: millions of small lists would slow Python down.
        for frame in frames if rows else [pd.concat(frames)]:
            yield RawTable(frame, str(path), csv_file)


def _parquet_frames(path: Path, rows: int | None) -> Iterator[pd.DataFrame]:
    parquet = optional("pyarrow.parquet", "data")
    first = 0
    with reading(path, "Parquet"), parquet.ParquetFile(path) as file:
        empty = file.schema_arrow.empty_table()
        if rows is not None:
            rows = min(rows, 1 + BLOCK_CELLS // max(1, len(empty.column_names)))
        parts = [file.read()] if rows is None else file.iter_batches(rows)
        for part in itertools.chain(parts, [empty]):
            frame = part.to_pandas(ignore_metadata=True)
            frame.index += first
            first += len(frame)
            # where pandas puts an index without a name
            yield frame.drop(columns=[n for n in frame if n.startswith("__index_level_")])


def _frame(source: Any, where: str) -> pd.DataFrame:
    """A data frame with the rows numbered; of a 2-D array, also one named X, columns x0, x1, ..."""
    if isinstance(source, np.ndarray):
        source = {"X": source}
    if not isinstance(source, (pd.DataFrame, Mapping)):
        raise HdnnError(
            "a table is read from a path, a pandas DataFrame, a 2-D numpy array or a dict of "
            f"columns, got {type(source).__name__}"
        )
    try:
        if isinstance(source, Mapping):
            columns = dict(source)
            if isinstance(columns.get("X"), np.ndarray):
                X = columns.pop("X")
                columns = {**{f"x{j}": X[:, j] for j in range(X.shape[1])}, **columns}
            source = pd.DataFrame(columns).infer_objects()
        return source.set_axis(list(map(str, source.columns)), axis=1).reset_index(drop=True)
    except (ValueError, TypeError, IndexError) as error:
        raise HdnnError(
            f"{where} cannot be made of these: {cut(str(error), 200)}; X is 2-D, (rows, features), "
            "and every other column has one value for each row"
        ) from error
