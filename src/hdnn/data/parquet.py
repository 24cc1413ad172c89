"""Parquet files as a source of tables, read column by column and within a limit of memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hdnn.data.cells import is_missing
from hdnn.data.names import refuse_duplicates, refuse_many
from hdnn.data.parquet_pages import inspect_columns
from hdnn.data.reading import check_unpacked, reading, short, unpack_limit
from hdnn.data.sources import TableRows, as_numbers, as_objects, optional
from hdnn.errors import HdnnError

_NUMBERS, _OBJECTS, _HEADER_VALUE = 64, 192, 200
"""Bytes of memory: of a row, for the column that is being read and the target (as numbers or as
Python objects), and of a value of a header."""


class ParquetSource:
    """A Parquet file, of which only the wanted columns are read, one after the other."""

    own_target: str | None = None

    def __init__(self, path: Path) -> None:
        self.path, self.where = path, str(path)
        with self._opened() as file:
            self.schema = file.schema_arrow
        self.names = tuple(self.schema.names)
        refuse_many(self.where, len(self.names))
        refuse_duplicates(self.where, self.names)

    def take(self, feature_names: Sequence[str], target: str | None) -> TableRows:
        """Read these columns."""
        wanted = [*feature_names, *([] if target is None else [target])]
        types = optional("pyarrow").types
        with reading(self.path, "Parquet"):
            count, texts = self._inspect(wanted, types)
        rows = range(1, count + 1)
        with self._opened(read_dictionary=texts) as file:
            X = np.empty((len(rows), len(feature_names)))
            for j, name in enumerate(feature_names):
                X[:, j] = as_numbers(name, self._column(file, types, name), rows)
            values = None
            if target is not None:
                column = self._column(file, types, target).tolist()
                values = [None if is_missing(value) else value for value in column]
        return TableRows(X, values, rows, "row")

    @contextmanager
    def _opened(self, **options: Any) -> Iterator[Any]:
        parquet = optional("pyarrow.parquet")
        with reading(self.path, "Parquet"):
            # Nothing in the footer has more parts than the file has bytes.
            size = max(1, self.path.stat().st_size)
            limits = {"thrift_string_size_limit": size, "thrift_container_size_limit": size}
            with parquet.ParquetFile(self.path, **limits, **options) as file:
                yield file

    def _kind(self, types: Any, name: str) -> str:
        """What a column holds: "plain" numbers, "text", or "other" single values."""
        declared = self.schema.field(name).type
        inner = declared.value_type if types.is_dictionary(declared) else declared
        if types.is_integer(declared) or types.is_floating(declared):
            return "plain"
        if any(str(inner) == text for text in ("string", "large_string", "string_view")):
            return "text"
        others = types.is_primitive, types.is_decimal, types.is_null
        if any(is_kind(inner) for is_kind in others):
            return "other"
        raise HdnnError(
            f"{self.where}: column {short(name)} holds {short(str(declared))}, which are neither "
            f"numbers nor texts; drop the column (drop=[{short(name)}])"
        )

    def _inspect(self, wanted: Sequence[str], types: Any) -> tuple[int, list[str]]:
        """The number of rows, if there is memory for them, and the texts with a dictionary."""
        kinds = {name: self._kind(types, name) for name in wanted}
        most_values = unpack_limit(self.path) // _HEADER_VALUE
        rows, pages = inspect_columns(self.path, wanted, most_values)
        cost = _NUMBERS if set(kinds.values()) <= {"plain"} else _OBJECTS
        largest = max((column.unpacked for column in pages.values()), default=0)
        check_unpacked(self.path, rows * (8 * len(wanted) + cost) + largest)
        texts = [name for name in wanted if kinds[name] == "text" and pages[name].has_dictionary]
        return rows, texts

    def _column(self, file: Any, types: Any, name: str) -> NDArray[Any]:
        column = file.read(columns=[name], use_threads=False).column(name)
        if types.is_dictionary(column.type):
            return as_objects(self._repeated(column))
        if self._kind(types, name) == "plain" and column.null_count == 0:
            return np.asarray(column.to_numpy())
        return as_objects(column.to_pylist())

    def _repeated(self, column: Any) -> list[Any]:
        """The values of a column with a dictionary; those that are equal are one in memory."""
        cells: list[Any] = []
        for chunk in column.chunks:
            values = [*chunk.dictionary.to_pylist(), None]
            cells += [values[-1 if k is None else k] for k in chunk.indices.to_pylist()]
        check_unpacked(self.path, sum(len(cell) for cell in cells if isinstance(cell, str)))
        return cells
