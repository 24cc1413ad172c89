"""The figure: accuracy and loss against work, accuracy against depth, and time to an objective."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from depth_studies.studies import COARSENED
from hdnn.plots.style import LIGHT, clean, label_ends, new_figure, save_figure

Record = dict[str, Any]
MILLION = 1e6
LATEST = 3.0
"""Times beyond this, relative to the other method's, are not drawn."""


def draw(records: Sequence[Record], times: dict[str, list[float | None]], path: Path) -> None:
    """Draw what there is, and save it.

    Args:
        records: of all studies.
        times: by network, for every seed: when varpro reached the objective, relative to the time
            of coordinate descent; None where it did not.
        path: of the PNG.
    """
    figure = new_figure(13, 6.6)
    (left, middle, right), (roll, moons, reached) = figure.subplots(2, 3)
    for axes, name in ((left, "H1"), (middle, "MS3")):
        mine = [r for r in _of(records, "swiss-roll") if r["architecture"] == name]
        _curves(axes, mine, "accuracy")
        axes.set_title(f"Swiss roll, {name}: test accuracy against work", loc="left", fontsize=9.5)
    _curves(right, _of(records, "deep"), "loss")
    right.set_yscale("log")
    right.set_title("H1, 1024 layers: training loss against work", loc="left", fontsize=9.5)
    for axes in (left, middle, right):
        axes.set_xlabel("layer evaluations of samples, millions")
    for axes, data, title in (
        (roll, "swiss-roll", "Swiss roll"),
        (moons, "double-moons", "Double moons"),
    ):
        _depths(axes, [r for r in _of(records, "coarsened") if r["data"] == data])
        axes.set_title(f"{title}, coarsened from 64 layers: accuracy", loc="left", fontsize=9.5)
        axes.set_xlabel("layers after coarsening; mean of five networks")
    _reached(reached, times)
    for axes in (left, middle, right, roll, moons, reached):
        clean(axes)
        if axes in (roll, moons):  # lines that end in one point
            axes.legend(fontsize=8, frameon=False, loc="best", labelcolor="linecolor")
        else:
            begin, end = axes.get_xlim()
            axes.set_xlim(begin, end + 0.3 * (end - begin))
            label_ends(axes)
    save_figure(figure, path, dpi=110)


def _of(records: Sequence[Record], study: str) -> list[Record]:
    return [r for r in records if r["study"] == study]


def _curves(axes: Axes, records: Sequence[Record], value: str) -> None:
    for k, way in enumerate(dict.fromkeys(r["way"] for r in records)):
        mine = [r["curve"] for r in records if r["way"] == way]
        mean = np.mean([curve[value] for curve in mine], axis=0)
        axes.plot(np.array(mine[0]["work"]) / MILLION, mean, color=LIGHT.color(k), label=way)


def _depths(axes: Axes, records: Sequence[Record]) -> None:
    axes.set_xscale("log", base=2)
    for k, way in enumerate(COARSENED):
        mine = [r for r in records if r["way"] == way]
        if mine:
            mean = np.mean([r["accuracies"] for r in mine], axis=0)
            label = way.removeprefix("64, ") if way != "64" else "alpha = 0.0005"
            axes.plot(mine[0]["depths"], mean, "o-", ms=3, color=LIGHT.color(k), label=label)
    ticks = [2**k for k in range(7)]
    axes.set_xticks(ticks, [str(n) for n in ticks])


def _reached(axes: Axes, times: dict[str, list[float | None]]) -> None:
    """The share of seeds that have come so far, over time."""
    for k, (network, found) in enumerate(times.items()):
        known = sorted(t for t in found if t is not None)
        share = np.arange(len(known) + 1) / len(found)
        x, y = np.array([0.0, *known, np.inf]), np.array([*share, share[-1]])
        x, y = np.minimum(x, LATEST), np.where(x <= LATEST, y, y[x <= LATEST].max())
        axes.step(x, y, where="post", color=LIGHT.color(k), label=network)
    axes.axvline(1.0, color=LIGHT.muted, linewidth=0.8, linestyle="--")
    axes.set_ylim(0, 1.02)
    axes.set_xlim(0, LATEST)
    axes.set_title("varpro: seeds at the objective of 50 epochs", loc="left", fontsize=9.5)
    axes.set_xlabel("time, relative to the 50 epochs of coordinate descent")
