"""Table 2: the paper's image network on MNIST, cell by cell."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hdnn
from hdnn.errors import HdnnError, unknown_name
from hdnn.experiments.records import Record, Store
from hdnn.experiments.specs import _resource
from hdnn.training import Callback, TrainingConfig
from hdnn.training.prepare import build, prepare
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
class ImageProtocol:
    """How every cell is trained.

    Args:
        name: in records.
        summary: for people: the deviations from appendix B.2.
        training: of every cell.
        scale: of the initial K and b.
    """

    name: str
    summary: str
    training: TrainingConfig
    scale: float = 1.0


@dataclass(frozen=True)
class ImageRecord(Record):
    """One training, with the epochs it took, seconds an epoch, and the number of parameters."""

    epochs: int = 0
    epoch_seconds: float = 0.0
    parameters: int = 0


_PAPER = TrainingConfig(**PAPER)  # type: ignore[arg-type]

PROTOCOLS: dict[str, ImageProtocol] = {
    protocol.name: protocol
    for protocol in (
        ImageProtocol("paper", "appendix B.2; weight decay on the output layer", _PAPER),
        ImageProtocol(
            "as-published-code",
            "as paper, but weight decay on all parameters, inside Adam",
            replace(_PAPER, alpha_c=0.0, weight_decay=2e-4),
        ),
        ImageProtocol(
            "tuned",
            "learning rate up to 0.01 in 2 epochs, then on a cosine to 0; alpha_c 1e-3",
            replace(_PAPER, learning_rate=0.01, schedule="one-cycle", warmup=2.0, alpha_c=1e-3),
        ),
    )
}


@functools.cache
def table2() -> tuple[ImageCell, ...]:
    """The 10 cells, column by column, then the plain convolutions."""
    table = _resource("published.toml")["table2"]
    cells = [
        ImageCell(name, int(layers), train, test, column)
        for column, name in enumerate(table["steps"])
        for layers, (train, test) in table[name].items()
    ]
    column = len(table["steps"])
    extra = [ImageCell(CONVOLUTION, layers, None, None, column) for layers in (2, 4, 8, 16)]
    return (*cells, *extra)


def select(architectures: Sequence[str] = (), layers: Sequence[int] = ()) -> list[ImageCell]:
    """The cells that filters leave; none is the paper's ten."""
    known = list(dict.fromkeys(cell.architecture for cell in table2()))
    names = {name.lower(): name for name in known}
    for name in architectures:
        if name.lower() not in names:
            raise unknown_name("architecture of Table 2", name, known)
    wanted = [names[name.lower()] for name in architectures] or [
        name for name in known if name != CONVOLUTION
    ]
    found = [
        cell
        for cell in table2()
        if cell.architecture in wanted and (not layers or cell.layers in layers)
    ]
    if not found:
        raise HdnnError(f"no cell of Table 2 has layers {list(layers)}; there are 0 2 4 8 16")
    return found


def protocol(name: str) -> ImageProtocol:
    """A protocol by name."""
    if name not in PROTOCOLS:
        raise unknown_name("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]


def recipe(
    cell: ImageCell, chosen: ImageProtocol, seed: int, data: str = DATA, epochs: int | None = None
) -> RunConfig:
    """What a cell trains: the seed draws weights and batches.

    Args:
        cell, chosen: what and how.
        seed: of the training.
        data: the data set, where it is not MNIST.
        epochs: to train shorter than the protocol.
    """
    options: dict[str, Any] = {"layers": (cell.layers,), "scale": chosen.scale}
    if cell.architecture == CONVOLUTION:
        options |= {"block": "convolution", "kernel": 3}
    else:
        step = _resource("published.toml")["table2"]["steps"][cell.architecture]
        options |= {"architecture": cell.architecture, "step": step}
    training = replace(chosen.training, seed=seed)
    if epochs is not None:
        training = replace(training, epochs=epochs)
    own = seed + SEED_STRIDE * cell.column
    return RunConfig(DataConfig(source=data), ImageModelConfig(**options, seed=own), training)


def train_cell(
    cell: ImageCell,
    chosen: ImageProtocol,
    seed: int,
    folder: Path,
    *,
    data: str = DATA,
    epochs: int | None = None,
    callbacks: Sequence[Callback] = (),
) -> ImageRecord:
    """Train a cell in a run folder, from its checkpoint if there is one; returns its record."""
    wanted = recipe(cell, chosen, seed, data, epochs)
    run = Run(folder)
    stale = run.config.is_file() and run.read_config() != wanted
    if not run.finished or stale:
        folder.parent.mkdir(parents=True, exist_ok=True)
        run = Run.create(folder, wanted, overwrite=stale)
        run.train(callbacks, checkpoint_seconds=0.0)
    metrics, entries = json.loads(run.metrics.read_text()), read_history(run.history)
    count = sum(p.numel() for p in build(wanted, prepare(wanted)).parameters())
    assert isinstance(wanted.model, ImageModelConfig)
    seconds = entries[-1]["seconds"] if entries else 0.0
    return ImageRecord(
        data,
        cell.architecture,
        cell.layers,
        chosen.name,
        SPLIT,
        seed,
        (wanted.model.step or 0.0) * cell.layers,
        metrics["train"]["accuracy"],
        metrics["test"]["accuracy"],
        round(seconds, 1),
        hdnn.__version__,
        epochs=len(entries),
        epoch_seconds=round(seconds / max(len(entries), 1), 3),
        parameters=count,
    )


def sweep(
    store: Store[ImageRecord],
    cells: Sequence[ImageCell],
    chosen: ImageProtocol,
    seeds: Sequence[int],
    *,
    data: str = DATA,
    epochs: int | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> None:
    """Train what has no record yet; a record is written as soon as its cell is trained.

    Checkpoints lie beside the folder of the records, so that an interrupted training goes on
    from its last epoch; they are removed when the record is there.
    """
    place = store.folder.resolve()
    unfinished = place.with_name(f"{place.name}.unfinished")
    done = store.read()
    tasks = [
        (cell, seed)
        for seed in seeds
        for cell in cells
        if (data, cell.architecture, cell.layers, chosen.name, SPLIT, seed) not in done
    ]
    for number, (cell, seed) in enumerate(tasks, 1):
        title = f"{number} of {len(tasks)}: {cell.name}, {chosen.name}, seed {seed}"
        folder = unfinished / f"{chosen.name}-{data}-{cell.name}-{seed}"
        say = _Reporter(report, title)
        record = train_cell(cell, chosen, seed, folder, data=data, epochs=epochs, callbacks=[say])
        store.add([record])
        shutil.rmtree(folder)
        report(
            f"{title}: train {100 * record.train_accuracy:.3f} %, test "
            f"{100 * record.test_accuracy:.2f} %, {record.epoch_seconds:.1f} s an epoch"
        )
    if unfinished.is_dir() and not any(unfinished.iterdir()):
        unfinished.rmdir()


class _Reporter:
    """A line for every fifth epoch."""

    def __init__(self, report: Callable[[str], None], title: str) -> None:
        self.report, self.title = report, title

    def __call__(self, trainer: Any, entry: Any) -> None:
        if entry.epoch == 1 or entry.epoch % 5 == 0:
            self.report(
                f"{self.title}: epoch {entry.epoch}, loss {entry.loss:.4f}, "
                f"accuracy {entry.accuracy:.4f}, {entry.seconds:.0f} s"
            )
