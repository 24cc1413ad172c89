"""Activations sigma with the energies they are the derivative of: H(x) = integral of sigma.

dH/dx = sigma(x),   H convex wherever sigma is nondecreasing
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hdnn.errors import unknown_name


@dataclass(frozen=True)
class Activation:
    """An activation and its energy, both applied element by element.

    Args:
        name: its name in the catalogue.
        function: sigma.
        energy: a function whose derivative is sigma.
        slope: the supremum of |sigma'|, for bounds on gradients.
        odd: whether sigma(-x) = -sigma(x).
    """

    name: str
    function: Callable[[Tensor], Tensor]
    energy: Callable[[Tensor], Tensor]
    slope: float = 1.0
    odd: bool = True


def _log_cosh(x: Tensor) -> Tensor:
    # logaddexp neither overflows for large |x| nor loses the second derivative at 0.
    return torch.logaddexp(x, -x) - math.log(2.0)


def _relu_energy(x: Tensor) -> Tensor:
    return torch.relu(x).square() / 2


def _arctan_energy(x: Tensor) -> Tensor:
    return x * torch.atan(x) - torch.log1p(x.square()) / 2


def _softsign(x: Tensor) -> Tensor:
    return x / (1 + x.abs())


def _softsign_energy(x: Tensor) -> Tensor:
    return x.abs() - torch.log1p(x.abs())


def _erf_energy(x: Tensor) -> Tensor:
    return x * torch.erf(x) + (torch.exp(-x.square()) - 1) / math.sqrt(math.pi)


def _identity(x: Tensor) -> Tensor:
    return x


def _softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))


ACTIVATIONS: dict[str, Activation] = {
    activation.name: activation
    for activation in (
        Activation("tanh", torch.tanh, _log_cosh),
        Activation("sigmoid", torch.sigmoid, _softplus, slope=0.25, odd=False),
        Activation("relu", torch.relu, _relu_energy, odd=False),
        Activation("identity", _identity, lambda x: x.square() / 2),
        Activation("arctan", torch.atan, _arctan_energy),
        Activation("softsign", _softsign, _softsign_energy),
        Activation("sin", torch.sin, lambda x: 1 - torch.cos(x)),
        Activation("erf", torch.erf, _erf_energy, slope=2 / math.sqrt(math.pi)),
    )
}
"""The catalogue; a new activation is one more line."""


def activation(given: str | Activation) -> Activation:
    """The activation of a name, or the given one itself."""
    if isinstance(given, Activation):
        return given
    if given not in ACTIVATIONS:
        raise unknown_name("activation", given, ACTIVATIONS)
    return ACTIVATIONS[given]
