"""Free runs, predictions and their errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hdnn.backends import rollout
from hdnn.data.recordings import Array, Recordings
from hdnn.identification.levenberg import initial_state, recurrence, weights_of
from hdnn.statespace import StateSpace

WARM = 50
"""First outputs that tell the initial state where nothing else is said."""
MOST_WARM = 1000
"""Of a long part that is not scored, as many outputs tell the initial state."""
WORST = -10.0
"""A smaller fit is not printed: an output that hardly moves makes it any number."""


@dataclass(frozen=True)
class Fit:
    """How near a simulation comes to what was measured.

    Args:
        fit: 1 - |y - yhat| / |y - mean y|, the mean over the outputs; 1 is exact.
        rmse: root mean square error of every output, in its unit.
        constant: whether an output does not move, up to rounding; the fit says nothing then.

    >>> y = np.array([[0.0], [1.0], [2.0], [1.0]])
    >>> print(Fit.of([y], [y + 0.1]))
    fit 85.9 %, RMSE 0.1
    """

    fit: float
    rmse: tuple[float, ...]
    constant: bool = False

    @property
    def percent(self) -> str:
        """The fit as people read it."""
        if self.constant:
            return "constant"
        return f"{100 * self.fit:.1f} %" if self.fit >= WORST else f"below {100 * WORST:.0f} %"

    def __str__(self) -> str:
        return f"fit {self.percent}, RMSE {', '.join(f'{e:.4g}' for e in self.rmse)}"

    @classmethod
    def of(cls, measured: Sequence[Array], simulated: Sequence[Array]) -> Fit:
        """The fit over several parts.

        Args:
            measured: ``(time, outputs)`` of every part.
            simulated: the same shapes.

        Returns:
            One fit for all of them.
        """
        y, error = np.concatenate(measured), np.concatenate(measured) - np.concatenate(simulated)
        spread = np.linalg.norm(y - y.mean(0), axis=0)
        fits = 1 - np.linalg.norm(error, axis=0) / np.maximum(spread, 1e-200)  # finite in any case
        constant = np.ptp(y, axis=0) <= 8 * np.finfo(float).eps * np.abs(y).max(0)
        rmse = np.sqrt(np.square(error).mean(0))
        return cls(float(fits.mean()), tuple(rmse.tolist()), bool(constant.any()))


@torch.no_grad()
def free_run(model: StateSpace, u: Array, x0: Tensor | None = None) -> Array:
    """Outputs of inputs alone.

    Args:
        model: in the units of u.
        u: ``(time, inputs)``.
        x0: initial state ``(n,)``; None: the model's own.

    Returns:
        ``(time, outputs)``.
    """
    y: Array = model(torch.tensor(u), x0)[0].numpy()
    return y


def starts(model: StateSpace, recordings: Recordings) -> list[Tensor]:
    """The initial states that the first outputs of recordings tell."""
    found = []
    for u, y, skip in zip(recordings.inputs, recordings.outputs, recordings.skip, strict=True):
        first = torch.tensor(y[: min(skip or WARM, MOST_WARM)])
        found.append(initial_state(model, torch.tensor(u), first))
    return found


def simulate(model: StateSpace, recordings: Recordings) -> list[Array]:
    """Free runs of recordings, of which the first outputs tell the initial states.

    Args:
        model: in their units.
        recordings: what is simulated.

    Returns:
        ``(time, outputs)`` for every recording.
    """
    x0 = starts(model, recordings)
    return [free_run(model, u, x) for u, x in zip(recordings.inputs, x0, strict=True)]


def scored(recordings: Recordings, simulated: Sequence[Array]) -> Fit:
    """The fit on the parts of recordings that are scored.

    Args:
        recordings: what was measured.
        simulated: ``(time, outputs)`` for every recording.

    Returns:
        The fit.
    """
    parts = list(zip(recordings.outputs, simulated, recordings.skip, strict=True))
    return Fit.of([y[k:] for y, _, k in parts], [y[k:] for _, y, k in parts])


def chosen_trust(model: StateSpace, part: Recordings) -> float:
    """The r of a grid with which predictions one step ahead have the smallest error.

    Args:
        model: in the units of the recordings.
        part: what is scored.

    Returns:
        For `predict`; infinity where corrections are of no use.
    """
    C = weights_of(model).matrix("C").detach()
    size = float((C @ C.mT).diagonal().mean()) or 1.0
    errors = {}
    for r in (*(size * 10.0**k for k in range(-2, 5)), np.inf):
        pairs = zip(part.inputs, part.outputs, strict=True)
        y = [predict(model, *pair, 1, r) for pair in pairs]
        errors[r] = sum(scored(part, y).rmse)
    return min(errors, key=lambda r: errors[r])


@torch.no_grad()
def predict(
    model: StateSpace, u: Array, y: Array, steps: int, r: float, x0: Tensor | None = None
) -> Array:
    """Outputs predicted from the outputs measured up to so many steps before.

    A measurement corrects the state, x + C' (C C' + r I)^-1 (y - yhat). The eigenvalues of
    I - C' (C C' + r I)^-1 C are in [0, 1], so the correction brings no two states apart, and the
    rate stays.

    Args:
        model: in the units of u and y.
        u: ``(time, inputs)``.
        y: ``(time, outputs)``.
        steps: how many ahead.
        r: how little measurements are trusted; infinity is a free run.
        x0: initial state ``(n,)``; None: the model's own.

    Returns:
        ``(time, outputs)``; the first rows, before there is a measurement, are a free run.
    """
    head = free_run(model, u[:steps], x0)
    if len(u) <= steps:
        return head
    (n, q), inputs = (model.states, model.outputs), torch.tensor(u)
    cell, Y = model.assemble(), weights_of(model)
    C, D, c = (part.detach() for part in (Y.C, Y.D, Y.c))
    L = torch.linalg.solve(C @ C.mT / r + torch.eye(q, dtype=C.dtype), C / r).mT
    # A step from the corrected state is a recurrence too, with the inputs [u; y].
    correct = torch.cat(
        [torch.eye(n, dtype=C.dtype) - L @ C, -L @ D, L, -(L @ c).unsqueeze(-1)], -1
    )
    kept = torch.eye(len(D.mT) + q + 1, dtype=C.dtype)[[*range(len(D.mT)), -1]]
    T = torch.cat([correct, torch.nn.functional.pad(kept, (n, 0))])
    form, both = recurrence(model), torch.cat([inputs, torch.tensor(y)], -1)[None, : len(u) - steps]
    step, units = form.A.split([len(T), form.A.shape[-1] - len(T)], -1)
    form = form._replace(W=form.W @ T, A=torch.cat([step @ T, units], -1), steps=both.shape[1])
    states = rollout(form, (model.x0 if x0 is None else x0)[None], both)[0][0]
    X = torch.cat([states, both[0], torch.ones_like(states[:, :1])], -1) @ correct.mT
    for k in range(steps):  # all times side by side
        X, _ = cell.step(X, inputs[k : len(u) - steps + k])
    return np.concatenate([head, cell.step(X, inputs[steps:])[1].numpy()])
