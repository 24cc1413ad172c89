"""Table 2: the paper's image network on MNIST."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hdnn
from hdnn.paper import experiment
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
from hdnn.paper.render import Column, Table
from hdnn.paper.store import Key, Record
from hdnn.training import Callback
from hdnn.training.presets import PAPER
from hdnn.training.run_config import RunConfig
from hdnn.training.runs import Run, read_history
from hdnn.training.settings import DataConfig, ImageModelConfig

DATA, SPLIT = "mnist", "standard"
CONVOLUTION = "convolution"
"""In place of a Hamiltonian network: the same number of plain 3x3 convolutions with relu."""
SEED_STRIDE = 10_000
"""Between the columns of the table, so that the two cells of 0 layers are two trainings."""


@dataclass(frozen=True)
class ImageCell:
    """A cell of Table 2; accuracies in per cent, None where the paper gives no number."""

    architecture: str
    layers: int
    train: float | None
    test: float | None
    column: int

    @property
    def name(self) -> str:
        return f"{self.architecture}-{self.layers}"


@dataclass(frozen=True)
class ImageRecord(Record):
    """One training, with the epochs it took, seconds an epoch, and the number of parameters."""

    epochs: int = 0
    epoch_seconds: float = 0.0
    parameters: int = 0


PROTOCOLS = protocols("table2", **PAPER)


@functools.cache
def cells() -> tuple[ImageCell, ...]:
    """The 10 cells, column by column, then the plain convolutions."""
    table = resource("published.toml")["table2"]
    published = [
        ImageCell(name, int(layers), train, test, column)
        for column, name in enumerate(table["steps"])
        for layers, (train, test) in table[name].items()
    ]
    column = len(table["steps"])
    extra = [ImageCell(CONVOLUTION, layers, None, None, column) for layers in (2, 4, 8, 16)]
    return (*published, *extra)


def select(architecture: Sequence[str] = (), layers: Sequence[int] = ()) -> list[ImageCell]:
    """The cells that filters leave; none is the paper's ten."""
    filters = {"architecture": architecture or ("MS1", "H2"), "layers": layers}
    return experiment.select("Table 2", "there are 0 2 4 8 16", cells(), **filters)


def protocol(name: str) -> Protocol:
    """A protocol by name."""
    return find("protocol", name, PROTOCOLS)


def run_config(
    cell: ImageCell, chosen: Protocol, seed: int, data: str = DATA, epochs: int | None = None
) -> RunConfig:
    """What a cell trains: the seed draws weights and batches.

    Args:
        cell, chosen: what and how.
        seed: of the training.
        data: the data set, where it is not MNIST.
        epochs: to train shorter than the protocol.
    """
    options: dict[str, Any] = {"layers": (cell.layers,), "scale": 1.0}
    if cell.architecture == CONVOLUTION:
        options |= {"block": "convolution", "kernel": 3}
    else:
        step = resource("published.toml")["table2"]["steps"][cell.architecture]
        options |= {"architecture": cell.architecture, "step": step}
    training = replace(chosen.training, seed=seed, epochs=epochs or chosen.training.epochs)
    own = seed + SEED_STRIDE * cell.column
    return RunConfig(DataConfig(source=data), ImageModelConfig(**options, seed=own), training)


def train_cell(
    cell: ImageCell,
    chosen: Protocol,
    seed: int,
    folder: Path,
    *,
    data: str = DATA,
    epochs: int | None = None,
    callbacks: Sequence[Callback] = (),
) -> ImageRecord:
    """Train a cell in a run folder, from its checkpoint if there is one; returns its record."""
    wanted = run_config(cell, chosen, seed, data, epochs)
    run = Run(folder)
    stale = run.config.is_file() and run.read_config() != wanted
    if not run.finished or stale:
        folder.parent.mkdir(parents=True, exist_ok=True)
        run = Run.create(folder, wanted, overwrite=stale)
        run.train(callbacks, checkpoint_seconds=0.0)
    metrics, entries = json.loads(run.metrics.read_text()), read_history(run.history)
    count = sum(p.numel() for p in run.load_model().parameters())
    assert isinstance(wanted.model, ImageModelConfig)
    seconds = entries[-1]["seconds"] if entries else 0.0
    return ImageRecord(
        *(data, cell.architecture, cell.layers, chosen.name, SPLIT, seed),
        T=(wanted.model.step or 0.0) * cell.layers,
        train_accuracy=metrics["train"]["accuracy"],
        test_accuracy=metrics["test"]["accuracy"],
        seconds=round(seconds, 1),
        version=hdnn.__version__,
        epochs=len(entries),
        epoch_seconds=round(seconds / max(len(entries), 1), 3),
        parameters=count,
    )


