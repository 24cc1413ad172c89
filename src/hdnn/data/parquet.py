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
from hdnn.data.parquet_pages import unpacked_sizes
from hdnn.data.reading import check_unpacked, reading, short
from hdnn.data.sources import Taken, as_numbers, as_objects, optional
from hdnn.errors import HdnnError

_NUMBERS, _OBJECTS = 64, 192
"""Bytes of memory a row, for the column that is being read and the target."""


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

    def take(self, feature_names: Sequence[str], target: str | None) -> Taken:
        """Read these columns."""
        wanted = [*feature_names, *([] if target is None else [target])]
        types = optional("pyarrow").types
        texts = [name for name in wanted if self._kind(types, name) == "text"]
        with self._opened(read_dictionary=texts) as file:
            rows = range(1, self._checked_rows(file, wanted, types) + 1)
            X = np.empty((len(rows), len(feature_names)))
            for j, name in enumerate(feature_names):
                X[:, j] = as_numbers(name, self._column(file, types, name), rows)
            values = None
            if target is not None:
                column = self._column(file, types, target).tolist()
                values = [None if is_missing(value) else value for value in column]
        return Taken(X, values, rows, "row")

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

    def _checked_rows(self, file: Any, wanted: Sequence[str], types: Any) -> int:
        """The number of rows, if there is memory for them and for what the pages unpack to."""
        groups = range(file.metadata.num_row_groups)
        rows = sum(file.metadata.row_group(k).num_rows for k in groups)
        objects = any(self._kind(types, name) != "plain" for name in wanted)
        needed = rows * (8 * len(wanted) + (_OBJECTS if objects else _NUMBERS))
        pages = unpacked_sizes(self.path, file.metadata, wanted)
        check_unpacked(self.path, needed + max(pages, default=0))
        return rows

    def _column(self, file: Any, types: Any, name: str) -> NDArray[Any]:
        column = file.read(columns=[name], use_threads=False).column(name)
        if self._kind(types, name) == "text":
            return as_objects(self._texts(column))
        if self._kind(types, name) == "plain" and column.null_count == 0:
            return np.asarray(column.to_numpy())
        return as_objects(column.to_pylist())

    def _texts(self, column: Any) -> list[Any]:
        """Texts, of which those that are equal are one: a long one costs nothing to repeat."""
        cells: list[Any] = []
        for chunk in column.chunks:
            texts = [*chunk.dictionary.to_pylist(), None]
            cells += [texts[-1 if k is None else k] for k in chunk.indices.to_pylist()]
        check_unpacked(self.path, sum(len(cell) for cell in cells if cell is not None))
        return cells
