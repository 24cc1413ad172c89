"""Table 1: test accuracies on the Swiss roll and the double moons."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import hdnn
from hdnn.data import KINDS
from hdnn.errors import HdnnError
from hdnn.networks import HamiltonianNetwork
from hdnn.paper import experiment, planar
from hdnn.paper.experiment import (
    Experiment,
    Protocol,
    Say,
    SeedGroup,
    find,
    protocols,
    resource,
    silent,
)
from hdnn.paper.render import Column, Table, markdown
from hdnn.paper.store import Record
from hdnn.training import TrainingConfig

RESTART_SEED = 7_000_000
"""Times the number of a restart, added to a seed for its initial weights."""


@dataclass(frozen=True)
class Cell:
    """A cell of Table 1.

    Args:
        data: the data set.
        architecture, layers: the network.
        published: test accuracy in per cent, as printed.
        row, column: its place in the table, counted from 1.
    """

    data: str
    architecture: str
    layers: int
    published: float
    row: int
    column: int

    @property
    def key(self) -> tuple[str, str, int]:
        """What tells it from the others."""
        return self.data, self.architecture, self.layers

    @property
    def name(self) -> str:
        """In settings.toml."""
        return f"{self.data}/{self.architecture}/{self.layers}"


@dataclass(frozen=True)
class Settings:
    """What a protocol leaves open and a cell fixes; chosen on validation data, see `tuning`.

    Args:
        T: final time.
        learning_rate: of Adam on the hidden layers.
        scale: of the initial weights.
        augmentation: "append" or "spread".
    """

    T: float
    learning_rate: float
    scale: float
    augmentation: str


PROTOCOLS = protocols("table1")


@functools.cache
def cells() -> tuple[Cell, ...]:
    """All 40 cells, row by row."""
    table = resource("published.toml")["table1"]
    rows = [
        (data, int(layers), values)
        for data in ("swiss-roll", "double-moons")
        for layers, values in table[data].items()
    ]
    return tuple(
        Cell(data, name, layers, value, row, column)
        for row, (data, layers, values) in enumerate(rows, 1)
        for column, (name, value) in enumerate(zip(table["columns"], values, strict=True), 1)
    )


def select(
    data: Sequence[str] = (), architecture: Sequence[str] = (), layers: Sequence[int] = ()
) -> list[Cell]:
    """The cells that filters leave; none is all."""
    hint = "swiss-roll has 4 8 16 32 64, double-moons 1 2 4"
    filters: dict[str, Sequence[Any]] = {"data": data, "architecture": architecture}
    return experiment.select("Table 1", hint, cells(), **filters, layers=layers)


def settings(protocol: str, cell: Cell) -> Settings:
    """The frozen settings of a cell under a protocol, from settings.toml."""
    name = protocol.removesuffix("-restarts")
    chosen = resource("settings.toml").get(name, {}).get("cells", {})
    if cell.name not in chosen:
        raise HdnnError(
            f"no settings for {cell.name} under {protocol!r}; choose them by: "
            f"python -m hdnn.paper.tuning --protocol {name}"
        )
    return Settings(**chosen[cell.name])


def run_settings(
    protocol: str, data: str, architecture: str, layers: int
) -> dict[str, dict[str, Any]]:
    """The settings of a run on a planar problem under a protocol, by table and name.

    A network that Table 1 does not have takes the settings of the one nearest to it in depth, of
    the same data and architecture; where there is none, those that all cells share.

    Args:
        protocol: "paper" or "tuned".
        data, architecture, layers: what is trained on what.

    Returns:
        Those of `TrainingConfig` and `ModelConfig` that differ from their defaults.

    >>> run_settings("tuned", "swiss-roll", "H1", 8)["model"]
    {'T': 0.4, 'augmentation': 'append'}
    """
    shared = find("protocol", protocol, PROTOCOLS).training
    training = {f: v for f, v in shared.to_dict().items() if v != getattr(TrainingConfig(), f)}
    near = [cell for cell in cells() if (cell.data, cell.architecture) == (data, architecture)]
    if not near:
        return {"model": {}, "training": training}
    cell = min(near, key=lambda cell: abs(math.log2(cell.layers / layers)))
    own = settings(protocol, cell)
    training["learning_rate"] = own.learning_rate
    return {"model": {"T": own.T, "augmentation": own.augmentation}, "training": training}


# --- training -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainedCell:
    """Networks of one cell after training, one for every seed.

    Args:
        network: the ensemble.
        V: ``(seeds, 1, n + 1)``, output layers fitted on all training data.
        train_accuracy, test_accuracy: fractions, one for every seed.
        test_loss: cross-entropy on the test part, one for every seed.
        seconds: wall time a network.
    """

    network: HamiltonianNetwork
    V: np.ndarray
    train_accuracy: list[float]
    test_accuracy: list[float]
    test_loss: list[float]
    seconds: float


def train(
    cell: Cell,
    protocol: Protocol,
    settings: Settings,
    kind: str,
    seeds: Sequence[int],
    held_out: bool = False,
) -> TrainedCell:
    """Train a cell for every seed: the seed draws the data, the weights and the batches.

    Args:
        cell, protocol, settings: what and how.
        kind: "paper" or "independent".
        seeds: one network each.
        held_out: train on 80 % of the training part and take the rest as the test part.
    """
    begin = time.perf_counter()
    parts = [planar.part(cell.data, kind, seed, held_out) for seed in seeds]
    data = planar.SeedData.of(parts, settings.augmentation, torch.float32)
    members = data.repeated(protocol.restarts)
    config = replace(protocol.training, learning_rate=settings.learning_rate)
    weight_seeds = [seed + RESTART_SEED * r for r in range(protocol.restarts) for seed in seeds]
    network = hdnn.network(
        cell.architecture,
        features=planar.WIDTH,
        layers=cell.layers,
        T=settings.T,
        ensemble=len(weight_seeds),
        scale=settings.scale,
        dtype=torch.float32,
        generator=[torch.Generator().manual_seed(seed) for seed in weight_seeds],
    )
    V = planar.descend(network, members, config)
    network, V = planar.keep_best(network, V, members, len(seeds))
    train_accuracy, _ = planar.measure(network, V, data.X, data.y)
    test_accuracy, test_loss = planar.measure(network, V, data.X_test, data.y_test)
    seconds = (time.perf_counter() - begin) / len(seeds)
    return TrainedCell(network, V, train_accuracy, test_accuracy, test_loss, seconds)


def _run(
    protocol: str, kind: str, cell: Cell, seeds: Sequence[int], say: Say = silent
) -> Iterator[list[Record]]:
    """The records of a cell: a pure function of the arguments, wherever it runs."""
    chosen = settings(protocol, cell)
    trained = train(cell, PROTOCOLS[protocol], chosen, kind, seeds)
    accuracies = zip(seeds, trained.train_accuracy, trained.test_accuracy, strict=True)
    rest = round(trained.seconds, 4), hdnn.__version__
    yield [
        Record(*cell.key, protocol, kind, seed, chosen.T, train_accuracy, test_accuracy, *rest)
        for seed, train_accuracy, test_accuracy in accuracies
    ]


def table1(
    protocol: str = "tuned", kind: str = "paper", wanted: Sequence[Cell] | None = None
) -> Experiment[Cell, Record]:
    """The experiment.

    Args:
        protocol: a name of `PROTOCOLS`.
        kind: the split, "paper" or "independent".
        wanted: not all cells but these.
    """
    find("protocol", protocol, PROTOCOLS)
    find("split", kind, dict.fromkeys(KINDS))
    run, chosen = functools.partial(_run, protocol, kind), cells() if wanted is None else wanted
    return Experiment(chosen, lambda cell: (*cell.key, protocol, kind), run, together=20)


# --- tables ---------------------------------------------------------------------------------------


Row = SeedGroup[Cell, Record]


def mean(row: Row) -> float:
    """Test accuracy in per cent."""
    return float(row.percent("test_accuracy").mean())


def reached(row: Row) -> bool:
    """Whether the mean reaches the published value at the paper's rounding to 0.1."""
    return round(mean(row), 1) >= row.cell.published


