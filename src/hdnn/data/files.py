"""Files and objects that hold tables, read by pandas and numpy into frames."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import itertools
import lzma
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

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
    names: tuple[str, ...]

    @classmethod
    def open(cls, path: Path) -> CsvFile:
        """Find out how a file is written, from its first lines."""
        packed = path.suffix.lower() in COMPRESSED
        with reading(path, "CSV", "unpack it, and give the .csv file" if packed else ""):
            encoding = _encoding(path)
            with _text(path, encoding) as file:
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
        return cls(path, encoding, delimiter, tuple(names))

    def frames(self, rows: int | None = None) -> Iterator[pd.DataFrame]:
        """The cells as texts, ``rows`` rows at a time or all at once; blank lines are skipped.

        The columns are numbered, and the index goes on from frame to frame.
        """
        with reading(self.path, "CSV"), _open(self.path) as file:
            if (megabytes := self.path.stat().st_size / 1e6) > LARGE:
                note(f"reading {self.path.name}, {megabytes:.0f} MB ...")
            try:
                read = pd.read_csv(
                    file,
                    sep=self.delimiter,
                    header=0,
                    names=range(len(self.names)),
                    dtype=object,
                    na_filter=False,
                    skipinitialspace=True,
                    encoding=self.encoding,
                    chunksize=rows,
                )
                for frame in [read] if isinstance(read, pd.DataFrame) else read:
                    # pandas fills short rows, and takes the first field of long ones for an index.
                    if frame.index.dtype.kind != "i" or (frame.iloc[:, -1] == "").any():
                        _ = self.lines
                    yield frame
            except pd.errors.ParserError:
                _ = self.lines  # names all lines that are wrong, where pandas names the first
                raise

    @cached_property
    def lines(self) -> NDArray[np.int64]:
        """The number of the line that every row ends on, for messages.

        Raises:
            FileFormatError: rows have more or fewer fields than there are columns.
        """
        lines: list[int] = []
        wrong: list[str] = []
        with _text(self.path, self.encoding) as file:
            reader = csv.reader(file, delimiter=self.delimiter, skipinitialspace=True)
            rows = (row for row in reader if row not in ([], [""]))
            next(rows)
            for row in rows:
                first = lines[-1] + 1 if lines else 2  # a quote that is not closed goes on and on
                lines.append(reader.line_num)
                if len(row) != len(self.names):
                    long = first + 1 < reader.line_num
                    where = f"lines {first} to" if long else "line"
                    wrong.append(f"{where} {reader.line_num}: {len(row)} fields")
        if wrong:
            raise FileFormatError(
                f"{self.path}, {listed(wrong)}, but the header has {len(self.names)}; close every "
                f"quote, put quotes around text that holds {self.delimiter!r}, and write nothing "
                "between delimiters for a missing value"
            )
        return np.array(lines, np.int64)


def _open(path: Path) -> IO[bytes]:
    file: IO[bytes] = COMPRESSED.get(path.suffix.lower(), open)(path, "rb")
    return file


@contextmanager
def _text(path: Path, encoding: str) -> Iterator[TextIOWrapper]:
    with _open(path) as file, TextIOWrapper(file, encoding=encoding, newline="") as text:
        yield text


def _encoding(path: Path) -> str:
    with _open(path) as file:
        head = file.read(_BLOCK)
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        decoder = codecs.getincrementaldecoder("utf-8")()
        encoding = "utf-8-sig" if head.startswith(codecs.BOM_UTF8) else "utf-8"
        while head:
            if b"\0" in head:
                raise ValueError(
                    "it holds NUL characters, so it is no text; save it as CSV in UTF-8"
                )
            try:
                decoder.decode(head)
            except UnicodeDecodeError:
                encoding = "latin-1"
            head = file.read(_BLOCK)
    return encoding


def _rank(head: Sequence[str], delimiter: str) -> tuple[bool, int]:
    """A delimiter should split header and first row alike, into many fields."""
    widths = [len(row) for row in csv.reader(head[:2], delimiter=delimiter, skipinitialspace=True)]
    return len(widths) == 2 and widths[0] == widths[1] > 1, widths[0]


# --- anything that holds a table ------------------------------------------------------------------


@dataclass(frozen=True)
class RawTable:
    """Named columns as they are in their source, and how to name a place in it.

    Args:
        frame: the columns, of a CSV file as texts; its index counts the rows of the source.
        where: what the source is called in messages.
        csv: the file, if it is one of CSV.
        own_target: the name of what came as y, beside X.
    """

    frame: pd.DataFrame
    where: str
    csv: CsvFile | None = None
    own_target: str | None = None

    @property
    def names(self) -> list[str]:
        """Of the columns, which may repeat."""
        return [str(name) for name in self.frame.columns]

    @property
    def has_decimal_comma(self) -> bool:
        """Whether 1,234 is rather a number with decimals than one of thousands."""
        return self.csv is not None and self.csv.delimiter != ","

    def place(self, row: int) -> str:
        """A row of the frame by its line in the file, or by its number there, from 1."""
        row = int(self.frame.index[row])
        if self.csv is None or row >= len(self.csv.lines):
            return f"row {row + 1}"
        return f"line {self.csv.lines[row]}"


def read_raw(source: Any) -> RawTable:
    """The columns of a path, a data frame, a dict of columns, a 2-D array or a pair (X, y).

    Args:
        source: what to read.

    Raises:
        HdnnError: it is none of these, or cannot be read.
    """
    if isinstance(source, (str, os.PathLike)):
        return next(raw_parts(Path(source)))
    if isinstance(source, pd.DataFrame):
        named = source.set_axis(list(map(str, source.columns)), axis=1)
        return RawTable(named.reset_index(drop=True), "the data frame")
    if isinstance(source, Mapping):
        return _from_columns("the columns", source)
    if isinstance(source, tuple) and len(source) == 2:
        return _from_arrays("the arrays", *source)
    if isinstance(source, np.ndarray):
        return _from_arrays("the array", source)
    raise HdnnError(
        "a table is read from a path, a pandas DataFrame, a 2-D numpy array, a pair (X, y) or a "
        f"dict of columns, got {type(source).__name__}"
    )


def _kind(path: Path) -> str:
    """The ending of a file that says what it is, one for compression apart."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    suffix = suffixes[-2] if suffixes[1:] and suffixes[-1] in COMPRESSED else "".join(suffixes[-1:])
    if suffix not in SUFFIXES:
        raise HdnnError(
            f"{path}: unknown kind of file {suffix!r}; save the table as one of "
            f"{', '.join(SUFFIXES)}, or as CSV compressed ({', '.join(COMPRESSED)})"
        )
    return suffix


