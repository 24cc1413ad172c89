"""The numbers of a report: predictions, gradients along depth, energy, certificate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hdnn.analysis import (
    Certificate,
    DepthError,
    Norms,
    Profile,
    certify,
    depth_error,
    norms,
    profile,
    sensitivities,
    watch,
)
from hdnn.analysis.profiles import spread
from hdnn.backends import reference
from hdnn.errors import HdnnError
from hdnn.fields import EnergyField, HamiltonianField
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
REFINED = 2e9
"""Multiplications up to which a model is refined: a second or two."""
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


@dataclass(frozen=True)
class DepthNorms:
    """Norms of d y_N / d y_l over samples, by depth l."""

    depths: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    energy: np.ndarray | None = None
    note: str = ""


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


def work(model: Model, X: Tensor) -> float:
    """Multiplications of a pass of data through all layers, about."""
    pixels = X[0, 0].numel() if model.stem.takes_images and len(X) else 1
    sizes = ((net.layers, net.field.layout.width * net.kernel) for net in model.networks)
    return len(X) * pixels * sum(layers * float(width) ** 2 for layers, width in sizes)


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


@torch.no_grad()
def depth_norms(block: Block) -> DepthNorms:
    """Norms and energy along the depth of a block."""
    net, y = block
    if net.features is not None:
        return _of_profile(profile(net, y, spread(net.layers, DEPTHS)))
    return _pointwise(net, y) if net.kernel == 1 else _convolved(net, y)


def _of_profile(found: Profile) -> DepthNorms:
    norms = found.largest
    with np.errstate(over="ignore", invalid="ignore"):  # of a model that has diverged
        energy = None if found.energy is None else found.energy.mean(-1)
        return DepthNorms(found.depths, norms.mean(-1), norms.min(-1), norms.max(-1), energy)


def _pointwise(net: HamiltonianNetwork, y: Tensor) -> DepthNorms:
    """A network that mixes channels at every pixel: each pixel is a sample."""
    few = y[: max(1, PIXELS // y[0, 0].numel())]
    depths = spread(net.layers, DEPTHS)
    found = norms(sensitivities(net, few)[depths])
    return _of_norms(found, depths, _energy(net, few, depths), "by pixel")


def _of_norms(found: Norms, depths: list[int], energy: np.ndarray | None, note: str) -> DepthNorms:
    mean, low, high = (values.numpy() for values in (found.mean, found.minimum, found.maximum))
    return DepthNorms(np.array(depths), mean, low, high, energy, note)


def _convolved(net: HamiltonianNetwork, y: Tensor) -> DepthNorms:
    """A network of convolutions: power iteration between at most nine depths."""
    depths = spread(net.layers, 9)
    advance = reference.layer_map(net.program())
    parts = [_Part(partial(_between, advance, a, b)) for a, b in pairwise(depths)]
    with torch.enable_grad():
        found = watch(nn.Sequential(*parts), iterations=12, tolerance=0.02)(y[:4].detach()).norms
    return _of_norms(found, depths, _energy(net, y[:4], depths), "estimated by power iteration")


class _Part(nn.Module):
    """Some layers of a network as a module of their own."""

    def __init__(self, function: partial[Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, y: Tensor) -> Tensor:
        return self.function(y)


def _between(advance: object, first: int, last: int, y: Tensor) -> Tensor:
    for layer in range(first, last):
        y = advance(layer, y)  # type: ignore[operator]
    return y


def _energy(net: HamiltonianNetwork, y: Tensor, depths: list[int]) -> np.ndarray | None:
    """Mean energy of a sample at depths; at the last one with the weights of the last layer."""
    field = net.field
    if not isinstance(field, HamiltonianField | EnergyField):
        return None
    states = net.trajectory(y)
    values = [
        field.energy(states[depth], min(depth, net.layers - 1)).sum() / len(y) for depth in depths
    ]
    return torch.stack(values).double().cpu().numpy()


def discretization(model: Model, X: Tensor) -> DepthError | None:
    """How far predictions are from those of the ODE, on some samples; None where that is long.

    Raises:
        HdnnError: there is no ODE behind the model.
    """
    samples = evenly(X, EXAMINED)
    refined = 7  # the depth itself, twice and four times as many layers
    return None if refined * work(model, samples) > REFINED else depth_error(model, samples)


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
