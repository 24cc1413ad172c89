"""Table 1: test accuracies on the Swiss roll and the double moons."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from hdnn.config import TrainingConfig
from hdnn.data import SPLITS, split
from hdnn.errors import unknown_name
from hdnn.models import Model, Padding
from hdnn.networks import HamiltonianNetwork
from hdnn.paper import ensembles, experiment
from hdnn.paper.experiment import KEY, Cell, Experiment, frame, resource
from hdnn.paper.records import Record
from hdnn.paper.summaries import markdown, summarize, texts
from hdnn.training.protocols import protocols

RESTART_SEED = 7_000_000
"""Times the number of a restart, added to a seed for its initial weights."""
SEEDS_TOGETHER = 20
"""Networks that are trained as one ensemble: enough to keep several cores busy."""


class CellSettings(NamedTuple):
    """What a protocol leaves open and a cell fixes, chosen on validation data.

    Args:
        T: final time.
        learning_rate: of Adam on the hidden layers.
        padding: "append" or "spread".
    """

    T: float
    learning_rate: float
    padding: str


def cells(
    protocol: str = "tuned",
    split: str = "paper",
    *,
    data: Sequence[str] = (),
    architecture: Sequence[str] = (),
    layers: Sequence[int] = (),
) -> list[Cell]:
    """The cells of the table, row by row.

    Args:
        protocol: "paper", "tuned" or "tuned-restarts".
        split: "paper" or "independent".
        data, architecture, layers: filters; an empty one keeps all.

    Raises:
        HdnnError: an unknown name, or no cell is left.

    >>> cells(data=["swiss-roll"], architecture=["H1"], layers=[4])[0].published
    93.6
    """
    if protocol not in protocols("table1"):
        raise unknown_name("protocol", protocol, protocols("table1"))
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    table = resource("published.toml")["table1"]
    every = [
        Cell(name, network, int(depth), protocol, split, value)
        for name in ("swiss-roll", "double-moons")
        for depth, values in table[name].items()
        for network, value in zip(table["columns"], values, strict=True)
    ]
    hint = "swiss-roll has 4 8 16 32 64, double-moons 1 2 4"
    filters = {"data": data, "architecture": architecture, "layers": layers}
    return experiment.select("Table 1", hint, every, **filters)


def settings(cell: Cell) -> CellSettings:
    """The frozen settings of a cell, from its protocol."""
    by_cell = protocols("table1")[cell.protocol].cells
    return CellSettings(**by_cell[f"{cell.data}/{cell.architecture}/{cell.layers}"])


# --- training -------------------------------------------------------------------------------------


def draw_data(cell: Cell, seeds: Sequence[int]) -> ensembles.SeedSamples:
    """The data that every seed draws, padded as the settings of the cell say."""
    parts = [split(cell.data, cell.split, seed=seed) for seed in seeds]
    return ensembles.SeedSamples.stack(seeds, parts, settings(cell).padding, torch.float32)


def train(
    cell: Cell, own: CellSettings, data: ensembles.SeedSamples
) -> tuple[HamiltonianNetwork, np.ndarray]:
    """Train a cell for every seed.

    Args:
        cell: which network, by which protocol.
        own: its settings; `settings` has the frozen ones.
        data: of the seeds, which draw the weights and the order of batches as well.

    Returns:
        The networks as an ensemble, and their output layers ``(seeds, 1, WIDTH + 1)``.
    """
    protocol, seeds = protocols("table1")[cell.protocol], data.seeds
    config = TrainingConfig(**{**protocol.training, "learning_rate": own.learning_rate})
    starts = [seed + RESTART_SEED * r for r in range(protocol.restarts) for seed in seeds]
    options = {"layers": cell.layers, "T": own.T}
    network = ensembles.networks(cell.architecture, starts, torch.float32, **options)
    members = data.repeat(protocol.restarts)
    V = ensembles.train(network, members, config)
    if protocol.restarts == 1:
        return network, V
    _, losses = ensembles.measure(network, V, members.X, members.y)
    best = np.nan_to_num(losses.reshape(-1, len(seeds)), nan=np.inf).argmin(0)
    best_members = best * len(seeds) + np.arange(len(seeds))
    return network.member(best_members.tolist()), V[best_members]


def trained_model(cell: Cell, seed: int) -> tuple[Model, float]:
    """A cell trained for one seed, as a model by itself, and its test accuracy."""
    own, data = settings(cell), draw_data(cell, [seed])
    networks, V = train(cell, own, data)
    model = Model(networks.member(0), 1, Padding(2, ensembles.WIDTH, own.padding))
    with torch.no_grad():
        model.head.weight.copy_(torch.from_numpy(V[0, :, :-1]))
        model.head.bias.copy_(torch.from_numpy(V[0, :, -1]))
    accuracy, _ = ensembles.measure(networks, V, data.X_test, data.y_test)
    return model, float(accuracy[0])


def run(cell: Cell, seeds: Sequence[int]) -> list[Record]:
    """The records of a cell; see `Experiment`."""
    begin, own, data = time.perf_counter(), settings(cell), draw_data(cell, seeds)
    network, V = train(cell, own, data)
    shared = {name: getattr(cell, name) for name in KEY}
    return [
        {**shared, "seed": seed, "T": own.T, **result}
        for seed, result in zip(seeds, ensembles.results(network, V, data, begin), strict=True)
    ]


def table1(wanted: Sequence[Cell]) -> Experiment[Cell]:
    """The experiment of some `cells`."""
    return Experiment(wanted, KEY, run, SEEDS_TOGETHER)


# --- tables ---------------------------------------------------------------------------------------


FORMATS = {
    "data": "",
    "architecture": "",
    "layers": "",
    "published": ".1f",
    "mean": ".2f",
    "std": ".2f",
    "median": ".2f",
    "min": ".2f",
    "max": ".2f",
    "seeds": "",
    "difference": "+.2f",
    "reached": "",
}
"""Columns of the table on the page."""
NARROW = ("data", "architecture", "layers", "published", "mean", "std", "min", "reached")
"""Those that fit on a terminal of 80 columns."""


def summary(wanted: Sequence[Cell], records: Iterable[Record]) -> pd.DataFrame:
    """A row for every cell that has records, in per cent; see `summarize`."""
    return summarize(frame(wanted, KEY, records), KEY, digits=1)


def compact(rows: pd.DataFrame) -> str:
    """As the paper prints it, in Markdown: a row a depth, published / mean ± std."""
    ours = texts(rows.fillna({"std": 0.0}), {"mean": ".1f", "std": ".1f", "published": ".1f"})
    own = ours["mean"] + " ± " + ours["std"]
    bold = own.where(rows.reached == "no", "**" + own + "**")
    cells = rows.assign(text=ours["published"] + " / " + bold)
    cells["data, layers"] = rows.data + ", " + rows.layers.astype(str)
    names, places = rows.architecture.unique(), cells["data, layers"].unique()
    table = cells.pivot(index="data, layers", columns="architecture", values="text")
    table = table.loc[places, names].fillna("-").reset_index()
    return markdown(table, table.to_numpy())


def claims(rows: pd.DataFrame) -> str:
    """Section 4.1 in numbers: H1 and H2 against MS1 to MS3 at equal depth."""
    lines = []
    for (data, layers), part in rows.groupby(["data", "layers"], sort=False):
        means = part.set_index("architecture")["mean"]
        if len(means) < 5:
            continue
        h1, h2, others = means["H1"], means["H2"], means[["MS1", "MS2", "MS3"]]
        lines.append(
            f"- {data}, {layers} layers: H1 {h1:.2f} and H2 {h2:.2f}, the best of "
            f"MS1 to MS3 {others.max():.2f} ({others.idxmax()}), the worst {others.min():.2f}; "
            f"H1 and H2 (equal parameter counts) differ by {abs(h1 - h2):.2f}.\n"
        )
    return "".join(lines)


def page(rows: pd.DataFrame, title: str) -> str:
    """The table as a page in Markdown."""
    table = texts(rows, FORMATS)
    parts = [
        f"# {title}\n",
        f"{compact(rows)}\n",
        f"{markdown(table, table.to_numpy())}\n",
        "Section 4.1: H1 and H2 against MS1 to MS3 at equal depth, mean test accuracy.\n",
        claims(rows),
    ]
    return "\n".join(parts)
