"""Data sets of images: MNIST, Fashion-MNIST, scikit-learn's digits, and folders."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hdnn.data.downloads import Progress
from hdnn.data.fetch import REMOTES, obtain
from hdnn.data.folders import read_folder
from hdnn.data.idx import parse_idx, read_bytes
from hdnn.data.splits import holdout
from hdnn.errors import FileFormatError, HdnnError, optional, unknown_name

TEST_SHARE = 0.2
"""What is held out for test where the data set has no test part of its own."""

_DIGITS = tuple("0123456789")
_FILES = tuple(file.name for file in REMOTES["mnist"].files)


@dataclass(frozen=True, eq=False)
class ImageData:
    """Training and test images with their classes.

    Args:
        train, test: images, ``(B, C, H, W)`` uint8, 0 to 255.
        train_labels, test_labels: class numbers, ``(B,)`` int64.
        classes: their names.
        name: of the data set, or the path of the folder.
        notes: what was left out or resized, for people.

    >>> import torch
    >>> from hdnn.data.images import ImageData
    >>> pixels, labels = torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0, 1])
    >>> ImageData(pixels, labels, pixels[:2], labels[:2], ("cat", "dog"), "pets")
    ImageData(pets: 4 training, 2 test, 1 x 8 x 8, 2 classes)
    """

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]
    name: str
    notes: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        channels, height, width = self.train.shape[1:]
        return channels, height, width

    def __repr__(self) -> str:
        return (
            f"ImageData({self.name}: {len(self.train)} training, {len(self.test)} test, "
            f"{' x '.join(map(str, self.shape))}, {len(self.classes)} classes)"
        )


@dataclass(frozen=True)
class ImageSet:
    """What is known of a data set before it is loaded.

    Args:
        name: as in `load`.
        title: for people.
        classes: names of the classes, in order.
        shape: (C, H, W).
        train, test: how many images.

    >>> from hdnn.data import images
    >>> mnist = images.IMAGE_SETS["mnist"]
    >>> mnist.shape, mnist.train
    ((1, 28, 28), 60000)
    """

    name: str
    title: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    train: int
    test: int

    @property
    def fetched(self) -> bool:
        """Whether it has to be fetched once."""
        return self.name in REMOTES


_CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)

IMAGE_SETS: dict[str, ImageSet] = {
    data.name: data
    for data in (
        ImageSet("digits", "handwritten digits of scikit-learn", _DIGITS, (1, 8, 8), 1438, 359),
        ImageSet("mnist", "handwritten digits", _DIGITS, (1, 28, 28), 60_000, 10_000),
        ImageSet("fashion-mnist", "pieces of clothing", _CLOTHES, (1, 28, 28), 60_000, 10_000),
    )
}
"""The data sets of images, by name; "digits" needs no download."""


def load(
    source: str | os.PathLike[str] = "digits",
    data_dir: str | os.PathLike[str] | None = None,
    *,
    size: tuple[int, int] | None = None,
    strict: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> ImageData:
    """Images by name or from a folder; MNIST and Fashion-MNIST are fetched at first use.

    A folder holds ``class/*.png`` (or JPEG), or ``train/class`` and ``test/class``, or the four IDX
    files of MNIST's layout. Without a test part, a fifth of every class is held out.

    Args:
        source: "digits", "mnist", "fashion-mnist", or the path of a folder.
        data_dir: where data sets are kept; None is HDNN_DATA, else the user's cache.
        size: (height, width) to bring the images of a folder to; None: theirs, or of mixed sizes
            the median, with at most 128 pixels a side.
        strict: raise where an image of a folder cannot be read; else it is left out, and noted.
        seed: of the part that is held out of a folder. That of the digits is fixed.
        progress: told what is fetched, ``progress(what, bytes_so_far, bytes_in_all)``.

    Returns:
        Images as uint8, training and test part.

    Raises:
        HdnnError: the name is unknown, files are damaged, or could not be fetched.

    >>> images = load("digits")
    >>> images
    ImageData(digits: 1438 training, 359 test, 1 x 8 x 8, 10 classes)
    >>> images.train.dtype, int(images.train.max())
    (torch.uint8, 255)
    """
    key = str(source).lower().replace("_", "-")
    known = key in IMAGE_SETS
    if not known and not Path(source).expanduser().is_dir():
        if isinstance(source, str) and os.sep not in source:
            raise unknown_name("data set of images", source, [*IMAGE_SETS, "a folder of classes"])
        raise HdnnError(f"{source} is no folder; give one with a subfolder for each class")
    if known and size is not None:
        raise HdnnError(f"size is for a folder of images; those of {key} have one size")
    if key == "digits":
        return _digits()
    if known:
        contents = obtain(REMOTES[key], data_dir, progress).contents
        return _from_idx(contents, key, IMAGE_SETS[key].classes)
    return _from_folder(Path(source).expanduser(), size, strict, seed)


def _digits() -> ImageData:
    data = optional("sklearn.datasets", "app").load_digits()
    # The values are 0 to 16.
    images = torch.from_numpy(np.rint(data.images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(data.target.astype(np.int64))
    return _held_out(images, labels, _DIGITS, "digits", seed=0)


def _held_out(
    images: Tensor, labels: Tensor, classes: tuple[str, ...], name: str, seed: int
) -> ImageData:
    kept, held = holdout(len(images), TEST_SHARE, seed, labels)
    return ImageData(images[kept], labels[kept], images[held], labels[held], classes, name)


def _from_folder(folder: Path, size: tuple[int, int] | None, strict: bool, seed: int) -> ImageData:
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise HdnnError(f"size is (height, width), each at least 1, got {size!r}")
    contents = {}
    for name in _FILES:
        for path in (folder / name, folder / f"{name}.gz"):
            if name not in contents and path.is_file():
                contents[name] = read_bytes(path)
    if contents:
        missing = [name for name in _FILES if name not in contents]
        if missing:
            raise HdnnError(f"{folder} holds IDX files, but not {', '.join(missing)}")
        return _from_idx(contents, str(folder))
    found = read_folder(folder, size, strict)
    if found.test is None:
        held_out = _held_out(*found.train, found.classes, str(folder), seed)
        return replace(held_out, notes=found.notes)
    return ImageData(*found.train, *found.test, found.classes, str(folder), found.notes)


def _from_idx(
    contents: Mapping[str, bytes], name: str, classes: tuple[str, ...] | None = None
) -> ImageData:
    """Images from the bytes of the four files of MNIST's layout."""
    train = _idx_part(contents, _FILES[0], _FILES[1], name)
    test = _idx_part(contents, _FILES[2], _FILES[3], name)
    if train[0].shape[1:] != test[0].shape[1:]:
        raise FileFormatError(f"{name}: training and test images are of different sizes")
    count = 1 + max(int(train[1].max()), int(test[1].max()))
    return ImageData(*train, *test, classes or tuple(map(str, range(count))), name)


def _idx_part(
    contents: Mapping[str, bytes], images_file: str, labels_file: str, name: str
) -> tuple[Tensor, Tensor]:
    images = parse_idx(contents[images_file], f"{name}: {images_file}")
    labels = parse_idx(contents[labels_file], f"{name}: {labels_file}")
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise FileFormatError(
            f"{name}: {images_file} has shape {images.shape} and {labels_file} "
            f"{labels.shape}; they should be (B, height, width) and (B,)"
        )
    if not images.size:
        raise FileFormatError(f"{name}: {images_file} holds no images")
    return torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels.astype(np.int64))
