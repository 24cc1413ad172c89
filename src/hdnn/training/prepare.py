"""From a run config to its data and its untrained model."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hdnn import zoo
from hdnn.data import Dataset, load
from hdnn.errors import HdnnError
from hdnn.fields.hamiltonian import WeightedField
from hdnn.models import Augmentation, Model, Projection, Scaler, image_model
from hdnn.models.stems import default_width, needs_projection
from hdnn.training import defaults
from hdnn.training.optimizers import make_optimizer
from hdnn.training.run_config import RunConfig
from hdnn.training.settings import DTYPES, ImageModelConfig, ModelConfig, TrainingConfig
from hdnn.training.targets import scale_of
from hdnn.zoo import Architecture

MOST_WEIGHTS = 10**9
"""More weights than this are a slip of the pen."""


@dataclass(frozen=True)
class PreparedRun:
    """All that a training begins with, made once and handed on.

    Args:
        config: the run config, with the digest of its data.
        data: read and split.
        model: untrained.
    """

    config: RunConfig
    data: Dataset
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
        data = load(config.data)
        if given is not None and data.kind == "table":
            config = _with_defaults(config, given, data)
        torch.manual_seed(config.model.seed)
        model = build(config, data)
        make_optimizer(model.parameters(), config.training, 0.0)  # raises where it cannot serve
        place = replace(config.data, source=data.source, digest=data.digest)
        return cls(replace(config, data=place), data.to(DTYPES[config.model.dtype]), model)


def _with_defaults(config: RunConfig, given: Mapping[str, Any], data: Dataset) -> RunConfig:
    """The run config with what was left open chosen for a table."""
    model, training = defaults.filled(
        given.get("model", {}),
        given.get("training", {}),
        defaults.TableShape(len(data.X), data.X.shape[1], data.task),
        [Scaler.fit(data.X), *([] if data.task == "classification" else [scale_of(data.y)])],
    )
    return replace(config, model=ModelConfig(**model), training=TrainingConfig(**training))


def _outputs(data: Dataset) -> int:
    """Outputs of a model: one for every class but one for two classes, or one for every target."""
    if data.task == "classification" and data.classes is not None:
        return 1 if len(data.classes) == 2 else len(data.classes)
    return 1 if data.y.ndim == 1 else data.y.shape[1]


def prepare(config: RunConfig) -> Dataset:
    """The data of a run config, in the precision of its model."""
    return load(config.data).to(DTYPES[config.model.dtype])


def build(config: RunConfig, data: Dataset) -> Model:
    """The untrained model of a run config."""
    if isinstance(config.model, ImageModelConfig):
        assert data.classes is not None
        _check_images(config.model)
        return build_classifier(config.model, data.X, list(data.classes))
    return _build_model(config.model, data)


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


def _build_model(given: ModelConfig, data: Dataset) -> Model:
    standardize = data.kind == "table" if given.standardize is None else given.standardize
    if not standardize and bool(torch.isnan(data.X).any()):
        raise HdnnError("missing values are taken as the mean, which needs --standardize")
    return build_for_columns(
        given,
        data.X.shape[1],
        _outputs(data),
        Scaler.fit(data.X) if standardize else None,
        task=data.task,
        classes=None if data.classes is None else list(data.classes),
        feature_names=None if data.feature_names is None else list(data.feature_names),
        target_names=None if data.target_names is None else list(data.target_names),
        columns=None if data.encoder is None else data.encoder.to_list(),
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
    return image_model(
        **given.options(),
        channels=channels,
        size=(height, width),
        classes=classes,
        mean=mean,
        std=std,
        generator=torch.Generator().manual_seed(given.seed),
    )
