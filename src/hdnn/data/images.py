"""Data sets of images: MNIST, Fashion-MNIST, scikit-learn's digits, and folders."""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pooch
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from hdnn.data.dataset import Dataset
from hdnn.data.readers import check_expansion, reading
from hdnn.errors import (
    FetchError,
    FileFormatError,
    HdnnError,
    listed,
    shortened,
    shown,
    unknown_name,
)
from hdnn.progress import note, track

__all__ = ["IMAGE_SETS", "ImageSet", "load"]

SUFFIXES = (".png", ".jpg", ".jpeg")
_ENDS = ("", ".gz")
_GRAY, _COLOR = ("1", "L", "LA"), ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr")

Size = tuple[int, int]
Part = tuple[Tensor, Tensor]
"""Images and class numbers."""

TEST_SHARE = 0.2
"""Fraction held out for testing where a data set has no test part of its own."""

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
"""The files of MNIST: images and labels, for training and for testing."""


@dataclass(frozen=True)
class ImageSet:
    """A data set of images before it is loaded.

    Args:
        about: what the images are, and how many for training and for testing.
        classes: names of the classes, in order.
        sha256: of the uncompressed `IDX_FILES`; empty where the set needs no download.
        urls: where each file can be downloaded, with .gz appended to its name.

    >>> from hdnn.data import images
    >>> images.IMAGE_SETS["mnist"].about
    'handwritten digits, 60000 + 10000 of 1 x 28 x 28'
    """

    about: str
    classes: tuple[str, ...]
    sha256: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()


_DIGITS = tuple("0123456789")
_CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)

