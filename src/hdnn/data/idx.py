"""The IDX format of MNIST: a header with the type and the shape, then the values."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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
            f"{where} is {kind}: {len(data)} bytes, and its header (shape {shape}) says {expected}"
        )
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape).copy()


def read_idx(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    """The array in an IDX file, which may be compressed (.gz)."""
    return parse_idx(read_bytes(Path(path)), str(path))


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """The bytes of a file, uncompressed if its name ends in .gz, at most ``limit`` of them."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            data = file.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise FileFormatError(f"cannot read {path}: {error}") from error
    if len(data) > limit:
        raise FileFormatError(f"{path} is too long: more than {limit} bytes")
    return data
