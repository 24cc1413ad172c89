"""Images in a folder, one subfolder for each class."""

from __future__ import annotations

import hashlib
import io
import math
import os
import stat
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hdnn.data.reading import check_unpacked, optional, reading
from hdnn.errors import FileFormatError, HdnnError

SUFFIXES = (".png", ".jpg", ".jpeg")
_GREY, _COLOR = ("1", "L", "LA"), ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr")

Labeled = tuple[list[Path], list[int]]


def read_folder(
    folder: Path, size: tuple[int, int] | None = None
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor] | None, tuple[str, ...]]:
    """Images ``(B, C, H, W)`` and class numbers, of the training part and of the test part.

    Args:
        folder: with ``class/*.png``, or ``train/class/*.png`` and ``test/class/*.png``.
        size: (height, width) to bring every image to; None asks that all are of one size.

    Returns:
        The training part, the test part or None where there is none, and the names of the classes.
    """
    names = {path.name for path in _subfolders(folder)}
    parted = "train" in names and names <= {"train", "test"} and bool(_subfolders(folder / "train"))
    classes = _class_names(folder / "train" if parted else folder)
    parts = [_listed(folder / "train" if parted else folder, classes)]
    if parted and "test" in names:
        parts.append(_listed(folder / "test", classes))
    images = read_images([path for paths, _ in parts for path in paths], size)
    count = len(parts[0][0])
    train = images[:count], torch.tensor(parts[0][1], dtype=torch.int64)
    if len(parts) == 1:
        return train, None, classes
    return train, (images[count:], torch.tensor(parts[1][1], dtype=torch.int64)), classes


def folder_digest(folder: Path) -> str:
    """The SHA-256 of all images of a data set: their names, sizes and contents.

    Args:
        folder: as `read_folder` takes it, or with IDX files.

    Raises:
        FileFormatError: a file cannot be read.
    """
    levels = ("*", "*/*", "*/*/*")  # files, class/files, part/class/files
    found = {path for level in levels for path in folder.glob(level) if _is_data(path)}
    whole = hashlib.sha256()
    for path in sorted(found):
        try:
            with _open_regular(path) as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
                size = file.tell()
        except OSError as error:
            raise FileFormatError(f"cannot read {path}: {error.strerror or error}") from error
        whole.update(repr((path.relative_to(folder).as_posix(), size, content)).encode())
    return whole.hexdigest()


def _is_data(path: Path) -> bool:
    return _is_image(path) or (path.is_file() and "-idx" in path.name)


def _open_regular(path: Path) -> io.BufferedReader:
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


def _subfolders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _class_names(folder: Path) -> tuple[str, ...]:
    names = [path.name for path in _subfolders(folder)]
    if len(names) < 2:
        found = f"one subfolder ({names[0]})" if names else "no subfolder"
        raise HdnnError(
            f"{folder} has {found}; a data set of images has a subfolder for each class, two at "
            "least"
        )
    numeric = all(name.isdecimal() for name in names)  # so that 10 comes after 9
    return tuple(sorted(names, key=int) if numeric else names)


def _listed(folder: Path, classes: Sequence[str]) -> Labeled:
    unknown = {path.name for path in _subfolders(folder)} - set(classes)
    if unknown:
        raise HdnnError(
            f"{folder} has the class {min(unknown)!r}, of which there are no training images; "
            f"known are {', '.join(classes)}"
        )
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        inside = (folder / name).iterdir() if (folder / name).is_dir() else ()
        found = sorted(p for p in inside if _is_image(p))
        if not found:
            raise HdnnError(f"{folder / name} holds no images ({', '.join(SUFFIXES)})")
        paths += found
        labels += [label] * len(found)
    return paths, labels


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and path.is_file() and not path.name.startswith(".")


def read_images(paths: Sequence[Path], size: tuple[int, int] | None) -> Tensor:
    """All images, ``(B, 1, H, W)`` if every one is grey, else ``(B, 3, H, W)``."""
    arrays = [_read(path, size) for path in paths]
    _refuse_mixed(paths, arrays)
    if any(array.ndim == 3 for array in arrays):
        colored = (a if a.ndim == 3 else np.repeat(a[:, :, None], 3, axis=2) for a in arrays)
        return torch.from_numpy(_stacked(colored)).permute(0, 3, 1, 2).contiguous()
    return torch.from_numpy(_stacked(arrays)).unsqueeze(1)


def _stacked(arrays: Iterable[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    return np.stack(list(arrays))


def _read(path: Path, size: tuple[int, int] | None) -> NDArray[np.uint8]:
    image_module: Any = optional("PIL.Image", "images")
    operations: Any = optional("PIL.ImageOps", "images")
    try:
        with _open_regular(path) as file:
            content = io.BytesIO(file.read())  # a file would be asked for whatever a chunk claims
    except OSError as error:
        raise FileFormatError(f"cannot read {path} as a image: {error}") from error
    with reading(path, "a image"), warnings.catch_warnings():
        warnings.simplefilter("error", image_module.DecompressionBombWarning)
        with image_module.open(content, formats=("PNG", "JPEG")) as opened:
            if opened.mode not in _GREY + _COLOR:
                raise ValueError(f"its mode is {opened.mode}; save it with 8 bits a channel")
            check_unpacked(path, _bytes_per_pixel(opened) * math.prod(opened.size))
            operations.exif_transpose(opened, in_place=True)
            mode = "L" if opened.mode in _GREY else "RGB"
            image = opened if opened.mode == mode else opened.convert(mode)
            if size is not None:
                image = image.resize((size[1], size[0]))
            return np.array(image, dtype=np.uint8)


def _bytes_per_pixel(opened: Any) -> int:
    """What an image takes while it is read, at most: of a few bytes it may unpack to any size.

    Pillow holds a byte for a pixel of grey and four for others, once as it is in the file and once
    converted; then come its bytes and the array. A progressive JPEG has its coefficients as well.
    """
    held = {"L": 1 + 2, "RGB": 4 + 6}.get(opened.mode, 4 + 4 + 6)
    return held + (2 * len(opened.getbands()) if opened.info.get("progressive") else 0)


def _refuse_mixed(paths: Sequence[Path], arrays: Sequence[NDArray[np.uint8]]) -> None:
    first = arrays[0].shape[:2]
    for path, array in zip(paths, arrays, strict=True):
        if array.shape[:2] != first:
            raise HdnnError(
                f"images of different sizes: {paths[0]} is {first[0]} x {first[1]}, {path} is "
                f"{array.shape[0]} x {array.shape[1]} (height x width); give size=(height, width) "
                "to bring all to one"
            )
