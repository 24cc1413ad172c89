"""Where tables come from: CSV, Parquet, NPZ, data frames, arrays and columns, all read alike.

A new file format is a reader that gives a `Source`, and a suffix in `_from_path`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import pandas as pd

from hdnn.data.columns import Block, objects, plain
from hdnn.data.csv_reader import BLOCK, SUFFIXES, CsvSource
from hdnn.data.npz import read_npz
from hdnn.data.reading import refuse_duplicates, refuse_many, short
from hdnn.errors import HdnnError

KNOWN_SUFFIXES = (*SUFFIXES, ".parquet", ".pq", ".npz")


class Source(Protocol):
    """Named columns, read block by block when it is known which are wanted."""

    where: str
    unit: str  # what the numbers of its rows count: "line" or "row", from 1
    own_target: str | None  # what came as y, beside X

    @property
    def names(self) -> tuple[str, ...]:
        """Of all columns."""

    @property
    def notes(self) -> Sequence[str]:
        """Remarks on the source as a whole."""

    def blocks(
        self, columns: Sequence[str], texts: Sequence[str] = (), size: int = BLOCK
    ) -> Iterator[Block]:
        """Read these columns, which are there; of ``texts`` the cells as they are."""

    def close(self) -> None:
        """Close what is open."""


class ColumnSource:
    """Columns in memory, each a sequence of the same length."""

    unit = "row"
    notes: tuple[str, ...] = ()

    def __init__(self, where: str, columns: Mapping[str, Any], own_target: str | None = None):
        self.where, self.own_target = where, own_target
        self.columns: dict[str, Any] = {}
        for name, values in columns.items():
            if not isinstance(name, str):
                raise HdnnError(f"{where}: a column's name is a text, got {short(name)}")
            self.columns[name] = _column(where, name, values)
        self.names = tuple(self.columns)
        self.categorical = [
            name
            for name, column in self.columns.items()
            if isinstance(column.dtype, pd.CategoricalDtype)
        ]
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise HdnnError(f"{where}: columns of different lengths: {short(lengths, 300)}")

    def blocks(
        self, columns: Sequence[str], texts: Sequence[str] = (), size: int = BLOCK
    ) -> Iterator[Block]:
        """The rows, at most ``size`` at a time."""
        values = {n: (objects if n in texts else plain)(self.columns[n]) for n in columns}
        count = len(next(iter(self.columns.values()), ()))
        for first in range(0, count, size):
            rows = range(first + 1, min(first + size, count) + 1)
            yield Block({n: v[first : first + size] for n, v in values.items()}, rows)

    def close(self) -> None:
        """Nothing is open."""


def open_source(source: Any, file: BinaryIO | None = None) -> Source:
    """The source of a table: a path, named columns, a 2-D array, or a pair (X, y).

    Args:
        source: what to read.
        file: of a path, if it is open already.
    """
    if isinstance(source, (str, os.PathLike)):
        return _from_path(Path(source), file)
    if isinstance(source, pd.DataFrame):
        return ColumnSource("the data frame", {str(n): c for n, c in source.items()})
    if isinstance(source, Mapping):
        return ColumnSource("the columns", source)
    if isinstance(source, tuple) and len(source) == 2:
        return _from_arrays("the arrays", *source)
    if isinstance(source, np.ndarray):
        return _from_arrays("the array", source)
    raise HdnnError(
        f"a table is read from a path, a pandas DataFrame, a 2-D numpy array, a pair (X, y) or a "
        f"dict of columns, got {type(source).__name__}"
    )


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


def _column(where: str, name: str, values: Any) -> Any:
    try:
        array = values if isinstance(values, pd.Series) else np.asarray(values)
    except ValueError:
        raise HdnnError(f"{where}: column {name!r} is not a sequence of single values") from None
    if array.ndim != 1:
        raise HdnnError(
            f"{where}: column {short(name)} has shape {short(array.shape)}; a column is a "
            "sequence of single values, and a table is one 2-D array named X"
        )
    if array.dtype.kind == "U" and isinstance(values, (list, tuple)):
        array = pd.Series(values, dtype=object)  # numpy turns numbers among texts into texts
    return array
