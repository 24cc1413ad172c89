"""What is wrong with a training: it diverged, or did not converge; and what to do."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor

from hdnn.analysis import advise
from hdnn.config import TrainingConfig
from hdnn.data import Dataset
from hdnn.errors import HdnnError
from hdnn.models import Model
from hdnn.training.evaluation import evaluate
from hdnn.training.loops import Epoch

EXPLODED = 1e4
"""A loss that is so many times that of guessing comes from numbers that grow without bound."""
SLACK = 1.05
"""A training that has hardly begun may be a little above the loss of guessing."""
ADVISED = 32
"""Samples that the step advisor looks at."""


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
    model: Model, good: dict[str, Any], states: Tensor, config: TrainingConfig, number: int
) -> str:
    """What to do about a divergence.

    Args:
        model: after it.
        good: its state dict before the epoch that diverged.
        states: what it was trained on.
        config: how.
        number: of the epoch, from 0.
    """
    if not bool(torch.isfinite(states).all()):
        return "the inputs are not finite; correct the data"
    rate = config.learning_rate_at(number)
    remedy = f"use a smaller T or step, a smaller learning rate (now {rate:.3g}), or clip=1.0"
    before = copy.deepcopy(model).cpu()  # as the data are
    before.load_state_dict(good)
    advice = step_advice(before, states)
    return f"{remedy}. Before this epoch: {advice}" if advice else remedy


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
        Loss, baseline and what `hdnn.analysis.advise` recommends; None if it converged.
    """
    guess = guessing_loss(model)
    if last_loss <= guess * SLACK:
        return None
    figures = evaluate(model, data.X, data.y)
    what, loss = "equal probabilities", figures["loss"]
    if model.task == "regression":  # its loss is in the units of the targets; R^2 compares
        what, guess = "the mean", loss / max(1 - figures["r2"], 1e-300)
    if not loss > guess * SLACK:
        return None
    advice = step_advice(model, model.prepare(data.X[:ADVISED])) or "use a smaller learning rate"
    return (
        f"training did not converge: its loss, {loss:.4g}, is above that of always predicting "
        f"{what} ({guess:.4g}): {advice}"
    )
