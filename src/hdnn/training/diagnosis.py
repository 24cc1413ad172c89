"""What is wrong with a training: it diverged, did not converge, or overfits; and what to do."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hdnn.analysis import advise
from hdnn.config import TrainingConfig
from hdnn.data import Dataset
from hdnn.errors import HdnnError
from hdnn.models import Model
from hdnn.training.evaluation import evaluate
from hdnn.training.loops import Batches, Epoch

EXPLODED = 1e4
"""A loss that is so many times that of guessing comes from numbers that grow without bound."""
SLACK = 1.05
"""A training that has hardly begun may be a little above the loss of guessing."""
ADVISED = 32
"""Samples that the step advisor looks at."""
GAP, ERRORS = 0.1, 3.0
"""Accuracies of training and test data that differ by more, and by so many standard errors, ..."""
RATIO = 1.5
"""... or root mean square errors with this ratio, are remarked on."""


def guessing_loss(model: Model) -> float:
    """The loss of equal probabilities for all classes, or of the mean of standardized targets."""
    outputs = model.head.out_features
    return outputs / 2 if model.task == "regression" else math.log(max(2, outputs))


def divergence(model: Model, epoch: Epoch, previous: float | None, last: bool) -> str | None:
    """What is wrong after an epoch; None where the training may go on.

    A loss that exploded may still come back, so it ends a training only where it did not fall since
    the epoch before, or at the end.

    Args:
        model: as the epoch left it.
        epoch: what it did.
        previous: the loss of the epoch before; None for the first.
        last: whether there are no more epochs.
    """
    weights_finite = all(bool(torch.isfinite(p).all()) for p in model.parameters())
    if not weights_finite or not math.isfinite(epoch.penalized):
        return "the loss is not finite"
    rising, guess = previous is not None and epoch.loss >= previous, guessing_loss(model)
    if epoch.loss > EXPLODED * guess and (rising or last):
        return f"the loss exploded to {epoch.loss:.3g} (guessing has {guess:.3g})"
    return None


def explain(
    what: str,
    model: Model,
    good: dict[str, Any],
    data: Batches,
    config: TrainingConfig,
    number: int,
) -> str:
    """What diverged where, and the remedy that `hdnn.analysis.advise` knows.

    Args:
        what: as `divergence` says it.
        model: after the divergence.
        good: its state dict before the epoch.
        data: what it was trained on.
        config: how.
        number: of the epoch, from 0.
    """
    remedy = f"a smaller learning rate (now {config.learning_rate_at(number):.3g}), or clip=1.0"
    with torch.no_grad():
        states = data.states[: config.batch_size].to(model.head.weight.device)
        paths = [(net, net.trajectory(y)) for net, y in model.block_inputs(states)]
    if not paths:
        return f"{what} in epoch {number + 1}; use {remedy}"
    broken = [pair for pair in paths if not bool(torch.isfinite(pair[1]).all())]
    network, path = (broken or paths)[0]
    h = network.h if isinstance(network.h, float) else float(network.h.max())
    before = copy.deepcopy(model).cpu()  # as the data are
    before.load_state_dict(good)
    advice = step_advice(before, data.states)
    return (
        f"{what} in epoch {number + 1}: with step h = {h:.3g}, layer {_worst_layer(path)}"
        f"; use a smaller T or step, {remedy}{advice and f'. Before this epoch: {advice}'}"
    )


def _worst_layer(path: Tensor) -> str:
    """The first layer whose state is not finite, else the one with the largest."""
    finite, layers = torch.isfinite(path).flatten(1).all(1), len(path) - 1
    if not bool(finite.all()):
        first = int((~finite).nonzero()[0])
        return f"{first} of {layers} is the first whose state is not finite"
    sizes = path.abs().flatten(1).amax(1)
    return f"{int(sizes.argmax())} of {layers} has the largest state ({float(sizes.max()):.3g})"


@torch.no_grad()
def step_advice(model: Model, states: Tensor) -> str:
    """What the step advisor recommends for a model on its data; empty where it cannot say.

    Args:
        model: with finite weights, on the CPU.
        states: data from ``model.prepare``.
    """
    try:
        network, y = model.block_inputs(states[:ADVISED])[0]
        return advise(network, y).remedy
    except (ArithmeticError, HdnnError, IndexError, RuntimeError):
        return ""  # a convolution; no network; weights beyond LAPACK


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
    last, guess = history[-1], guessing_loss(model)
    if (last if isinstance(last, Mapping) else vars(last))["loss"] <= guess * SLACK:
        return None
    found = evaluate(model, data.X, data.y)
    what, loss = "equal probabilities", found["loss"]
    if model.task == "regression":  # its loss is in the units of the targets; R^2 compares
        what, guess = "the mean", loss / max(1 - found["r2"], 1e-300)
    if not loss > guess * SLACK:
        return None
    advice = step_advice(model, model.prepare(data.X[:ADVISED])) or "use a smaller learning rate"
    return (
        f"training did not converge: its loss, {loss:.4g}, is above that of always predicting "
        f"{what} ({guess:.4g}): {advice}"
    )


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
        name, variances = "accuracy", [a * (1 - a) for a in (train["accuracy"], test["accuracy"])]
        error = math.sqrt(max(variances) / test["samples"])
        overfits = train["accuracy"] - test["accuracy"] > max(GAP, ERRORS * error)
    else:
        name, overfits = "rmse", test["rmse"] > RATIO * train["rmse"] > 0
    if not overfits:
        return None
    return (
        f"{name} is {train[name]:.4g} on the training data but {test[name]:.4g} on the test data: "
        "the network overfits; try --validation 0.1 --early-stopping 10, a larger --alpha, or "
        "fewer --layers"
    )
