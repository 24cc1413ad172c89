"""Data sets of images: MNIST, Fashion-MNIST, scikit-learn's digits, and folders."""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median_low
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hdnn.data.dataset import Dataset
from hdnn.data.files import listed, reading, short
from hdnn.errors import FetchError, FileFormatError, HdnnError, optional, unknown_name
from hdnn.progress import note, track

__all__ = ["IMAGE_SETS", "ImageSet", "load"]

SUFFIXES = (".png", ".jpg", ".jpeg")
MOST_SIDE = 128
"""Images of mixed sizes are brought to at most so many pixels a side, unless a size is given."""

MANY = 1000
"""Reading more images than that is announced."""

_GRAY, _COLOR = ("1", "L", "LA"), ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr")

Size = tuple[int, int]

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
        about: what the images are, and how many for training and for test.
        classes: names of the classes, in order.
        sha256: of the uncompressed `IDX_FILES`; none where the set needs no download.
        urls: folders on the web that hold each file with .gz.

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
    source: str | os.PathLike[str] = "digits",
    *,
    size: int | Size | None = None,
    seed: int = 0,
) -> Dataset:
    """Images by name or from a folder; MNIST and Fashion-MNIST are downloaded at first use.

    A folder holds ``class/*.png`` (or JPEG), or ``train/class`` and ``test/class``, or the four IDX
    files of MNIST's layout. Without a test part, a fifth of every class is held out. Files that
    cannot be read are left out, and noted.

    Args:
        source: "digits", "mnist", "fashion-mnist", or the path of a folder.
        size: (height, width) to bring the images of a folder to, or a number for both; None:
            theirs, or of mixed sizes the median, with at most 128 pixels a side.
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
    if key in IMAGE_SETS and size is not None:
        raise HdnnError(f"a size is for a folder of images; those of {key} have one size")
    if key == "digits":
        return _digits()
    if key in IMAGE_SETS:
        return _from_idx(fetch(key), key, IMAGE_SETS[key].classes)
    folder = Path(source).expanduser()
    if not folder.is_dir():
        if isinstance(source, str) and os.sep not in source:
            raise unknown_name("data set of images", source, [*IMAGE_SETS, "a folder of classes"])
        raise HdnnError(f"{source} is no folder; give one with a subfolder for each class")
    if any(idx := _idx_paths([folder])):
        missing = [name for name, path in zip(IDX_FILES, idx, strict=True) if path is None]
        if missing:
            raise HdnnError(f"{folder} holds IDX files, but not {', '.join(missing)}")
        return _from_idx([path for path in idx if path is not None], str(folder))
    data = read_folder(folder, (size, size) if isinstance(size, int) else size)
    return data if len(data.X_test) else data.hold_out(TEST_SHARE, seed)


def _digits() -> Dataset:
    data = optional("sklearn.datasets", "app").load_digits()
    # The values are 0 to 16.
    X = torch.from_numpy(np.rint(data.images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    y = torch.from_numpy(data.target.astype(np.int64))
    data_set = Dataset(X, y, X[:0], y[:0], "classification", "images", _DIGITS, source="digits")
    return data_set.hold_out(TEST_SHARE, 0)


# --- files of MNIST's layout ----------------------------------------------------------------------


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


def _from_idx(
    paths: Sequence[Path], source: str, classes: tuple[str, ...] | None = None
) -> Dataset:
    """A data set of the four files of MNIST's layout."""
    train, test = _idx_part(*paths[:2]), _idx_part(*paths[2:])
    if train[0].shape[1:] != test[0].shape[1:]:
        raise FileFormatError(f"{source}: training and test images are of different sizes")
    if classes is None:
        classes = tuple(map(str, range(1 + int(torch.cat([train[1], test[1]]).max()))))
    return Dataset(*train, *test, "classification", "images", classes, source=source)


