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

from hdnn.analysis.sensitivity import jacobians, products, program_factors
from hdnn.analysis.spectra import velocity_jacobians
from hdnn.backends import reference
from hdnn.errors import HdnnError
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
    >>> net = hdnn.network("MS3", features=4, layers=4, T=0.5, dtype=torch.float64)
    >>> solution = solve(net, torch.zeros(3, 4, dtype=torch.float64))
    >>> solution.sensitivities.shape, solution.error < 1e-6
    (torch.Size([5, 3, 4, 4]), True)
    """
    m = fine_substeps(net, y) if substeps is None else substeps
    coarse, fine = (states_and_sensitivities(refined(net, k), y) for k in (m, 2 * m))
    states, M = (b + (b - a) / 15 for a, b in zip(coarse, fine, strict=True))  # order 4: 2^4 - 1
    change = torch.linalg.matrix_norm(fine[1] - coarse[1], 2)
    error = float((change / torch.linalg.matrix_norm(M, 2)).max()) / 15
    return Solution(states, M, error, 2 * m)


def states_and_sensitivities(program: Program, y: Tensor) -> tuple[Tensor, Tensor]:
    """``(layers + 1, samples, n)`` and ``(layers + 1, samples, n, n)`` of a program."""
    states, factors = program_factors(program, program.layout.flatten(y)[0])
    rows = states.movedim(program.layout.axis, -1).flatten(1, -2)
    return rows, products(factors)


@torch.no_grad()
def backward_dynamics(net: HamiltonianNetwork, end: Tensor, substeps: int) -> Tensor:
    """The backward gradient dynamics of Lemma 1, integrated from t = T down to 0.

        d/ds M = M (df/dy)(y(T - s)),   M = I at s = 0,   M(s) = d y(T) / d y(T - s)

    in the usual convention (the paper's is transposed). The state runs back along with it.

    Args:
        net: the network.
        end: ``(samples, n)``, the states at time T.
        substeps: of a layer.

    Returns:
        ``(layers + 1, samples, n, n)``, at s = T - t_l.
    """
    velocity, t = net.field.velocity_fn(), times(net.h, net.layers)
    axis = net.field.layout.axis
    eye = torch.eye(end.shape[-1], dtype=end.dtype)
    state: State = (end if axis == -1 else end.unsqueeze(-1), eye.expand(*end.shape, len(eye)))
    matrices = [state[1]]
    for j in reversed(range(net.layers)):
        back = partial(_back, partial(velocity, j, t[j]), axis)
        for _ in range(substeps):
            state = _rk4(back, state, at_layer(net.h, j) / substeps)
        matrices.append(state[1])
    return torch.stack(matrices[::-1])


def _back(f: Callable[[Tensor], Tensor], axis: int, state: State) -> State:
    y, M = state
    return -f(y), M @ jacobians(f, y, axis)
