"""Where tables come from: CSV, Parquet, NPZ, arrays and columns, all read alike."""

from __future__ import annotations

import importlib
import os
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from hdnn.data.cells import is_missing, numbers, refuse_infinite
from hdnn.data.csv_reader import SUFFIXES, CsvFile, features
from hdnn.data.labels import typed
from hdnn.data.names import refuse_duplicates, refuse_many
from hdnn.data.npz import read_npz
from hdnn.data.reading import short
from hdnn.errors import HdnnError

KNOWN_SUFFIXES = (*SUFFIXES, ".parquet", ".pq", ".npz")


@dataclass(frozen=True)
class TableRows:
    """What was read of a table.

    Args:
        X: ``(rows, p)``, NaN where missing.
        target: the values of the target, None where missing; None without a target.
        rows: the number of every row, for messages.
        unit: what these numbers count: "line" of a file or "row", from 1.
    """

    X: NDArray[np.float64]
    target: list[Any] | None
    rows: Sequence[int]
    unit: str


class Source(Protocol):
    """Named columns, read when it is known which are wanted."""

    where: str
    names: tuple[str, ...]
    own_target: str | None  # what came as y, beside X

    def take(self, feature_names: Sequence[str], target: str | None) -> TableRows:
        """Read these columns, which are there, each once."""


class CsvSource:
    """A CSV file, read in blocks, so that its texts are never all in memory."""

    own_target: str | None = None

    def __init__(self, path: Path, file: BinaryIO | None = None) -> None:
        self.file = CsvFile.open(path, file)
        self.where, self.names = str(path), self.file.names

    def take(self, feature_names: Sequence[str], target: str | None) -> TableRows:
        """Read these columns."""
        position = {name: j for j, name in enumerate(self.names)}
        positions = [position[name] for name in feature_names]
        parts = [np.empty((0, len(feature_names)))]
        cells: list[str] = []
        all_lines = array("q")  # a list of integers takes 36 bytes a row
        for lines, rows in self.file.blocks():
            parts.append(features(rows, lines, feature_names, positions))
            all_lines.extend(lines)
            if target is not None:
                cells.extend(row[position[target]] for row in rows)
        values = None if target is None else _typed_with_gaps(cells)
        return TableRows(np.concatenate(parts), values, all_lines, "line")


class ColumnSource:
    """Columns in memory, each a sequence of the same length."""

    def __init__(self, where: str, columns: Mapping[str, Any], own_target: str | None = None):
        self.where, self.own_target = where, own_target
        self.columns = {name: _column(where, name, values) for name, values in columns.items()}
        self.names = tuple(self.columns)
        lengths = {}
        for name, column in self.columns.items():
            if not isinstance(name, str):
                raise HdnnError(f"{where}: a column's name is a text, got {short(name)}")
            if column.ndim != 1:
                raise HdnnError(
                    f"{where}: column {short(name)} has shape {short(column.shape)}; a column is a "
                    "sequence of single values, and a table is one 2-D array named X"
                )
            lengths[name] = len(column)
        if len(set(lengths.values())) > 1:
            raise HdnnError(f"{where}: columns of different lengths: {short(lengths, 300)}")

    def take(self, feature_names: Sequence[str], target: str | None) -> TableRows:
        """Read these columns."""
        size = len(next(iter(self.columns.values()), ()))
        rows = range(1, size + 1)
        X = np.empty((size, len(feature_names)))
        for j, name in enumerate(feature_names):
            X[:, j] = as_numbers(name, self.columns[name], rows)
        values = None
        if target is not None:
            column = self.columns[target].tolist()
            values = [None if is_missing(value) else value for value in column]
        return TableRows(X, values, rows, "row")


def open_source(source: Any, file: BinaryIO | None = None) -> Source:
    """The source of a table: a path, named columns, a 2-D array, or a pair (X, y)."""
    if isinstance(source, (str, os.PathLike)):
        return _from_path(Path(source), file)
    if isinstance(source, Mapping):
        return ColumnSource("the columns", source)
    if isinstance(source, tuple) and len(source) == 2:
        return _from_arrays("the arrays", *source)
    if isinstance(source, np.ndarray):
        return _from_arrays("the array", source)
    raise HdnnError(
        f"a table is read from a path, a 2-D numpy array, a pair (X, y) or a dict of columns, got "
        f"{type(source).__name__}; turn a pandas DataFrame into columns by dict(frame)"
    )


