"""What is wrong with a training that ended: it did not converge, or it overfits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hdnn.analysis import advise
from hdnn.data import Dataset
from hdnn.errors import HdnnError
from hdnn.models import Model
from hdnn.training.evaluation import evaluate

ADVISED = 32
"""Samples that the step advisor looks at."""
SLACK = 1.05
"""A training that has hardly begun may be a little above the baseline."""
GAP, ERRORS = 0.1, 3.0
"""Accuracies of training and test data that differ by more, and by so many standard errors, ..."""
RATIO = 1.5
"""... or root mean square errors with this ratio, are remarked on."""


def convergence_warning(model: Model, data: Dataset, history: Sequence[Any]) -> str | None:
    """Why a training did not converge: its loss is above that of an untrained output layer.

    Both the loss of the trained model and that of the last epoch must be: rows that hardly count
    in a weighted training may well be predicted worse than by chance.

    Args:
        model: the trained model.
        data: what it was trained on.
        history: records of its epochs, or their dictionaries; none where nothing was trained.

    Returns:
        Loss, baseline and what `hdnn.analysis.advise` recommends; None where it converged.
    """
    if not history:
        return None
    last = history[-1] if isinstance(history[-1], Mapping) else vars(history[-1])
    if data.task == "classification":
        usual = baseline = math.log(len(data.classes or (0, 1)))
        what = "equal probabilities"
    else:  # an epoch has the loss of standardized targets, whose variance is 1
        baseline, usual, what = _mean_loss(data), model.head.out_features / 2, "the mean"
    if last["loss"] <= usual * SLACK:
        return None
    loss = float(evaluate(model, data.X, data.y)["loss"])
    if loss <= baseline * SLACK:
        return None
    return (
        f"training did not converge: its loss, {loss:.4g}, is above that of always predicting "
        f"{what} ({baseline:.4g}){step_advice(model, data.X)}"
    )


def _mean_loss(data: Dataset) -> float:
    """Half the squared error of the mean, summed over targets, as the loss of a regression."""
    y = data.y.double().reshape(len(data.y), -1)
    return float((y - y.mean(0)).square().sum(1).mean() / 2)


def step_advice(model: Model, X: Tensor) -> str:
    """What the step advisor recommends for a model on its data, after a colon; else empty.

    Args:
        model: with finite weights, on the CPU.
        X: data of the model.
    """
    try:
        with torch.no_grad():
            network, y = model.block_inputs(model.prepare(X[:ADVISED]))[0]
        return f": {advise(network, y).remedy}"
    except (ArithmeticError, HdnnError, IndexError, RuntimeError):  # a convolution; no network
        return ": use a smaller learning rate"


def overfitting_warning(metrics: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Whether the training data are predicted much better than the test data.

    Args:
        metrics: of parts "train" and "test", as a run has them.

    Returns:
        Both figures and what to try; None where they are close.
    """
    if "test" not in metrics:
        return None
    train, test = metrics["train"], metrics["test"]
    if "accuracy" in test:
        name, error = "accuracy", math.sqrt(train["accuracy"] * (1 - train["accuracy"]))
        error = max(error, math.sqrt(test["accuracy"] * (1 - test["accuracy"])))
        gap = train["accuracy"] - test["accuracy"]
        overfits = gap > max(GAP, ERRORS * error / math.sqrt(test["samples"]))
    else:
        name, overfits = "rmse", test["rmse"] > RATIO * train["rmse"] > 0
    if not overfits:
        return None
    return (
        f"{name} is {train[name]:.4g} on the training data but {test[name]:.4g} on the test data: "
        "the network overfits; try --validation 0.1 --early-stopping 10, a larger --alpha, or "
        "fewer --layers"
    )
