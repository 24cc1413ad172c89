"""What a trained model reaches on data, and what it is compared with."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hdnn.data import Dataset
from hdnn.models import Model
from hdnn.progress import track
from hdnn.training.metrics import Array, classification_metrics, regression_metrics
from hdnn.training.objective import count_correct, data_loss, loss_name

CHUNK = 1 << 20
"""Numbers that enter the network at once."""
MOST_NUMBERS = 4_000_000
"""A linear model is fitted on so many rows that its table has at most this many numbers."""
LARGEST = 1e6
"""Values beyond it, in standardized columns, are slips that no linear solver survives."""


@torch.no_grad()
def logits_of(model: Model, states: Tensor) -> Tensor:
    """``(samples, outputs)``: the logits of data from ``model.prepare``, in chunks."""
    single = max(1, states[:1].numel() * model.stem.expansion)
    device, before = model.head.weight.device, model.training
    model.eval()
    try:
        chunks = track(states.split(max(1, CHUNK // single)), "evaluating, chunks")
        return torch.cat([model.logits(part.to(device)).cpu() for part in chunks])
    finally:
        model.train(before)


def evaluate(model: Model, X: Tensor, target: Tensor) -> dict[str, float | int]:
    """The figures of a finished run: loss and accuracy, or loss, RMSE, MAE and R^2.

    Args:
        model: the trained model.
        X: ``(samples, features)``, or images ``(samples, C, H, W)``.
        target: class numbers ``(samples,)``, or values ``(samples[, outputs])``.
    """
    logits = logits_of(model, model.prepare(X))
    loss, weight = loss_name(model.task, logits.shape[1]), torch.ones(len(X), dtype=logits.dtype)
    found = {"samples": len(X), "loss": float(data_loss(logits, target, weight, loss))}
    if model.task == "classification":
        return found | {"accuracy": count_correct(logits, target, loss) / len(X)}
    figures = predictions_metrics(model, logits.double().numpy(), target.numpy())
    return found | {name: figures[name] for name in ("rmse", "mae", "r2")}


def evaluate_fully(model: Model, X: Tensor, target: Tensor) -> dict[str, Any]:
    """As `evaluate`, with all that `hdnn.training.metrics` has, by class or by target too.

    Args:
        model: the trained model.
        X: ``(samples, features)``, or images ``(samples, C, H, W)``.
        target: class numbers ``(samples,)``, or values ``(samples[, outputs])``.
    """
    outputs = logits_of(model, model.prepare(X)).double()
    if model.task == "classification":
        if outputs.shape[1] == 1:  # of the second of two classes
            outputs = torch.cat([torch.zeros_like(outputs), outputs], 1)
        outputs = outputs.softmax(1)
    figures = predictions_metrics(model, outputs.numpy(), target.numpy())
    return figures | evaluate(model, X, target)


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


def references(
    model: Model, X: Tensor, y: Tensor, X_test: Tensor, y_test: Tensor
) -> dict[str, dict[str, Any]]:
    """Figures of two models that any result should beat, fitted to the same training data.

    Args:
        model: whose columns they take: encoded and scaled as they enter its network.
        X, y: the training data.
        X_test, y_test: what they are measured on.

    Returns:
        Overall figures, as in `predictions_metrics`, of the "baseline" (the majority class, or the
        mean) and of the "linear" model (logistic regression, or ridge regression).
    """
    from sklearn.dummy import DummyClassifier, DummyRegressor
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, Ridge

    rows = _some_rows(model, X)
    columns, labels = _columns(model, X[rows]), y[rows].numpy()
    classifies = model.task == "classification"
    baseline = DummyClassifier(strategy="prior") if classifies else DummyRegressor()
    fitted = {"baseline": baseline.fit(np.zeros((len(y), 1)), y.numpy())}
    if not classifies:
        fitted["linear"] = Ridge().fit(columns, labels)
    elif len(np.unique(labels)) > 1:
        with warnings.catch_warnings():  # nearly converged is good enough to compare with
            warnings.simplefilter("ignore", ConvergenceWarning)
            fitted["linear"] = LogisticRegression(max_iter=200).fit(columns, labels)
    columns, figures = _columns(model, X_test), {}
    for name, estimator in fitted.items():
        if classifies:  # the training data may lack classes that the model has
            predictions = np.zeros((len(columns), len(model.labels)))
            predictions[:, estimator.classes_] = estimator.predict_proba(columns)
        else:
            predictions = estimator.predict(columns).reshape(len(columns), -1)
        all_figures = predictions_metrics(model, predictions, y_test.numpy())
        figures[name] = {k: v for k, v in all_figures.items() if isinstance(v, float)}
    return figures


def _some_rows(model: Model, X: Tensor) -> Tensor:
    """Rows to fit a linear model on: all, or a random part of a large table."""
    most = max(1, MOST_NUMBERS // max(1, model.prepare(X[:1]).numel()))
    if len(X) <= most:
        return torch.arange(len(X))
    return torch.randperm(len(X), generator=torch.Generator().manual_seed(0))[:most]


@torch.no_grad()
def _columns(model: Model, X: Tensor) -> Array:
    columns = model.prepare(X).flatten(1).double().cpu().numpy()
    return np.clip(np.nan_to_num(columns), -LARGEST, LARGEST)


def doubts(figures: dict[str, Any], references: dict[str, dict[str, Any]]) -> list[str]:
    """Why a result should not be trusted: it is no better than the baseline, or misses a class.

    Args:
        figures: of the result, as `evaluate_fully` gives them.
        references: as `references` gives them.
    """
    name, what = ("rmse", "the mean")
    if "accuracy" in figures:
        name, what = ("accuracy", "the most frequent class")
    found = []
    if references:
        value, least = figures[name], references["baseline"][name]
        is_better = value > least if name == "accuracy" else value < least
        if not is_better:
            found.append(
                f"{name} {value:.4g} is no better than always predicting {what} ({least:.4g})"
            )
    for k, row in enumerate(figures.get("classes", ())):
        if row["samples"] and not any(counts[k] for counts in figures["confusion"]):
            label = str(row["label"])[:40]
            found.append(f"class {label!r} ({row['samples']} samples) is never predicted")
    return found


def compare_with_references(
    model: Model, data: Dataset
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """References and doubts of a training, on what it held out, else on the training data.

    Args:
        model: the trained model.
        data: what it was trained on.

    Returns:
        As `references`, and as `doubts`.
    """
    test = (data.X_test, data.y_test) if len(data.X_test) else (data.X, data.y)
    found = references(model, data.X, data.y, *test)
    return found, doubts(evaluate_fully(model, *test), found)
