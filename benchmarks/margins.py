"""How far samples are from the decision boundary: the robustness claim of section 4.1.

    python benchmarks/margins.py        # the table behind docs/gradients.md

For the data and depths of Figure 1 and all networks of Table 1 (protocol tuned). The margin of a
sample is the length of the smallest perturbation that changes its class: along rays from the sample
the first change of class is found on rings of growing radius; the nearest crossings are then
projected on the tangent of the boundary, until they are its nearest points.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from hdnn.data import split
from hdnn.models import Model
from hdnn.paper.table1 import cells, trained_model

SAMPLES, SEEDS, DRAWS = 300, (1000, 1001, 1002), 20
RADII = (0.02, 0.05, 0.1)
RAYS, RINGS, CANDIDATES, STEPS = 96, 64, 8, 60
"""Directions and radii of the search; crossings of a sample that are refined, in so many steps."""

Gap = Callable[[Tensor], Tensor]
"""Points (samples, rays, 2) -> how far the logit is on the side of the sample's class."""


def margins(model: Model, X: Tensor) -> Tensor:
    """The distance of every sample to the boundary; infinite where there is none within reach."""
    sign = torch.where(model(X) > 0, 1.0, -1.0).double()

    def gap(points: Tensor) -> Tensor:
        return sign * model(points.flatten(0, 1))[:, 0].reshape(points.shape[:2])

    start, reach = X[:, None], float((X.max(0).values - X.min(0).values).norm())
    angle = torch.arange(RAYS, dtype=torch.float64) * (2 * math.pi / RAYS)
    _, g = _gradient(gap, start)
    fan = torch.stack([angle.cos(), angle.sin()], 1).expand(len(X), -1, -1)
    rays = torch.cat([-g / g.norm(dim=-1, keepdim=True), fan], 1)
    inner, outer = torch.zeros(rays.shape[:2]).double(), torch.full(rays.shape[:2], math.inf)
    outer = outer.double()
    for radius in (reach * (torch.arange(1, RINGS + 1) / RINGS).double() ** 2).tolist():
        outer = torch.where((gap(start + radius * rays) <= 0) & outer.isinf(), radius, outer)
        inner = torch.where(outer.isinf(), radius, inner)
    inner, outer = _bisect(gap, start, rays, inner, outer, 8)  # enough to rank them
    nearest = outer.argsort(1)[:, :CANDIDATES]
    rays = rays.take_along_dim(nearest.unsqueeze(-1), 1)
    inner, outer = (ends.take_along_dim(nearest, 1) for ends in (inner, outer))
    _, radius = _bisect(gap, start, rays, inner, outer, 40)
    return _project(gap, start, rays, radius).amin(1)


def _gradient(gap: Gap, x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        value = gap(x)
        (g,) = torch.autograd.grad(value.sum(), x)
    return value.detach(), g


def _bisect(
    gap: Gap, start: Tensor, rays: Tensor, inner: Tensor, outer: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    """Closer radii between which the class changes along rays; infinite ones stay so."""
    for _ in range(steps):
        middle = (inner + outer) / 2
        beyond = gap(start + middle.unsqueeze(-1) * rays) <= 0
        inner, outer = torch.where(beyond, inner, middle), torch.where(beyond, middle, outer)
    return inner, outer


def _project(gap: Gap, start: Tensor, rays: Tensor, radius: Tensor) -> Tensor:
    """Distances of the boundary's points nearest to the start, from crossings along rays."""
    first = radius.unsqueeze(-1)
    x = start + first * rays
    for step in range(STEPS):
        value, g = _gradient(gap, x)
        square = (g * g).sum(-1).clamp_min(1e-300)
        target = start + ((((x - start) * g).sum(-1) - value) / square).unsqueeze(-1) * g
        x = x + (1.0 if step < STEPS // 2 else 0.5) * (target - x)
        # Far projections leave the neighborhood of the crossing: stay within its radius.
        length = (x - start).norm(dim=-1, keepdim=True).clamp_min(1e-300)
        x = start + (x - start) * (torch.minimum(length, first) / length)
    distance = (x - start).norm(dim=-1)
    directions = (x - start) / distance.clamp_min(1e-300).unsqueeze(-1)
    edge = distance * (1 + 1e-9) + 1e-12  # a perturbation that does change the class
    better = (gap(start + edge.unsqueeze(-1) * directions) <= 0) & (edge < radius)
    return torch.where(better, edge, radius)


@torch.no_grad()
def examine(data: str, architecture: str, layers: int) -> str:
    """A row of the table."""
    (cell,) = cells(data=[data], architecture=[architecture], layers=[layers])
    accuracies, distances, halves, random = [], [], [], []
    for seed in SEEDS:
        model, accuracy = trained_model(cell, seed)
        model = model.double()
        part = split(data, "paper", seed=seed)
        X, y = part.X_test[:SAMPLES].double(), part.y_test[:SAMPLES]
        own = margins(model, X)
        distances.append(torch.where(model.predict(X) == y, own, -own))
        other = y[:, None] != part.y_test
        apart = torch.cdist(X, part.X_test.double())
        halves.append(apart.where(other, torch.inf).amin(1) / 2)
        draw = torch.Generator().manual_seed(0)
        d = torch.randn(DRAWS, len(RADII), *X.shape, generator=draw, dtype=torch.float64)
        moved = X + torch.tensor(RADII)[:, None, None] * d / d.norm(dim=-1, keepdim=True)
        random.append((model.predict(moved.flatten(0, -2)).reshape(d.shape[:-1]) == y).double())
        accuracies.append(accuracy)
    signed = torch.cat(distances).numpy()
    worst = [100 * (signed > radius).mean() for radius in RADII]
    moved_right = 100 * torch.stack(random).mean((0, 1, 3)).numpy()
    quantiles = (np.quantile(v, (0.01, 0.05, 0.5)) for v in (signed, torch.cat(halves).numpy()))
    numbers = [", ".join(f"{q:.3f}" for q in each) for each in quantiles]
    numbers += [", ".join(f"{p:.1f}" for p in each) for each in (moved_right, worst)]
    first = [data, architecture, str(layers), f"{100 * np.mean(accuracies):.2f}"]
    return f"| {' | '.join(first + numbers)} |"


if __name__ == "__main__":
    for data, layers in (("swiss-roll", 64), ("double-moons", 4)):
        for architecture in ("H1", "H2", "MS1", "MS2", "MS3"):
            print(examine(data, architecture, layers), flush=True)
