"""The planar classification problems of the paper, as functions of a size and a generator."""

from __future__ import annotations

import math

import torch
from torch import Tensor

Sample = tuple[Tensor, Tensor]
"""Points ``(size, 2)`` and integer labels ``(size,)``."""


def swiss_roll(size: int = 1000, generator: torch.Generator | None = None) -> Sample:
    """Two spirals (r cos t, r sin t): r = t / 4 pi (class 1) and 0.2 + t / 4 pi (class 0).

    >>> X, labels = swiss_roll(100)
    >>> X.shape, labels.bincount().tolist()
    (torch.Size([100, 2]), [50, 50])
    """
    labels = _alternating(size)
    t = torch.rand(size, generator=generator) * 4 * math.pi
    r = t / (4 * math.pi) + torch.where(labels == 1, 0.0, 0.2)
    return torch.stack([r * t.cos(), r * t.sin()], 1), labels


def double_moons(
    size: int = 1000, generator: torch.Generator | None = None, noise: float = 0.15
) -> Sample:
    """Two pairs of interleaved half circles, with uniform noise on each coordinate."""
    labels = _alternating(size)
    t = torch.rand(size, generator=generator) * math.pi
    upper = torch.stack([t.cos(), t.sin()], 1)
    lower = torch.stack([1 - t.cos(), 0.5 - t.sin()], 1)
    X = torch.where((labels == 0)[:, None], upper, lower)
    X[:, 0] += 2.0 * (torch.arange(size) // 2 % 2)
    return X + (2 * torch.rand(size, 2, generator=generator) - 1) * noise, labels


def _alternating(size: int) -> Tensor:
    return torch.arange(size) % 2
