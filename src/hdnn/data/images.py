"""Data sets of images: MNIST, Fashion-MNIST, scikit-learn's digits, and folders."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hdnn.data.dataset import Dataset
from hdnn.data.files import short
from hdnn.data.image_files import Size, read_bytes, read_folder, read_idx
from hdnn.data.splits import holdout
from hdnn.errors import FetchError, FileFormatError, HdnnError, optional, unknown_name
from hdnn.progress import note

__all__ = ["IMAGE_SETS", "ImageSet", "load"]

TEST_SHARE = 0.2
"""What is held out for test where the data set has no test part of its own."""

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
"""The files of MNIST's layout: images and labels, for training and for test."""


@dataclass(frozen=True)
class ImageSet:
    """What is known of a data set before it is loaded.

    Args:
        name: as in `load`.
        title: for people.
        classes: names of the classes, in order.
        shape: (C, H, W).
        train, test: how many images.
        sha256: of the uncompressed `IDX_FILES`; none where the set needs no download.
        urls: folders on the web that hold each file with .gz.

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
    sha256: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()


_DIGITS = tuple("0123456789")
_CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)

IMAGE_SETS: dict[str, ImageSet] = {
    data.name: data
    for data in (
        ImageSet("digits", "handwritten digits of scikit-learn", _DIGITS, (1, 8, 8), 1438, 359),
        ImageSet(
            "mnist",
            "handwritten digits",
            _DIGITS,
            (1, 28, 28),
            60_000,
            10_000,
            (
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
            (
                "https://ossci-datasets.s3.amazonaws.com/mnist",
                "https://storage.googleapis.com/cvdf-datasets/mnist",
            ),
        ),
        ImageSet(
            "fashion-mnist",
            "pieces of clothing",
            _CLOTHES,
            (1, 28, 28),
            60_000,
            10_000,
            (
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
            (
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
            ),
        ),
    )
}
"""The data sets of images, by name; "digits" needs no download."""


def load(
    source: str | os.PathLike[str] = "digits",
    *,
    size: int | Size | None = None,
    strict: bool = False,
    seed: int = 0,
) -> Dataset:
    """Images by name or from a folder; MNIST and Fashion-MNIST are downloaded at first use.

    A folder holds ``class/*.png`` (or JPEG), or ``train/class`` and ``test/class``, or the four IDX
    files of MNIST's layout. Without a test part, a fifth of every class is held out.

    Args:
        source: "digits", "mnist", "fashion-mnist", or the path of a folder.
        size: (height, width) to bring the images of a folder to, or a number for both; None:
            theirs, or of mixed sizes the median, with at most 128 pixels a side.
        strict: raise where an image of a folder cannot be read; else it is left out, and noted.
        seed: of the part that is held out of a folder. That of the digits is fixed.

    Returns:
        The images as uint8, ``(B, C, H, W)``.

    Raises:
        HdnnError: the name is unknown, files are damaged, or could not be downloaded.

    >>> digits = load("digits")
    >>> digits
    Dataset(digits: 1438 training rows, 359 test rows, 1 x 8 x 8, 10 classes)
    >>> digits.X.dtype, int(digits.X.max())
    (torch.uint8, 255)
    """
    key = str(source).lower().replace("_", "-")
    if key not in IMAGE_SETS:
        return _from_folder(source, (size, size) if isinstance(size, int) else size, strict, seed)
    if size is not None:
        raise HdnnError(f"a size is for a folder of images; those of {key} have one size")
    if key == "digits":
        return _digits()
    paths = fetch(key)
    return _from_idx(paths, key, IMAGE_SETS[key].classes)


def find(name: str) -> list[Path | None]:
    """Where the four files of a data set are on this machine, if they are.

    Args:
        name: "mnist" or "fashion-mnist".

    Returns:
        Paths of files, which may be compressed, in the folder named by HDNN_DATA or below it, or
        in the user's cache.
    """
    folder = _folder()
    below = [folder / name]
    return _idx_paths([*below, folder] if os.environ.get("HDNN_DATA") else below)


def _idx_paths(folders: Sequence[Path]) -> list[Path | None]:
    found: list[Path | None] = []
    for file in IDX_FILES:
        candidates = (folder / f"{file}{end}" for folder in folders for end in ("", ".gz"))
        found.append(next((path for path in candidates if path.is_file()), None))
    return found


def fetch(name: str) -> list[Path]:
    """The four files of a data set, downloaded where they are not here, and their sums checked.

    A folder named by HDNN_DATA replaces the download.

    Args:
        name: "mnist" or "fashion-mnist".

    Returns:
        Their paths.

    Raises:
        FetchError: they cannot be had, or are not those that were published.
    """
    data, paths = IMAGE_SETS[name], []
    for file, path, published in zip(IDX_FILES, find(name), data.sha256, strict=True):
        path = path or _download(data, file)
        if hashlib.sha256(read_bytes(path)).hexdigest() != published:
            raise FetchError(
                f"{path} is damaged, or not the {file} of {name}: its SHA-256 is another; remove "
                "it, and it is downloaded again"
            )
        paths.append(path)
    return paths


def _folder() -> Path:
    given = os.environ.get("HDNN_DATA")
    return Path(given or optional("pooch", "app").os_cache("hdnn") / "data").expanduser()


def _download(data: ImageSet, file: str) -> Path:
    if given := os.environ.get("HDNN_DATA"):
        raise FetchError(
            f"HDNN_DATA is {given}, which holds no {data.name}/{file}, compressed (.gz) or not; "
            "put it there, or unset HDNN_DATA to download it"
        )
    pooch, faults = optional("pooch", "app"), []
    pooch.get_logger().setLevel("WARNING")
    for url in data.urls:
        note(f"downloading {data.name}, once for this machine: {file} ...")
        try:
            # The sum of the uncompressed file is checked at every use; compression may differ.
            folder, name = _folder() / data.name, f"{file}.gz"
            return Path(pooch.retrieve(f"{url}/{name}", None, fname=name, path=folder))
        except Exception as error:  # of requests, urllib3 or the file system
            faults.append(f"\n  - {url}: {short(str(error), 200)}")
    raise FetchError(
        f"cannot download {file} of {data.name}:{''.join(faults)}\nDownload the four files by hand "
        f"into a folder {data.name}, and set HDNN_DATA to the folder above it"
    )


def _digits() -> Dataset:
    data = optional("sklearn.datasets", "app").load_digits()
    # The values are 0 to 16.
    pixels = torch.from_numpy(np.rint(data.images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(data.target.astype(np.int64))
    return _held_out(pixels, labels, _DIGITS, "digits", 0)


def _held_out(
    pixels: Tensor, labels: Tensor, classes: tuple[str, ...], source: str, seed: int
) -> Dataset:
    kept, held = holdout(len(pixels), TEST_SHARE, seed, labels)
    return _dataset((pixels[kept], labels[kept]), (pixels[held], labels[held]), classes, source)


def _dataset(
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    classes: tuple[str, ...],
    source: str,
) -> Dataset:
    return Dataset(*train, *test, "classification", "images", classes, source=source)


def _from_idx(
    paths: Sequence[Path], source: str, classes: tuple[str, ...] | None = None
) -> Dataset:
    """A data set of the four files of MNIST's layout."""
    train, test = _idx_part(*paths[:2]), _idx_part(*paths[2:])
    if train[0].shape[1:] != test[0].shape[1:]:
        raise FileFormatError(f"{source}: training and test images are of different sizes")
    count = 1 + max(int(train[1].max()), int(test[1].max()))
    return _dataset(train, test, classes or tuple(map(str, range(count))), source)


def _idx_part(images_path: Path, labels_path: Path) -> tuple[Tensor, Tensor]:
    pixels, labels = read_idx(images_path), read_idx(labels_path)
    if pixels.ndim != 3 or labels.shape != pixels.shape[:1] or not pixels.size:
        raise FileFormatError(
            f"{images_path} has shape {pixels.shape} and {labels_path.name} {labels.shape}; they "
            "should be (B, height, width) and (B,), and hold something"
        )
    return torch.from_numpy(pixels).unsqueeze(1), torch.from_numpy(labels.astype(np.int64))


def _from_folder(
    source: str | os.PathLike[str], size: Size | None, strict: bool, seed: int
) -> Dataset:
    folder = Path(source).expanduser()
    if not folder.is_dir():
        if isinstance(source, str) and os.sep not in source:
            raise unknown_name("data set of images", source, [*IMAGE_SETS, "a folder of classes"])
        raise HdnnError(f"{source} is no folder; give one with a subfolder for each class")
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise HdnnError(f"size is (height, width), each at least 1, got {size!r}")
    idx = _idx_paths([folder])
    if any(idx):
        missing = [name for name, path in zip(IDX_FILES, idx, strict=True) if path is None]
        if missing:
            raise HdnnError(f"{folder} holds IDX files, but not {', '.join(missing)}")
        return _from_idx([path for path in idx if path is not None], str(folder))
    read = read_folder(folder, size, strict)
    if read.test is None:
        data = _held_out(*read.train, read.classes, str(folder), seed)
    else:
        data = _dataset(read.train, read.test, read.classes, str(folder))
    return replace(data, notes=read.notes)
