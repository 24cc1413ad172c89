"""What a trained model reaches on data."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hdnn.models import ImageClassifier, Model
from hdnn.training.group import ALONE, Group
from hdnn.training.objective import data_loss, loss_name

CHUNK = 1 << 20
"""Numbers that enter the network at once."""


def finite(value: Any) -> Any:
    """A record with None in place of numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@torch.no_grad()
def values_of(model: Model | ImageClassifier, states: Tensor, group: Group = ALONE) -> Tensor:
    """``(samples, outputs)``: the values of data that ``model.ready`` has seen, in chunks.

    Each process of the group computes its share, and all get the values of all.
    """
    wide = model.config.widths[0] if isinstance(model, ImageClassifier) else 1
    single = max(1, states[:1].numel() * wide)
    before = model.training
    model.eval()
    try:
        parts = states[group.share(len(states))].split(max(1, CHUNK // single))
        device = model.head.weight.device
        values = torch.cat([model.values(part.to(device)).cpu() for part in parts])
        return group.collect(values, len(states))
    finally:
        model.train(before)


@torch.no_grad()
def evaluate(
    model: Model | ImageClassifier, X: Tensor, target: Tensor, group: Group = ALONE
) -> dict[str, float | int]:
    """Loss and accuracy for classification; loss, RMSE, MAE and R^2 for regression.

    Args:
        model: the trained model.
        X: ``(samples, features)``, or pictures ``(samples, C, H, W)``.
        target: class numbers ``(samples,)``, or values ``(samples[, outputs])``.
        group: processes that share the work; all get the figures of all samples.
    """
    values = values_of(model, model.ready(X), group)
    weight = torch.ones(len(X), dtype=values.dtype)
    loss = float(data_loss(values, target, weight, loss_name(model.task, values.shape[1])))
    found: dict[str, float | int] = {"samples": len(X), "loss": loss}
    if model.task == "classification":
        labels = values.argmax(-1) if values.shape[1] > 1 else (values[:, 0] > 0).long()
        return found | {"accuracy": float((labels == target).double().mean())}
    errors = values - target.reshape_as(values).to(values.dtype)
    spread = float((target - target.mean(0)).square().sum())
    return found | {
        "rmse": float(errors.square().mean().sqrt()),
        "mae": float(errors.abs().mean()),
        "r2": 1 - float(errors.square().sum()) / spread if spread > 0 else float("nan"),
    }
