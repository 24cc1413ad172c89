"""Images: MNIST, Fashion-MNIST, scikit-learn's digits, folders by class, and IDX files."""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hdnn.data.dataset import Dataset
from hdnn.data.files import listed, reading, short
from hdnn.data.splits import holdout
from hdnn.errors import FetchError, FileFormatError, HdnnError, optional, unknown_name
from hdnn.progress import note, track

TEST_SHARE = 0.2
"""What is held out for test where the data set has no test part of its own."""

SUFFIXES = (".png", ".jpg", ".jpeg")
MOST_SIDE = 128
"""Images of mixed sizes are brought to at most so many pixels a side, unless a size is given."""

MANY = 1000
"""Reading more images than that is announced."""

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
"""The files of MNIST's layout: images and labels, for training and for test."""

_GRAY, _COLOR = ("1", "L", "LA"), ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr")
_ORIENTATION, _LYING = 0x0112, (5, 6, 7, 8)
"""The tag of EXIF that says how an image is turned, and the values that swap its sides."""

Size = tuple[int, int]


# --- sets by name ---------------------------------------------------------------------------------


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
            ("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",),
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
    places = [folder / name, folder] if os.environ.get("HDNN_DATA") else [folder / name]
    found: list[Path | None] = []
    for file in IDX_FILES:
        candidates = (place / f"{file}{end}" for place in places for end in ("", ".gz"))
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
        if hashlib.sha256(_unpacked(path)).hexdigest() != published:
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
    data = _unpacked(Path(path))
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


def _unpacked(path: Path) -> bytes:
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
    ends = ("", ".gz")
    idx = [
        next((p for e in ends if (p := folder / f"{name}{e}").is_file()), None)
        for name in IDX_FILES
    ]
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
    return data.replace(notes=read.notes)


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
    text = f"images of {len(counts)} sizes, {small} to {large}, are resized to {size[0]} x {size[1]}"
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
