"""Activations sigma with the energies they are the derivative of: H(x) = integral of sigma.

dH/dx = sigma(x),   H convex wherever sigma is nondecreasing
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hdnn.errors import unknown_name

Mean = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Activation:
    """An activation and its energy, both applied element by element.

    Args:
        name: the key of the catalog, shown by `repr`.
        function: sigma, a function of a tensor that returns one of the same shape.
        energy: E, a function of a tensor whose derivative is sigma.
        odd: whether sigma(-x) = -sigma(x), so that MS1 is one hidden layer as a whole, too.
        code: its number in the kernels; None where they do not know it.
        mean: the mean of sigma between a and b, (E(b) - E(a)) / (b - a), also for b near a; None
            where it is not known, and `DiscreteGradient` does not apply. `analytic_mean` makes it
            for an analytic sigma.

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
    mean: Mean | None = field(default=None, compare=False)  # a copy of a partial equals no other


_NEAR = 0.2
"""Below this distance E(b) - E(a) cancels, and quadrature is exact to rounding: with six nodes its
error is below 4e-16, if the nearest pole of sigma is at a distance of at least 1 (arctan)."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)


def analytic_mean(function: Callable[[Tensor], Tensor], energy: Callable[[Tensor], Tensor]) -> Mean:
    """The mean of an analytic sigma between two points, for `Activation`.

    Args:
        function: sigma, without poles within a distance of 1 from the numbers it is applied to.
        energy: E.

    Returns:
        A function of a and b: (E(b) - E(a)) / (b - a), sigma(a) where a = b.

    >>> import torch
    >>> mean = analytic_mean(torch.exp, torch.exp)
    >>> mean(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0]))  # e - 1, and the limit
    tensor([1.7183, 1.0000])
    """
    return partial(_analytic_mean, function, energy)


def _analytic_mean(
    function: Callable[[Tensor], Tensor], energy: Callable[[Tensor], Tensor], a: Tensor, b: Tensor
) -> Tensor:
    step = b - a
    near = step.abs() < _NEAR
    difference = (energy(b) - energy(a)) / torch.where(near, 1.0, step)
    inner = torch.where(near, step, 0.0)  # no overflow, and no NaN in a derivative that is unused
    places = zip(_NODES.tolist(), _WEIGHTS.tolist(), strict=True)
    quadrature = sum(w / 2 * function(a + (1 + c) / 2 * inner) for c, w in places)
    return torch.where(near, quadrature, difference)


def _bent_mean(
    bend: Callable[[Tensor], Tensor],
    slope: Callable[[Tensor], Tensor],
    mean: Mean,
    a: Tensor,
    b: Tensor,
) -> Tensor:
    """The mean for the energy E(p(x)), p bent at 0: that of E times (p(b) - p(a)) / (b - a).

    On either side of the corner the second factor is the slope of p; across it nothing cancels.
    """
    u, v, same_side = bend(a), bend(b), (a > 0) == (b > 0)
    across = (v - u) / torch.where(same_side, 1.0, b - a)
    ratio = torch.where(same_side, slope(a + b), across)
    return ratio * mean(u, v)


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


def _midpoint(a: Tensor, b: Tensor) -> Tensor:
    return (a + b) / 2


def _is_positive(x: Tensor) -> Tensor:
    return (x > 0).to(x)


def _softplus(x: Tensor) -> Tensor:
    return F.softplus(x, threshold=40)


ACTIVATIONS: dict[str, Activation] = {
    activation.name: activation
    for activation in (
        Activation("tanh", torch.tanh, _log_cosh, True, 0, analytic_mean(torch.tanh, _log_cosh)),
        Activation(
            "sigmoid",
            torch.sigmoid,
            _softplus,
            code=4,
            mean=analytic_mean(torch.sigmoid, _softplus),
        ),
        Activation(
            "relu",
            torch.relu,
            _relu_energy,
            code=2,
            mean=partial(_bent_mean, torch.relu, _is_positive, _midpoint),
        ),
        Activation("identity", _identity, _half_square, odd=True, code=1, mean=_midpoint),
        Activation(
            "arctan",
            torch.atan,
            _arctan_energy,
            odd=True,
            mean=analytic_mean(torch.atan, _arctan_energy),
        ),
        Activation(
            "softsign",
            F.softsign,
            _softsign_energy,
            odd=True,
            code=3,
            mean=partial(
                _bent_mean, torch.abs, torch.sign, analytic_mean(F.softsign, _softsign_energy)
            ),
        ),
        Activation("sin", torch.sin, _versine, odd=True, mean=analytic_mean(torch.sin, _versine)),
        Activation(
            "erf", torch.erf, _erf_energy, odd=True, mean=analytic_mean(torch.erf, _erf_energy)
        ),
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
