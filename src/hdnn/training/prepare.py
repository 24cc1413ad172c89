"""From a run config to its data and its untrained model."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hdnn import zoo
from hdnn.data import (
    BUNDLED,
    PROBLEMS,
    ColumnEncoder,
    Table,
    bundled,
    holdout,
    problem,
    read_table,
    split,
)
from hdnn.data.folders import folder_digest
from hdnn.data.images import IMAGE_SETS, load
from hdnn.data.reading import reading
from hdnn.errors import HdnnError, unknown_name
from hdnn.fields.hamiltonian import WeightedField
from hdnn.models import Augmentation, ImageClassifier, ImageConfig, Model, Projection, Scaler
from hdnn.models.projection import default_width, needs_projection
from hdnn.training import defaults
from hdnn.training.levels import Levels
from hdnn.training.optimizers import make_optimizer
from hdnn.training.run_config import RunConfig
from hdnn.training.settings import DTYPES, DataConfig, ImageModelConfig, ModelConfig, TrainingConfig
from hdnn.training.targets import scale_of
from hdnn.zoo import Architecture

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


@dataclass(frozen=True)
class Prepared:
    """Data ready for training: tensors, and what the model must know of them.

    Args:
        config: where they come from: an absolute path and the digest, of a table or a folder.
        X_train, y_train: the part to train on, ``(samples, ...)`` and ``(samples[, outputs])``.
        X_test, y_test: the part held out.
        task: "classification" or "regression".
        classes: the labels, in the order of their numbers; None for regression.
        feature_names: the columns of a table.
        target_names: its columns that a regression predicts.
        notes: remarks for people.
        encoder: what made numbers of a table.
        scaler: means and spreads of its columns, as exactly as they were read.
    """

    config: DataConfig
    X_train: Tensor
    y_train: Tensor
    X_test: Tensor
    y_test: Tensor
    task: str
    classes: list[Any] | None
    feature_names: list[str] | None = None
    target_names: list[str] | None = None
    notes: tuple[str, ...] = ()
    encoder: ColumnEncoder | None = None
    scaler: Scaler | None = None

    @property
    def scalers(self) -> list[Scaler]:
        """Of the columns, and of what a regression predicts."""
        columns = Scaler.fit(self.X_train) if self.scaler is None else self.scaler
        return [columns] if self.task == "classification" else [columns, scale_of(self.y_train)]


@dataclass(frozen=True)
class PreparedRun:
    """All that a training begins with, made once and handed on.

    Args:
        config: the run config, with the digest of its data.
        data: read and split.
        model: untrained.
    """

    config: RunConfig
    data: Prepared
    model: Model

    @classmethod
    def of(cls, config: RunConfig, given: Mapping[str, Any] | None = None) -> PreparedRun:
        """Read the data of a run config and build its model.

        Args:
            config: of the run; where it has a digest, its data must still have it.
            given: the settings that were asked for, by table (model, training) and name: for a
                table, the others are chosen from the data. None: the run config has them all.

        Returns:
            The run config with absolute path and digest of its data, the data and the model.

        Raises:
            HdnnError: the data cannot be read, have changed, or cannot be trained on as it says.
        """
        if given is None or not config.data.is_table:
            data = prepare(config)
        else:
            exact = replace(config, model=replace(config.model, dtype="float64"))
            config, data = _with_defaults(config, given, prepare(exact))
        torch.manual_seed(config.model.seed)
        model = build(config, data)
        make_optimizer(model.parameters(), config.training, 0.0)  # raises where it cannot serve
        Levels.of(model, config.training)  # the same
        if config.record is not None and config.training.levels is not None:
            raise HdnnError("gradients are recorded at one depth: leave out record, or levels")
        return cls(replace(config, data=data.config), data, model)


def _with_defaults(
    config: RunConfig, given: Mapping[str, Any], data: Prepared
) -> tuple[RunConfig, Prepared]:
    """The run config with what was left open chosen for a table, and the data in its dtype."""
    model, training = defaults.filled(
        given.get("model", {}),
        given.get("training", {}),
        defaults.TableShape(len(data.X_train), data.X_train.shape[1], data.task),
        data.scalers,
    )
    config = replace(config, model=ModelConfig(**model), training=TrainingConfig(**training))
    dtype = DTYPES[config.model.dtype]
    return config, replace(data, X_train=data.X_train.to(dtype), X_test=data.X_test.to(dtype))


def _outputs(data: Prepared) -> int:
    """Outputs of a model: one for every class but one for two classes, or one for every target."""
    if data.task == "classification" and data.classes is not None:
        return 1 if len(data.classes) == 2 else len(data.classes)
    return 1 if data.y_train.ndim == 1 else data.y_train.shape[1]


def prepare(config: RunConfig) -> Prepared:
    """Read the data of a run config, once, and split them into train and test.

    Args:
        config: of the run; where it has a digest, its data must still have it.

    Returns:
        The data, with their digest.

    Raises:
        HdnnError: they cannot be read, or have changed since the run began.
    """
    data = config.data
    if data.digest is not None and not os.path.exists(data.source):
        raise HdnnError(
            f"there is no such file or folder: {data.source[:200]}, the data of this run; say "
            "where they are now: hdnn train --resume RUN --data PATH"
        )
    if data.is_image:
        return _prepare_images(data)
    if data.is_table:
        return _prepare_table(data, DTYPES[config.model.dtype])
    dtype = DTYPES[config.model.dtype]
    parts = split(problem(data.source).name, data.split, data.size, data.seed)
    return Prepared(
        data,
        parts.X_train.to(dtype),
        parts.y_train,
        parts.X_test.to(dtype),
        parts.y_test,
        "classification",
        list(range(parts.classes)),
    )


def _prepare_images(data: DataConfig) -> Prepared:
    named = data.source.lower().replace("_", "-") in IMAGE_SETS  # also where a run has that name
    if not named and os.path.isdir(os.path.expanduser(data.source)):
        place = Path(os.path.expanduser(data.source)).resolve()
        data = _pinned(data, place, folder_digest(place))
    size = None if data.pixels is None else (data.pixels, data.pixels)
    images = load(data.source, size=size, strict=data.strict, seed=data.seed)
    return Prepared(
        data,
        images.train,
        images.train_labels,
        images.test,
        images.test_labels,
        "classification",
        list(images.classes),
        notes=images.notes,
    )


def _prepare_table(data: DataConfig, dtype: torch.dtype) -> Prepared:
    data, table = _read_table(data)
    y = torch.from_numpy(table.targets)
    labels = y if table.task == "classification" else None
    train, test = torch.arange(len(table)), torch.arange(0)
    if data.test > 0:
        train, test = holdout(len(table), data.test, data.seed, labels)
    seen = {name: values[train.numpy()] for name, values in table.columns.items()}
    encoder = ColumnEncoder.fit(seen, table.types, keep=(*data.categorical, *data.numeric))
    X = torch.from_numpy(encoder.transform(table.columns))
    assert table.task is not None
    return Prepared(
        data,
        X[train].to(dtype),
        y[train],
        X[test].to(dtype),
        y[test],
        table.task,
        None if table.classes is None else list(table.classes),
        encoder.feature_names,
        _names_of_targets(table),
        (*table.notes, *encoder.notes),
        encoder,
        Scaler.fit(X[train]),
    )


def _names_of_targets(table: Table) -> list[str] | None:
    """What a regression predicts; a class has its own names."""
    if table.task != "regression" or table.target is None:
        return None
    return [table.target] if isinstance(table.target, str) else list(table.target)


def _read_table(data: DataConfig) -> tuple[DataConfig, Table]:
    """Open the file of a table, hash it and parse it: one and the same content, opened once."""
    name = data.source.lower().replace("_", "-")
    if name in BUNDLED:
        return data, bundled(name)
    if not os.path.exists(os.path.expanduser(data.source)):  # unlike Path, for any text
        known = dict.fromkeys((*PROBLEMS, *BUNDLED, *IMAGE_SETS))
        raise unknown_name("data set (and there is no such file)", data.source[:200], known)
    if data.target is None:
        raise HdnnError(f"{data.source} is a table: say which column to predict with --target")
    place = Path(os.path.expanduser(data.source)).resolve()
    with reading(place, "a table"), open(place, "rb") as file:
        before = _version(os.fstat(file.fileno()))
        data = _pinned(data, place, hashlib.file_digest(file, "sha256").hexdigest())
        table = read_table(
            place,
            data.target,
            task=data.task,
            drop=data.drop,
            categorical=data.categorical,
            numeric=data.numeric,
            file=file,
        )
        if _version(os.stat(place)) != before:  # then the digest may be of another content
            raise HdnnError(f"{place} has changed while it was read; begin again")
    return data, table


def _version(status: os.stat_result) -> tuple[int, int, int, int]:
    """What differs after a file was written to, or replaced."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _pinned(data: DataConfig, place: Path, digest: str) -> DataConfig:
    """The same data with an absolute path and the digest, which must be that of the run."""
    if data.digest not in (None, digest):
        raise HdnnError(
            f"{data.source} has changed since the run began; train anew in another --out"
        )
    return replace(data, source=str(place), digest=digest)


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
    standardize = is_table if given.standardize is None else given.standardize
    if not standardize and bool(torch.isnan(data.X_train).any()):
        raise HdnnError("missing values are taken as the mean, which needs --standardize")
    return build_for_columns(
        given,
        data.X_train.shape[1],
        _outputs(data),
        data.scalers[0] if standardize else None,
        task=data.task,
        classes=data.classes,
        feature_names=data.feature_names,
        target_names=data.target_names,
        # Files of purely numeric models stay as they always were.
        encoder=None if data.encoder is None or data.encoder.is_plain else data.encoder,
    )


