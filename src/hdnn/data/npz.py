"""NPZ files: the arrays in a zip archive, of which nothing is allocated before it is checked."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hdnn.data.reading import check_unpacked, reading, refuse_duplicates, refuse_many, short

_MAGIC = b"\x93NUMPY"
_HEADERS: dict[tuple[int, int], Any] = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}
_ENCRYPTED = 0x1
_COLUMN, _NUMBER, _OBJECT = 400, 8, 64
"""Bytes in memory: of a column's name and view, of a number as float64, of any other value."""


class _Header(NamedTuple):
    """What an array says of itself."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Of the values; Python's integers do not overflow."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def needed(self) -> int:
        """Bytes of memory that a table of it takes, in which every number is a float64."""
        cost = _NUMBER if self.dtype.kind in "biuf" else _OBJECT
        return self.nbytes + cost * math.prod(self.shape) + _COLUMN * math.prod(self.shape[1:])


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an NPZ file by name.

    Args:
        path: a file that ``numpy.savez`` or ``numpy.savez_compressed`` wrote.

    Raises:
        FileFormatError: it is none, its parts contradict each other, or it would unpack to more
            than `unpack_limit`.
    """
    remedy = "write it with numpy.savez, texts as arrays of dtype str and not object"
    with reading(path, "NPZ", remedy):
        with open(path, "rb") as file:
            if file.read(len(_MAGIC)) == _MAGIC:
                raise ValueError("it is one array, not a collection of named ones")
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            names = [member.filename.removesuffix(".npy") for member in members]
            refuse_many(str(path), len(names))
            refuse_duplicates(str(path), names)
            headers = [_read_header(archive, member) for member in members]
            check_unpacked(path, sum(header.needed for header in headers))
            return {
                name: _read_array(archive, member, header)
                for name, member, header in zip(names, members, headers, strict=True)
            }


def _read_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> _Header:
    name = short(member.filename)
    if member.flag_bits & _ENCRYPTED:
        raise ValueError(f"{name} is encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # Of the other methods, zipfile unpacks as much as there is, whatever it is asked for.
        raise ValueError(f"{name} is compressed by method {member.compress_type}, not by deflate")
    with archive.open(member) as file:
        header, start = _parse_header(file)
    if header.dtype.hasobject:
        raise ValueError(f"{name} holds Python objects")
    if start + header.nbytes != member.file_size:
        raise ValueError(
            f"the header of {name} promises {short(start + header.nbytes)} bytes, and it has "
            f"{member.file_size}"
        )
    return header


def _parse_header(file: IO[bytes]) -> tuple[_Header, int]:
    """The header of an array, and where its values begin."""
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of the NPY format is not for plain arrays")
    header = _Header(*_HEADERS[version](file))
    if min(header.shape, default=0) < 0:
        raise ValueError(f"it has an array of shape {short(header.shape)}")
    return header, file.tell()


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, header: _Header) -> NDArray[Any]:
    with archive.open(member) as file:
        _parse_header(file)
        values = file.read(header.nbytes)
        if file.read(1):  # the end, where zipfile compares the checksum
            raise ValueError(f"{short(member.filename)} is longer than it says")
    return np.ndarray(
        header.shape, header.dtype, values, order="F" if header.fortran_order else "C"
    )
