"""The numbers of a report: predictions, gradients along depth, energy, certificate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hdnn.analysis import Certificate, Norms, certify, profile
from hdnn.errors import HdnnError
from hdnn.models import Model
from hdnn.networks import HamiltonianNetwork
from hdnn.training.evaluation import logits_of
from hdnn.zoo import network

DEPTHS = 65
EVALUATED = 20_000
"""Samples that predictions are made of at most."""
EXAMINED = 200
"""Samples whose gradients are measured."""
WORK = 100_000
"""Entries of Jacobians that a certificate looks at, about: a second or two."""
PIXELS = 2000
"""States of images, one for every pixel, that are examined at most."""


@dataclass(frozen=True)
class Confusion:
    """How often class i was predicted as class j: ``counts[i, j]``."""

    labels: list[str]
    counts: np.ndarray


@dataclass(frozen=True)
class Residuals:
    """Observed and predicted values of a regression's first target."""

    observed: np.ndarray
    predicted: np.ndarray


@dataclass(frozen=True)
class Mistake:
    """An image that was classified wrongly, with confidence.

    Args:
        image: ``(H, W)`` or ``(H, W, 3)``, uint8.
        truth, guess: labels.
        chance: that the model gives its guess.
    """

    image: np.ndarray
    truth: str
    guess: str
    chance: float


def outputs(model: Model, X: Tensor) -> Tensor:
    """``(samples, outputs)``: the values of the head."""
    return logits_of(model, model.prepare(X))


def confusion(model: Model, logits: Tensor, y: Tensor) -> Confusion:
    """The confusion matrix of predictions."""
    guesses = logits.argmax(-1) if logits.shape[1] > 1 else (logits[:, 0] > 0).long()
    count = len(model.labels)
    counts = torch.bincount(y.long() * count + guesses, minlength=count * count)
    return Confusion([str(label) for label in model.labels], counts.reshape(count, count).numpy())


def accuracy(model: Model, X: Tensor, y: Tensor) -> float | None:
    """The share of samples that are classified correctly; None for a regression."""
    if model.task == "regression":
        return None
    counts = confusion(model, outputs(model, X[:EVALUATED]), y[:EVALUATED]).counts
    return float(counts.trace() / counts.sum())


def evenly(data: Tensor, most: int) -> Tensor:
    """At most so many samples, evenly chosen."""
    return data[torch.linspace(0, len(data) - 1, min(most, len(data))).long()]


def residuals(logits: Tensor, y: Tensor, most: int = 600) -> Residuals:
    """Observed against predicted, of evenly chosen samples."""
    observed = evenly(y.reshape(len(y), -1)[:, 0], most).double().numpy()
    return Residuals(observed, evenly(logits[:, 0], most).double().numpy())


def mistakes(model: Model, X: Tensor, logits: Tensor, y: Tensor, most: int = 12) -> list[Mistake]:
    """The images that are most wrong: the least chance for the truth first."""
    chances = logits.softmax(-1)
    guesses = logits.argmax(-1)
    wrong = torch.nonzero(guesses != y).flatten()
    order = wrong[chances[wrong, y[wrong]].argsort()][:most].tolist()
    labels = [str(label) for label in model.labels]
    return [
        Mistake(_array(X[k]), labels[int(y[k])], labels[int(guesses[k])], float(chances[k].max()))
        for k in order
    ]


def _array(image: Tensor) -> np.ndarray:
    if image.dtype != torch.uint8:
        image = (image * 255).clamp(0, 255).to(torch.uint8)
    planes = image.cpu().numpy()
    array: np.ndarray = planes.transpose(1, 2, 0) if len(planes) == 3 else planes[0]
    return array


# --- along depth ----------------------------------------------------------------------------------


Block = tuple[HamiltonianNetwork, Tensor]
"""A network, and the states that enter it."""


@torch.no_grad()
def last_block(model: Model, X: Tensor) -> Block | None:
    """The last block of a model and what data are when they enter it; None without layers."""
    if not model.networks or not model.networks[-1].layers:
        return None
    most = 16 if model.stem.takes_images else EXAMINED
    return model.block_inputs(model.prepare(evenly(X, most)))[-1]


def plain_block(block: Block) -> Block | None:
    """An untrained plain network of the same size, for the same states; None for one itself."""
    net, y = block
    if net.name == "FCNN":
        return None
    size = {"features": net.features} if net.features else {"channels": net.channels}
    kernel = {} if net.features else {"kernel": net.kernel}
    draw = torch.Generator().manual_seed(0)
    options: dict[str, Any] = {**size, **kernel, "dtype": y.dtype}
    return network("FCNN", layers=net.layers, generator=draw, **options), y


def depth_norms(block: Block) -> Norms:
    """Norms and energy along the depth of a block."""
    net, y = block
    if net.kernel > 1:  # by power iteration
        return profile(net, y[:4], 9)
    return profile(net, y if net.features else y[: max(1, PIXELS // y[0, 0].numel())], DEPTHS)


def certificates(model: Model, X: Tensor) -> list[Certificate]:
    """What the theory says of every block, on a few samples; none for convolutions."""
    found = []
    samples = evenly(X, 100)
    if model.stem.takes_images:
        samples = samples[: max(1, PIXELS // samples[0, 0].numel())]
    with torch.no_grad():
        blocks = model.block_inputs(model.prepare(samples))
    for net, y in blocks:
        width = net.features or 1
        few = y[: max(2, WORK // max(1, net.layers * width**2))] if net.features else y
        try:
            found.append(certify(net, few))
        except HdnnError:  # a convolution has no certificate
            continue
    return found
