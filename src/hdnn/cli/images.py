"""Images that a trained classifier is asked about."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from hdnn.data.folders import SUFFIXES, read_folder, read_images
from hdnn.data.idx import read_idx
from hdnn.data.images import load
from hdnn.data.reading import short
from hdnn.errors import HdnnError
from hdnn.models import Model


def read_unlabeled(source: Path, channels: int, size: tuple[int, int]) -> tuple[list[str], Tensor]:
    """Names and images ``(B, C, H, W)`` of a folder, of one image, or of an IDX file."""
    if source.is_dir():
        paths = sorted(path for path in source.rglob("*") if path.suffix.lower() in SUFFIXES)
        if not paths:
            raise HdnnError(f"{source} holds no images ({', '.join(SUFFIXES)})")
        return [str(path.relative_to(source)) for path in paths], _fit(
            read_images(paths, size), channels
        )
    if not source.is_file():
        raise HdnnError(f"there is no folder or file {source}")
    if source.suffix.lower() in SUFFIXES:
        return [source.name], _fit(read_images([source], size), channels)
    found = read_idx(source)
    if found.ndim != 3 or not found.size or found.shape[1:] != size:
        raise HdnnError(
            f"{source} has shape {short(found.shape)}; for this model it should be (images, "
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
    if source.is_dir() and not list(source.glob("*idx*")):
        train, test, classes = read_folder(source, (size[0], size[1]))
        images, labels = train if test is None else test
    else:
        found = load(str(source))
        images, labels, classes = found.test, found.test_labels, found.classes
    known = [str(label) for label in model.labels]
    unknown = set(classes) - set(known)
    if unknown:
        raise HdnnError(
            f"{source} has the class {min(unknown)!r}, which the model does not know; it knows "
            f"{', '.join(known)}"
        )
    numbers = torch.tensor([known.index(label) for label in classes])
    return _fit(images, channels), numbers[labels]
