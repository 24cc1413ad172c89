"""The IDX format of MNIST: a header with the type and the shape, then the values."""

from __future__ import annotations

import gzip
import math
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hdnn.data.reading import read_at_most, reading, reason_of, short, unpack_limit
from hdnn.errors import FileFormatError

MAX_BYTES = 2**31
"""No larger file is read: a header or a compressed file may promise anything."""

_UNSIGNED_BYTE, _HEADER = 0x08, 4


def parse_idx(data: bytes, where: str = "the data") -> NDArray[np.uint8]:
    """The array in the bytes of an IDX file of unsigned bytes.

        0, 0, 8, d | d sizes, each 4 bytes, the highest first | the values, last index fastest

    Args:
        data: the whole file.
        where: its name, for messages.

    >>> parse_idx(bytes([0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 3, 5, 6, 7]))
    array([[5, 6, 7]], dtype=uint8)
    """
    if len(data) < _HEADER or data[:2] != b"\0\0" or data[3] == 0:
        raise FileFormatError(
            f"{where} is no IDX file: it begins with {data[:_HEADER].hex(' ') or 'nothing'}, and "
            "should with 00 00 08 and the number of dimensions"
        )
    if data[2] != _UNSIGNED_BYTE:
        raise FileFormatError(
            f"{where} holds IDX values of type 0x{data[2]:02x}; only unsigned bytes (0x08) are read"
        )
    start = _HEADER + 4 * data[3]
    if len(data) < start:
        raise FileFormatError(f"{where} is truncated: {len(data)} bytes, its header has {start}")
    shape = tuple(int(size) for size in np.frombuffer(data[_HEADER:start], dtype=">u4"))
    expected = start + math.prod(shape)
    if len(data) != expected:
        kind = "truncated" if len(data) < expected else "too long"
        raise FileFormatError(
            f"{where} is {kind}: {len(data)} bytes, and its header (shape {short(shape)}) says "
            f"{short(expected)}"
        )
    try:
        return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape).copy()
    except (ValueError, OverflowError) as error:  # too many dimensions, or empty and too large
        raise FileFormatError(
            f"{where} has the shape {short(shape)}: {reason_of(error)}"
        ) from error


def read_idx(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    """The array in an IDX file, which may be compressed (.gz)."""
    return parse_idx(read_bytes(Path(path)), str(path))


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """The bytes of a file, uncompressed if its name ends in .gz, at most ``limit`` of them.

    Raises:
        FileFormatError: the file is damaged, or unpacks to more than the limit or `unpack_limit`.
    """
    with reading(path, "IDX"):
        if path.suffix != ".gz":
            with open(path, "rb") as plain:
                data = read_at_most(plain, limit)
        else:
            # Twice, because the bytes and the array that is made of them are in memory at once.
            limit = min(limit, unpack_limit(path) // 2)
            with gzip.open(path) as packed:
                data = read_at_most(packed, limit)
    if data is None:
        raise FileFormatError(f"{path} is too long: it holds more than {limit} bytes")
    return data
