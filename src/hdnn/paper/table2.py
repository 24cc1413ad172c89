"""Table 2: the paper's image network on MNIST."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

import hdnn
from hdnn.config import Config, TrainingConfig, complete
from hdnn.errors import unknown_name
from hdnn.files import read_json
from hdnn.paper import experiment
from hdnn.paper.experiment import Cell, Experiment, frame, resource
from hdnn.paper.records import Record, Records
from hdnn.paper.summaries import markdown, summarize, texts
from hdnn.progress import note
from hdnn.training.protocols import protocols
from hdnn.training.runs import Run, prepare, read_history

KEY = (*experiment.KEY, "epochs")
SPLIT = "standard"
CONVOLUTION = "convolution"
"""In place of a Hamiltonian network: the same number of plain 3x3 convolutions with relu."""
SEED_STRIDE = 10_000
"""Between the columns of the table, so that the two cells of 0 layers are two trainings."""


def cells(
    protocol: str = "paper",
    *,
    architecture: Sequence[str] = (),
    layers: Sequence[int] = (),
    data: str = "mnist",
    epochs: int | None = None,
) -> list[Cell]:
    """The cells of the table, column by column.

    Args:
        protocol: "paper", "tuned" or "as-published-code".
        architecture, layers: filters; an empty one keeps the paper's. There is "convolution" as
            well, for which the paper has no numbers.
        data: the data set, where it is not MNIST.
        epochs: where they are not the protocol's.

    Raises:
        HdnnError: an unknown name, or no cell is left.

    >>> [cell.published for cell in cells(architecture=["H2"], layers=[8])]
    [98.22]
    """
    if protocol not in protocols("table2"):
        raise unknown_name("protocol", protocol, protocols("table2"))
    table = resource("published.toml")["table2"]
    epochs = epochs or protocols("table2")[protocol].training["epochs"]
    every = [
        Cell(data, name, int(depth), protocol, SPLIT, test, train, epochs)
        for name in table["steps"]
        for depth, (train, test) in table[name].items()
    ]
    for depth in (2, 4, 8, 16):
        every.append(Cell(data, CONVOLUTION, depth, protocol, SPLIT, None, None, epochs))
    filters = {"architecture": architecture or [*table["steps"]], "layers": layers}
    return experiment.select("Table 2", "there are 0 2 4 8 16", every, **filters)


# --- training -------------------------------------------------------------------------------------


def run_config(cell: Cell, seed: int) -> Config:
    """What a cell trains.

    Args:
        cell: which network, by which protocol.
        seed: of weights and batches.
    """
    steps = resource("published.toml")["table2"]["steps"]
    model: dict[str, Any] = {"layers": (cell.layers,)}
    if cell.architecture == CONVOLUTION:
        model |= {"block": "convolution", "kernel": 3}
    else:
        model |= {"architecture": cell.architecture, "step": steps[cell.architecture]}
    column = [*steps, CONVOLUTION].index(cell.architecture)
    protocol = protocols("table2")[cell.protocol].training
    training = {**protocol, "epochs": cell.epochs, "seed": seed}
    if cell.architecture == CONVOLUTION:
        training["alpha"] = 0.0  # nothing keeps plain convolutions alike
    return Config(
        data={"source": cell.data},
        model={**model, "seed": seed + SEED_STRIDE * column},
        # What a protocol of the table leaves out is the default.
        training=complete(TrainingConfig(**training), "images"),
    )


def train_cell(cell: Cell, seed: int, folder: Path) -> Record:
    """Train a cell in a run folder, from its checkpoint if there is one.

    Args:
        cell, seed: as of `run_config`.
        folder: of the run, which stays.

    Returns:
        Its record.
    """
    prepared, run = prepare(run_config(cell, seed)), Run(folder)
    stale = run.config_file.is_file() and run.config != prepared.config
    if not run.finished or stale:
        run = Run.create(folder, prepared.config, overwrite=stale)
        run.train([functools.partial(_tell, f"{folder.name}")], 0.0, prepared)
    metrics, history = read_json(run.metrics), read_history(run.history)
    seconds = history[-1]["seconds"] if history else 0.0
    return {
        **{name: getattr(cell, name) for name in KEY},
        "seed": seed,
        "T": (prepared.config.model.step or 0.0) * cell.layers,
        "train_accuracy": metrics["train"]["accuracy"],
        "test_accuracy": metrics["test"]["accuracy"],
        "seconds": round(seconds, 1),
        "version": hdnn.__version__,
        "epoch_seconds": round(seconds / max(len(history), 1), 3),
        "parameters": sum(p.numel() for p in run.load_model().parameters()),
    }


def _tell(name: str, trainer: Any, epoch: Any) -> None:
    """A line for every fifth epoch: a cell of MNIST trains for many minutes."""
    if epoch.epoch == 1 or epoch.epoch % 5 == 0:
        note(f"{name}: epoch {epoch.epoch}, loss {epoch.loss:.4f}, accuracy {epoch.accuracy:.4f}")


def _run(unfinished: Path, cell: Cell, seeds: Sequence[int]) -> list[Record]:
    return [train_cell(cell, seed, _folder(unfinished, cell, seed)) for seed in seeds]


def _folder(unfinished: Path, cell: Cell, seed: int) -> Path:
    fields = [cell.protocol, cell.data, cell.architecture, cell.layers, cell.epochs, seed]
    return unfinished / "-".join(map(str, fields))


def sweep(
    wanted: Sequence[Cell],
    seeds: Sequence[int],
    folder: Path,
    jobs: int | None = None,
) -> list[Record]:
    """Train the cells that have no record yet.

    Checkpoints are in a folder beside the records, so that an interrupted training continues from
    its last epoch. They are removed when all records are stored.

    Args:
        wanted: some `cells`.
        seeds: of the trainings.
        folder: of the records.
        jobs: as of `Experiment.sweep`.

    Returns:
        All records of the folder.
    """
    unfinished = folder.resolve().with_name(f"{folder.resolve().name}.unfinished")
    table2 = Experiment(wanted, KEY, functools.partial(_run, unfinished))
    records = table2.sweep(seeds, Records(folder, KEY), jobs)
    for cell in wanted:
        for seed in seeds:
            shutil.rmtree(_folder(unfinished, cell, seed), ignore_errors=True)
    with suppress(OSError):  # another process may train here
        unfinished.rmdir()
    return records


# --- tables ---------------------------------------------------------------------------------------


FORMATS = {
    "architecture": "",
    "layers": "",
    "parameters": "",
    "published_train": ".3f",
    "train": ".3f",
    "published": ".2f",
    "mean": ".2f",
    "std": ".2f",
    "seeds": "",
    "epoch_seconds": ".1f",
    "reached": "",
}
"""Columns of the table on the page; accuracies but for `train` are on the test images."""
NARROW = ("architecture", "layers", "train", "published", "mean", "std", "seeds", "reached")
"""Those that fit on a terminal of 80 columns."""


def summary(wanted: Sequence[Cell], records: Iterable[Record]) -> pd.DataFrame:
    """A row for every cell that has records, in per cent; see `summarize`."""
    return summarize(frame(wanted, KEY, records), KEY, digits=2)


def page(records: Iterable[Record]) -> str:
    """The page beside the records: every protocol that has any, with its command."""
    records = list(records)
    versions = ", ".join(sorted({record["version"] for record in records}))
    parts = [
        "# Table 2: records\n",
        "`records.jsonl` holds one training a line: MNIST, 60,000 training and 10,000 test "
        "images, accuracies\nof the final epoch (never the best on the test set), mean over "
        f"seeds. hdnn {versions}. This page is written by the commands below;\nwhat they mean is "
        "in [docs/images.md](../../docs/images.md). Seconds an epoch are wall time of one thread "
        "beside whatever else\nthe machine did.\n",
    ]
    for name, protocol in protocols("table2").items():
        every = cells(name) + cells(name, architecture=[CONVOLUTION])
        rows = summary(every, records)
        if len(rows):
            parts += [f"## `{name}`: {protocol.summary}\n", _section(name, rows)]
    return "\n".join(parts)


def _section(name: str, rows: pd.DataFrame) -> str:
    """The table of a protocol."""
    judged, table = rows.reached.dropna(), texts(rows, FORMATS)
    command = (
        f"hdnn reproduce table2 --protocol {name} --seeds {rows.seeds.max()} --out results/table2"
    )
    extra = [f"{command} --architecture convolution"] if len(judged) < len(rows) else []
    lines = [
        *("```", command, *extra, "```\n"),
        f"The mean reaches the published test accuracy in {(judged == 'yes').sum()} of "
        f"{len(judged)} cells.\n",
        f"{markdown(table, table.to_numpy())}\n",
    ]
    return "\n".join(lines)
