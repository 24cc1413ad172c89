"""From a data set to what the loops train on: states, targets and weights, a part held out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hdnn.config import TrainingConfig
from hdnn.data import Dataset, holdout
from hdnn.errors import HdnnError
from hdnn.models import Model, Scaler


class Samples(NamedTuple):
    """Samples as they enter the model.

    Args:
        states: what `Model.prepare` gave, ``(samples, n)`` or images ``(samples, C, H, W)``.
        target: class numbers ``(samples,)`` or values ``(samples, outputs)``.
        weight: ``(samples,)``.
    """

    states: Tensor
    target: Tensor
    weight: Tensor

    def take(self, rows: Tensor) -> Samples:
        """Some samples, by number or by a mask."""
        return Samples(*(part[rows] for part in self))

    def to(self, device: torch.device) -> Samples:
        """The same on a device; nothing is copied if they are there already."""
        return Samples(*(part.to(device) for part in self))


class Split(NamedTuple):
    """The samples to train on, those held out for validation, and the scale of the targets."""

    train: Samples
    validation: Samples | None
    scale: Scaler | None


@torch.no_grad()
def to_samples(model: Model, data: Dataset, config: TrainingConfig) -> Split:
    """Check a data set, convert it to the model's precision, and hold out a part.

    Args:
        model: on the CPU.
        data: its training part is used.
        config: validation share, seed and class weights.

    Raises:
        HdnnError: model, data and settings do not fit together.
    """
    target, scale = _target(model, data)
    X = data.X if model.stem.takes_images else data.X.to(model.head.weight.dtype)
    samples = Samples(model.prepare(X), target, _weights(model, data, config))
    samples = samples.take(samples.weight > 0)  # a sample of weight 0 is no sample
    if not config.validation:
        return Split(samples, None, scale)
    labels = samples.target if model.task == "classification" else None
    rows, held_out = holdout(len(samples.states), config.validation, config.seed, labels)
    return Split(samples.take(rows), samples.take(held_out), scale)


def _target(model: Model, data: Dataset) -> tuple[Tensor, Scaler | None]:
    """Class numbers, or standardized values ``(samples, outputs)`` and what scaled them."""
    y, outputs = data.y, model.head.out_features
    if len(data.X) == 0 or len(data.X) != len(y):
        raise HdnnError(f"X and y need as many rows, at least one, got {len(data.X)}, {len(y)}")
    if model.task == "regression":
        values = y.double().reshape(len(y), -1)
        if values.shape[1] != outputs:
            raise HdnnError(f"the model has {outputs} outputs, y {values.shape[1]} columns")
        if not bool(values.isfinite().all()):
            raise HdnnError("the targets of a regression are finite numbers; y has others")
        scale = Scaler.fit(values, data.weight)
        return scale(values).to(model.head.weight.dtype), scale
    if y.ndim != 1 or y.is_floating_point():
        raise HdnnError(f"class numbers are integers (samples,), got {tuple(y.shape)}")
    low, high, classes = int(y.min()), int(y.max()), max(2, outputs)
    if low < 0 or high >= classes:
        raise HdnnError(f"class numbers are 0 to {classes - 1} for this model, got {low} to {high}")
    return y, None


def _weights(model: Model, data: Dataset, config: TrainingConfig) -> Tensor:
    """Sample weights times class weights, ``(samples,)``."""
    dtype, weight = model.head.weight.dtype, torch.ones(len(data.y))
    if data.weight is not None:
        weight = data.weight
        positive = bool(((weight >= 0) & weight.isfinite()).all() & weight.any())
        if weight.shape != (len(data.y),) or not positive:
            raise HdnnError("sample weights are one nonnegative number a row, not all zero")
    weight = weight.to(dtype)
    if config.class_weight is None:
        return weight
    if model.task != "classification":
        raise HdnnError("class_weight is for classification")
    classes = max(2, model.head.out_features)
    if config.class_weight == "balanced":
        counts = torch.bincount(data.y, weights=weight.double(), minlength=classes)
        # The factor of a class without samples is never used; it must only not divide by zero.
        factors = weight.double().sum() / (classes * counts.clamp_min(1e-300))
    else:
        factors = torch.tensor(config.class_weight, dtype=torch.float64)
        if len(factors) != classes:
            raise HdnnError(f"class_weight has {len(factors)} entries for {classes} classes")
    return weight * factors.to(dtype)[data.y]