def build_for_columns(
    given: ModelConfig,
    features: int,
    outputs: int,
    scaler: Scaler | None,
    architecture: str | Architecture | None = None,
    **description: Any,
) -> Model:
    """The untrained model of a config for rows of numbers.

    Args:
        given: the config.
        features: how many numbers a row has.
        outputs: of the model.
        scaler: of the columns; None where they are taken as they are.
        architecture: instead of the config's, one that need not be in the catalogue.
        description: what else the `Model` is told.

    Returns:
        The model; its K starts with the config's scale, its biases are standard normal.

    Raises:
        HdnnError: the settings do not fit together, or ask for too much.
    """
    row = zoo.architecture(architecture or given.architecture)
    width = given.width or default_width(features, given.projection)
    _check_weights(given.layers * width**2)
    # The config's own architecture has it checked; another one has its own notion of time.
    timed = architecture is None or row.scheme.uses_step
    generator, dtype = torch.Generator().manual_seed(given.seed), DTYPES[given.dtype]
    augmentation = projection = None
    if not needs_projection(given.projection, features, width):
        augmentation = Augmentation(features, width, given.augmentation)
    net = zoo.network(
        row,
        features=width + width % 2,
        layers=given.layers,
        activation=given.activation,
        time_invariant=given.time_invariant,
        dtype=dtype,
        generator=generator,
        T=given.T if timed else None,
        step=given.step if timed else None,
    )
    assert isinstance(net.field, WeightedField)
    with torch.no_grad():
        net.field.weights.theta.mul_(given.scale)
    if augmentation is None:
        projection = Projection(features, width, generator, dtype)
    scaler = None if scaler is None else copy.deepcopy(scaler).to(dtype)
    return Model(net, outputs, augmentation, scaler, projection=projection, **description)


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
