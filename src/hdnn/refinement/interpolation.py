"""Matrices ``(new layers, old layers)``: how new layers are made of old ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def overlaps(old: int, new: int) -> Tensor:
    """``(new, old)``: how much of an old layer lies in a new one, from 0 to 1."""
    # In units of 1 / (old new) all boundaries are integers, so nested grids give exact numbers.
    i, j = torch.arange(new).unsqueeze(1), torch.arange(old)
    shared = torch.minimum((i + 1) * old, (j + 1) * new) - torch.maximum(i * old, j * new)
    return shared.clamp_min(0).to(torch.float64) / new


def _samples(
    old: int, new: int, coefficients: Callable[[Tensor], Sequence[Tensor]], first: int
) -> Tensor:
    """Row i holds the coefficients of the old layers around the time at which layer i begins."""
    position = torch.arange(new) * old
    layer, rest = position // new, (position % new).to(torch.float64) / new
    rows = torch.zeros(new, old, dtype=torch.float64)
    for offset, coefficient in enumerate(coefficients(rest), first):
        column = (layer + offset).clamp(0, old - 1)  # beyond the ends the weights stay as they are
        rows.scatter_add_(1, column.unsqueeze(1), coefficient.unsqueeze(1))
    return rows


def _linear(f: Tensor) -> Sequence[Tensor]:
    return 1 - f, f


def _cubic(f: Tensor) -> Sequence[Tensor]:
    """Catmull and Rom's: through all samples, with the slopes of central differences."""
    return (
        f * (-1 + f * (2 - f)) / 2,
        1 + f * f * (-5 + 3 * f) / 2,
        f * (1 + f * (4 - 3 * f)) / 2,
        f * f * (-1 + f) / 2,
    )


INTERPOLATIONS: dict[str, Callable[[int, int, Tensor], Tensor]] = {
    "constant": lambda old, new, h: _averages(overlaps(old, new), h),
    "linear": lambda old, new, h: _samples(old, new, _linear, 0),
    "cubic": lambda old, new, h: _samples(old, new, _cubic, -1),
}
"""How weights follow between samples: a function of old and new depth and the old steps."""


def _averages(shares: Tensor, h: Tensor) -> Tensor:
    """The mean over time: entries weighted by how long they hold within a new layer."""
    weighted = shares * h.unsqueeze(-2)
    return weighted / weighted.sum(-1, keepdim=True)


def mixed(mix: Tensor, stack: Tensor) -> Tensor:
    """The new stack ``([E,] new, p)`` of an old one ``([E,] old, p)``, in float64 on the CPU."""
    if mix.ndim > stack.ndim:  # members with steps of their own share this array
        mix = mix.mean(0)
    return mix.cpu() @ stack.detach().cpu().to(torch.float64)
