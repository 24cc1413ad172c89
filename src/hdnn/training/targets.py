"""Targets of a regression: trained on standardized, predicted as they are."""

from __future__ import annotations

import torch
from torch import Tensor

from hdnn.models import Model, Scaler


def scale_of(target: Tensor, weight: Tensor | None = None) -> Scaler:
    """Mean and spread of targets.

    Args:
        target: ``(samples[, targets])``.
        weight: ``(samples,)``; None counts them alike.
    """
    return Scaler.fit(target.double().reshape(len(target), -1), weight)


def standardize(target: Tensor, scale: Scaler) -> Tensor:
    """``(samples, targets)``: what a model is trained on."""
    scaled: Tensor = scale(target.double().reshape(len(target), -1))
    return scaled


@torch.no_grad()
def predict_scaled(model: Model, scale: Scaler) -> None:
    """Let a model that predicts targets as they are predict them standardized, to train on."""
    _rescale(model, 1 / scale.scale, -scale.mean / scale.scale)


@torch.no_grad()
def predict_unscaled(model: Model, scale: Scaler) -> None:
    """Let a model that was trained on standardized targets predict them as they are."""
    _rescale(model, scale.scale, scale.mean)


def _rescale(model: Model, factor: Tensor, shift: Tensor) -> None:
    """The output layer of ``factor * value + shift``."""
    weight, bias = model.head.weight, model.head.bias
    weight.copy_(weight.double() * factor[:, None])
    bias.copy_(bias.double() * factor + shift)
