"""How far samples are from the decision boundary: the robustness claim of section 4.1.

    python benchmarks/margins.py        # the table behind docs/gradients.md

For the data and depths of Figure 1 and all networks of Table 1 (protocol tuned). The margin of a
sample is the length of the smallest perturbation that changes its class.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from hdnn.data import split
from hdnn.models import Model
from hdnn.paper.table1 import cells, trained_model

SAMPLES, SEEDS, DRAWS = 300, (1000, 1001, 1002), 20
LENGTHS = (0.02, 0.05, 0.1)
"""Of the perturbations whose accuracies the table shows."""
RAYS, RINGS, BISECTIONS = 180, 64, 30
"""Directions and radii of the search. Of 180 rays the nearest is within 1 degree of the shortest
way to the boundary, and 0.02 % longer where that is straight."""


def margins(model: Model, X: Tensor) -> Tensor:
    """The distance of every sample to the boundary; infinite where there is none within reach.

    Along rays from the sample the first change of class is found on rings of growing radius, then
    by bisection.
    """
    own, start = model.predict(X)[:, None], X[:, None]
    angle = torch.arange(RAYS, dtype=X.dtype) * (2 * math.pi / RAYS)
    rays = torch.stack([angle.cos(), angle.sin()], 1)

    def changed(radius: Tensor) -> Tensor:
        points = start + radius.unsqueeze(-1) * rays
        return model.predict(points.flatten(0, 1)).reshape(radius.shape) != own

    inner = torch.zeros(len(X), RAYS, dtype=X.dtype)
    outer = torch.full_like(inner, math.inf)
    reach = (X.max(0).values - X.min(0).values).norm()
    for ring in range(1, RINGS + 1):  # denser near the sample, where the nearest crossings are
        radius = torch.full_like(inner, float(reach * (ring / RINGS) ** 2))
        outer = torch.where(changed(radius) & outer.isinf(), radius, outer)
        inner = torch.where(outer.isinf(), radius, inner)
    for _ in range(BISECTIONS):
        middle = (inner + outer) / 2
        beyond = changed(middle)
        inner, outer = torch.where(beyond, inner, middle), torch.where(beyond, middle, outer)
    return outer.amin(1)


def right_after_random_steps(model: Model, X: Tensor, y: Tensor) -> Tensor:
    """Shares of samples that are right after steps in random directions, one for every length."""
    generator = torch.Generator().manual_seed(0)
    d = torch.randn(DRAWS, len(LENGTHS), *X.shape, generator=generator, dtype=X.dtype)
    moved = X + torch.tensor(LENGTHS)[:, None, None] * d / d.norm(dim=-1, keepdim=True)
    right = model.predict(moved.flatten(0, -2)).reshape(d.shape[:-1]) == y
    return right.double().mean((0, 2))


@torch.no_grad()
def examine(data: str, architecture: str, layers: int) -> str:
    """A row of the table."""
    (cell,) = cells(data=[data], architecture=[architecture], layers=[layers])
    accuracies, distances, halves, random = [], [], [], []
    for seed in SEEDS:
        model, accuracy = trained_model(cell, seed)
        model, part = model.double(), split(data, "paper", seed=seed)
        X, y = part.X_test[:SAMPLES].double(), part.y_test[:SAMPLES]
        own = margins(model, X)
        distances.append(torch.where(model.predict(X) == y, own, -own))
        apart = torch.cdist(X, part.X_test.double())
        halves.append(apart.where(y[:, None] != part.y_test, math.inf).amin(1) / 2)
        random.append(right_after_random_steps(model, X, y))
        accuracies.append(accuracy)
    signed, half = torch.cat(distances).numpy(), torch.cat(halves).numpy()
    worst = [(signed > length).mean() for length in LENGTHS]
    numbers = [_texts(np.quantile(v, (0.01, 0.05, 0.5)), ".3f") for v in (signed, half)]
    numbers += [
        _texts([100 * s for s in v], ".1f") for v in (torch.stack(random).mean(0).tolist(), worst)
    ]
    first = [data, architecture, str(layers), f"{100 * np.mean(accuracies):.2f}"]
    return f"| {' | '.join(first + numbers)} |"


def _texts(values: Iterable[float], form: str) -> str:
    return ", ".join(format(value, form) for value in values)


if __name__ == "__main__":
    for data, layers in (("swiss-roll", 64), ("double-moons", 4)):
        for architecture in ("H1", "H2", "MS1", "MS2", "MS3"):
            print(examine(data, architecture, layers), flush=True)
