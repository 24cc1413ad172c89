"""What a trained model reaches on data."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hdnn.models import Model
from hdnn.progress import track
from hdnn.training.metrics import Array, classification_metrics, regression_metrics
from hdnn.training.objective import data_loss, loss_name

CHUNK = 1 << 20
"""Numbers that enter the network at once."""


@torch.no_grad()
def logits_of(model: Model, states: Tensor) -> Tensor:
    """``(samples, outputs)``: the logits of data from ``model.prepare``, in chunks."""
    single = max(1, states[:1].numel() * model.stem.expansion)
    before = model.training
    model.eval()
    try:
        parts = states.split(max(1, CHUNK // single))
        device = model.head.weight.device
        chunks = track(parts, "evaluating, chunks")
        return torch.cat([model.logits(part.to(device)).cpu() for part in chunks])
    finally:
        model.train(before)


@torch.no_grad()
def evaluate(model: Model, X: Tensor, target: Tensor) -> dict[str, float | int]:
    """Loss and accuracy for classification; loss, RMSE, MAE and R^2 for regression.

    Args:
        model: the trained model.
        X: ``(samples, features)``, or images ``(samples, C, H, W)``.
        target: class numbers ``(samples,)``, or values ``(samples[, outputs])``.
    """
    logits = logits_of(model, model.prepare(X))
    weight = torch.ones(len(X), dtype=logits.dtype)
    loss = float(data_loss(logits, target, weight, loss_name(model.task, logits.shape[1])))
    found: dict[str, float | int] = {"samples": len(X), "loss": loss}
    if model.task == "classification":
        labels = logits.argmax(-1) if logits.shape[1] > 1 else (logits[:, 0] > 0).long()
        return found | {"accuracy": float((labels == target).double().mean())}
    errors = logits - target.reshape_as(logits).to(logits.dtype)
    spread = float((target - target.mean(0)).square().sum())
    return found | {
        "rmse": float(errors.square().mean().sqrt()),
        "mae": float(errors.abs().mean()),
        "r2": 1 - float(errors.square().sum()) / spread if spread > 0 else float("nan"),
    }


def evaluate_fully(model: Model, X: Tensor, target: Tensor) -> dict[str, Any]:
    """As `evaluate`, with all that `hdnn.training.metrics` has.

    Args:
        model: the trained model.
        X: ``(samples, features)``, or images ``(samples, C, H, W)``.
        target: class numbers ``(samples,)``, or values ``(samples[, outputs])``.
    """
    logits = logits_of(model, model.prepare(X))
    outputs = logits.double().numpy()
    if model.task == "classification":
        outputs = np.exp(_log_probabilities(logits.double()))
    basic = evaluate(model, X, target)
    # What both have is the figure of metrics.json, to the last bit.
    return basic | predictions_metrics(model, outputs, target.numpy()) | basic


def _log_probabilities(logits: Tensor) -> Array:
    if logits.shape[1] == 1:  # of the second of two classes
        logits = torch.cat([torch.zeros_like(logits), logits], 1)
    return logits.log_softmax(1).numpy()


def predictions_metrics(model: Model, predictions: Array, target: Array) -> dict[str, Any]:
    """Figures of predictions for a model's task, whoever made them.

    Args:
        model: it knows the task and the labels.
        predictions: probabilities ``(samples, classes)``, or values ``(samples, outputs)``.
        target: class numbers ``(samples,)``, or values ``(samples[, outputs])``.
    """
    if model.task == "classification":
        return classification_metrics(target, predictions, model.labels)
    names = model.target_names or [str(k) for k in range(predictions.shape[1])]
    return regression_metrics(target.reshape(predictions.shape), predictions, names)