def optional(module: str, extra: str = "data") -> Any:
    """An optional module, or an error that names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = {"sklearn": "scikit-learn", "PIL": "pillow"}.get(
            module.partition(".")[0], module.partition(".")[0]
        )
        raise HdnnError(f"this needs {package}: pip install 'hdnn[{extra}]'") from error


def _from_path(path: Path, file: BinaryIO | None) -> Source:
    suffix = path.suffix.lower()
    if suffix not in KNOWN_SUFFIXES:
        raise HdnnError(
            f"{path}: unknown kind of file {suffix!r}; known are {', '.join(KNOWN_SUFFIXES)}"
        )
    if suffix in SUFFIXES:
        return CsvSource(path, file)
    if suffix == ".npz":
        return _from_npz(path)
    from hdnn.data.parquet import ParquetSource  # which is made of what is defined here

    return ParquetSource(path)


def _from_npz(path: Path) -> Source:
    arrays = read_npz(path)
    if "X" not in arrays:
        return ColumnSource(str(path), arrays)
    extra = set(arrays) - {"X", "y", "feature_names"}
    if extra:
        raise HdnnError(
            f"{path} holds X and also {short(', '.join(sorted(extra)))[1:-1]}; it may hold X, y "
            "and feature_names, or only 1-D columns"
        )
    return _from_arrays(str(path), arrays["X"], arrays.get("y"), arrays.get("feature_names"))


def _from_arrays(where: str, X: Any, y: Any = None, feature_names: Any = None) -> Source:
    X = np.asarray(X)
    if X.ndim != 2:
        raise HdnnError(f"{where}: X is 2-D, (rows, features), got shape {short(X.shape)}")
    refuse_many(where, X.shape[1])
    names = [f"x{j}" for j in range(X.shape[1])]
    if feature_names is not None:
        names = [str(name) for name in np.asarray(feature_names).ravel()]
    if len(names) != X.shape[1]:
        raise HdnnError(f"{where}: {X.shape[1]} features, but {len(names)} feature names")
    refuse_duplicates(where, names)
    columns = {name: X[:, j] for j, name in enumerate(names)}
    if y is None:
        return ColumnSource(where, columns)
    y = np.asarray(y)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.shape != X.shape[:1]:
        raise HdnnError(
            f"{where}: X has {len(X)} rows, so y is ({len(X)},), got shape {short(y.shape)}"
        )
    if "y" in columns:
        raise HdnnError(f"{where}: a feature and the target are both named 'y'; rename the feature")
    return ColumnSource(where, {**columns, "y": y}, own_target="y")


def as_numbers(name: str, column: NDArray[Any], rows: Sequence[int]) -> NDArray[np.float64]:
    """A column as float64, NaN where missing; or an error that names the first bad row."""
    if column.dtype.kind not in "biuf":
        return numbers(name, column.tolist(), rows, "row")
    converted = column.astype(np.float64)
    refuse_infinite(name, converted, rows, "row")
    return converted


def _typed_with_gaps(cells: list[str]) -> list[Any]:
    gaps = [is_missing(cell) for cell in cells]
    known = iter(typed([cell for cell, gap in zip(cells, gaps, strict=True) if not gap]))
    values = [None if gap else next(known) for gap in gaps]
    return [None if is_missing(value) else value for value in values]


def _column(where: str, name: str, values: Any) -> NDArray[Any]:
    try:
        column = np.asarray(values)
    except ValueError:
        raise HdnnError(f"{where}: column {name!r} is not a sequence of single values") from None
    if column.dtype.kind in "mM":  # numpy gives dates as integers, which would pass for numbers
        return column.astype(str)
    if column.dtype.kind == "U" and isinstance(values, (list, tuple)):
        return as_objects(list(values))  # else numpy would turn the numbers among texts into texts
    return column


def as_objects(values: list[Any]) -> NDArray[Any]:
    """A column of Python objects, whatever they are."""
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column
