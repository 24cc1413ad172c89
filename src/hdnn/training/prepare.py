"""From a run config to its data and its untrained model."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hdnn.data import PROBLEMS, holdout, problem, read_table, split
from hdnn.data.folders import folder_digest
from hdnn.data.images import load
from hdnn.errors import HdnnError, unknown_name
from hdnn.models import Augmentation, ImageClassifier, ImageConfig, Model, Projection, Scaler
from hdnn.models.projection import default_width, needs_projection
from hdnn.training.optimizers import make_optimizer
from hdnn.training.run_config import RunConfig
from hdnn.training.settings import DTYPES, DataConfig, ImageModelConfig, ModelConfig
from hdnn.zoo import network

MOST_WEIGHTS = 10**9
"""More weights than this are a slip of the pen."""


def data_digest(path: Path) -> str:
    """The SHA-256 of a table, or of the images in a folder."""
    if path.is_dir():
        return folder_digest(path)
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise HdnnError(f"cannot read {path}: {error.strerror or error}") from error


def pin(data: DataConfig) -> DataConfig:
    """The same data with an absolute path and the digest of a table or a folder."""
    path = os.path.expanduser(data.source)
    if not (data.is_image and os.path.isdir(path)) and not (data.is_table and os.path.isfile(path)):
        return data
    place = Path(path).resolve()
    return replace(data, source=str(place), digest=data_digest(place))


@dataclass(frozen=True)
class Prepared:
    """Data ready for training: tensors, and what the model must know of them."""

    X_train: Tensor
    y_train: Tensor
    X_test: Tensor
    y_test: Tensor
    task: str
    classes: list[Any] | None
    feature_names: list[str] | None
    notes: list[str]


def prepare(config: RunConfig) -> Prepared:
    """The data of a run config, split into train and test."""
    data, dtype = config.data, DTYPES[config.model.dtype]
    _check_pinned(data)
    if data.is_image:
        size = None if data.pixels is None else (data.pixels, data.pixels)
        found = load(data.source, size=size, seed=data.seed)
        return Prepared(
            found.train,
            found.train_labels,
            found.test,
            found.test_labels,
            "classification",
            list(found.classes),
            None,
            [],
        )
    if not data.is_table:
        parts = split(problem(data.source).name, data.split, data.size, data.seed)
        return Prepared(
            parts.X_train.to(dtype),
            parts.y_train,
            parts.X_test.to(dtype),
            parts.y_test,
            "classification",
            list(range(parts.classes)),
            None,
            [],
        )
    if not os.path.exists(data.source):
        raise unknown_name("data set (and there is no such file)", data.source[:200], PROBLEMS)
    if data.target is None:
        raise HdnnError(f"{data.source} is a table: say which column to predict with --target")
    table = read_table(data.source, data.target, task=data.task, drop=data.drop)
    targets = torch.from_numpy(table.targets)
    labels = targets if table.task == "classification" else None
    X = torch.from_numpy(table.X).to(dtype)
    y = targets if labels is not None else targets.to(dtype)
    train, test = torch.arange(len(X)), torch.arange(0)
    if data.test > 0:
        train, test = holdout(len(X), data.test, data.seed, labels)
    assert table.task is not None
    return Prepared(
        X[train],
        y[train],
        X[test],
        y[test],
        table.task,
        None if table.classes is None else list(table.classes),
        list(table.feature_names),
        list(table.notes),
    )


def _check_pinned(data: DataConfig) -> None:
    """Refuse data that are not there any more, or not those of the digest."""
    if data.digest is None:
        return
    if not (os.path.isfile(data.source) or os.path.isdir(data.source)):
        raise HdnnError(
            f"there is no such file or folder: {data.source[:200]}, the data of this run; say "
            "where they are now: hdnn train --resume RUN --data PATH"
        )
    if data_digest(Path(data.source)) != data.digest:
        raise HdnnError(
            f"{data.source} has changed since the run began; train anew in another --out"
        )


def build(config: RunConfig, data: Prepared) -> Model:
    """The untrained model of a run config."""
    if isinstance(config.model, ImageModelConfig):
        assert data.classes is not None
        _check_images(config.model)
        return build_classifier(config.model, data.X_train, data.classes)
    return _build_model(config.model, config.data.is_table, data)


def _check_weights(count: int) -> None:
    if count > MOST_WEIGHTS:
        raise HdnnError(
            f"layers and width ask for about {count:.1e} weights; at most {MOST_WEIGHTS:.0e} can "
            "be trained: take fewer layers, or a smaller width"
        )


def _check_images(given: ImageModelConfig) -> None:
    kernel = max(given.kernel, 3) ** 2  # the connectors have kernels of 3
    stages = zip(given.layers, given.widths, strict=True)
    _check_weights(sum((layers + 2) * width**2 * kernel for layers, width in stages))


def _build_model(given: ModelConfig, is_table: bool, data: Prepared) -> Model:
    features = data.X_train.shape[1]
    width = given.width or default_width(features, given.projection)
    _check_weights(given.layers * width**2)
    generator, dtype = torch.Generator().manual_seed(given.seed), DTYPES[given.dtype]
    augmentation = projection = None
    if not needs_projection(given.projection, features, width):
        augmentation = Augmentation(features, width, given.augmentation)
    net = network(
        given.architecture,
        features=width + width % 2,
        layers=given.layers,
        T=given.T,
        step=given.step,
        activation=given.activation,
        time_invariant=given.time_invariant,
        dtype=dtype,
        generator=generator,
        scale=given.scale,
    )
    if augmentation is None:
        projection = Projection(features, width, generator, dtype)
    standardize = is_table if given.standardize is None else given.standardize
    if not standardize and bool(torch.isnan(data.X_train).any()):
        raise HdnnError("missing values are taken as the mean, which needs --standardize")
    outputs = 1
    if data.task == "classification" and data.classes is not None:
        outputs = 1 if len(data.classes) == 2 else len(data.classes)
    elif data.y_train.ndim > 1:
        outputs = data.y_train.shape[1]
    return Model(
        net,
        outputs,
        augmentation,
        Scaler.fit(data.X_train) if standardize else None,
        task=data.task,
        classes=data.classes,
        feature_names=data.feature_names,
        projection=projection,
    )


def check(config: RunConfig) -> Prepared:
    """The data of a run config, after making sure that it can be trained as it says."""
    data = prepare(config)
    make_optimizer(build(config, data).parameters(), config.training, 0.0)
    return data


def statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and spread of every channel of uint8 images, scaled to [0, 1]; exact."""
    means, spreads = [], []
    levels = torch.arange(256, dtype=torch.float64) / 255
    for channel in images.unbind(1):
        shares = torch.bincount(channel.flatten(), minlength=256).double() / channel.numel()
        mean = float((shares * levels).sum())
        variance = float((shares * (levels - mean).square()).sum())
        means.append(mean)
        spreads.append(variance**0.5 if variance > 0 else 1.0)
    return tuple(means), tuple(spreads)


def build_classifier(given: ImageModelConfig, images: Tensor, classes: list[Any]) -> Model:
    """The untrained classifier of a config for certain images."""
    mean, std = statistics(images) if given.standardize else ((), ())
    channels, height, width = images.shape[1:]
    config = ImageConfig(
        **asdict(given.options()),
        channels=channels,
        size=(height, width),
        classes=len(classes),
        mean=mean,
        std=std,
    )
    return ImageClassifier(
        config,
        classes=classes,
        dtype=DTYPES[given.dtype],
        generator=torch.Generator().manual_seed(given.seed),
    )
