"""Images in a folder, one subfolder for each class."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from hdnn.data.image_files import SUFFIXES, Size, is_image_file, open_regular, read_images
from hdnn.errors import FileFormatError, HdnnError

Labeled = tuple[list[Path], list[int]]


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

    Raises:
        HdnnError: no such folder, or a class without images that can be read.
    """
    names = {path.name for path in _subfolders(folder)}
    parted = "train" in names and names <= {"train", "test"} and bool(_subfolders(folder / "train"))
    classes = _class_names(folder / "train" if parted else folder)
    parts = [_listed(folder / "train" if parted else folder, classes)]
    if parted and "test" in names:
        parts.append(_listed(folder / "test", classes))
    found = read_images([path for paths, _ in parts for path in paths], size, strict)
    kept = torch.tensor(found.kept)
    labels = torch.tensor([label for _, labels in parts for label in labels])[kept]
    in_train = kept < len(parts[0][0])
    for part in (in_train, ~in_train)[: len(parts)]:
        _refuse_empty(folder, classes, labels[part])
    train = found.images[in_train], labels[in_train]
    test = (found.images[~in_train], labels[~in_train]) if len(parts) > 1 else None
    return FolderImages(train, test, classes, found.notes)


def _refuse_empty(folder: Path, classes: Sequence[str], labels: Tensor) -> None:
    empty = labels.bincount(minlength=len(classes)) == 0
    if bool(empty.any()):
        name = classes[int(empty.nonzero()[0])]
        raise FileFormatError(f"{folder}: of the class {name!r} no image can be read")


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
            with open_regular(path) as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
                size = file.tell()
        except OSError as error:
            raise FileFormatError(f"cannot read {path}: {error.strerror or error}") from error
        whole.update(repr((path.relative_to(folder).as_posix(), size, content)).encode())
    return whole.hexdigest()


def _is_data(path: Path) -> bool:
    return is_image_file(path) or (path.is_file() and "-idx" in path.name)


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
        found = sorted(p for p in inside if is_image_file(p))
        if not found:
            raise HdnnError(f"{folder / name} holds no images ({', '.join(SUFFIXES)})")
        paths += found
        labels += [label] * len(found)
    return paths, labels
