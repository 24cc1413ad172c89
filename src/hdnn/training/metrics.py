"""Metrics of predictions, by scikit-learn: of classes with their probabilities, and of values.

A new metric is one more entry of the dictionaries here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

BINS = 15
"""Of equal width, into which `calibration_error` sorts the samples by confidence."""


def classification_metrics(
    target: Array, probabilities: Array, labels: Sequence[Any]
) -> dict[str, Any]:
    """Figures of a classifier, overall and by class.

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
    from sklearn.metrics import confusion_matrix, log_loss, precision_recall_fscore_support

    numbers = list(range(len(labels)))
    predicted = probabilities.argmax(1)
    finite = bool(np.isfinite(probabilities).all())
    by_class = precision_recall_fscore_support(target, predicted, labels=numbers, zero_division=0)
    areas = [_areas(target == k, probabilities[:, k], finite) for k in numbers]
    if len(labels) == 2:
        overall = areas[0] if 2 * np.count_nonzero(target == 0) < len(target) else areas[1]
    else:
        overall = _mean([area[0] for area in areas]), _mean([area[1] for area in areas])
    classes = [
        {
            "label": label,
            "samples": int(count),
            "precision": float(precision),
            "recall": float(recall),
            "f1": float(f1),
            "roc_auc": area[0],
            "average_precision": area[1],
        }
        for label, precision, recall, f1, count, area in zip(labels, *by_class, areas, strict=True)
    ]
    nan = float("nan")
    return {
        "accuracy": float((predicted == target).mean()),
        "log_loss": float(log_loss(target, probabilities, labels=numbers)) if finite else nan,
        "roc_auc": overall[0],
        "average_precision": overall[1],
        "calibration_error": calibration_error(target, probabilities) if finite else nan,
        "classes": classes,
        "confusion": confusion_matrix(target, predicted, labels=numbers).tolist(),
    }


def _areas(is_class: Array, scores: Array, finite: bool) -> tuple[float, float]:
    """ROC AUC and average precision of one class; NaN where all or none are of the class."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    if not finite or is_class.all() or not is_class.any():
        return float("nan"), float("nan")
    return (
        float(roc_auc_score(is_class, scores)),
        float(average_precision_score(is_class, scores)),
    )


def _mean(values: Sequence[float]) -> float:
    defined = [value for value in values if not np.isnan(value)]
    return float(np.mean(defined)) if defined else float("nan")


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
    from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

    nan = float("nan")
    if not np.isfinite(predicted).all():
        return {"r2": nan, "rmse": nan, "mae": nan}
    varies = bool((target != target[0]).any())
    r2 = float(r2_score(target, predicted, multioutput="variance_weighted")) if varies else nan
    return {
        "r2": r2,
        "rmse": float(np.sqrt(mean_squared_error(target, predicted))),
        "mae": float(mean_absolute_error(target, predicted)),
    }
