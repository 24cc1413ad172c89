"""Recipes for pictures: which classifier, on which data set, and presets for both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hdnn.data.images import IMAGE_SETS, Pictures, load
from hdnn.errors import HdnnError, unknown_name
from hdnn.models import ImageClassifier, ImageConfig, ImageOptions, Model

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, kw_only=True)
class ImageRecipe(ImageOptions):
    """What is trained on pictures: `hdnn.ImageOptions`, and how it begins.

    Args:
        standardise: with mean and spread of the channels of the training pictures.
        dtype: "float32" or "float64".
        seed: of the initial weights.
    """

    standardise: bool = True
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.standardise, bool):
            raise HdnnError(f"standardise is true or false, got {self.standardise!r}")
        if self.dtype not in DTYPES:
            raise unknown_name("dtype", self.dtype, DTYPES)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise HdnnError(f"seed is an integer of at least 0, got {self.seed!r}")


PAPER = {
    "method": "joint",
    "epochs": 40,
    "batch_size": 100,
    "learning_rate": 0.04,
    "schedule": "exponential",
    "decay": 0.8,
    "alpha": 1e-3,
    "alpha_c": 2e-4,
}
"""Appendix B.2; the weight decay is the output layer's, see docs/reproducing.md."""

_CONVOLUTIONAL = {
    "architecture": "MS1",
    "widths": [16, 32, 64],
    "layers": [0, 2, 2],
    "step": 0.5,
    "kernel": 3,
    "connector": "stride",
    "norm": "batch",
    "head": "linear",
}
_ONE_CYCLE = {
    "method": "joint",
    "epochs": 10,
    "batch_size": 100,
    "learning_rate": 0.005,
    "schedule": "one-cycle",
    "warmup": 1.0,
    "optimiser": "AdamW",
    "weight_decay": 0.01,
    "alpha": 0.0,
    "alpha_c": 0.0,
    "averaging": 0.999,
}

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {"model": {}, "training": PAPER},
    # For pictures in which left and right mean something, as digits ...
    "convolutional": {
        "model": _CONVOLUTIONAL,
        "training": {**_ONE_CYCLE, "shift": 2, "rotate": 10.0, "zoom": 0.1},
    },
    # ... and for those that may be mirrored, as clothes.
    "convolutional-flipped": {
        "model": {**_CONVOLUTIONAL, "layers": [0, 3, 3]},
        "training": {**_ONE_CYCLE, "epochs": 8, "shift": 1, "flip": True},
    },
}
"""Settings of model and training by name; what is given besides replaces them."""


def is_image(source: str) -> bool:
    """Whether a source names a data set of pictures, or is a folder."""
    if source.lower().replace("_", "-") in IMAGE_SETS:
        return True
    try:
        return bool(source) and Path(source).expanduser().is_dir()
    except (OSError, RuntimeError, ValueError):  # no text that a path can have
        return False


def with_preset(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of a recipe with the settings of their preset, "paper" where they name none."""
    model = dict(tables.get("model", {}))
    name = model.pop("preset", "paper")
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    preset = {**PRESETS[name]["model"]}
    if {"step", "T"} & model.keys() or model.get("block") == "convolution":
        preset.pop("step", None)
    training = {**PRESETS[name]["training"], **tables.get("training", {})}
    return {**tables, "model": {**preset, **model}, "training": training}


def load_pictures(source: str, pixels: int | None, seed: int) -> Pictures:
    """The pictures of a data recipe."""
    size = None if pixels is None else (pixels, pixels)
    return load(source, size=size, seed=seed)


def statistics(pictures: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and spread of every channel of uint8 pictures, scaled to [0, 1]; exact."""
    means, spreads = [], []
    levels = torch.arange(256, dtype=torch.float64) / 255
    for channel in pictures.unbind(1):
        shares = torch.bincount(channel.flatten(), minlength=256).double() / channel.numel()
        mean = float((shares * levels).sum())
        variance = float((shares * (levels - mean).square()).sum())
        means.append(mean)
        spreads.append(variance**0.5 if variance > 0 else 1.0)
    return tuple(means), tuple(spreads)


def build_classifier(recipe: ImageRecipe, pictures: Tensor, classes: list[Any]) -> Model:
    """The untrained classifier of a recipe for certain pictures."""
    names = {field.name for field in fields(ImageOptions)}
    options = {k: v for k, v in asdict(recipe).items() if k in names}
    mean, std = statistics(pictures) if recipe.standardise else ((), ())
    channels, height, width = pictures.shape[1:]
    config = ImageConfig(
        **options, channels=channels, size=(height, width), classes=len(classes), mean=mean, std=std
    )
    return ImageClassifier(
        config,
        classes=classes,
        dtype=DTYPES[recipe.dtype],
        generator=torch.Generator().manual_seed(recipe.seed),
    )
