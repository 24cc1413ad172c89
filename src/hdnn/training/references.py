"""What a result is compared with: the majority class or the mean, and a linear model."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hdnn.data import Dataset
from hdnn.models import Model
from hdnn.training.evaluation import evaluate_fully, predictions_metrics
from hdnn.training.metrics import Array

MOST_NUMBERS = 4_000_000
"""A linear model is fitted on so many rows that its table has at most this many numbers."""

LARGEST = 1e6
"""Values beyond it, in standardized columns, are slips that no linear solver survives."""


@dataclass(frozen=True)
class References:
    """Two models of the training data that any result should beat.

    Args:
        model: whose columns they take: encoded and scaled as they enter its network.
        fitted: "baseline" (the majority class, or the mean) and "linear" (logistic regression, or
            ridge regression), as scikit-learn has them.
    """

    model: Model
    fitted: dict[str, Any]

    @classmethod
    def fit(cls, model: Model, X: Tensor, target: Tensor) -> References:
        """Fit both to the training data of a model.

        Args:
            model: the trained model.
            X: ``(samples, features)``, or images ``(samples, C, H, W)``.
            target: class numbers ``(samples,)``, or values ``(samples[, outputs])``.
        """
        from sklearn.dummy import DummyClassifier, DummyRegressor
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression, Ridge

        rows = _some_rows(model, X)
        columns, y = _columns(model, X[rows]), target[rows].numpy()
        classifies = model.task == "classification"
        baseline = DummyClassifier(strategy="prior") if classifies else DummyRegressor()
        fitted = {"baseline": baseline.fit(np.zeros((len(target), 1)), target.numpy())}
        if not classifies:
            fitted["linear"] = Ridge().fit(columns, y)
        elif len(np.unique(y)) > 1:
            with warnings.catch_warnings():  # nearly converged is good enough to compare with
                warnings.simplefilter("ignore", ConvergenceWarning)
                fitted["linear"] = LogisticRegression(max_iter=200).fit(columns, y)
        return cls(model, fitted)

    def evaluate(self, X: Tensor, target: Tensor) -> dict[str, dict[str, Any]]:
        """The overall figures of each on data; see `hdnn.training.metrics`."""
        columns = _columns(self.model, X)
        figures = {}
        for name, estimator in self.fitted.items():
            all_figures = predictions_metrics(
                self.model, self._predict(estimator, columns), target.numpy()
            )
            figures[name] = {k: v for k, v in all_figures.items() if isinstance(v, float)}
        return figures

    def _predict(self, estimator: Any, columns: Array) -> Array:
        if self.model.task == "regression":
            return estimator.predict(columns).reshape(len(columns), -1)
        # The training data may lack classes that the model has.
        probabilities = np.zeros((len(columns), len(self.model.labels)))
        probabilities[:, estimator.classes_] = estimator.predict_proba(columns)
        return probabilities


def _some_rows(model: Model, X: Tensor) -> Tensor:
    """Rows to fit a linear model on: all, or a random part of a large table."""
    width = max(1, model.prepare(X[:1]).numel())
    generator = torch.Generator().manual_seed(0)
    most = max(1, MOST_NUMBERS // width)
    if len(X) <= most:
        return torch.arange(len(X))
    return torch.randperm(len(X), generator=generator)[:most]


@torch.no_grad()
def _columns(model: Model, X: Tensor) -> Array:
    columns = model.prepare(X).flatten(1).double().cpu().numpy()
    return np.clip(np.nan_to_num(columns), -LARGEST, LARGEST)


def doubts(figures: dict[str, Any], references: dict[str, dict[str, Any]]) -> list[str]:
    """Why a result should not be trusted: it is no better than the baseline, or misses a class.

    Args:
        figures: of the result, with those by class.
        references: as `References.evaluate` gives them.
    """
    name, what = (
        ("accuracy", "the most frequent class") if "accuracy" in figures else ("rmse", "the mean")
    )
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
        As `References.evaluate`, and as `doubts`.
    """
    held_out = len(data.X_test) > 0
    X, target = (data.X_test, data.y_test) if held_out else (data.X, data.y)
    references = References.fit(model, data.X, data.y).evaluate(X, target)
    return references, doubts(evaluate_fully(model, X, target), references)
