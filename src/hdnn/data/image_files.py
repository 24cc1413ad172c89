"""Images in files: IDX, folders by class, PNG and JPEG."""

from __future__ import annotations

import gzip
import hashlib
import math
import os
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

from hdnn.data.files import listed, reading, short
from hdnn.errors import FileFormatError, HdnnError, optional
from hdnn.progress import note, track

SUFFIXES = (".png", ".jpg", ".jpeg")
MOST_SIDE = 128
"""Images of mixed sizes are brought to at most so many pixels a side, unless a size is given."""

MANY = 1000
"""Reading more images than that is announced."""

_GRAY, _COLOR = ("1", "L", "LA"), ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr")
_ORIENTATION, _LYING = 0x0112, (5, 6, 7, 8)
"""The tag of EXIF that says how an image is turned, and the values that swap its sides."""

Size = tuple[int, int]


# --- IDX ------------------------------------------------------------------------------------------


def read_idx(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    """The array in an IDX file of unsigned bytes, which may be compressed (.gz).

        0, 0, 8, d | d sizes, each 4 bytes, the highest first | the values, last index fastest

    Args:
        path: of the file.

    Returns:
        The array.

    Raises:
        FileFormatError: it is no such file.
    """
    data = read_bytes(Path(path))
    with reading(path, "IDX"):
        if len(data) < 4 or data[:3] != b"\0\0\x08" or data[3] == 0:
            raise ValueError(
                f"it begins with {data[:4].hex(' ') or 'nothing'}, and should with 00 00 08 and "
                "the number of dimensions"
            )
        start = 4 + 4 * data[3]
        shape = tuple(int.from_bytes(data[k : k + 4]) for k in range(4, start, 4))
        if len(data) != start + math.prod(shape):
            raise ValueError(
                f"its header says shape {short(shape)}, so {short(start + math.prod(shape))} "
                f"bytes, and it has {len(data)}: it is truncated or damaged"
            )
        return np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy()


def read_bytes(path: Path) -> bytes:
    """The bytes of a file, unpacked if its name ends in .gz."""
    with reading(path, "IDX"), gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as f:
        data: bytes = f.read()
        return data


# --- folders --------------------------------------------------------------------------------------


class FolderImages(NamedTuple):
    """The images of a folder, each part as images ``(B, C, H, W)`` and class numbers.

    Args:
        train: the training part.
        test: the test part, or None where there is none.
        classes: the names of the classes.
        notes: what was left out or resized, for people.
    """

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor] | None
    classes: tuple[str, ...]
    notes: tuple[str, ...]


def read_folder(folder: Path, size: Size | None = None, strict: bool = False) -> FolderImages:
    """Images and class numbers of a folder; see `read_images` for what is resized and left out.

    Args:
        folder: with ``class/*.png``, or ``train/class/*.png`` and ``test/class/*.png``.
        size: (height, width) to bring every image to.
        strict: raise where an image cannot be read.

    Returns:
        Images and class numbers of both parts.

    Raises:
        HdnnError: no such folder, or a class without images that can be read.
    """
    names = {path.name for path in _subfolders(folder)}
    parted = "train" in names and names <= {"train", "test"} and bool(_subfolders(folder / "train"))
    classes = _class_names(folder / "train" if parted else folder)
    parts = [_labeled_paths(folder / "train" if parted else folder, classes)]
    if parted and "test" in names:
        parts.append(_labeled_paths(folder / "test", classes))
    read = read_images([path for part in parts for path, _ in part], size, strict)
    kept = torch.tensor(read.kept)
    labels = torch.tensor([label for part in parts for _, label in part])[kept]
    in_train = kept < len(parts[0])
    for part in (in_train, ~in_train)[: len(parts)]:
        empty = (labels[part].bincount(minlength=len(classes)) == 0).nonzero()
        if len(empty):
            name = classes[int(empty[0])]
            raise FileFormatError(f"{folder}: of the class {name!r} no image can be read")
    train = read.images[in_train], labels[in_train]
    test = (read.images[~in_train], labels[~in_train]) if len(parts) > 1 else None
    return FolderImages(train, test, classes, read.notes)


def folder_digest(folder: Path) -> str:
    """The SHA-256 of all images of a data set: their names and contents.

    Args:
        folder: as `read_folder` takes it, or with IDX files.

    Returns:
        Hexadecimal digits.
    """
    whole = hashlib.sha256()
    levels = ("*", "*/*", "*/*/*")  # files, class/files, part/class/files
    for path in sorted(path for level in levels for path in folder.glob(level)):
        if is_image_file(path) or ("-idx" in path.name and path.is_file()):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            whole.update(repr((path.relative_to(folder).as_posix(), content)).encode())
    return whole.hexdigest()


def is_image_file(path: Path) -> bool:
    """Whether a path is a file that is called as images are, and is not hidden."""
    return path.suffix.lower() in SUFFIXES and path.is_file() and not path.name.startswith(".")


