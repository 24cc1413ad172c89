"""Images in files: those that can be read, brought to one size."""

from __future__ import annotations

import io
import math
import os
import stat
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median_low
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hdnn.data.reading import check_unpacked, reading
from hdnn.errors import FileFormatError, optional
from hdnn.progress import announce, track

SUFFIXES = (".png", ".jpg", ".jpeg")
MOST_SIDE = 128
"""Images of mixed sizes are brought to at most so many pixels a side, unless a size is given."""

MANY = 1000
"""Reading more images than that is announced."""

MOST_LISTED = 10
"""Files that are left out, by name in a note."""

_GREY, _COLOR = ("1", "L", "LA"), ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr")
_ORIENTATION, _LYING = 0x0112, (5, 6, 7, 8)
"""The tag of EXIF that says how an image is turned, and the values that swap its sides."""

Size = tuple[int, int]


class ReadImages(NamedTuple):
    """Images of files.

    Args:
        images: ``(B, 1, H, W)`` uint8 if every one is grey, else ``(B, 3, H, W)``.
        kept: which of the files they are of, by number; the others cannot be read.
        notes: what was left out or resized, for people.
    """

    images: Tensor
    kept: list[int]
    notes: tuple[str, ...]


def read_images(
    paths: Sequence[Path], size: Size | None = None, strict: bool = False
) -> ReadImages:
    """Read images; those of mixed sizes are resized, and those that cannot be read are left out.

    Args:
        paths: PNG and JPEG files.
        size: (height, width) of the result; None: theirs, or of mixed sizes the median of heights
            and widths, with at most 128 pixels a side.
        strict: raise where a file cannot be read.

    Raises:
        FileFormatError: no file can be read, or one cannot and ``strict`` is set.
    """
    if len(paths) > MANY:
        with announce(f"reading {len(paths):,} images"):
            return _read_all(paths, size, strict)
    return _read_all(paths, size, strict)


def _read_all(paths: Sequence[Path], size: Size | None, strict: bool) -> ReadImages:
    faults: dict[Path, FileFormatError] = {}
    notes = []
    if size is None:
        sizes = [s for path in paths if (s := _tried(_size, path, faults, strict)) is not None]
        size, resized = _common_size(sizes)
        notes += resized
    arrays = {
        number: array
        for number, path in enumerate(track(paths, "reading images"))
        if path not in faults
        and (array := _tried(_decoded(size), path, faults, strict)) is not None
    }
    if not arrays:
        first = next(iter(faults.values()))
        raise FileFormatError(f"of {len(paths)} images none can be read: {first}")
    if faults:
        notes.append(_left_out(faults, len(paths)))
    return ReadImages(_stacked(list(arrays.values())), list(arrays), tuple(notes))


def _tried(read: Any, path: Path, faults: dict[Path, FileFormatError], strict: bool) -> Any:
    """What is read of a file; None, and a fault, where it cannot be."""
    try:
        return read(path)
    except FileFormatError as error:
        if strict:
            raise
        faults[path] = error
        return None


def _common_size(sizes: Sequence[Size]) -> tuple[Size | None, list[str]]:
    """The size for all, and a note where they differ."""
    found = Counter(sizes)
    if len(found) < 2:
        return next(iter(found), None), []
    height, width = (median_low(sides) for sides in zip(*sizes, strict=True))
    share = min(1.0, MOST_SIDE / max(height, width))
    size = max(1, round(share * height)), max(1, round(share * width))
    small, large = (f"{h} x {w}" for h, w in (min(found, key=math.prod), max(found, key=math.prod)))
    text = f"images of {len(found)} sizes, {small} to {large}, are resized to {size[0]} x {size[1]}"
    return size, [f"{text}; another size: --pixels (size= in Python)"]


def _left_out(faults: dict[Path, FileFormatError], total: int) -> str:
    names = [f"{path.parent.name}/{path.name}" for path in faults]
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    first = next(iter(faults.values()))
    return (
        f"{len(faults)} of {total} images cannot be read and are left out: "
        f"{', '.join(names[:MOST_LISTED])}{more} (the first: {first})"
    )


def _stacked(arrays: Sequence[NDArray[np.uint8]]) -> Tensor:
    if all(array.ndim == 2 for array in arrays):
        return torch.from_numpy(np.stack(arrays)).unsqueeze(1)
    colored = [a if a.ndim == 3 else np.repeat(a[:, :, None], 3, axis=2) for a in arrays]
    return torch.from_numpy(np.stack(colored)).permute(0, 3, 1, 2).contiguous()


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """An image whose header is read and whose mode and size are allowed."""
    image_module: Any = optional("PIL.Image", "app")
    try:
        with open_regular(path) as file:
            content = io.BytesIO(file.read())  # a file would be asked for whatever a chunk claims
    except OSError as error:
        raise FileFormatError(f"cannot read {path} as an image: {error}") from error
    with reading(path, "an image"), warnings.catch_warnings():
        warnings.simplefilter("error", image_module.DecompressionBombWarning)
        with image_module.open(content, formats=("PNG", "JPEG")) as opened:
            if opened.mode not in _GREY + _COLOR:
                raise ValueError(f"its mode is {opened.mode}; save it with 8 bits a channel")
            check_unpacked(path, _bytes_per_pixel(opened) * math.prod(opened.size))
            yield opened


def _size(path: Path) -> Size:
    """(height, width) as it is shown, from the header."""
    with _opened(path) as opened:
        width, height = opened.size
        lies = opened.getexif().get(_ORIENTATION) in _LYING
        return (width, height) if lies else (height, width)


def _decoded(size: Size | None) -> Any:
    def read(path: Path) -> NDArray[np.uint8]:
        operations: Any = optional("PIL.ImageOps", "app")
        with _opened(path) as opened:
            operations.exif_transpose(opened, in_place=True)
            mode = "L" if opened.mode in _GREY else "RGB"
            image = opened if opened.mode == mode else opened.convert(mode)
            if size is not None:
                image = image.resize((size[1], size[0]))
            return np.array(image, dtype=np.uint8)

    return read


def _bytes_per_pixel(opened: Any) -> int:
    """What an image takes while it is read, at most: of a few bytes it may unpack to any size.

    Pillow holds a byte for a pixel of grey and four for others, once as it is in the file and once
    converted; then come its bytes and the array. A progressive JPEG has its coefficients as well.
    """
    held = {"L": 1 + 2, "RGB": 4 + 6}.get(opened.mode, 4 + 4 + 6)
    return held + (2 * len(opened.getbands()) if opened.info.get("progressive") else 0)


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file; of a pipe, a socket or a device nothing is awaited."""
    descriptor = os.open(
        path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is no regular file")
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def is_image_file(path: Path) -> bool:
    """Whether a path is a file that is called as images are, and is not hidden."""
    return path.suffix.lower() in SUFFIXES and path.is_file() and not path.name.startswith(".")
