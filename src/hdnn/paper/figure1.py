"""Figure 1: decision regions of H1; and accuracy against depth, from the records of Table 1."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

import hdnn
from hdnn.data import split
from hdnn.models import Augmentation, Model
from hdnn.paper.experiment import Experiment, Say, silent
from hdnn.paper.planar import WIDTH
from hdnn.paper.store import Key
from hdnn.paper.table1 import PROTOCOLS, Cell, Row, mean, select, settings, table1, train
from hdnn.plots import LIGHT, clean, decision_regions, new_figure, plot_band

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = dict(zip(("H2", "H1", "MS2", "MS1", "MS3"), LIGHT.classes, strict=False))
PANELS = (("swiss-roll", 64), ("double-moons", 4))
"""Data and depth of the figure."""


@dataclass(frozen=True)
class TrainedModel:
    """A cell of Table 1 as a single model, and its test accuracy."""

    cell: Cell
    seed: int
    model: Model
    accuracy: float

    @property
    def key(self) -> Key:
        """What makes it one training."""
        return *self.cell.key, self.seed


def trained_model(cell: Cell, protocol: str, kind: str, seed: int) -> TrainedModel:
    """Train a cell of Table 1 for one seed."""
    chosen = settings(protocol, cell)
    trained = train(cell, PROTOCOLS[protocol], chosen, kind, [seed])
    network = hdnn.network(
        cell.architecture, features=WIDTH, layers=cell.layers, T=chosen.T, dtype=torch.float32
    )
    network.load_state_dict(
        {k: v.squeeze(0) if v.ndim == 3 else v for k, v in trained.network.state_dict().items()}
    )
    model = Model(network, 1, Augmentation(2, WIDTH, chosen.augmentation))
    V = torch.from_numpy(trained.V[0])
    with torch.no_grad():
        model.head.weight.copy_(V[:, :-1])
        model.head.bias.copy_(V[:, -1])
    return TrainedModel(cell, seed, model, trained.test_accuracy[0])


def _run(
    protocol: str, kind: str, cell: Cell, seeds: Sequence[int], say: Say = silent
) -> Iterator[list[TrainedModel]]:
    for seed in seeds:
        yield [trained_model(cell, protocol, kind, seed)]


def figure1(protocol: str = "tuned", kind: str = "paper") -> Experiment[Cell, TrainedModel]:
    """The experiment: H1 with the data and depths of the figure."""
    table1(protocol, kind)  # checks the names
    cells = [select([data], ["H1"], [layers])[0] for data, layers in PANELS]
    run = functools.partial(_run, protocol, kind)
    return Experiment(cells, lambda cell: cell.key, run)


def regions_figure(models: Sequence[TrainedModel], kind: str) -> Figure:
    """(a) Swiss roll, 64-layer H1; (b) double moons, 4-layer H1: regions and test data."""
    figure = new_figure(7.2, 3.5)
    axes = figure.subplots(1, len(models))
    for axis, letter, trained in zip(axes, "ab", models, strict=True):
        cell, parts = trained.cell, split(trained.cell.data, kind, seed=trained.seed)
        points = parts.X_test[:1500].to(torch.float32)
        decision_regions(axis, trained.model, points, parts.y_test[:1500])
        name = cell.data.replace("-", " ").capitalize()
        title = f"({letter}) {name}, {cell.architecture}, {cell.layers} layers"
        axis.set_title(f"{title}: {100 * trained.accuracy:.1f} %", fontsize=9)
    return figure


def depth_figure(rows: Sequence[Row]) -> Figure:
    """Mean accuracy against depth for every network, with a band from minimum to maximum."""
    data = list(dict.fromkeys(row.cell.data for row in rows))
    figure = new_figure(4.2 * len(data), 3.2)
    axes = figure.subplots(1, len(data), squeeze=False)[0]
    for axis, name in zip(axes, data, strict=True):
        here = [row for row in rows if row.cell.data == name]
        for network in dict.fromkeys(row.cell.architecture for row in here):
            line = [row for row in here if row.cell.architecture == network]
            depths, color = [row.cell.layers for row in line], COLORS.get(network, "#444444")
            accuracies = [row.percent("test_accuracy") for row in line]
            band = [a.min() for a in accuracies], map(mean, line), [a.max() for a in accuracies]
            plot_band(axis, depths, *band, color=color, label=network)
            axis.plot(depths, [row.cell.published for row in line], "x", ms=5, color=color)
        axis.set_xscale("log", base=2)
        axis.set_xticks(depths, [str(depth) for depth in depths])
        axis.set_title(name.replace("-", " "), fontsize=10)
        axis.set_xlabel("layers")
        clean(axis)
    axes[0].set_ylabel("test accuracy, %  (x: paper)")
    axes[-1].legend(frameon=False, fontsize=8, loc="lower right")
    return figure