def _idx_part(images_path: Path, labels_path: Path) -> tuple[Tensor, Tensor]:
    pixels, labels = read_idx(images_path), read_idx(labels_path)
    if pixels.ndim != 3 or labels.shape != pixels.shape[:1] or not pixels.size:
        raise FileFormatError(
            f"{images_path} has shape {pixels.shape} and {labels_path.name} {labels.shape}; they "
            "should be (B, height, width) and (B,), and hold something"
        )
    return torch.from_numpy(pixels).unsqueeze(1), torch.from_numpy(labels.astype(np.int64))


# --- downloads ------------------------------------------------------------------------------------


def find(name: str) -> list[Path | None]:
    """Where the four files of a data set are on this machine, if they are.

    Args:
        name: "mnist" or "fashion-mnist".

    Returns:
        Paths of files, which may be compressed, in the folder named by HDNN_DATA or below it, or
        in the user's cache.
    """
    folder = _folder()
    return _idx_paths([folder / name, folder])


def _idx_paths(folders: Sequence[Path]) -> list[Path | None]:
    found: list[Path | None] = []
    for file in IDX_FILES:
        candidates = (folder / f"{file}{end}" for folder in folders for end in ("", ".gz"))
        found.append(next((path for path in candidates if path.is_file()), None))
    return found


def _folder() -> Path:
    given = os.environ.get("HDNN_DATA")
    return Path(given or optional("pooch", "app").os_cache("hdnn") / "data").expanduser()


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
    if given := os.environ.get("HDNN_DATA"):
        raise FetchError(
            f"HDNN_DATA is {given}, which holds no {name}/{file}, compressed (.gz) or not; "
            "put it there, or unset HDNN_DATA to download it"
        )
    pooch, faults = optional("pooch", "app"), []
    pooch.get_logger().setLevel("WARNING")
    note(f"downloading {name}, once for this machine: {file} ...")
    for url in IMAGE_SETS[name].urls:
        try:
            # The sum of the uncompressed file is checked at every use; compression may differ.
            options = {"fname": f"{file}.gz", "path": _folder() / name}
            return Path(pooch.retrieve(f"{url}/{file}.gz", None, **options))
        except Exception as error:  # of requests, urllib3 or the file system
            faults.append(f"\n  - {url}: {short(str(error), 200)}")
    raise FetchError(
        f"cannot download {file} of {name}:{''.join(faults)}\nDownload the four files by hand "
        f"into a folder {name}, and set HDNN_DATA to the folder above it"
    )


# --- folders --------------------------------------------------------------------------------------


