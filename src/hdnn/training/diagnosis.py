"""What is wrong with a training: it diverged, or did not converge; and what to do."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hdnn.analysis import advise
from hdnn.config import TrainingConfig
from hdnn.data import Dataset
from hdnn.errors import DivergenceError, HdnnError
from hdnn.models import Model
from hdnn.training.evaluation import evaluate
from hdnn.training.loops import Epoch

EXPLODED = 1e4
"""A loss of so many times that of guessing comes from states that grow without bound."""
SLACK = 1.05
"""A training that has hardly begun may be a little above the loss of guessing."""
ADVISED = 32
"""Samples for the step advisor."""


def guessing_loss(model: Model) -> float:
    """The loss of equal probabilities for all classes, or of the mean of standardized targets."""
    outputs = model.head.out_features
    return outputs / 2 if model.task == "regression" else math.log(max(2, outputs))


def check_divergence(
    model: Model, epoch: Epoch, before: Mapping[str, Any], states: Tensor, config: TrainingConfig
) -> None:
    """Raise if an epoch diverged.

    A loss that exploded may come back: it ends a training only if it did not fall since the epoch
    before, or at the end.

    Args:
        model: as the epoch left it.
        epoch: its losses.
        before: the state before the epoch, see `Trainer.state`.
        states: what the model is trained on.
        config: how.

    Raises:
        DivergenceError: with the epoch, and the remedy that `hdnn.analysis.advise` knows.
    """
    number, guess = before["epoch"], guessing_loss(model)
    rising = before["loss"] is not None and epoch.loss >= before["loss"]
    weights_finite = all(bool(torch.isfinite(p).all()) for p in model.parameters())
    if not weights_finite or not math.isfinite(epoch.penalized):
        what = "the loss is not finite"
    elif epoch.loss > EXPLODED * guess and (rising or number + 1 == config.epochs):
        what = f"the loss exploded to {epoch.loss:.3g} (guessing has {guess:.3g})"
    else:
        return
    rate = config.learning_rate_at(number)
    if not bool(torch.isfinite(states).all()):
        raise DivergenceError(f"{what} in epoch {number + 1}: the inputs are not finite")
    good = copy.deepcopy(model).cpu()  # as the data are
    good.load_state_dict(before["model"])
    advice = step_advice(good, states) or "use a smaller T or step"
    # Before the first step neither learning rate nor clipping can be to blame.
    with torch.no_grad():
        overflows = not bool(torch.isfinite(good.logits(states[:ADVISED])).all())
    if not overflows:
        advice += f"; or a smaller learning rate (now {rate:.3g}), or clip the gradients"
    raise DivergenceError(f"{what} in epoch {number + 1}: {advice}")


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


def convergence_warning(model: Model, data: Dataset, last_loss: float) -> str | None:
    """Why a training did not converge: its loss is above that of an untrained output layer.

    Both the loss of the last epoch and that of the trained model must be: rows that hardly count
    in a weighted training may well be predicted worse than by chance.

    Args:
        model: the trained model.
        data: what it was trained on.
        last_loss: of the last epoch.

    Returns:
        Loss or RMSE, baseline and what `hdnn.analysis.advise` recommends; None if it converged.
    """
    guess = guessing_loss(model)
    if last_loss <= guess * SLACK:
        return None
    metrics = evaluate(model, data.X, data.y)
    if model.task == "classification":
        name, loss, what = "loss", metrics["log_loss"], "equal probabilities"
        ratio = loss / guess
    else:
        name, loss, what = "RMSE", metrics["rmse"], "the mean"
        ratio = 1 - metrics["r2"]
        guess = loss / max(ratio, 1e-300) ** 0.5
    if not ratio > SLACK:
        return None
    advice = step_advice(model, model.prepare(data.X[:ADVISED])) or "use a smaller learning rate"
    return (
        f"training did not converge: its {name}, {loss:.4g}, is above that of always predicting "
        f"{what} ({guess:.4g}): {advice}"
    )
