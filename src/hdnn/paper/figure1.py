"""Figure 1: decision regions of H1; and accuracy against depth, from the records of Table 1."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

import hdnn
from hdnn.data import split
from hdnn.models import Augmentation, Model
from hdnn.paper.experiment import Experiment, Say, silent
from hdnn.paper.planar import WIDTH
from hdnn.paper.store import Key
from hdnn.paper.table1 import PROTOCOLS, Cell, Row, mean, select, settings, table1, train
from hdnn.plots import LIGHT, clean, decision_regions, new_figure, plot_band
from hdnn.plots.style import NORMAL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = (("swiss-roll", 64), ("double-moons", 4))
"""Data and depth of the figure."""
DRAWN = 800
"""Test points that it shows."""


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
    figure = new_figure(7.2, 3.6)
    axes = figure.subplots(1, len(models))
    for axis, letter, trained in zip(axes, "ab", models, strict=True):
        cell, parts = trained.cell, split(trained.cell.data, kind, seed=trained.seed)
        points = parts.X_test[:DRAWN].to(torch.float32)
        decision_regions(axis, trained.model, points, parts.y_test[:DRAWN])
        title = f"({letter}) {_title(cell.data)}, {cell.architecture}, {cell.layers} layers"
        axis.set_title(f"{title}: {100 * trained.accuracy:.1f} %", fontsize=NORMAL)
    return figure


def depth_figure(rows: Sequence[Row]) -> Figure:
    """Accuracy against depth: a row for every data set, a panel for every network.

    The line is the mean over seeds, the band reaches from minimum to maximum; crosses are what the
    paper prints.
    """
    data = list(dict.fromkeys(row.cell.data for row in rows))
    networks = list(dict.fromkeys(row.cell.architecture for row in rows))
    figure = new_figure(1.3 + 1.6 * len(networks), 2.1 * len(data))
    axes = figure.subplots(len(data), len(networks), squeeze=False, sharex="row", sharey="row")
    for name, line in zip(data, axes, strict=True):
        for network, axis in zip(networks, line, strict=True):
            here = [r for r in rows if (r.cell.data, r.cell.architecture) == (name, network)]
            _accuracies(axis, here)
            axis.set_title(network if name == data[0] else "", fontsize=NORMAL)
            axis.set_xlabel("layers" if name == data[-1] else "")
            clean(axis)
        line[0].set_ylabel(f"{_title(name)}:\ntest accuracy, %", fontsize=NORMAL)
    look: dict[str, Any] = {"frameon": False, "fontsize": NORMAL, "ncols": 3}
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", **look)
    return figure


def _title(data: str) -> str:
    return data.replace("-", " ").capitalize()


def _accuracies(axis: Axes, line: Sequence[Row]) -> None:
    """A network at its depths: what was measured, and what the paper prints."""
    depths = [row.cell.layers for row in line]
    accuracies = [row.percent("test_accuracy") for row in line]
    band = [a.min() for a in accuracies], map(mean, line), [a.max() for a in accuracies]
    plot_band(axis, depths, *band, color=LIGHT.color(0), label="hdnn, mean over seeds")
    axis.collections[0].set_label("worst to best seed")
    look: dict[str, Any] = {"ms": 6, "mew": 1.6, "color": LIGHT.color(1), "clip_on": False}
    axis.plot(depths, [row.cell.published for row in line], "x", label="paper", **look)
    axis.set_xscale("log", base=2)
    axis.set_xticks(depths, [str(depth) for depth in depths])
    axis.minorticks_off()
