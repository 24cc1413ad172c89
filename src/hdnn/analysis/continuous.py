"""The ODE behind a network, integrated finely: its flow, its sensitivities, and Lemma 1.

Layer j is the flow of (J, K_j, b_j) over time h_j, time frozen at t_j as in the network. It is cut
into `substeps` steps of the classical Runge-Kutta method, and the result is extrapolated from two
such refinements (Richardson), which also gives an estimate of the error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hdnn.analysis.sensitivity import (
    Lowering,
    jacobians,
    layers_side_by_side,
    products,
    states_and_factors,
)
from hdnn.analysis.spectra import velocity_jacobians
from hdnn.backends import reference
from hdnn.errors import HdnnError
from hdnn.fields.field import Time
from hdnn.networks import HamiltonianNetwork
from hdnn.program import Flow, Program, Step, at_layer, times

State = tuple[Tensor, ...]
PHASE = 0.4
"""Radians that the fastest mode may turn in a substep."""
_MOST = 64  # substeps of a layer


@dataclass(frozen=True)
class Solution:
    """The ODE of a network and its derivatives.

    Args:
        states: ``(layers + 1, samples, n)``, y(t_l).
        sensitivities: ``(layers + 1, samples, n, n)``, d y(T) / d y(t_l).
        error: estimated relative error of the sensitivities.
        substeps: of a layer.
    """

    states: Tensor
    sensitivities: Tensor
    error: float
    substeps: int


def fine_substeps(net: HamiltonianNetwork, y: Tensor) -> int:
    """How many substeps of a layer resolve its fastest mode."""
    A = velocity_jacobians(net, y)
    h = torch.as_tensor(net.h, dtype=A.dtype).detach().max()
    phase = float(h * torch.linalg.matrix_norm(A, 2).amax())
    if not phase < PHASE * _MOST:
        raise HdnnError(
            f"a step turns the fastest mode by {phase:.3g} radians, too far to integrate its ODE; "
            "use a smaller T or step"
        )
    return max(1, int(phase / PHASE) + 1)


def _rk4(f: Callable[[State], State], state: State, h: Step) -> State:
    """A step of the classical Runge-Kutta method for several arrays side by side."""
    total, slope = state, tuple(torch.zeros_like(x) for x in state)
    for lead, weight in ((0.0, 1.0), (0.5, 2.0), (0.5, 2.0), (1.0, 1.0)):
        slope = f(tuple(x + lead * h * k for x, k in zip(state, slope, strict=True)))
        total = tuple(x + weight / 6 * h * k for x, k in zip(total, slope, strict=True))
    return total


def refined(net: HamiltonianNetwork, substeps: int, *, own: bool = False) -> Program:
    """The network with every layer cut into substeps, of RK4 or of its own scheme."""
    field, layers, h = net.field, net.layers, net.h / substeps
    if own:
        inner = reference.layer_map(net.scheme.lower(field, h, layers))
    else:
        velocity, t = field.velocity_fn(), times(net.h, layers)

        def inner(j: int, x: Tensor) -> Tensor:
            return _rk4(lambda v: (velocity(j, t[j], v[0]),), (x,), at_layer(h, j, x.ndim))[0]

    def advance(j: int, x: Tensor) -> Tensor:
        for _ in range(substeps):
            x = inner(j, x)
        return x

    return Program(layers, (Flow(advance),), field.layout)


@torch.no_grad()
def solve(net: HamiltonianNetwork, y: Tensor, substeps: int | None = None) -> Solution:
    """The flow of the underlying ODE and its derivatives at the times of all layers.

    Args:
        net: the network; one with a step, not an ensemble.
        y: states ``(..., n)`` or ``(B, n, *spatial)``.
        substeps: of a layer; None: as many as its fastest mode needs.

    >>> import hdnn, torch
    >>> _ = torch.manual_seed(0)
    >>> net = hdnn.network("MS3", features=4, layers=4, T=0.5, dtype=torch.float64)
    >>> solution = solve(net, torch.zeros(3, 4, dtype=torch.float64))
    >>> solution.sensitivities.shape, solution.error < 1e-6
    (torch.Size([5, 3, 4, 4]), True)
    """
    m = fine_substeps(net, y) if substeps is None else substeps
    lowerings = (partial(refined, substeps=k) for k in (m, 2 * m))
    coarse, fine = (states_and_sensitivities(net, y, lower) for lower in lowerings)
    states, M = (b + (b - a) / 15 for a, b in zip(coarse, fine, strict=True))  # order 4: 2^4 - 1
    change = torch.linalg.matrix_norm(fine[1] - coarse[1], 2)
    error = float((change / torch.linalg.matrix_norm(M, 2)).max()) / 15
    return Solution(states, M, error, 2 * m)


def states_and_sensitivities(
    net: HamiltonianNetwork, y: Tensor, lower: Lowering = HamiltonianNetwork.program
) -> tuple[Tensor, Tensor]:
    """``(layers + 1, samples, n)`` and ``(layers + 1, samples, n, n)`` of a network's program."""
    layout = net.field.layout
    states, factors = states_and_factors(net, layout.flatten(y)[0], lower)
    rows = states.movedim(layout.axis, -1).flatten(1, -2)
    return rows, products(factors)


@torch.no_grad()
def backward_dynamics(net: HamiltonianNetwork, states: Tensor, substeps: int) -> Tensor:
    """The backward gradient dynamics of Lemma 1, integrated from t = T down to 0.

        d/ds M = M (df/dy)(y(T - s)),   M = I at s = 0,   M(s) = d y(T) / d y(T - s)

    in the usual convention (the paper's is transposed). It is linear in M: every layer is
    integrated from the identity, with the state that runs back along with it, and their product
    is M.

    Args:
        net: the network.
        states: ``(layers + 1, samples, n)``, of the ODE at the times of all layers.
        substeps: of a layer.

    Returns:
        ``(layers + 1, samples, n, n)``, at s = T - t_l.
    """
    axis, layers = net.field.layout.axis, layers_side_by_side(net)
    ends = states[1:] if axis == -1 else states[1:].unsqueeze(-1)
    if layers is not None:
        return products(_back_through(layers, 0, 0.0, ends, substeps))
    t = times(net.h, net.layers)
    return products(
        torch.stack([_back_through(net, j, t[j], end, substeps) for j, end in enumerate(ends)])
    )


def _back_through(
    net: HamiltonianNetwork, layer: int, t: Time, end: Tensor, substeps: int
) -> Tensor:
    """d y(t + h) / d y(t) of a layer that ends at canonical states, by its backward dynamics."""
    axis, n, h = net.field.layout.axis, net.field.layout.width, at_layer(net.h, layer, end.ndim)
    velocity = net.field.velocity_fn()

    def f(y: Tensor) -> Tensor:  # in units of the step
        return h * velocity(layer, t, y)

    rows = end if axis == -1 else end.squeeze(-1)
    state: State = (end, torch.eye(n, dtype=end.dtype).expand(*rows.shape, n))
    for _ in range(substeps):
        state = _rk4(partial(_back, f, axis), state, 1 / substeps)
    return state[1]


def _back(f: Callable[[Tensor], Tensor], axis: int, state: State) -> State:
    y, M = state
    return -f(y), M @ jacobians(f, y, axis)
