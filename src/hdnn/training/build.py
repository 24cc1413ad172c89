"""From the config of a model to the model, untrained."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hdnn import zoo
from hdnn.config import ModelConfig
from hdnn.data import Dataset
from hdnn.errors import HdnnError
from hdnn.fields.hamiltonian import WeightedField
from hdnn.models import Model, Padding, Projection, Scaler, image_model

MOST_WEIGHTS = 10**9
"""More weights than this are a typing error."""


def build(config: ModelConfig, data: Dataset) -> Model:
    """The untrained model of a config.

    Args:
        config: resolved for these data; see `hdnn.training.resolve`.
        data: they say how many features and outputs there are, and scale the inputs.

    Returns:
        The model. Its weights depend on the seed of the config only.

    Raises:
        HdnnError: the settings do not fit together, or ask for too much.
    """
    generator = torch.Generator().manual_seed(config.seed)
    if data.kind == "images":
        return _image_model(config, data, generator)
    return _column_model(config, data, generator)


def is_projected(projection: str, features: int, width: int) -> bool:
    """Whether features enter the network by a learned linear map, not widened with zeros."""
    return projection == "on" or (projection == "auto" and features > width)


def _options(config: ModelConfig) -> dict[str, Any]:
    """What networks over features and over channels take alike."""
    names = ("architecture", "scheme", "activation", "time_invariant", "T", "step")
    return {name: getattr(config, name) for name in names}


def _column_model(config: ModelConfig, data: Dataset, generator: torch.Generator) -> Model:
    layers, width, features = config.layers, config.width, data.X.shape[1]
    if not isinstance(layers, int) or not isinstance(width, int):
        raise HdnnError("a model needs a width and a number of layers: see hdnn.training.resolve")
    _check_weights(layers * width**2)
    if not config.standardize and bool(torch.isnan(data.X).any()):
        raise HdnnError(
            "missing values are replaced by the mean, which needs model.standardize=true"
        )
    dtype = getattr(torch, config.dtype)
    padding = projection = None
    if not is_projected(config.projection, features, width):
        padding = Padding(features, width, config.padding)
    even, options = width + width % 2, _options(config)
    name = options.pop("architecture")
    net = zoo.network(
        name, features=even, layers=layers, dtype=dtype, generator=generator, **options
    )
    assert isinstance(net.field, WeightedField)
    with torch.no_grad():  # K only: biases keep standard deviation 1, see docs/tables.md
        net.field.weights.theta.mul_(config.scale)
    if padding is None:  # drawn last: the network's weights are those of the seed either way
        projection = Projection(features, width, generator, dtype)
    return Model(
        net,
        _outputs(data),
        padding,
        Scaler.fit(data.X.double(), data.weight).to(dtype) if config.standardize else None,
        projection=projection,
        task=data.task,
        classes=data.classes and list(data.classes),
        feature_names=data.feature_names and list(data.feature_names),
        target_names=data.target_names and list(data.target_names),
        columns=None if data.encoder is None else data.encoder.to_list(),
    )


def _outputs(data: Dataset) -> int:
    """One for every class but one for two classes, or one for every target."""
    if data.classes is not None:
        return 1 if len(data.classes) == 2 else len(data.classes)
    return math.prod(data.y.shape[1:])


def _check_weights(count: int) -> None:
    if count > MOST_WEIGHTS:
        raise HdnnError(
            f"layers and width ask for about {count:.1e} weights; at most {MOST_WEIGHTS:.0e} can "
            "be trained: use fewer layers, or a smaller width"
        )


def _image_model(config: ModelConfig, data: Dataset, generator: torch.Generator) -> Model:
    layers, widths = config.layers, config.width
    if not isinstance(layers, tuple) or not isinstance(widths, tuple):
        raise HdnnError("images need widths and layers of stages: see hdnn.training.resolve")
    kernel = max(config.kernel, 3) ** 2  # the connectors have kernels of 3
    stages = zip(layers, widths, strict=False)
    _check_weights(sum((depth + 2) * width**2 * kernel for depth, width in stages))
    mean, std = statistics(data.X) if config.standardize else ((), ())
    if data.classes is None:
        raise HdnnError("images are classified: give task='classification'")
    channels, height, width = data.X.shape[1:]
    return image_model(
        channels=channels,
        size=(height, width),
        classes=list(data.classes),
        widths=widths,
        layers=layers,
        kernel=config.kernel,
        block=config.block,
        norm=config.norm,
        scale=config.scale,
        mean=mean,
        std=std,
        dtype=getattr(torch, config.dtype),
        generator=generator,
        **_options(config),
    )


def statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every channel of uint8 images, scaled to [0, 1]; exact.

    From the counts of the 256 levels: no copy of the images in floating point is made.
    """
    if images.dtype != torch.uint8:
        raise HdnnError(
            f"images to standardize are uint8, from 0 to 255, got {images.dtype}: scale and round "
            "them, or set model.standardize=false"
        )
    levels = torch.arange(256, dtype=torch.float64) / 255
    counts = [torch.bincount(channel.flatten(), minlength=256) for channel in images.unbind(1)]
    shares = torch.stack(counts).double() / images[:, 0].numel()
    mean = (shares * levels).sum(1)
    variance = (shares * (levels - mean[:, None]).square()).sum(1)
    std = torch.where(variance > 0, variance.sqrt(), 1.0)
    return tuple(mean.tolist()), tuple(std.tolist())
