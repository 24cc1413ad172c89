"""Parquet files as a source of tables, read column by column and within a limit of memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hdnn.data.columns import Block, objects, plain
from hdnn.data.csv_reader import BLOCK
from hdnn.data.parquet_pages import inspect_columns
from hdnn.data.reading import (
    check_unpacked,
    reading,
    refuse_duplicates,
    refuse_many,
    short,
    unpack_limit,
)
from hdnn.errors import HdnnError, optional

_NUMBERS, _OBJECTS, _HEADER_VALUE = 64, 192, 200
"""Bytes of memory: of a row, for the column that is being read and the target (as numbers or as
Python objects), and of a value of a header."""


class ParquetSource:
    """A Parquet file, of which only the wanted columns are read, one after the other."""

    own_target: str | None = None
    unit = "row"
    notes: tuple[str, ...] = ()

    def __init__(self, path: Path) -> None:
        self.path, self.where = path, str(path)
        with self._opened() as file:
            self.schema = file.schema_arrow
        self.names = tuple(self.schema.names)
        refuse_many(self.where, len(self.names))
        refuse_duplicates(self.where, self.names)

    def blocks(
        self, columns: Sequence[str], texts: Sequence[str] = (), size: int = BLOCK
    ) -> Iterator[Block]:
        """The rows, at most ``size`` at a time."""
        types = optional("pyarrow", "data").types
        wanted = list(dict.fromkeys(columns))
        with reading(self.path, "Parquet"):
            dictionaries = self._inspect(wanted, types)
        first, letters = 1, 0
        with self._opened(read_dictionary=dictionaries) as file:
            batches = file.iter_batches(batch_size=size, columns=wanted, use_threads=False)
            for batch in batches:
                values = {}
                for name in wanted:
                    cells, length = _cells(batch.column(name))
                    letters += length
                    check_unpacked(self.path, letters)
                    values[name] = (objects if name in texts else plain)(cells)
                yield Block(values, range(first, first + len(batch)))
                first += len(batch)

    def close(self) -> None:
        """Nothing is open between two blocks."""

    @contextmanager
    def _opened(self, **options: Any) -> Iterator[Any]:
        parquet = optional("pyarrow.parquet", "data")
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
            "numbers, dates nor texts; leave out the column (drop)"
        )

    def _inspect(self, wanted: Sequence[str], types: Any) -> list[str]:
        """The texts with a dictionary, if there is memory for all columns."""
        kinds = {name: self._kind(types, name) for name in wanted}
        most_values = unpack_limit(self.path) // _HEADER_VALUE
        rows, pages = inspect_columns(self.path, wanted, most_values)
        cost = _NUMBERS if set(kinds.values()) <= {"plain"} else _OBJECTS
        largest = max((column.unpacked for column in pages.values()), default=0)
        check_unpacked(self.path, rows * (8 * len(wanted) + cost) + largest)
        return [name for name in wanted if kinds[name] == "text" and pages[name].has_dictionary]


def _cells(column: Any) -> tuple[Any, int]:
    """Part of a column for pandas, and how many letters a dictionary repeats in it.

    Texts of a dictionary that are equal are one in memory; pandas would copy each of them.
    """
    if not hasattr(column, "dictionary"):
        return column.to_pandas(), 0
    entries = [*column.dictionary.to_pylist(), None]
    lengths = np.array([len(entry) if isinstance(entry, str) else 0 for entry in entries])
    codes = column.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return pd.Series(entries, dtype=object).to_numpy()[codes], int(lengths[codes].sum())


class ParquetWriter:
    """Writes rows to a Parquet file, block by block; the first block decides the types.

    Args:
        path: the file.
        names: of the columns.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self.path, self.names = path, list(names)
        self.writer: Any = None

    def __enter__(self) -> ParquetWriter:
        optional("pyarrow.parquet", "data")
        return self

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        """Write some rows: texts, numbers and dates."""
        pyarrow, parquet = optional("pyarrow", "data"), optional("pyarrow.parquet", "data")
        columns = [list(column) for column in zip(*rows, strict=True)]
        types = [None] * len(columns) if self.writer is None else self.writer.schema.types
        arrays = [
            pyarrow.array(column, type=kind, from_pandas=True)
            for column, kind in zip(columns, types, strict=True)
        ]
        table = pyarrow.Table.from_arrays(arrays, names=self.names)
        if self.writer is None:
            self.writer = parquet.ParquetWriter(self.path, table.schema)
        self.writer.write_table(table)

    def __exit__(self, *error: object) -> None:
        if self.writer is not None:
            self.writer.close()
