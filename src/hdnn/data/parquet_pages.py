"""How much memory pyarrow will ask for to read columns of a Parquet file, from its headers alone.

A page of a few bytes may claim that it unpacks to 2 GB, or that its dictionary has 10^9 values;
pyarrow allocates that before it looks, and has no limit that could be set. (Its own view of the
headers, ``FileMetaData``, ends the process where some of them contradict each other.) So they are
read here first. Footer and page headers are structs of Thrift's compact protocol:

    field: (difference of ids << 4 | type), value        struct: fields, 0

The numbers of the fields below are those of parquet.thrift, the definition of the format.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE = (1, 2), 3, (4, 5, 6), 7
_BINARY, _LISTS, _MAP, _STRUCT = 8, (9, 10), 11, 12
_FOOTER_END = 8  # four bytes with its length, and the magic number
_PREFIXES = 7
"""The encoding in which a text may repeat the one before it at no cost."""

_DICTIONARY_VALUE = 16
"""Bytes of memory of a value of a dictionary: a length and an address."""


class Pages(NamedTuple):
    """What the headers of a column promise.

    Attributes:
        unpacked: bytes of memory that its pages take.
        has_dictionary: whether values are in a dictionary, from which few bytes can repeat them.
    """

    unpacked: int
    has_dictionary: bool


def inspect_columns(
    path: Path, names: Iterable[str], most_values: int
) -> tuple[int, dict[str, Pages]]:
    """Read the headers of flat columns.

    Args:
        path: a Parquet file.
        names: of the columns.
        most_values: of a header, beyond which it is not read on.

    Returns:
        The number of rows, and the pages of every column.

    Raises:
        Exception: of any kind, where the headers contradict each other or the file.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(size - _FOOTER_END)
        length = int.from_bytes(file.read(4), "little")
        file.seek(size - _FOOTER_END - length)
        groups = _Compact(file.read(length), most_values).struct()[4]
        chunks: dict[str, list[dict[int, Any]]] = {}
        for group in groups:
            for column in group[1]:
                chunks.setdefault(b".".join(column[3][3]).decode(), []).append(column[3])
        pages = {
            name: [
                page
                for chunk in chunks.get(name, ())
                for page in _pages(_chunk_data(file, size, chunk), most_values)
            ]
            for name in names
        }
    return sum(group[3] for group in groups), {
        name: Pages(sum(p.unpacked for p in of), any(p.has_dictionary for p in of))
        for name, of in pages.items()
    }


def _chunk_data(file: IO[bytes], size: int, chunk: dict[int, Any]) -> bytes:
    start, length = chunk[9], chunk[7]
    if 0 < chunk.get(11, 0) < start:
        start = chunk[11]  # its dictionary comes first
    if start < 0 or length < 0 or start + length > size:
        raise ValueError("a column lies outside of the file")
    file.seek(start)
    return file.read(length)


def _pages(data: bytes, most_values: int) -> Iterator[Pages]:
    """The pages of a column chunk."""
    reader = _Compact(data, most_values)
    while reader.position < len(data):
        header = reader.struct()
        unpacked, packed = header[2], header[3]
        dictionary = header.get(7, {}).get(1, 0)
        if min(packed, unpacked, dictionary) < 0 or dictionary > unpacked:
            raise ValueError("a page header contradicts itself")
        reader.position += packed
        if reader.position > len(data):
            raise ValueError("a page is longer than its column")
        values, encoding = _data_page(header)
        if encoding == _PREFIXES:
            unpacked *= max(1, values)
        yield Pages(unpacked + _DICTIONARY_VALUE * dictionary, 7 in header)


def _data_page(header: dict[int, Any]) -> tuple[int, int]:
    """The number of values of a page, and how they are encoded."""
    if 8 in header:  # the second version of data pages
        return header[8][1], header[8][4]
    return (header[5][1], header[5][2]) if 5 in header else (0, 0)


class _Compact:
    """A reader of Thrift's compact protocol; past the end of the data it raises IndexError."""

    def __init__(self, data: bytes, most_values: int) -> None:
        self.data, self.position, self.left = data, 0, most_values

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
                raise ValueError("a header has an integer of more than 64 bits")

    def integer(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def take(self, length: int) -> bytes:
        self.position += length
        return self.data[self.position - length : self.position]

    def struct(self) -> dict[int, Any]:
        """The fields of a struct by number."""
        fields: dict[int, Any] = {}
        number = 0
        while (head := self.byte()) != 0:
            number = number + (head >> 4) if head >> 4 else self.integer()
            kind = head & 0x0F
            fields[number] = kind == 1 if kind in _BOOLEANS else self.value(kind)
        return fields

    def value(self, kind: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ValueError("a header is too long")
        if kind in _INTEGERS:
            return self.integer()
        if kind == _STRUCT:
            return self.struct()
        if kind in (_BYTE, *_BOOLEANS):
            return self.byte()
        if kind == _DOUBLE:
            return self.take(8)
        if kind == _BINARY:
            return self.take(self.varint())
        if kind in _LISTS:
            head = self.byte()
            count = head >> 4 if head >> 4 < 15 else self.varint()
            return [self.value(head & 0x0F) for _ in range(count)]
        if kind == _MAP:
            count = self.varint()
            kinds = self.byte() if count else 0
            return [(self.value(kinds >> 4), self.value(kinds & 0x0F)) for _ in range(count)]
        raise ValueError(f"a header has a field of type {kind}")
