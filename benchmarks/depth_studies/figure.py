"""The figure: accuracy and loss against work, and gradients at 1024 layers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hdnn.plots.style import LIGHT


def draw(swiss_roll: Sequence[dict[str, Any]], deep: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw what there is, and save it."""
    figure = Figure(figsize=(12, 3.6), layout="constrained", facecolor=LIGHT.paper)
    left, middle, right = figure.subplots(1, 3)
    for axes, name in ((left, "H1"), (middle, "MS3")):
        mine = [r for r in swiss_roll if r["architecture"] == name]
        _curves(axes, mine, "accuracy", 1e6)
        axes.set_title(f"Swiss roll, {name}, 64 layers: mean test accuracy", fontsize=9)
        axes.set_xlabel("work: layer evaluations, millions", fontsize=8)
    _curves(right, deep, "loss", 1e6)
    right.set_yscale("log")
    right.set_title("H1, 1024 layers: mean training loss", fontsize=9)
    right.set_xlabel("work: layer evaluations, millions", fontsize=8)
    for axes in (left, middle, right):
        axes.tick_params(labelsize=8)
        axes.grid(color=LIGHT.grid)
        if axes.lines:
            axes.legend(fontsize=7, frameon=False)
    figure.savefig(path, dpi=130)


def _curves(axes: Axes, records: Sequence[dict[str, Any]], value: str, unit: float) -> None:
    for k, way in enumerate(dict.fromkeys(r["way"] for r in records)):
        mine = [r["curve"] for r in records if r["way"] == way]
        mean = np.mean([curve[value] for curve in mine], axis=0)
        axes.plot(np.array(mine[0]["work"]) / unit, mean, color=LIGHT.color(k), label=way)
