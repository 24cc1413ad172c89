"""Pictures that a trained classifier is asked about."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from hdnn.data.folders import SUFFIXES, read_folder, read_pictures
from hdnn.data.idx import read_idx
from hdnn.data.images import load
from hdnn.data.reading import short
from hdnn.errors import HdnnError
from hdnn.models import Model


def read_unlabelled(source: Path, channels: int, size: tuple[int, int]) -> tuple[list[str], Tensor]:
    """Names and pictures ``(B, C, H, W)`` of a folder, of one picture, or of an IDX file."""
    if source.is_dir():
        paths = sorted(path for path in source.rglob("*") if path.suffix.lower() in SUFFIXES)
        if not paths:
            raise HdnnError(f"{source} holds no pictures ({', '.join(SUFFIXES)})")
        return [str(path.relative_to(source)) for path in paths], _fit(
            read_pictures(paths, size), channels
        )
    if not source.is_file():
        raise HdnnError(f"there is no folder or file {source}")
    if source.suffix.lower() in SUFFIXES:
        return [source.name], _fit(read_pictures([source], size), channels)
    found = read_idx(source)
    if found.ndim != 3 or not found.size or found.shape[1:] != size:
        raise HdnnError(
            f"{source} has shape {short(found.shape)}; for this model it should be (pictures, "
            f"{size[0]}, {size[1]})"
        )
    pictures = torch.from_numpy(found).unsqueeze(1)
    return [str(number) for number in range(len(found))], _fit(pictures, channels)


def _fit(pictures: Tensor, channels: int) -> Tensor:
    """Grey pictures for a model of coloured ones; the converse is an error of the model."""
    grey = pictures.shape[1] == 1 and channels > 1
    return pictures.expand(-1, channels, -1, -1) if grey else pictures


def labelled(source: Path, model: Model) -> tuple[Tensor, Tensor]:
    """Pictures by class, the test part where there is one, with the class numbers of a model."""
    channels, *size = model.stem.shape
    if source.is_dir() and not list(source.glob("*idx*")):
        train, test, classes = read_folder(source, (size[0], size[1]))
        pictures, labels = train if test is None else test
    else:
        found = load(str(source))
        pictures, labels, classes = found.test, found.test_labels, found.classes
    known = [str(label) for label in model.labels]
    unknown = set(classes) - set(known)
    if unknown:
        raise HdnnError(
            f"{source} has the class {min(unknown)!r}, which the model does not know; it knows "
            f"{', '.join(known)}"
        )
    numbers = torch.tensor([known.index(label) for label in classes])
    return _fit(pictures, channels), numbers[labels]
