"""When a training has diverged, and what to do about it."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor

from hdnn.analysis import advise
from hdnn.config import TrainingConfig
from hdnn.errors import HdnnError
from hdnn.models import Model
from hdnn.training.loops import Batches, Epoch

EXPLODED = 1e4
"""A loss that is so many times that of guessing comes from numbers that grow without bound."""
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
    limit, rising = EXPLODED * guessing_loss(model), previous is not None and epoch.loss >= previous
    if epoch.loss > limit and (rising or last):
        return f"the loss exploded to {epoch.loss:.3g} (guessing has {guessing_loss(model):.3g})"
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
    advice = _advice(model, good, data.states[:ADVISED])
    return (
        f"{what} in epoch {number + 1}: with step h = {h:.3g}, layer {_worst_layer(path)}"
        f"; use a smaller T or step, {remedy}{advice}"
    )


def _worst_layer(path: Tensor) -> str:
    """The first layer whose state is not finite, else the one with the largest."""
    finite, layers = torch.isfinite(path).flatten(1).all(1), len(path) - 1
    if not bool(finite.all()):
        first = int((~finite).nonzero()[0])
        return f"{first} of {layers} is the first whose state is not finite"
    sizes = path.abs().flatten(1).amax(1)
    return f"{int(sizes.argmax())} of {layers} has the largest state ({float(sizes.max()):.3g})"


def _advice(model: Model, good: dict[str, Any], states: Tensor) -> str:
    """What the step advisor says of the last good weights, where it can say anything."""
    before = copy.deepcopy(model).cpu()  # as the data are
    before.load_state_dict(good)
    try:
        with torch.no_grad():
            network, y = before.block_inputs(states)[0]
        return f". Before this epoch: {advise(network, y).remedy}"
    except (ArithmeticError, HdnnError, RuntimeError):  # a convolution; weights beyond LAPACK
        return ""
