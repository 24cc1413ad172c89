"""Images for `hdnn predict` and `hdnn evaluate`, as a trained model takes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from hdnn.data.images import SUFFIXES, is_image_file, load, read_folder, read_images
from hdnn.errors import HdnnError
from hdnn.models import Model


def read_unlabeled(sources: Sequence[Path], shape: Sequence[int]) -> tuple[list[str], Tensor]:
    """Names and images ``(B, C, H, W)`` of folders and files.

    Args:
        sources: where they are.
        shape: channels, height and width that the model takes.
    """
    channels, height, width = shape
    paths = list(dict.fromkeys(path for source in sources for path in _files(source)))
    images = read_images(paths, (height, width))
    # Below one folder names are short; of several sources only whole paths tell images apart.
    root = sources[0] if len(sources) == 1 and sources[0].is_dir() else None
    names = [str(path if root is None else path.relative_to(root)) for path in paths]
    return names, _fit(images, channels)


def _files(source: Path) -> list[Path]:
    """The images of a folder, at any depth, or one file."""
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise HdnnError(f"there is no folder or file {source}")
    paths = sorted(filter(is_image_file, source.rglob("*")))
    if not paths:
        raise HdnnError(f"{source} holds no images ({', '.join(SUFFIXES)})")
    return paths


def _fit(images: Tensor, channels: int) -> Tensor:
    """Grey images for a model of color images; for the converse, the model raises."""
    grey = images.shape[1] == 1 and channels > 1
    return images.expand(-1, channels, -1, -1) if grey else images


def read_labeled(source: Path, model: Model) -> tuple[Tensor, Tensor]:
    """Images by class, the test part if there is one, with the class numbers of a model.

    Args:
        source: a folder of images by class, or of MNIST's four files.
        model: its classes may come in another order, or be more.

    Raises:
        HdnnError: the folder has a class that the model does not know.
    """
    channels, height, width = model.stem.shape
    data = read_folder(source, (height, width)) if source.is_dir() else load(str(source))
    images, labels = (data.X_test, data.y_test) if len(data.X_test) else (data.X, data.y)
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
