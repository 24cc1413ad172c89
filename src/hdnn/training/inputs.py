"""New data for a trained model: read with the types that it knows, and a few samples of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hdnn.data import PROBLEMS, ColumnEncoder, Dataset, read_blocks, read_table, split
from hdnn.data.images import IMAGE_SETS, SUFFIXES, is_image_file, load, read_folder, read_images
from hdnn.data.loading import BUNDLED, bundled_frame
from hdnn.errors import HdnnError
from hdnn.models import Model
from hdnn.networks import HamiltonianNetwork

Source = str | os.PathLike[str]
PIXELS = 2000
"""States of images, one for every pixel, that are analyzed at most: each has its own Jacobian."""


def read_features(model: Model, source: Source) -> Tensor:
    """What a model takes, without targets.

    Args:
        model: trained.
        source: a name of `hdnn train`, a table, or images: a file, or a folder of any depth. Of a
            name with a test part, that part.

    Returns:
        ``(rows, features)`` in the precision of the model, or images ``(B, C, H, W)``.

    Raises:
        HdnnError: there is no such source, or it is not what the model takes.
    """
    name = _name(source)
    if name in PROBLEMS or name in IMAGE_SETS:
        data = split(name) if name in PROBLEMS else load(name)
        return _checked(model, _test_part(data)[0], source)
    if model.stem.takes_images:
        return _checked(model, read_unlabeled([Path(source)], model)[1], source)
    encoder = encoder_of(model)
    if name in BUNDLED:
        values = [read_table(bundled_frame(name)[0], types=encoder.columns).columns]
    else:
        values = [columns for _, columns in read_blocks(source, encoder.columns)]
    X = torch.cat([torch.from_numpy(encoder.transform(columns)) for columns in values])
    return _checked(model, X, source)


def read_labeled(
    model: Model, source: Source, target: str | Sequence[str] | None = None
) -> tuple[Tensor, Tensor]:
    """What a model takes, with the targets.

    Args:
        model: trained.
        source: a name of `hdnn train`, a table, or a folder of images by class. Of a source with a
            test part, that part.
        target: of a table: the column, or several; None: those that the model knows.

    Returns:
        Features as of `read_features`, and class numbers of the model, or values.

    Raises:
        HdnnError: there is no such source, it is not what the model takes, or has a class that the
            model does not know.
    """
    name = _name(source)
    if name in PROBLEMS or name in IMAGE_SETS or model.stem.takes_images:
        if name in PROBLEMS:
            data = split(name)
        else:
            path = Path(source)
            data = read_folder(path, _size(model)) if path.is_dir() else load(str(source))
        X, y = _test_part(data)
        return _checked(model, X, source), _class_numbers(model, data.classes or (), source)[y]
    table: Any = source
    if name in BUNDLED:
        table, target = bundled_frame(name)[0], target or "target"
    target = target or model.target_names
    if not target:
        raise HdnnError(f"say which column of {source} has the labels: --target NAME")
    encoder, classes = encoder_of(model), None if model.task == "regression" else model.labels
    rows = read_table(table, target, task=model.task, classes=classes, types=encoder.columns)
    X = torch.from_numpy(encoder.transform(rows.columns))
    return _checked(model, X, source), torch.from_numpy(rows.targets)


def encoder_of(model: Model) -> ColumnEncoder:
    """What makes numbers of the columns of a table, for a model."""
    names = model.feature_names or [f"x{k}" for k in range(model.features)]
    return ColumnEncoder.from_list(model.columns or [{"name": n, "kind": "number"} for n in names])


def _name(source: Source) -> str:
    return str(source).lower().replace("_", "-")


def _checked(model: Model, X: Tensor, source: Source) -> Tensor:
    """Samples as the model takes them; an error that names the source where it does not."""
    if model.stem.takes_images and X.ndim == 4:
        X = _in_color(X, model)
    if not len(X) or tuple(X.shape[1:]) != tuple(model.stem.shape):
        shape = " x ".join(map(str, model.stem.shape))
        has = " x ".join(map(str, X.shape[1:])) if len(X) else "none"
        raise HdnnError(f"the model takes samples of {shape} numbers, {source} has {has}")
    return X if model.stem.takes_images else X.to(model.head.weight.dtype)


def _test_part(data: Dataset) -> tuple[Tensor, Tensor]:
    """The test part, if there is one."""
    return (data.X_test, data.y_test) if len(data.X_test) else (data.X, data.y)


def _class_numbers(model: Model, classes: Sequence[Any], source: Source) -> Tensor:
    """The numbers that classes have in the model, where they may come in another order."""
    known = [str(label) for label in model.labels] if model.task == "classification" else []
    if unknown := [str(label) for label in classes if str(label) not in known]:
        raise HdnnError(
            f"{source} has the class {unknown[0]!r}, which the model does not know; it knows "
            f"{', '.join(known) or 'no classes'}"
        )
    return torch.tensor([known.index(str(label)) for label in classes])


def _size(model: Model) -> tuple[int, int]:
    height, width = model.stem.shape[1:]
    return height, width


# --- a few samples --------------------------------------------------------------------------------


def evenly(X: Tensor, most: int) -> Tensor:
    """At most so many samples, evenly spaced: tables may be sorted, so not the first ones."""
    return X[torch.linspace(0, len(X) - 1, min(most, len(X))).long()]


@torch.no_grad()
def block_states(model: Model, X: Tensor, most: int) -> list[tuple[HamiltonianNetwork, Tensor]]:
    """Every Hamiltonian network of a model, and the states of a few samples that enter it.

    Args:
        model: the trained model.
        X: ``(samples, features)``, or images ``(samples, C, H, W)``.
        most: samples at most; of images, as many as have `PIXELS` pixels.
    """
    return model.block_inputs(model.prepare(examined(model, X, most)))


def examined(model: Model, X: Tensor, most: int) -> Tensor:
    """A few samples, evenly spaced; arguments as in `block_states`."""
    if model.stem.takes_images:
        most = min(most, max(1, PIXELS // X[0, 0].numel()))
    return evenly(X, most)


# --- images ---------------------------------------------------------------------------------------


def read_unlabeled(sources: Sequence[Path], model: Model) -> tuple[list[str], Tensor]:
    """Names and images ``(B, C, H, W)`` of folders and files.

    Args:
        sources: where they are.
        model: says what shape they need.
    """
    paths = list(dict.fromkeys(path for source in sources for path in _files(source)))
    images = read_images(paths, _size(model))
    # Below one folder names are short; of several sources only whole paths tell images apart.
    root = sources[0] if len(sources) == 1 and sources[0].is_dir() else None
    names = [str(path if root is None else path.relative_to(root)) for path in paths]
    return names, _in_color(images, model)


def _files(source: Path) -> Iterator[Path]:
    """The images of a folder, at any depth, or one file."""
    if source.is_file():
        yield source
        return
    if not source.is_dir():
        raise HdnnError(f"there is no folder or file {source}")
    paths = sorted(filter(is_image_file, source.rglob("*")))
    if not paths:
        raise HdnnError(f"{source} holds no images ({', '.join(SUFFIXES)})")
    yield from paths


def _in_color(images: Tensor, model: Model) -> Tensor:
    """Grey images for a model of color images; for the converse, the model raises."""
    grey = images.shape[1] == 1 and model.stem.shape[0] > 1
    return images.expand(-1, model.stem.shape[0], -1, -1) if grey else images