def deviation(row: Row) -> float:
    """Of the test accuracies."""
    return row.deviation("test_accuracy") or 0.0


COLUMNS: tuple[Column[Row], ...] = (
    Column("data", lambda row: row.cell.data),
    Column("network", lambda row: row.cell.architecture, name="architecture"),
    Column("layers", lambda row: row.cell.layers),
    Column("paper", lambda row: row.cell.published, ".1f", "published"),
    Column("mean", mean, ".2f"),
    Column("std", deviation, ".2f", "deviation"),
    Column("median", lambda row: np.median(row.percent("test_accuracy")), ".2f", spare=5),
    Column("min", lambda row: row.percent("test_accuracy").min(), ".2f", "minimum", spare=1),
    Column("max", lambda row: row.percent("test_accuracy").max(), ".2f", "maximum", spare=2),
    Column("seeds", lambda row: row.seeds, spare=4),
    Column("", lambda row: row.column("seconds").mean(), name="seconds"),
    Column("difference", lambda row: mean(row) - row.cell.published, "+.2f", spare=3),
    Column("reached", reached),
)


def compact(rows: Sequence[Row]) -> str:
    """As the paper prints it: a line a depth, a column a network: published / mean +- std."""
    networks = list(dict.fromkeys(row.cell.architecture for row in rows))
    texts: dict[str, dict[str, str]] = {}
    for row in rows:
        ours = f"{mean(row):.1f} ± {deviation(row):.1f}"
        text = f"{row.cell.published:.1f} / {f'**{ours}**' if reached(row) else ours}"
        texts.setdefault(f"{row.cell.data}, {row.cell.layers}", {})[row.cell.architecture] = text
    lines = [[place, *(cells.get(n, "-") for n in networks)] for place, cells in texts.items()]
    return markdown(["data, layers", *networks], lines)


def claims(rows: Sequence[Row]) -> str:
    """The claims of section 4.1 as statements with numbers, whichever way they come out."""
    means: dict[tuple[str, int], dict[str, float]] = {}
    for row in rows:
        means.setdefault((row.cell.data, row.cell.layers), {})[row.cell.architecture] = mean(row)
    lines = []
    for (data, layers), found in means.items():
        if len(found) < 5:
            continue
        h1, h2 = found["H1"], found["H2"]
        others = {name: found[name] for name in ("MS1", "MS2", "MS3")}
        best = max(others, key=lambda name: others[name])
        lines.append(
            f"- {data}, {layers} layers: H1 {h1:.2f} and H2 {h2:.2f}, the best of "
            f"MS1 to MS3 {others[best]:.2f} ({best}), the worst {min(others.values()):.2f}; "
            f"H1 and H2 (equal parameter counts) differ by {abs(h1 - h2):.2f}.\n"
        )
    return "".join(lines)


def pages(rows: Sequence[Row], title: str) -> dict[str, str]:
    """The table as Markdown, CSV and HTML, by the ending of the file."""
    table = Table(COLUMNS, rows)
    parts = [
        f"# {title}\n",
        compact(rows),
        table.markdown(),
        "Section 4.1: H1 and H2 against MS1 to MS3 at equal depth, mean test accuracy.\n",
        claims(rows),
    ]
    return {"md": "\n".join(parts), "csv": table.csv(), "html": table.html(title)}
