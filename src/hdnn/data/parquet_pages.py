"""The page headers of a Parquet file, which say how much memory pyarrow will ask for.

A page of a few bytes may claim that it unpacks to 2 GB, or that its dictionary has 10^9 values;
pyarrow allocates that before it looks, and has no limit that could be set. So the headers are
looked at here first. They are structs of Thrift's compact protocol:

    field: (difference of ids << 4 | type), value        struct: fields, 0
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

_STRUCT, _BINARY, _LIST, _SET, _MAP = 12, 8, 9, 10, 11
_INTEGERS, _BYTE, _DOUBLE, _BOOLEANS = (4, 5, 6), 3, 7, (1, 2)
_DICTIONARY_VALUE = 16
"""Bytes of memory of a value of a dictionary: a length and an address."""


class _Compact:
    """A reader of Thrift's compact protocol; past the end of the data it raises IndexError."""

    def __init__(self, data: bytes, position: int) -> None:
        self.data, self.position = data, position

    def byte(self) -> int:
        self.position += 1
        return self.data[self.position - 1]

    def varint(self) -> int:
        value = shift = 0
        while True:
            part = self.byte()
            value |= (part & 0x7F) << shift
            shift += 7
            if part < 0x80:
                return value
            if shift > 63:
                raise ValueError("a page header has an integer of more than 64 bits")

    def integer(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def struct(self) -> dict[int, Any]:
        """The fields of a struct by id; of those that are no integers or structs, None."""
        fields: dict[int, Any] = {}
        number = 0
        while (head := self.byte()) != 0:
            number = number + (head >> 4) if head >> 4 else self.integer()
            kind = head & 0x0F
            fields[number] = None if kind in _BOOLEANS else self.value(kind)
        return fields

    def value(self, kind: int) -> Any:
        if kind in _INTEGERS:
            return self.integer()
        if kind == _STRUCT:
            return self.struct()
        if kind in (_BYTE, *_BOOLEANS):  # of booleans, only in a list
            self.position += 1
        elif kind == _DOUBLE:
            self.position += 8
        elif kind == _BINARY:
            length = self.varint()
            self.position += length
        elif kind in (_LIST, _SET):
            head = self.byte()
            for _ in range(head >> 4 if head >> 4 < 15 else self.varint()):
                self.value(head & 0x0F)
        elif kind == _MAP:
            count = self.varint()
            kinds = self.byte() if count else 0
            for _ in range(count):
                self.value(kinds >> 4)
                self.value(kinds & 0x0F)
        else:
            raise ValueError(f"a page header has a field of type {kind}")
        return None


def _page_sizes(data: bytes) -> Iterator[int]:
    """What the pages of a column chunk take in memory."""
    reader = _Compact(data, 0)
    while reader.position < len(data):
        fields = reader.struct()
        unpacked, packed = fields[2], fields[3]
        values = (fields.get(7) or {}).get(1, 0)
        if min(packed, unpacked, values) < 0 or values > unpacked:
            raise ValueError("a page header contradicts itself")
        reader.position += packed
        if reader.position > len(data):
            raise ValueError("a page is longer than its column")
        yield unpacked + _DICTIONARY_VALUE * values


def unpacked_sizes(path: Path, metadata: Any, columns: Iterable[str]) -> list[int]:
    """Bytes of memory that the pages of columns ask for when they are unpacked, one for each.

    Args:
        path: the file.
        metadata: pyarrow's ``FileMetaData`` of it.
        columns: names of flat columns.

    Raises:
        Exception: of any kind, where the headers contradict each other or the file.
    """
    paths = [metadata.schema.column(k).path for k in range(metadata.num_columns)]
    places = {name: k for k, name in enumerate(paths)}
    groups = [metadata.row_group(k) for k in range(metadata.num_row_groups)]
    with open(path, "rb") as file:
        return [
            sum(_chunk_size(file, group.column(places[c])) for group in groups) for c in columns
        ]


def _chunk_size(file: IO[bytes], chunk: Any) -> int:
    start, length = chunk.data_page_offset, chunk.total_compressed_size
    if chunk.dictionary_page_offset:
        start = min(start, chunk.dictionary_page_offset)
    if start < 0 or length < 0 or start + length > os.fstat(file.fileno()).st_size:
        raise ValueError("a column lies outside of the file")
    file.seek(start)
    return sum(_page_sizes(file.read(length)))