def read_folder(folder: Path, size: Size | None = None) -> Dataset:
    """Images and class numbers of a folder; see `read_images` for what is resized and left out.

    Args:
        folder: with ``class/*.png``, or ``train/class/*.png`` and ``test/class/*.png``.
        size: (height, width) to bring every image to.

    Returns:
        Both parts; that for test is empty where the folder has none.

    Raises:
        HdnnError: no such folder, or a class without images that can be read.
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
    files = [  # in the order of parts, then of classes
        (number, label, path)
        for number, part in enumerate(parts)
        for label, name in enumerate(classes)
        for path in _class_files(part, name, classes)
    ]
    images, kept, notes = read_images([path for _, _, path in files], size)
    part_of, labels = torch.tensor([files[k][:2] for k in kept]).T
    for number in range(len(parts)):
        counts = labels[part_of == number].bincount(minlength=len(classes))
        if not counts.all():
            name = classes[int(counts.argmin())]
            raise FileFormatError(f"{folder}: of the class {name!r} no image can be read")
    train, test = ((images[part_of == k], labels[part_of == k]) for k in (0, 1))
    found = Dataset(*train, *test, "classification", "images", tuple(classes), notes=tuple(notes))
    return replace(found, source=str(folder))


def _subfolders(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _class_files(part: Path, name: str, classes: Sequence[str]) -> list[Path]:
    """The images of a class in the training or the test part of a folder."""
    if unknown := {*_subfolders(part)} - {*classes}:
        raise HdnnError(
            f"{part} has the class {min(unknown)!r}, of which there are no training images; "
            f"known are {', '.join(classes)}"
        )
    paths = sorted(filter(is_image_file, (part / name).glob("*")))
    if not paths:
        raise HdnnError(f"{part / name} holds no images ({', '.join(SUFFIXES)})")
    return paths


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


# --- image files ----------------------------------------------------------------------------------


def read_images(
    paths: Sequence[Path], size: Size | None = None
) -> tuple[Tensor, list[int], list[str]]:
    """Read images; those of mixed sizes are resized, and those that cannot be read are left out.

    Args:
        paths: PNG and JPEG files.
        size: (height, width) of the result; None: theirs, or of mixed sizes the median of heights
            and widths, with at most 128 pixels a side.

    Returns:
        ``(B, 1, H, W)`` uint8 if every image is gray, else ``(B, 3, H, W)``; which of the files
        they are of, by number; and notes on what was left out or resized.

    Raises:
        FileFormatError: no file can be read.
    """
    if len(paths) > MANY:
        note(f"reading {len(paths):,} images ...")
    faults: dict[Path, FileFormatError] = {}
    notes: list[str] = []
    if size is None:  # two passes, so that no more than the resized images are in memory
        sizes = [_read(path, faults, _shown_size) for path in paths]
        size = _common_size([s for s in sizes if s is not None], notes)
    arrays: dict[int, NDArray[np.uint8]] = {}
    for number, path in enumerate(track(paths, "reading images")):
        array = None if path in faults else _read(path, faults, _pixels, size)
        if array is not None:
            arrays[number] = array
    if faults:
        names = listed([f"{path.parent.name}/{path.name}" for path in faults])
        notes.append(
            f"{len(faults)} of {len(paths)} images cannot be read and are left out: {names} (the "
            f"first: {next(iter(faults.values()))})"
        )
    if not arrays:
        raise FileFormatError(notes[-1])
    return _stacked(list(arrays.values())), list(arrays), notes


def _common_size(sizes: Sequence[Size], notes: list[str]) -> Size | None:
    """The size for all, with a note where they differ."""
    if len({*sizes}) < 2:
        return sizes[0] if sizes else None
    height, width = (median_low(sides) for sides in zip(*sizes, strict=True))
    share = min(1.0, MOST_SIDE / max(height, width))
    size = max(1, round(share * height)), max(1, round(share * width))
    notes.append(
        f"images of {len({*sizes})} sizes are resized to {size[0]} x {size[1]}; another size: "
        "--pixels (size= in Python)"
    )
    return size


def _stacked(arrays: Sequence[NDArray[np.uint8]]) -> Tensor:
    if all(array.ndim == 2 for array in arrays):
        return torch.from_numpy(np.stack(arrays)).unsqueeze(1)
    colored = [a if a.ndim == 3 else np.repeat(a[:, :, None], 3, axis=2) for a in arrays]
    return torch.from_numpy(np.stack(colored)).permute(0, 3, 1, 2).contiguous()


def _read(path: Path, faults: dict[Path, FileFormatError], result: Any, *args: Any) -> Any:
    """What a function makes of an image that is opened; None, and a fault, if it cannot be read."""
    pillow: Any = optional("PIL.Image", "app")
    try:
        with reading(path, "an image"), warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            with pillow.open(path, formats=("PNG", "JPEG")) as opened:
                if opened.mode not in _GRAY + _COLOR:
                    raise ValueError(f"its mode is {opened.mode}; save it with 8 bits a channel")
                return result(opened, *args)
    except FileFormatError as error:
        faults[path] = error
        return None


def _shown_size(opened: Any) -> Size:
    """(height, width) as it is shown, from the header."""
    width, height = opened.size
    lies = opened.getexif().get(0x0112) in (5, 6, 7, 8)  # the orientation swaps the sides
    return (width, height) if lies else (height, width)


def _pixels(opened: Any, size: Size | None) -> NDArray[np.uint8]:
    optional("PIL.ImageOps", "app").exif_transpose(opened, in_place=True)
    image = opened.convert("L" if opened.mode in _GRAY else "RGB")
    if size is not None:
        image = image.resize((size[1], size[0]))
    return np.array(image, dtype=np.uint8)
