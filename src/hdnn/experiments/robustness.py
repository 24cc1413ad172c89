"""Section 4.1 on Figure 1: "the datapoints do not lie close to the decision boundary", measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hdnn.analysis import robustness
from hdnn.data import split
from hdnn.experiments.figures import trained_model
from hdnn.experiments.specs import select

FIGURE1 = (("swiss-roll", 64), ("double-moons", 4))
"""Data and depth of Figure 1."""
NETWORKS = ("H1", "H2", "MS1", "MS2", "MS3")
RADII = (0.02, 0.05, 0.1)


@dataclass(frozen=True)
class Row:
    """One network on test data, means over seeds.

    Args:
        data, network, layers, seeds: which.
        accuracy: test accuracy without perturbation, per cent.
        margins: 1 %, 5 % and 50 % quantiles of the distance to the decision boundary; negative
            where a sample is classified wrongly.
        room: the same quantiles of half the distance to the nearest sample of the other class: no
            classifier can have larger margins on both samples.
        radii: lengths of perturbations.
        random, worst: accuracy under random and under the worst perturbations, per cent.
    """

    data: str
    network: str
    layers: int
    seeds: int
    accuracy: float
    margins: tuple[float, ...]
    room: tuple[float, ...]
    radii: tuple[float, ...]
    random: tuple[float, ...]
    worst: tuple[float, ...]


def measure(data: str, network: str, layers: int, seeds: Sequence[int], samples: int = 500) -> Row:
    """Train a cell of Table 1 (protocol tuned) and measure it on test samples."""
    cell = select([data], [network], [layers])[0]
    parts = []
    for seed in seeds:
        model, accuracy = trained_model(cell, "tuned", "paper", seed)
        kept = split(data, "paper", seed=seed)
        X, y = kept.X_test[:samples].double(), kept.y_test[:samples]
        found = robustness(model, X, y, RADII, seed=seed)
        apart = torch.cdist(X, kept.X_test.double())
        room = apart.masked_fill(y[:, None] == kept.y_test, torch.inf).amin(1) / 2
        levels = torch.tensor([0.01, 0.05, 0.5], dtype=torch.float64)
        parts.append(
            (
                100 * accuracy,
                found.margins.quantile(levels).tolist(),
                room.quantile(levels).tolist(),
                [100 * a for a in found.random],
                [100 * a for a in found.worst],
            )
        )
    accuracy_, margins, rooms, random, worst = (
        np.mean(column, 0).tolist() for column in zip(*parts, strict=True)
    )
    return Row(
        data,
        network,
        layers,
        len(seeds),
        accuracy_,
        tuple(margins),
        tuple(rooms),
        RADII,
        tuple(random),
        tuple(worst),
    )


def table(rows: Sequence[Row]) -> str:
    """As Markdown."""
    radii = rows[0].radii if rows else RADII
    lines = [
        "| data | network | layers | seeds | accuracy, % | margin: 1 %, 5 %, 50 % quantile | "
        "half the distance to the other class | "
        + " | ".join(f"random {r:g}, %" for r in radii)
        + " | "
        + " | ".join(f"worst {r:g}, %" for r in radii)
        + " |",
        "| --- " * (7 + 2 * len(radii)) + "|",
    ]
    for row in rows:
        figures = [f"{x:.1f}" for x in (*row.random, *row.worst)]
        lines.append(
            f"| {row.data} | {row.network} | {row.layers} | {row.seeds} | {row.accuracy:.2f} | "
            f"{', '.join(f'{x:.3f}' for x in row.margins)} | "
            f"{', '.join(f'{x:.3f}' for x in row.room)} | {' | '.join(figures)} |"
        )
    return "\n".join(lines) + "\n"
