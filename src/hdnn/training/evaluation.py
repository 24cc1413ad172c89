"""What a trained model reaches on data, and what it is compared with."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hdnn.errors import shown
from hdnn.models import Model
from hdnn.progress import track
from hdnn.training.objective import loss_name

Array = NDArray[Any]

CHUNK = 1 << 20
"""Numbers that enter the network at once."""
MOST_NUMBERS = 4_000_000
"""In the table that a linear model is fitted to, about: more take long and change little."""
LARGEST = 1e6
"""Values beyond it, in standardized columns, are slips that no linear solver survives."""
BINS = 15
"""Of equal width, into which `calibration_error` sorts the samples by confidence."""
CLASS_METRICS = ("precision", "recall", "f1", "roc_auc", "average_precision")
"""The metrics of every class, beside its label and its number of samples."""
METRICS = {
    **{"accuracy": "accuracy", "log_loss": "log loss", "roc_auc": "ROC AUC"},
    **{"average_precision": "average precision", "calibration_error": "calibration error"},
    **{"r2": "R²", "rmse": "RMSE", "mae": "MAE"},
}
"""Display names of the overall metrics."""
REFERENCES = ("linear", "baseline")
"""Models that any result should beat; see `references`."""
SUMMARY = ("samples", "log_loss", "accuracy", "rmse", "mae", "r2")
"""The metrics that a run keeps."""


def metric_text(value: float | None) -> str:
    """A metric as terminal and report show it: four decimals, a dash for what is not defined.

    >>> metric_text(0.98765), metric_text(1234.5678), metric_text(None)
    ('0.9877', '1234.6', '-')
    """
    if value is None or np.isnan(value):
        return "-"
    return f"{value:.4f}" if abs(value) < 100 else f"{value:.5g}"


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


def outputs_of(model: Model, logits: Tensor) -> Array:
    """Probabilities ``(samples, classes)``, or the values of a regression, in float64."""
    outputs, loss = logits.double(), loss_name(model.task, logits.shape[1])
    if loss == "logistic":  # the one output is of the second of two classes
        outputs = torch.cat([torch.zeros_like(outputs), outputs], 1)
    array: Array = (outputs if loss == "squared" else outputs.softmax(1)).numpy()
    return array


def evaluate(model: Model, X: Tensor, target: Tensor) -> dict[str, Any]:
    """The number of samples, and all metrics of `predictions_metrics`.

    Args:
        model: the trained model.
        X: ``(samples, features)``, or images ``(samples, C, H, W)``.
        target: class numbers ``(samples,)``, or values ``(samples[, outputs])``.
    """
    outputs = outputs_of(model, logits_of(model, model.prepare(X)))
    return {"samples": len(X), **predictions_metrics(model, outputs, target.numpy())}


def summary(metrics: dict[str, Any]) -> dict[str, Any]:
    """Those of `evaluate` that a run keeps."""
    return {name: metrics[name] for name in SUMMARY if name in metrics}


def score(model: Model, X: Tensor, target: Tensor) -> float:
    """The accuracy, or R2, alone; arguments as of `evaluate`."""
    scores = sample_scores(model, outputs_of(model, logits_of(model, model.prepare(X))), target)
    if model.task == "classification":
        return float(scores.mean())
    spread = float((target.double() - target.double().mean(0)).square().sum())
    return 1 + float(scores.sum()) / spread if spread else float("nan")


def predictions_metrics(model: Model, predictions: Array, target: Array) -> dict[str, Any]:
    """Metrics of predictions for a model's task, whoever made them.

    Args:
        model: it knows the task and the labels.
        predictions: probabilities ``(samples, classes)``, or values ``(samples, outputs)``.
        target: class numbers ``(samples,)``, or values ``(samples[, outputs])``.
    """
    if model.task == "classification":
        return classification_metrics(target, predictions, model.labels)
    names = model.target_names or [str(k) for k in range(predictions.shape[1])]
    return regression_metrics(target.reshape(predictions.shape), predictions, names)


# --- metrics of predictions, by scikit-learn ------------------------------------------------------


def classification_metrics(
    target: Array, probabilities: Array, labels: Sequence[Any]
) -> dict[str, Any]:
    """Metrics of a classifier, overall and by class.

    ROC AUC and average precision are the mean over classes (one against the rest); of two classes,
    those of the rarer one, which is the one that is looked for. What the samples do not define is
    NaN.

    Args:
        target: class numbers, ``(samples,)``.
        probabilities: ``(samples, classes)``.
        labels: the names of the classes.

    Returns:
        accuracy, log_loss, roc_auc, average_precision, calibration_error; ``classes``, with label,
        samples, precision, recall, f1, roc_auc and average_precision of each; ``confusion``, where
        row i and column j hold the number of samples of class i that were taken for class j.
    """
    from sklearn import metrics

    numbers = list(range(len(labels)))
    predicted = probabilities.argmax(1)
    *by_class, counts = metrics.precision_recall_fscore_support(
        target, predicted, labels=numbers, zero_division=0
    )
    areas = np.zeros((len(labels), 2))
    for k in numbers:
        is_class, scores = target == k, probabilities[:, k]
        varies = bool(is_class.any()) and not bool(is_class.all())
        areas[k, 0] = _metric(metrics.roc_auc_score, is_class, scores, varies)
        areas[k, 1] = _metric(metrics.average_precision_score, is_class, scores, varies)
    if len(labels) == 2:
        overall = areas[int(2 * np.count_nonzero(target == 0) >= len(target))]
    else:
        # Over the classes that occur; unlike nanmean, without a warning where none does.
        overall = np.ma.masked_invalid(areas).mean(0).filled(np.nan)
    rows = np.column_stack([*by_class, areas]).tolist()
    classes = [
        {"label": label, "samples": int(count), **dict(zip(CLASS_METRICS, row, strict=True))}
        for label, count, row in zip(labels, counts, rows, strict=True)
    ]
    log_loss = partial(metrics.log_loss, labels=numbers)
    return {
        "accuracy": float((predicted == target).mean()),
        "log_loss": _metric(log_loss, target, probabilities),
        "roc_auc": float(overall[0]),
        "average_precision": float(overall[1]),
        "calibration_error": _metric(calibration_error, target, probabilities),
        "classes": classes,
        "confusion": metrics.confusion_matrix(target, predicted, labels=numbers).tolist(),
    }


def _metric(
    metric: Callable[[Array, Array], Any], target: Array, predicted: Array, defined: bool = True
) -> float:
    """A metric; NaN if the samples do not define it or a prediction is not finite."""
    if not defined or not np.isfinite(predicted).all():
        return float("nan")
    return float(metric(target, predicted))


def calibration_error(target: Array, probabilities: Array) -> float:
    """The expected calibration error: the mean gap between confidence and accuracy.

        ECE = sum over bins of (samples in the bin / samples) |accuracy - mean confidence|

    Args:
        target: class numbers, ``(samples,)``.
        probabilities: ``(samples, classes)``; the largest of a sample is its confidence.
    """
    confidence = probabilities.max(1)
    gap = (probabilities.argmax(1) == target) - confidence
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    return float(np.abs(np.bincount(bins, weights=gap)).sum() / len(target))


def regression_metrics(target: Array, predicted: Array, names: Sequence[str]) -> dict[str, Any]:
    """R2, RMSE and MAE of values ``(samples, targets)``: over all targets, and of each.

    R2 over several targets weighs each by its variance; it is NaN where the values do not vary.
    """
    overall = _errors(target, predicted)
    columns = zip(names, target.T, predicted.T, strict=True)
    each = [{"name": name, **_errors(a[:, None], b[:, None])} for name, a, b in columns]
    return overall | {"targets": each}


def _errors(target: Array, predicted: Array) -> dict[str, float]:
    from sklearn import metrics

    r2 = partial(metrics.r2_score, multioutput="variance_weighted")
    return {
        "r2": _metric(r2, target, predicted, defined=bool((target != target[0]).any())),
        "rmse": _metric(metrics.mean_squared_error, target, predicted) ** 0.5,
        "mae": _metric(metrics.mean_absolute_error, target, predicted),
    }


# --- references -----------------------------------------------------------------------------------


def references(
    model: Model, X: Tensor, y: Tensor, X_test: Tensor, y_test: Tensor
) -> dict[str, dict[str, Any]]:
    """Overall metrics of `reference_predictions`; arguments as there, and what they are to predict.

    Returns:
        Metrics as in `predictions_metrics`, by the names of `REFERENCES`.
    """
    metrics = {}
    for name, predictions in reference_predictions(model, X, y, X_test).items():
        values = predictions_metrics(model, predictions, y_test.numpy())
        metrics[name] = {k: v for k, v in values.items() if isinstance(v, float)}
    return metrics


def reference_predictions(model: Model, X: Tensor, y: Tensor, X_test: Tensor) -> dict[str, Array]:
    """What two models predict that any result should beat, fitted to the same training data.

    Args:
        model: whose columns they take: encoded and scaled as they enter its network.
        X, y: the training data.
        X_test: what they predict.

    Returns:
        Probabilities or values, as in `predictions_metrics`, of the "linear" model (logistic
        regression, or ridge regression; none if there is one class) and of the "baseline" (the
        majority class, or the mean).
    """
    from sklearn.dummy import DummyClassifier, DummyRegressor
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, Ridge

    # A linear model of a large table needs no more rows than these.
    most = MOST_NUMBERS // model.prepare(X[:1]).numel() + 1
    rows = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))[:most]
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
    columns, predictions = _columns(model, X_test), {}
    for name in (name for name in REFERENCES if name in fitted):
        estimator = fitted[name]
        if classifies:  # the training data may lack classes that the model has
            predictions[name] = np.zeros((len(columns), len(model.labels)))
            predictions[name][:, estimator.classes_] = estimator.predict_proba(columns)
        else:
            predictions[name] = estimator.predict(columns).reshape(len(columns), -1)
    return predictions


@torch.no_grad()
def _columns(model: Model, X: Tensor) -> Array:
    columns = model.prepare(X).flatten(1).double().cpu().numpy()
    return np.clip(np.nan_to_num(columns), -LARGEST, LARGEST)


def sample_scores(model: Model, predictions: Array, target: Tensor) -> Array:
    """What every prediction scores: 1 for the right class, else 0; or minus the squared error."""
    if model.task == "classification":
        right: Array = (predictions.argmax(1) == target.numpy()).astype(float)
        return right
    errors: Array = (predictions - target.double().numpy().reshape(predictions.shape)) ** 2
    return -errors.sum(1)


def compare_scores(ours: Array, theirs: Array) -> int:
    """1 if we are better, -1 if worse, 0 if level: within two standard errors of the difference.

    The standard error is that of paired samples, ``(samples,)``, if both models are equally good:
    the root of the sum of squares of the differences.

    >>> compare_scores(np.ones(30), np.r_[np.zeros(4), np.ones(26)])  # 4 of 30 may be chance
    0
    >>> compare_scores(np.ones(30), np.r_[np.zeros(5), np.ones(25)])
    1
    """
    difference = ours - theirs
    total, error = float(difference.sum()), float(np.square(difference).sum()) ** 0.5
    return 0 if abs(total) <= 2 * error else 1 if total > 0 else -1


def result_warnings(metrics: dict[str, Any], references: dict[str, dict[str, Any]]) -> list[str]:
    """Why a result should not be trusted: it is no better than the baseline, or misses a class.

    Args:
        metrics: of the result, as `evaluate` gives them.
        references: as `references` gives them.
    """
    messages, name, what = [], "rmse", "the mean"
    if "accuracy" in metrics:
        name, what = "accuracy", "the most frequent class"
    if references:
        value, baseline = metrics[name], references["baseline"][name]
        if not (value > baseline if name == "accuracy" else value < baseline):
            messages.append(
                f"{name} {value:.4g} is no better than always predicting {what} ({baseline:.4g})"
            )
    for k, row in enumerate(metrics.get("classes", ())):
        if row["samples"] and not any(counts[k] for counts in metrics["confusion"]):
            label = shown(row["label"])
            messages.append(f"class {label} ({row['samples']} samples) is never predicted")
    return messages