def table2(
    chosen: Protocol,
    folder: Path = Path("results/table2"),
    wanted: Sequence[ImageCell] | None = None,
    data: str = DATA,
    epochs: int | None = None,
) -> Experiment[ImageCell, ImageRecord]:
    """The experiment.

    Args:
        chosen: the protocol.
        folder: of the records. Checkpoints lie beside it, so that an interrupted training goes on
            from its last epoch; they are removed when the record is there.
        wanted: not all cells but these.
        data: the data set, where it is not MNIST.
        epochs: to train shorter than the protocol.
    """

    def key(cell: ImageCell) -> Key:
        return data, cell.architecture, cell.layers, chosen.name, SPLIT

    def run(
        cell: ImageCell, seeds: Sequence[int], say: Say = silent
    ) -> Iterator[list[ImageRecord]]:
        place = folder.resolve()
        unfinished = place.with_name(f"{place.name}.unfinished")
        for seed in seeds:
            checkpoints = unfinished / f"{chosen.name}-{data}-{cell.name}-{seed}"
            title = f"{cell.name}, {chosen.name}, seed {seed}"
            callbacks = [functools.partial(_report, say, title)]
            options: dict[str, Any] = {"data": data, "epochs": epochs, "callbacks": callbacks}
            record = train_cell(cell, chosen, seed, checkpoints, **options)
            say(
                f"{title}: train {100 * record.train_accuracy:.3f} %, test "
                f"{100 * record.test_accuracy:.2f} %, {record.epoch_seconds:.1f} s an epoch"
            )
            yield [record]
            shutil.rmtree(checkpoints)
        with suppress(OSError):  # others train here
            unfinished.rmdir()

    return Experiment(cells() if wanted is None else wanted, key, run)


def _report(say: Say, title: str, trainer: Any, epoch: Any) -> None:
    """A line for every fifth epoch."""
    if epoch.epoch == 1 or epoch.epoch % 5 == 0:
        say(
            f"{title}: epoch {epoch.epoch}, loss {epoch.loss:.4f}, accuracy {epoch.accuracy:.4f}, "
            f"{epoch.seconds:.0f} s"
        )


# --- tables ---------------------------------------------------------------------------------------


Row = SeedGroup[ImageCell, ImageRecord]


def mean(row: Row) -> float:
    """Test accuracy in per cent."""
    return float(row.percent("test_accuracy").mean())


def reached(row: Row) -> bool | None:
    """Whether the mean reaches the published test accuracy at the paper's rounding to 0.01."""
    return None if row.cell.test is None else round(mean(row), 2) >= row.cell.test


COLUMNS: tuple[Column[Row], ...] = (
    Column("network", lambda row: row.cell.architecture, name="architecture"),
    Column("layers", lambda row: row.cell.layers),
    Column("parameters", lambda row: row.records[0].parameters, spare=4),
    Column("train, paper", lambda row: row.cell.train, ".3f", "published_train", spare=3),
    Column("train", lambda row: row.percent("train_accuracy").mean(), ".3f", spare=1),
    Column("test, paper", lambda row: row.cell.test, ".2f", "published_test"),
    Column("test", mean, ".2f"),
    Column("std", lambda row: row.deviation("test_accuracy"), ".2f", "deviation"),
    Column("", lambda row: row.percent("test_accuracy").min(), name="minimum"),
    Column("", lambda row: row.percent("test_accuracy").max(), name="maximum"),
    Column("seeds", lambda row: row.seeds),
    Column("", lambda row: row.column("epochs").max(), name="epochs"),
    Column("s an epoch", lambda row: row.column("epoch_seconds").mean(), ".1f", "epoch_seconds", 2),
    Column("reached", reached),
)


def page(records: Iterable[ImageRecord]) -> str:
    """The page beside the records: every protocol that has any, with its command."""
    records = list(records)
    versions = ", ".join(sorted({record.version for record in records}))
    parts = [
        "# Table 2: records\n",
        "`records.jsonl` holds one training a line: MNIST, 60,000 training and 10,000 test "
        "images, accuracies\nof the final epoch (never the best on the test set), mean over "
        f"seeds. hdnn {versions}. This page is written by the commands below;\nwhat they mean is "
        "in [docs/images.md](../../docs/images.md). Seconds an epoch are wall time of one thread "
        "beside whatever else\nthe machine did.\n",
    ]
    for chosen in PROTOCOLS.values():
        rows = table2(chosen).groups(records)
        if rows:
            parts.append(_section(chosen, rows))
    return "\n".join(parts)


def _section(chosen: Protocol, rows: Sequence[Row]) -> str:
    """The table of a protocol."""
    judged = [reached(row) for row in rows if row.cell.test is not None]
    seeds = max(row.seeds for row in rows)
    command = f"hdnn reproduce table2 --protocol {chosen.name} --seeds {seeds} --out results/table2"
    extra = [f"{command} --architecture convolution"] if len(judged) < len(rows) else []
    lines = [
        f"## `{chosen.name}`: {chosen.summary}\n",
        *("```", command, *extra, "```\n"),
        f"The mean reaches the published test accuracy in {sum(map(bool, judged))} of "
        f"{len(judged)} cells.\n",
        Table(COLUMNS, rows).markdown(),
    ]
    return "\n".join(lines)
