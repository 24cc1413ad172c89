"""`certify` of state-space networks: what is proved of all weights and inputs, beside what is seen.

The trajectory of the given inputs, and a second one of other inputs, are computed in float64. Of
a theorem a line has what these two reach and what it allows.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from hdnn.analysis.checks import EPS, Check
from hdnn.errors import HdnnError
from hdnn.statespace import Cell, StateSpace, gain_of, washout_of

SAMPLES = 16
"""Sequences that are examined: every step of one has a Jacobian."""


@torch.no_grad()
def state_space_checks(model: StateSpace, u: Tensor) -> tuple[int, list[Check]]:
    """The number of sequences, and a line for every statement."""
    if model.ensemble is not None:
        raise HdnnError("an ensemble is certified model by model; build them one by one")
    if not isinstance(u, Tensor) or u.ndim not in (2, 3) or u.shape[-1] != model.inputs:
        raise HdnnError(
            f"certify examines inputs (batch, time, {model.inputs}) or (time, {model.inputs})"
        )
    u = (u if u.ndim == 3 else u.unsqueeze(0))[:SAMPLES].detach().double()
    if not u.shape[0] * u.shape[1]:
        raise HdnnError(f"there are no inputs to examine: {tuple(u.shape)}")
    model = copy.deepcopy(model).double()
    model.backend, cell = "reference", model.assemble()
    draw = torch.Generator().manual_seed(0)
    other = u + u.std().clamp(min=1.0) * torch.randn(u.shape, generator=draw, dtype=u.dtype)
    ways = [_trajectory(cell, way) for way in (u, other)]
    checks = [_finite(ways[0])]
    if checks[0].holds:
        checks += _theorems(model, cell, (u, other), ways)
    return len(u), checks


Way = tuple[Tensor, Tensor]
"""States x_0 to x_T ``(T + 1, B, n)``, and outputs ``(T, B, q)``."""


def _trajectory(cell: Cell, u: Tensor) -> Way:
    states, outputs = [cell.initial(len(u))], list[Tensor]()
    for v in u.unbind(1):
        x, y = cell.step(states[-1], v)
        states.append(x)
        outputs.append(y)
    return torch.stack(states), torch.stack(outputs)


def _finite(way: Way) -> Check:
    holds = all(bool(part.isfinite().all()) for part in way)
    statement = "every state and output is finite"
    consequence = "the inputs are not finite, or overflow float64: nothing else is examined"
    return Check("finite", holds, math.nan, math.nan, statement, consequence, "definition")


def _theorems(
    model: StateSpace, cell: Cell, inputs: tuple[Tensor, Tensor], ways: list[Way]
) -> Iterator[Check]:
    (x, y), (x2, y2) = ways
    F = _jacobians(cell, inputs[0], x)
    slack = 64 * len(F[0, 0]) * EPS  # of products of so many numbers
    plain, tight = model.bounds()
    rate, best = (max(float(own.rho) for own in bounds) for bounds in (plain, tight))
    single = model.layers == 1
    yield _check(
        "contraction",
        torch.linalg.matrix_norm(F, 2).max() if single else _spectral_radius(F),
        rate + slack,
        f"a step brings states together: rate {rate:.6g}",
        "for all weights, all bounded inputs give bounded states",
        "claim 1",
    )
    steps = min(washout_of(bounds, 0.01) for bounds in (plain, tight))
    T = tight[0].T
    weighted = torch.linalg.solve(T, T @ F, left=False) if single else F
    yield _check(
        "forgetting",
        torch.linalg.matrix_norm(weighted, 2).max() if single else _spectral_radius(F),
        best + slack * float(torch.linalg.cond(T)),
        f"rate {best:.6g} in a norm |T x|: 1 % is left after {steps} steps",
        "initial states are forgotten, for these weights and all inputs",
        "claim 1",
    )
    yield _check(
        "gradients",
        _longest_gradient(F),
        1 + slack if single else math.inf,
        "||d x_T / d x_t|| at every t",
        "gradients through time never explode",
        "claim 1",
    )
    gain = float(model.gain)
    if not model.passive:
        gain = min(gain, float(gain_of(tight)))
    du, dx, dy = (inputs[1] - inputs[0]).movedim(1, 0), x2 - x, y2 - y
    size = du.square().sum((0, 2)).sqrt()
    yield _check(
        "gain",
        (dy.square().sum((0, 2)).sqrt() / size).max(),
        gain * (1 + slack),
        "|dy| / |du| of two inputs, from u to y",
        "bounded inputs give bounded outputs",
        "claim 2",
    )
    if model.passive:
        d = 0.0 if model.gain_bound is None else 1 / model.gain_bound
        energy = dx.square().sum(-1) / 2
        supply = model.h * ((du * dy).sum(-1) - d * dy.square().sum(-1))
        scale = energy.max() + model.h * (du * dy).abs().sum(-1).max()
        yield _check(
            "passivity",
            (energy[1:] - energy[:-1] - supply).max() / scale.clamp(min=EPS),
            slack,
            "energy stored - h du'dy + h d |dy|^2, relative",
            "a loop with a passive plant is stable for all weights",
            "claim 4",
        )


def _check(
    name: str, value: Tensor, bound: float, statement: str, consequence: str, reference: str
) -> Check:
    number = float(value)
    proved = math.isfinite(bound)
    tolerance = bound if proved else math.nan
    holds = number <= bound
    return Check(name, holds, number, tolerance, statement, consequence, reference, proved=proved)


def _jacobians(cell: Cell, u: Tensor, x: Tensor) -> Tensor:
    """d x_{t+1} / d x_t of all steps: ``(T, B, n, n)``."""
    derivative = torch.func.vmap(torch.func.jacrev(lambda v, w: cell.step(v, w)[0]))
    flat = derivative(x[:-1].flatten(0, 1), u.movedim(1, 0).flatten(0, 1))
    return flat.unflatten(0, x[:-1].shape[:2])


def _longest_gradient(F: Tensor) -> Tensor:
    M = torch.eye(F.shape[-1], dtype=F.dtype).expand(F.shape[1:])
    worst = F.new_ones(())
    for step in F.flip(0):
        M = M @ step
        worst = torch.maximum(worst, torch.linalg.matrix_norm(M, 2).max())
    return worst


def _spectral_radius(F: Tensor) -> Tensor:
    """Of layers in series, whose Jacobian is triangular by blocks: that of a step contracts."""
    return torch.linalg.eigvals(F).abs().max()
