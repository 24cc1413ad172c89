"""Figure 1 of the paper, and accuracy against depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

import hdnn
from hdnn.data import split
from hdnn.experiments.cells import WIDTH, train
from hdnn.experiments.specs import Cell, protocol, select, settings
from hdnn.experiments.summary import Row
from hdnn.models import Augmentation, Model
from hdnn.plots import decision_regions, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {"MS1": "#8a5fa8", "MS2": "#3a7d44", "MS3": "#b08a1e", "H1": "#c1440e", "H2": "#1f5a99"}


def trained_model(cell: Cell, name: str, kind: str, seed: int) -> tuple[Model, float]:
    """A cell as a single model, and its test accuracy."""
    chosen = settings(name, cell)
    found = train(cell, protocol(name), chosen, kind, [seed])
    network = hdnn.network(
        cell.architecture, features=WIDTH, layers=cell.layers, T=chosen.T, dtype=torch.float32
    )
    network.load_state_dict(
        {k: v.squeeze(0) if v.ndim == 3 else v for k, v in found.network.state_dict().items()}
    )
    model = Model(network, 1, Augmentation(2, WIDTH, chosen.augmentation))
    V = torch.from_numpy(found.V[0])
    with torch.no_grad():
        model.head.weight.copy_(V[:, :-1])
        model.head.bias.copy_(V[:, -1])
    return model, found.test_accuracy[0]


def figure1(name: str = "tuned", kind: str = "paper", seed: int = 1000) -> Figure:
    """(a) Swiss roll, 64-layer H1; (b) double moons, 4-layer H1: regions and test data."""
    figure = new_figure(7.2, 3.5)
    axes = figure.subplots(1, 2)
    for axis, letter, data, layers in zip(
        axes, "ab", ("swiss-roll", "double-moons"), (64, 4), strict=True
    ):
        cell = select([data], ["H1"], [layers])[0]
        model, accuracy = trained_model(cell, name, kind, seed)
        parts = split(data, kind, seed=seed)
        points = parts.X_test[:1500].to(torch.float32)
        decision_regions(axis, model, points, parts.y_test[:1500])
        title = f"({letter}) {data.replace('-', ' ').capitalize()}, H1, {layers} layers"
        axis.set_title(f"{title}: {100 * accuracy:.1f} %", fontsize=9)
    return figure


def depth_figure(rows: Sequence[Row]) -> Figure:
    """Mean accuracy against depth for every network, with a band from minimum to maximum."""
    data = list(dict.fromkeys(row.data for row in rows))
    figure = new_figure(4.2 * len(data), 3.2)
    axes = figure.subplots(1, len(data), squeeze=False)[0]
    for axis, name in zip(axes, data, strict=True):
        here = [row for row in rows if row.data == name]
        for network in dict.fromkeys(row.architecture for row in here):
            line = [row for row in here if row.architecture == network]
            depths, colour = [row.layers for row in line], COLOURS.get(network, "#444444")
            axis.plot(depths, [row.mean for row in line], "o-", ms=3, color=colour, label=network)
            axis.fill_between(
                depths,
                [row.minimum for row in line],
                [row.maximum for row in line],
                color=colour,
                alpha=0.12,
                linewidth=0,
            )
            axis.plot(depths, [row.published for row in line], "x", ms=5, color=colour)
        axis.set_xscale("log", base=2)
        axis.set_xticks(depths, [str(depth) for depth in depths])
        axis.set_title(name.replace("-", " "), fontsize=10)
        axis.set_xlabel("layers")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("test accuracy, %  (x: paper)")
    axes[-1].legend(frameon=False, fontsize=8, loc="lower right")
    return figure
