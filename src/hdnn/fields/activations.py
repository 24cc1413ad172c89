"""Activations sigma with the energies they are the derivative of: H(x) = integral of sigma.

dH/dx = sigma(x),   H convex wherever sigma is nondecreasing
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from hdnn.errors import unknown_name


@dataclass(frozen=True)
class Activation:
    """An activation and its energy, both applied element by element.

    Args:
        name: the key of the catalog, shown by `repr`.
        function: sigma, a function of a tensor that returns one of the same shape.
        energy: E, a function of a tensor whose derivative is sigma.
        odd: whether sigma(-x) = -sigma(x), so that MS1 is one hidden layer as a whole, too.
        code: its number in the kernels; None where they do not know it.

    >>> import torch
    >>> from hdnn.fields import Activation
    >>> cube = Activation("cube", lambda x: x**3, lambda x: x**4 / 4)
    >>> x = torch.tensor(2.0)
    >>> float(cube.function(x)), float(cube.energy(x))
    (8.0, 4.0)
    """

    name: str
    function: Callable[[Tensor], Tensor]
    energy: Callable[[Tensor], Tensor]
    odd: bool = False
    code: int | None = None


def _log_cosh(x: Tensor) -> Tensor:
    # log(1 + exp(-2x)) + x neither overflows for large |x| nor loses derivatives at 0; beyond the
    # threshold the exponential is below the rounding of float64 (torch's default of 20 is not).
    return F.softplus(-2 * x, threshold=40) + x - math.log(2.0)


def _relu_energy(x: Tensor) -> Tensor:
    return torch.relu(x).square() / 2


def _arctan_energy(x: Tensor) -> Tensor:
    return x * torch.atan(x) - torch.log1p(x.square()) / 2


def _softsign_energy(x: Tensor) -> Tensor:
    return x.abs() - torch.log1p(x.abs())


def _erf_energy(x: Tensor) -> Tensor:
    return x * torch.erf(x) + (torch.exp(-x.square()) - 1) / math.sqrt(math.pi)


def _half_square(x: Tensor) -> Tensor:
    return x.square() / 2


def _versine(x: Tensor) -> Tensor:
    return 1 - torch.cos(x)


def _identity(x: Tensor) -> Tensor:
    return x


def _softplus(x: Tensor) -> Tensor:
    return F.softplus(x, threshold=40)


ACTIVATIONS: dict[str, Activation] = {
    activation.name: activation
    for activation in (
        Activation("tanh", torch.tanh, _log_cosh, odd=True, code=0),
        Activation("sigmoid", torch.sigmoid, _softplus, code=4),
        Activation("relu", torch.relu, _relu_energy, code=2),
        Activation("identity", _identity, _half_square, odd=True, code=1),
        Activation("arctan", torch.atan, _arctan_energy, odd=True),
        Activation("softsign", F.softsign, _softsign_energy, odd=True, code=3),
        Activation("sin", torch.sin, _versine, odd=True),
        Activation("erf", torch.erf, _erf_energy, odd=True),
    )
}
"""The catalog; a new activation is one more line."""


def activation(name: str | Activation) -> Activation:
    """The activation of a name, or the activation itself."""
    if isinstance(name, Activation):
        return name
    if name not in ACTIVATIONS:
        raise unknown_name("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]
