"""Section 4.1 on Figure 1: "the datapoints do not lie close to the decision boundary", measured."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from hdnn.analysis import robustness as measure
from hdnn.data import split
from hdnn.paper.experiment import Experiment, Say, SeedGroup, silent
from hdnn.paper.figure1 import PANELS, trained_model
from hdnn.paper.render import Column
from hdnn.paper.store import Key
from hdnn.paper.table1 import Cell, select

NETWORKS = ("H1", "H2", "MS1", "MS2", "MS3")
RADII = (0.02, 0.05, 0.1)
LEVELS = (0.01, 0.05, 0.5)


@dataclass(frozen=True)
class MarginRecord:
    """One network on test data.

    Args:
        data, network, layers, seed: which.
        accuracy: test accuracy without perturbation, a fraction.
        margins: quantiles at `LEVELS` of the distance to the decision boundary; negative where a
            sample is classified wrongly.
        room: the same quantiles of half the distance to the nearest sample of the other class: no
            classifier can have larger margins on both samples.
        random, worst: accuracy under random and under the worst perturbations of the lengths
            `RADII`, fractions.
    """

    data: str
    network: str
    layers: int
    seed: int
    accuracy: float
    margins: list[float]
    room: list[float]
    random: list[float]
    worst: list[float]

    @property
    def key(self) -> Key:
        """What makes it the record of one training."""
        return self.data, self.network, self.layers, self.seed


def _run(
    samples: int, cell: Cell, seeds: Sequence[int], say: Say = silent
) -> Iterator[list[MarginRecord]]:
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    for seed in seeds:
        trained = trained_model(cell, "tuned", "paper", seed)
        data = split(cell.data, "paper", seed=seed)
        X, y = data.X_test[:samples].double(), data.y_test[:samples]
        found = measure(trained.model, X, y, RADII, seed=seed)
        distances = torch.cdist(X, data.X_test.double())
        room = distances.masked_fill(y[:, None] == data.y_test, torch.inf).amin(1) / 2
        yield [
            MarginRecord(
                *(*cell.key, seed),
                accuracy=trained.accuracy,
                margins=found.margins.quantile(levels).tolist(),
                room=room.quantile(levels).tolist(),
                random=list(found.random),
                worst=list(found.worst),
            )
        ]


def robustness(samples: int = 500) -> Experiment[Cell, MarginRecord]:
    """The experiment: all networks of Table 1 with the data and depths of Figure 1.

    Args:
        samples: of the test part that are measured.
    """
    cells = [select([data], [name], [layers])[0] for data, layers in PANELS for name in NETWORKS]
    run = functools.partial(_run, samples)
    return Experiment(cells, lambda cell: cell.key, run)


# --- the table ------------------------------------------------------------------------------------


Row = SeedGroup[Cell, MarginRecord]


def _means(row: Row, name: str, form: str) -> str:
    return ", ".join(format(x, form) for x in row.column(name).mean(0))


def _under(kind: str, place: int) -> Column[Row]:
    """Accuracy under perturbations of one kind and length."""
    return Column(
        f"{kind} {RADII[place]:g}, %", lambda row: row.percent(kind)[:, place].mean(), ".1f"
    )


_CELL: tuple[Column[Row], ...] = (
    Column("data", lambda row: row.cell.data),
    Column("network", lambda row: row.cell.architecture),
    Column("layers", lambda row: row.cell.layers),
    Column("seeds", lambda row: row.seeds),
    Column("accuracy, %", lambda row: row.percent("accuracy").mean(), ".2f", "accuracy"),
)
COLUMNS: tuple[Column[Row], ...] = (
    *_CELL,
    Column("margin: 1 %, 5 %, 50 % quantile", lambda row: _means(row, "margins", ".3f")),
    Column("half the distance to the other class", lambda row: _means(row, "room", ".3f")),
    *(_under("random", place) for place in range(len(RADII))),
    *(_under("worst", place) for place in range(len(RADII))),
)
"""For people."""
DATA: tuple[Column[Row], ...] = (
    *_CELL,
    Column("margins", lambda row: row.column("margins").mean(0).tolist()),
    Column("room", lambda row: row.column("room").mean(0).tolist()),
    Column("radii", lambda row: RADII),
    Column("random", lambda row: row.percent("random").mean(0).tolist()),
    Column("worst", lambda row: row.percent("worst").mean(0).tolist()),
)
"""For programs."""