def _subfolders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _class_names(folder: Path) -> tuple[str, ...]:
    names = [path.name for path in _subfolders(folder)]
    if len(names) < 2:
        there = f"one subfolder ({names[0]})" if names else "no subfolder"
        raise HdnnError(
            f"{folder} has {there}; a data set of images has a subfolder for each class, two at "
            "least"
        )
    numeric = all(name.isdecimal() for name in names)  # so that 10 comes after 9
    return tuple(sorted(names, key=int) if numeric else names)


def _labeled_paths(folder: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    unknown = {path.name for path in _subfolders(folder)} - set(classes)
    if unknown:
        raise HdnnError(
            f"{folder} has the class {min(unknown)!r}, of which there are no training images; "
            f"known are {', '.join(classes)}"
        )
    labeled = []
    for label, name in enumerate(classes):
        inside = (folder / name).iterdir() if (folder / name).is_dir() else ()
        paths = sorted(filter(is_image_file, inside))
        if not paths:
            raise HdnnError(f"{folder / name} holds no images ({', '.join(SUFFIXES)})")
        labeled += [(path, label) for path in paths]
    return labeled


# --- image files ----------------------------------------------------------------------------------


class ReadImages(NamedTuple):
    """Images of files.

    Args:
        images: ``(B, 1, H, W)`` uint8 if every one is gray, else ``(B, 3, H, W)``.
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

    Returns:
        The images, which files they are of, and notes.

    Raises:
        FileFormatError: no file can be read, or one cannot and ``strict`` is set.
    """
    if len(paths) > MANY:
        note(f"reading {len(paths):,} images ...")
    faults: dict[Path, FileFormatError] = {}
    notes, sizes = [], []
    if size is None:
        for path in paths:
            with _tried(path, faults, strict):
                sizes.append(_size(path))
        size, resized = _common_size(sizes)
        notes += resized
    arrays: dict[int, NDArray[np.uint8]] = {}
    for number, path in enumerate(track(paths, "reading images")):
        if path not in faults:
            with _tried(path, faults, strict):
                arrays[number] = _pixels(path, size)
    if not arrays:
        first = next(iter(faults.values()))
        raise FileFormatError(f"of {len(paths)} images none can be read: {first}")
    if faults:
        names = listed([f"{path.parent.name}/{path.name}" for path in faults])
        first = next(iter(faults.values()))
        notes.append(
            f"{len(faults)} of {len(paths)} images cannot be read and are left out: {names} (the "
            f"first: {first})"
        )
    return ReadImages(_stacked(list(arrays.values())), list(arrays), tuple(notes))


@contextmanager
def _tried(path: Path, faults: dict[Path, FileFormatError], strict: bool) -> Iterator[None]:
    """Note an image that cannot be read, and go on; unless ``strict``."""
    try:
        yield
    except FileFormatError as error:
        if strict:
            raise
        faults[path] = error


def _common_size(sizes: Sequence[Size]) -> tuple[Size | None, list[str]]:
    """The size for all, and a note where they differ."""
    counts = Counter(sizes)
    if len(counts) < 2:
        return next(iter(counts), None), []
    height, width = (median_low(sides) for sides in zip(*sizes, strict=True))
    share = min(1.0, MOST_SIDE / max(height, width))
    size = max(1, round(share * height)), max(1, round(share * width))
    ends = min(counts, key=math.prod), max(counts, key=math.prod)
    small, large = (f"{h} x {w}" for h, w in ends)
    text = (
        f"images of {len(counts)} sizes, {small} to {large}, are resized to {size[0]} x {size[1]}"
    )
    return size, [f"{text}; another size: --pixels (size= in Python)"]


def _stacked(arrays: Sequence[NDArray[np.uint8]]) -> Tensor:
    if all(array.ndim == 2 for array in arrays):
        return torch.from_numpy(np.stack(arrays)).unsqueeze(1)
    colored = [a if a.ndim == 3 else np.repeat(a[:, :, None], 3, axis=2) for a in arrays]
    return torch.from_numpy(np.stack(colored)).permute(0, 3, 1, 2).contiguous()


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """An image whose header is read, and whose mode and size are allowed."""
    pillow: Any = optional("PIL.Image", "app")
    with reading(path, "an image"), warnings.catch_warnings():
        warnings.simplefilter("error", pillow.DecompressionBombWarning)
        with pillow.open(path, formats=("PNG", "JPEG")) as opened:
            if opened.mode not in _GRAY + _COLOR:
                raise ValueError(f"its mode is {opened.mode}; save it with 8 bits a channel")
            yield opened


def _size(path: Path) -> Size:
    """(height, width) as it is shown, from the header."""
    with _opened(path) as opened:
        width, height = opened.size
        lies = opened.getexif().get(_ORIENTATION) in _LYING
        return (width, height) if lies else (height, width)


def _pixels(path: Path, size: Size | None) -> NDArray[np.uint8]:
    operations: Any = optional("PIL.ImageOps", "app")
    with _opened(path) as opened:
        operations.exif_transpose(opened, in_place=True)
        mode = "L" if opened.mode in _GRAY else "RGB"
        image = opened if opened.mode == mode else opened.convert(mode)
        if size is not None:
            image = image.resize((size[1], size[0]))
        return np.array(image, dtype=np.uint8)
