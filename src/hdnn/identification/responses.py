"""What engineers look at in a model: step responses, operating points; and residuals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.functional import jacobian

from hdnn.data.recordings import Array
from hdnn.identification.levenberg import states_of
from hdnn.identification.network import rest_state
from hdnn.identification.simulation import free_run
from hdnn.statespace import StateSpace

MOST = 100_000
"""Steps of a response, at most."""
ROUNDING = 1e-8
"""Of the size of the states: smaller differences of two runs are rounding, which stays."""


class OperatingPoint(NamedTuple):
    """A model at rest under a constant input, and its linearization there.

    Args:
        u: the input ``(inputs,)``.
        y: the output ``(outputs,)``.
        poles: eigenvalues of dx+ / dx, ``(n,)``, the slowest first.
        gain: dy / du of outputs at rest, ``(outputs, inputs)``.
    """

    u: Array
    y: Array
    poles: NDArray[np.complex128]
    gain: Array

    def time_constant(self, sampling_time: float) -> float:
        """The time in which the slowest mode shrinks to 1 / e.

        Args:
            sampling_time: between two samples.

        Returns:
            In units of time.
        """
        with np.errstate(divide="ignore"):  # a pole at 0 forgets at once
            return float(-sampling_time / np.log(abs(self.poles[0])))


def operating_point(model: StateSpace, u: Array) -> OperatingPoint:
    """The linearization at rest.

    Args:
        model: in the units of u.
        u: a constant input ``(inputs,)``.

    Returns:
        Output, poles and static gain.
    """
    with torch.no_grad():
        cell, at = model.assemble(), torch.tensor(u)
        x = rest_state(model, at)
        y = cell.step(x, at)[1]
        (A, B), (C, D) = jacobian(cell.step, (x, at))
        poles = torch.linalg.eigvals(A).numpy()
        gain = C @ torch.linalg.solve(torch.eye(len(A), dtype=A.dtype) - A, B) + D
    order = np.lexsort((-poles.imag, -np.abs(poles)))
    return OperatingPoint(u, y.numpy(), poles[order], gain.numpy())


def step_response(model: StateSpace, u: Array, change: Array) -> Array:
    """How outputs move away from rest when the input changes once.

    Args:
        model: in the units of u.
        u: the input until then ``(inputs,)``, under which the model is at rest.
        change: what is added to it ``(inputs,)``.

    Returns:
        Outputs minus the output at rest ``(time, outputs)``, until it is forgotten where the step
        began.
    """
    x, steps = rest_state(model, torch.tensor(u)), min(model.washout(1e-4), MOST)
    return free_run(model, np.tile(u + change, (steps, 1)), x) - free_run(model, u[None], x)


def energies(model: StateSpace, u: Array, x0: Tensor, other: Tensor, T: Tensor) -> Array:
    """The energy |T (x - x')|^2 / 2 of the difference of two runs under the same inputs.

    In a norm in which the model contracts by rho, no input keeps it from falling by rho^2 a step.

    Args:
        model: in the units of u.
        u: ``(time, inputs)``.
        x0: initial state of one run ``(n,)``.
        other: that of the other one.
        T: of the norm ``(n, n)``, as in `Bounds`.

    Returns:
        The energies before every input, at most ``(time,)``: until the difference is rounding.
    """
    one, two = states_of(model, torch.tensor(u).expand(2, -1, -1), torch.stack([x0, other]))
    difference, size = (one - two) @ T.mT, torch.linalg.matrix_norm(T, 2) * one.norm(dim=-1).max()
    found = difference.square().sum(-1).numpy() / 2
    small = np.flatnonzero(found <= float(ROUNDING * size) ** 2 / 2)
    return found[: small[0]] if len(small) else found


def autocorrelation(parts: Sequence[Array], lags: int) -> Array:
    """Correlation of a signal with itself some samples before; of white noise 0, but at lag 0.

    Args:
        parts: the signal in every recording, ``(time,)``.
        lags: how many.

    Returns:
        For the lags 0 to ``lags``, the first of which is 1.
    """
    mean = np.concatenate(parts).mean()
    sums: Any = [
        sum(float((e[k:] - mean) @ (e[: len(e) - k] - mean)) for e in parts if len(e) > k)
        for k in range(lags + 1)
    ]
    return np.array(sums) / max(sums[0], np.finfo(float).tiny)