IMAGE_SETS: dict[str, ImageSet] = {
    "digits": ImageSet("handwritten digits of scikit-learn, 1438 + 359 of 1 x 8 x 8", _DIGITS),
    "mnist": ImageSet(
        "handwritten digits, 60000 + 10000 of 1 x 28 x 28",
        _DIGITS,
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
    "fashion-mnist": ImageSet(
        "pieces of clothing, 60000 + 10000 of 1 x 28 x 28",
        _CLOTHES,
        (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        ("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",),
    ),
}
"""The data sets of images, by name; "digits" needs no download."""


def load(
    source: str | os.PathLike[str] = "digits", *, size: int | Size | None = None, seed: int = 0
) -> Dataset:
    """Load images by name or from a folder; MNIST and Fashion-MNIST are downloaded at first use.

    A folder holds ``class/*.png`` (or JPEG), or ``train/class`` and ``test/class``. Without a test
    part, a fifth of every class is held out.

    Args:
        source: "digits", "mnist", "fashion-mnist", or the path of a folder.
        size: (height, width) to which the images of a folder are resized, or a number for both;
            None: their own, which must be the same.
        seed: random seed of the part held out of a folder. The split of the digits is fixed.

    Returns:
        The images as uint8, ``(B, C, H, W)``.

    Raises:
        HdnnError: the name is unknown, files are damaged or could not be downloaded, or images
            of a folder have different sizes.

    >>> digits = load("digits")
    >>> digits
    Dataset(digits: 1438 training rows, 359 test rows, 1 x 8 x 8, 10 classes)
    >>> digits.X.dtype, int(digits.X.max())
    (torch.uint8, 255)
    """
    key = str(source).lower().replace("_", "-")
    if key in IMAGE_SETS and size is not None:
        raise HdnnError(f"a size is for a folder of images; those of {key} have one size")
    if key == "digits":
        return _digits()
    if key in IMAGE_SETS:
        return _from_idx(fetch(key), key)
    folder = Path(source).expanduser()
    if not folder.is_dir():
        if isinstance(source, str) and os.sep not in source:
            raise unknown_name("data set of images", source, [*IMAGE_SETS, "a folder of classes"])
        raise HdnnError(f"{source} is no folder; pass one with a subfolder for each class")
    data = read_folder(folder, (size, size) if isinstance(size, int) else size)
    return data if len(data.X_test) else data.hold_out(TEST_SHARE, seed)


def _digits() -> Dataset:
    from sklearn.datasets import load_digits  # slow to import, and needed here only

    data = load_digits()
    # The values are 0 to 16.
    X = torch.from_numpy(np.rint(data.images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    y = torch.from_numpy(data.target.astype(np.int64))
    return _dataset((X, y), (X[:0], y[:0]), _DIGITS, "digits").hold_out(TEST_SHARE, 0)


def _dataset(train: Part, test: Part, classes: Sequence[str], source: str) -> Dataset:
    return Dataset(*train, *test, "classification", "images", tuple(classes), source=source)


# --- MNIST's files --------------------------------------------------------------------------------


def read_idx(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, which may be compressed (.gz).

        0, 0, 8, d | d sizes, each 4 bytes, the highest first | the values, last index fastest

    Args:
        path: of the file.

    Returns:
        The array.

    Raises:
        FileFormatError: it is not such a file.
    """
    data = read_bytes(Path(path))
    with reading(path, "IDX"):
        if len(data) < 4 or data[:3] != b"\0\0\x08" or data[3] == 0:
            raise ValueError("it does not begin with 00 00 08 and the number of dimensions")
        start = 4 + 4 * data[3]
        shape = tuple(int.from_bytes(data[k : k + 4]) for k in range(4, start, 4))
        if len(data) != start + math.prod(shape):
            raise ValueError(f"it is truncated or damaged: its header says shape {shown(shape)}")
        return np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy()


def read_bytes(path: Path) -> bytes:
    """The bytes of a file, unpacked if its name ends in .gz."""
    with reading(path, "IDX"):
        check_expansion(path)
        with gzip.open(path) if path.suffix.lower() == ".gz" else open(path, "rb") as file:
            data: bytes = file.read()
            return data


def _from_idx(paths: Sequence[Path], name: str) -> Dataset:
    """A data set of the four `IDX_FILES`, whose checksums are right."""
    X, y, X_test, y_test = (torch.from_numpy(read_idx(path)) for path in paths)
    train, test = (X.unsqueeze(1), y.long()), (X_test.unsqueeze(1), y_test.long())
    return _dataset(train, test, IMAGE_SETS[name].classes, name)


# --- downloads ------------------------------------------------------------------------------------


def find(name: str) -> list[Path | None]:
    """Find the four files of a data set on this machine.

    Args:
        name: "mnist" or "fashion-mnist".

    Returns:
        Paths of the files, which may be compressed, in the folder named by HDNN_DATA or its
        subfolder, or in the user's cache; None for a file that is not there.
    """
    folder, paths = _folder(), []
    for file in IDX_FILES:
        candidates = (part / f"{file}{end}" for part in (folder / name, folder) for end in _ENDS)
        paths.append(next((path for path in candidates if path.is_file()), None))
    return paths


def _folder() -> Path:
    return Path(os.environ.get("HDNN_DATA") or pooch.os_cache("hdnn") / "data").expanduser()


def fetch(name: str) -> list[Path]:
    """Download the four files of a data set, unless they are here, and verify their checksums.

    A folder named by HDNN_DATA replaces the download.

    Args:
        name: "mnist" or "fashion-mnist".

    Returns:
        Their paths.

    Raises:
        FetchError: a download failed, or a file is not the one that was published.
    """
    paths = []
    for file, path, published in zip(IDX_FILES, find(name), IMAGE_SETS[name].sha256, strict=True):
        path = path or _download(name, file)
        if hashlib.sha256(read_bytes(path)).hexdigest() != published:
            raise FetchError(
                f"{path} is damaged, or not the {file} of {name}: its SHA-256 is another; remove "
                "it, and it is downloaded again"
            )
        paths.append(path)
    return paths


def _download(name: str, file: str) -> Path:
    if folder := os.environ.get("HDNN_DATA"):
        raise FetchError(
            f"HDNN_DATA is {folder}, which holds no {name}/{file}, compressed (.gz) or not; "
            "put it there, or unset HDNN_DATA to download it"
        )
    faults = []
    pooch.get_logger().setLevel("WARNING")
    note(f"downloading {name}, once for this machine: {file} ...")
    for url in IMAGE_SETS[name].urls:
        try:
            # No hash: `fetch` checks that of the uncompressed file, as compression may differ.
            options = {"fname": f"{file}.gz", "path": _folder() / name}
            return Path(pooch.retrieve(f"{url}/{file}.gz", None, **options))
        except Exception as error:  # of requests, urllib3 or the file system
            faults.append(f"\n  - {url}: {shortened(str(error), 200)}")
    raise FetchError(
        f"cannot download {file} of {name}:{''.join(faults)}\nDownload the four files by hand "
        f"into a folder {name}, and set HDNN_DATA to the folder above it"
    )


# --- folders --------------------------------------------------------------------------------------


def read_folder(folder: Path, size: Size | None = None) -> Dataset:
    """Read images and class numbers of a folder.

    Args:
        folder: with ``class/*.png``, or ``train/class/*.png`` and ``test/class/*.png``.
        size: (height, width) to which every image is resized; None: their own.

    Returns:
        Both parts; the test part is empty where the folder has none.

    Raises:
        HdnnError: a class has no images, or `read_images` raises it.
    """
    names = _subfolders(folder)
    parted = "train" in names and {*names} <= {"train", "test"} and _subfolders(folder / "train")
    parts = [folder / name for name in sorted(names, reverse=True)] if parted else [folder]
    classes = _subfolders(parts[0])
    if len(classes) < 2:
        raise HdnnError(
            f"{parts[0]} has {len(classes)} subfolders; a data set of images has a subfolder for "
            "each class, two at least"
        )
    if all(name.isdecimal() for name in classes):
        classes = sorted(classes, key=int)  # so that 10 comes after 9
    # All are read at once, as one image in color makes those of both parts colored.
    files = [path for part in parts for path in _image_files(part, classes)]
    images = read_images(files, size)
    labels = torch.tensor([classes.index(path.parent.name) for path in files])
    first = torch.tensor([path.is_relative_to(parts[0]) for path in files])
    train, test = ((images[rows], labels[rows]) for rows in (first, ~first))
    return _dataset(train, test, classes, str(folder))


def _subfolders(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _image_files(part: Path, classes: Sequence[str]) -> list[Path]:
    """The images of the training or the test part of a folder, in the order of the classes."""
    if unknown := {*_subfolders(part)} - {*classes}:
        raise HdnnError(
            f"{part} has the class {min(unknown)!r}, of which there are no training images; "
            f"known are {', '.join(classes)}"
        )
    files = []
    for name in classes:
        paths = sorted(filter(is_image_file, (part / name).glob("*")))
        if not paths:
            raise HdnnError(f"{part / name} holds no images ({', '.join(SUFFIXES)})")
        files += paths
    return files


def folder_digest(folder: Path) -> str:
    """The SHA-256 of all images of a data set: their names and contents.

    Args:
        folder: as `read_folder` takes it.

    Returns:
        Hexadecimal digits.
    """
    whole = hashlib.sha256()
    levels = ("*", "*/*", "*/*/*")  # files, class/files, part/class/files
    for path in sorted(path for level in levels for path in folder.glob(level)):
        if is_image_file(path):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            whole.update(repr((path.relative_to(folder).as_posix(), content)).encode())
    return whole.hexdigest()


def is_image_file(path: Path) -> bool:
    """Whether a path is a PNG or JPEG file by its name, and not hidden."""
    return path.suffix.lower() in SUFFIXES and path.is_file() and not path.name.startswith(".")


# --- image files ----------------------------------------------------------------------------------


def read_images(paths: Sequence[Path], size: Size | None = None) -> Tensor:
    """Read images of one size, or resize them.

    Args:
        paths: PNG and JPEG files.
        size: (height, width) to which all are resized; None: their own, which must be the same.

    Returns:
        ``(B, 1, H, W)`` uint8 if every image is gray, else ``(B, 3, H, W)``.

    Raises:
        FileFormatError: some files cannot be read; the error lists them.
        HdnnError: they have different sizes.
    """
    arrays: list[NDArray[np.uint8]] = []
    errors: dict[Path, HdnnError] = {}
    for path in track(paths, "reading images"):
        try:
            array = _pixels(path, size)
        except FileFormatError as error:
            errors[path] = error
            continue
        if arrays and array.shape[:2] != arrays[0].shape[:2]:
            raise HdnnError(
                f"{path} has {array.shape[0]} x {array.shape[1]} pixels, others have "
                f"{arrays[0].shape[0]} x {arrays[0].shape[1]}: resize all, for example to 64 x 64 "
                "with --pixels 64 (size=64 in Python)"
            )
        arrays.append(array)
    if errors:
        names = listed([f"{path.parent.name}/{path.name}" for path in errors])
        raise FileFormatError(
            f"{len(errors)} of {len(paths)} images cannot be read: {names}; remove or repair them "
            f"(the first: {next(iter(errors.values()))})"
        )
    if all(array.ndim == 2 for array in arrays):
        return torch.from_numpy(np.stack(arrays)).unsqueeze(1)
    colored = [a if a.ndim == 3 else np.repeat(a[:, :, None], 3, axis=2) for a in arrays]
    return torch.from_numpy(np.stack(colored)).permute(0, 3, 1, 2).contiguous()


def _pixels(path: Path, size: Size | None) -> NDArray[np.uint8]:
    """``(H, W)`` of a gray image, ``(H, W, 3)`` of a colored one."""
    with reading(path, "an image"), warnings.catch_warnings():
        # A small file may hold more pixels than there is memory.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(path, formats=("PNG", "JPEG")) as opened:
            if opened.mode not in _GRAY + _COLOR:  # Pillow would clip 16 bits to 8
                raise ValueError(f"its mode is {opened.mode}; save it with 8 bits a channel")
            # Cameras store how a photo was turned instead of turning its pixels.
            ImageOps.exif_transpose(opened, in_place=True)
            image = opened.convert("L" if opened.mode in _GRAY else "RGB")
            if size is not None:
                image = image.resize((size[1], size[0]))
            return np.array(image, dtype=np.uint8)
