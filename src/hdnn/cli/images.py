"""Images that a trained classifier is asked about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from glob import glob, has_magic
from pathlib import Path

import torch
from torch import Tensor

from hdnn.config import shown
from hdnn.data.images import (
    SUFFIXES,
    is_image_file,
    load,
    read_folder,
    read_idx,
    read_images,
)
from hdnn.errors import HdnnError
from hdnn.models import Model


def read_unlabeled(sources: Sequence[Path], shape: Sequence[int]) -> tuple[list[str], Tensor]:
    """Names and images ``(B, C, H, W)`` of folders, files, patterns, or of one IDX file.

    Args:
        sources: where they are.
        shape: channels, height and width that the model takes.
    """
    channels, height, width = shape
    if len(sources) == 1 and sources[0].is_file() and sources[0].suffix.lower() not in SUFFIXES:
        return _read_idx(sources[0], channels, (height, width))
    paths = list(dict.fromkeys(path for source in sources for path in _files(source)))
    images = read_images(paths, (height, width))
    # Below one folder names are short; of several sources only whole paths tell images apart.
    root = sources[0] if len(sources) == 1 and sources[0].is_dir() else None
    names = [str(path if root is None else path.relative_to(root)) for path in paths]
    return names, _fit(images, channels)


def _files(source: Path) -> list[Path]:
    """The images of a folder, of one file, or of a pattern."""
    if source.is_file():
        return [source]
    if source.is_dir():
        candidates: Iterable[Path] = source.rglob("*")
    elif has_magic(str(source)):
        candidates = map(Path, glob(str(source), recursive=True))
    else:
        raise HdnnError(f"there is no folder or file {source}")
    paths = sorted(filter(is_image_file, candidates))
    if not paths:
        raise HdnnError(f"{source} holds no images ({', '.join(SUFFIXES)})")
    return paths


def _read_idx(source: Path, channels: int, size: tuple[int, int]) -> tuple[list[str], Tensor]:
    found = read_idx(source)
    if found.ndim != 3 or not found.size or found.shape[1:] != size:
        raise HdnnError(
            f"{source} has shape {shown(found.shape)}; for this model it should be (images, "
            f"{size[0]}, {size[1]})"
        )
    images = torch.from_numpy(found).unsqueeze(1)
    return [str(number) for number in range(len(found))], _fit(images, channels)


def _fit(images: Tensor, channels: int) -> Tensor:
    """Grey images for a model of colored ones; the converse is an error of the model."""
    grey = images.shape[1] == 1 and channels > 1
    return images.expand(-1, channels, -1, -1) if grey else images


def labeled(source: Path, model: Model) -> tuple[Tensor, Tensor]:
    """Images by class, the test part where there is one, with the class numbers of a model."""
    channels, *size = model.stem.shape
    data = read_folder(source, (size[0], size[1])) if source.is_dir() else load(str(source))
    tested = len(data.X_test) > 0
    images, labels = (data.X_test, data.y_test) if tested else (data.X, data.y)
    classes = data.classes or ()
    known = [str(label) for label in model.labels]
    unknown = set(classes) - set(known)
    if unknown:
        raise HdnnError(
            f"{source} has the class {min(unknown)!r}, which the model does not know; it knows "
            f"{', '.join(known)}"
        )
    numbers = torch.tensor([known.index(label) for label in classes])
    return _fit(images, channels), numbers[labels]