def column_names(path: Path) -> list[str]:
    """The names of the columns of a CSV or Parquet file."""
    if _kind(path) == ".npz":
        raise HdnnError(
            f"{path}: CSV and Parquet files are read row by row, not .npz; save it as CSV"
        )
    if _kind(path) not in (".parquet", ".pq"):
        return list(CsvFile.open(path).names)
    parquet = optional("pyarrow.parquet", "data")
    with reading(path, "Parquet"):
        return list(parquet.read_schema(path).names)


def raw_parts(path: Path, rows: int | None = None) -> Iterator[RawTable]:
    """A file, ``rows`` rows at a time or all at once."""
    suffix = _kind(path)
    if suffix == ".npz":
        yield _from_npz(path)
    elif suffix in (".parquet", ".pq"):
        for frame in _parquet_frames(path, rows):
            yield RawTable(frame, str(path))
    else:
        file = CsvFile.open(path)
        for frame in file.frames(rows):
            yield RawTable(frame.set_axis(list(file.names), axis=1), str(path), file)


def _parquet_frames(path: Path, rows: int | None) -> Iterator[pd.DataFrame]:
    parquet = optional("pyarrow.parquet", "data")
    with reading(path, "Parquet"):
        if rows is None:
            frame = pd.read_parquet(path)
            yield frame.reset_index() if frame.index.name else frame.reset_index(drop=True)
            return
        first = 0
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=rows):
                frame = batch.to_pandas(ignore_metadata=True)
                frame.index += first
                first += len(frame)
                yield frame


def _from_npz(path: Path) -> RawTable:
    remedy = "write it with numpy.savez, texts as dtype str and not object"
    with reading(path, "NPZ", remedy), open(path, "rb") as file:
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise ValueError("it is one array, not a collection of named ones")
        with loaded:
            arrays = dict(loaded)
    if "X" not in arrays:
        return _from_columns(str(path), arrays)
    extra = set(arrays) - {"X", "y", "feature_names"}
    if extra:
        raise HdnnError(
            f"{path} holds X and also {listed(sorted(extra))}; it may hold X, y and feature_names, "
            "or only 1-D columns"
        )
    return _from_arrays(str(path), arrays["X"], arrays.get("y"), arrays.get("feature_names"))


def _from_arrays(where: str, X: Any, y: Any = None, feature_names: Any = None) -> RawTable:
    X = np.asarray(X)
    if X.ndim != 2:
        raise HdnnError(f"{where}: X is 2-D, (rows, features), got shape {short(X.shape)}")
    names = [f"x{j}" for j in range(X.shape[1])]
    if feature_names is not None:
        names = [str(name) for name in np.asarray(feature_names).ravel()]
    if len(names) != X.shape[1]:
        raise HdnnError(f"{where}: {X.shape[1]} features, but {len(names)} feature names")
    frame = pd.DataFrame(X, columns=names).infer_objects()
    if y is None:
        return RawTable(frame, where)
    y = np.asarray(y)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.shape != X.shape[:1]:
        raise HdnnError(
            f"{where}: X has {len(X)} rows, so y is ({len(X)},), got shape {short(y.shape)}"
        )
    if "y" in names:
        raise HdnnError(f"{where}: a feature and the target are both named 'y'; rename the feature")
    return RawTable(frame.assign(y=y), where, own_target="y")


def _from_columns(where: str, columns: Mapping[str, Any]) -> RawTable:
    found = {}
    for name, values in columns.items():
        if not isinstance(name, str):
            raise HdnnError(f"{where}: a column's name is a text, got {short(name)}")
        shape = np.shape(values) if isinstance(values, np.ndarray) else ()
        if len(shape) > 1:
            raise HdnnError(
                f"{where}: column {short(name)} has shape {short(shape)}; a column is a sequence "
                "of single values, and a table is one 2-D array named X"
            )
        column = values if isinstance(values, (pd.Series, np.ndarray)) else list(values)
        # numpy and pandas would turn numbers among texts into texts
        mixed = isinstance(column, list) and any(isinstance(cell, str) for cell in column)
        found[name] = pd.Series(column, dtype=object if mixed else None).reset_index(drop=True)
    lengths = {name: len(column) for name, column in found.items()}
    if len(set(lengths.values())) > 1:
        raise HdnnError(
            f"{where}: columns of different lengths: {short(lengths, 300)}; give each a value for "
            "every row, NaN where it is missing"
        )
    return RawTable(pd.DataFrame(found), where)
