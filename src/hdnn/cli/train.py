"""`hdnn train`: from data to a run folder."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hdnn.cli.base import FAILED, app, console, emit, say, warn
from hdnn.errors import HdnnError
from hdnn.training import toml
from hdnn.training.callbacks import CsvLogger, TensorBoardLogger
from hdnn.training.config import shown
from hdnn.training.group import Group, joined
from hdnn.training.pictures import ImageRecipe
from hdnn.training.recipe import Recipe, check
from hdnn.training.runs import Run
from hdnn.training.trainer import Callback, Entry, Trainer


@app.command()
def train(
    source: Annotated[
        str | None,
        typer.Argument(
            help="A data set (swiss-roll, mnist, ...), a table, or a folder of pictures by class."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML with tables data, model, training; flags override it.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="With --resume: where the data of the run are now.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace the run in --out.")] = False,
    architecture: Annotated[str | None, typer.Option(help="MS1 MS2 MS3 H1 H2 HS ...")] = None,
    layers: Annotated[
        str | None, typer.Option(help="Depth; of every stage for pictures: 4,4,4.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="Pictures: paper, convolutional.")] = None,
    T: Annotated[float | None, typer.Option("--T", help="Final time, h = T / layers.")] = None,
    step: Annotated[float | None, typer.Option(help="Step h, instead of T.")] = None,
    width: Annotated[int | None, typer.Option(help="Width of the network.")] = None,
    widths: Annotated[str | None, typer.Option(help="Pictures: channels, 16,32,48.")] = None,
    kernel: Annotated[int | None, typer.Option(help="Pictures: of K, 1 or 3.")] = None,
    block: Annotated[str | None, typer.Option(help="hamiltonian or convolution.")] = None,
    connector: Annotated[str | None, typer.Option(help="Pictures: pool or stride.")] = None,
    norm: Annotated[str | None, typer.Option(help="Pictures: none, batch, group.")] = None,
    head: Annotated[str | None, typer.Option(help="Pictures: linear or pool.")] = None,
    scale: Annotated[float | None, typer.Option(help="Of the initial K and b.")] = None,
    augmentation: Annotated[str | None, typer.Option(help="append or spread.")] = None,
    activation: Annotated[str | None, typer.Option(help="tanh, ...")] = None,
    time_invariant: Annotated[bool | None, typer.Option(help="All layers share weights.")] = None,
    standardise: Annotated[bool | None, typer.Option(help="Scale columns.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or float64.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of data, weights and batches.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples in an iteration.")] = None,
    lr: Annotated[float | None, typer.Option("--lr", help="Learning rate.")] = None,
    schedule: Annotated[
        str | None, typer.Option(help="constant, exponential, cosine, one-cycle.")
    ] = None,
    warmup: Annotated[float | None, typer.Option(help="Epochs of rising rate.")] = None,
    decay: Annotated[float | None, typer.Option(help="Of the exponential schedule.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Smoothness penalty.")] = None,
    alpha_c: Annotated[float | None, typer.Option(help="Output layer penalty.")] = None,
    method: Annotated[str | None, typer.Option(help="coordinate or joint.")] = None,
    solver: Annotated[str | None, typer.Option(help="Output layer: newton or adam.")] = None,
    optimiser: Annotated[str | None, typer.Option(help="A name in torch.optim.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="For joint descent.")] = None,
    label_smoothing: Annotated[float | None, typer.Option(help="Joint descent.")] = None,
    averaging: Annotated[float | None, typer.Option(help="Decay of mean weights.")] = None,
    shift: Annotated[int | None, typer.Option(help="Pictures: by up to n pixels.")] = None,
    rotate: Annotated[float | None, typer.Option(help="Pictures: up to degrees.")] = None,
    zoom: Annotated[float | None, typer.Option(help="Pictures: sizes 1 +- this.")] = None,
    flip: Annotated[bool | None, typer.Option(help="Pictures: mirror half of them.")] = None,
    erase: Annotated[int | None, typer.Option(help="Pictures: a black square.")] = None,
    clip: Annotated[float | None, typer.Option(help="Largest norm of the gradient.")] = None,
    balanced: Annotated[bool, typer.Option("--balanced", help="Weigh classes alike.")] = False,
    validation: Annotated[float | None, typer.Option(help="Share held out to watch.")] = None,
    early_stopping: Annotated[int | None, typer.Option(help="Patience in epochs.")] = None,
    split: Annotated[str | None, typer.Option(help="paper or independent.")] = None,
    size: Annotated[int | None, typer.Option(help="Points of a planar problem.")] = None,
    target: Annotated[str | None, typer.Option(help="Column of a table to predict.")] = None,
    drop: Annotated[list[str] | None, typer.Option(help="Column to leave out; repeats.")] = None,
    task: Annotated[str | None, typer.Option(help="classification or regression.")] = None,
    test: Annotated[float | None, typer.Option(help="Share of a table held out.")] = None,
    pixels: Annotated[int | None, typer.Option(help="Side to bring a folder's to.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where data sets are kept, else HDNN_DATA or the cache.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Also write the history here.")] = None,
    tensorboard: Annotated[Path | None, typer.Option(help="Also write TensorBoard here.")] = None,
    record: Annotated[
        int | None,
        typer.Option(help="Record gradients every so many iterations; see hdnn gradients."),
    ] = None,
    checkpoint_seconds: Annotated[float, typer.Option(help="Between checkpoints.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train a network on a data set of the paper, your own table, or pictures."""
    if data_dir is not None:
        os.environ["HDNN_DATA"] = str(data_dir)
    given: dict[str, dict[str, Any]] = {
        "data": {
            "source": source,
            "split": split,
            "size": size,
            "target": target,
            "task": task,
            "drop": tuple(drop) if drop else None,
            "test": test,
            "seed": seed,
            "pixels": pixels,
        },
        "model": {
            "architecture": architecture,
            "layers": _numbers("layers", layers),
            "T": T,
            "step": step,
            "width": width,
            "widths": _several("widths", widths),
            "kernel": kernel,
            "block": block,
            "connector": connector,
            "norm": norm,
            "head": head,
            "scale": scale,
            "preset": preset,
            "augmentation": augmentation,
            "activation": activation,
            "dtype": dtype,
            "seed": seed,
            "time_invariant": time_invariant,
            "standardise": standardise,
        },
        "training": {
            "epochs": epochs,
            "batch_size": batch_size,
            "learning_rate": lr,
            "decay": decay,
            "schedule": schedule,
            "alpha": alpha,
            "alpha_c": alpha_c,
            "method": method,
            "solver": solver,
            "optimiser": optimiser,
            "weight_decay": weight_decay,
            "clip": clip,
            "warmup": warmup,
            "label_smoothing": label_smoothing,
            "averaging": averaging,
            "shift": shift,
            "rotate": rotate,
            "zoom": zoom,
            "flip": flip,
            "erase": erase,
            "class_weight": "balanced" if balanced else None,
            "validation": validation,
            "early_stopping": early_stopping,
            "seed": seed,
        },
        "record": {"every": record},
    }
    flags = {k: {n: v for n, v in table.items() if v is not None} for k, table in given.items()}
    if data is not None and resume is None:
        raise HdnnError(
            "--data goes with --resume; a new run takes its data first: hdnn train DATA"
        )
    if resume is not None and (config or out or overwrite or any(flags.values())):
        raise HdnnError("--resume takes no other settings: the run's config.toml has them")

    def opened(group: Group) -> Run:
        if resume is not None:
            run = Run.open(resume)
            if data is not None:
                run.find_data(data)
            group.check(run.recipe().training)
            return run
        recipe = _recipe(config, flags)
        if recipe.record is not None and recipe.data.is_image:
            raise HdnnError("--record serves tables; see hdnn.analysis.watch for pictures")
        recipe = replace(recipe, data=recipe.data.pinned())
        group.check(recipe.training)
        for note in check(recipe).notes:
            warn(f"note: {note}")
        return Run.create(out or _default_folder(recipe), recipe, overwrite)

    with joined() as group:
        run = group.lead(lambda: opened(group))
        _train(run, csv, tensorboard, checkpoint_seconds, as_json, group)


def _several(name: str, text: str | None) -> list[int] | None:
    """The integers of "4,4,4"."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise HdnnError(f"--{name} takes integers, as in 4 or 4,4,4; got {shown(text)}") from None


def _numbers(name: str, text: str | None) -> int | list[int] | None:
    """One integer, or several."""
    found = _several(name, text)
    return found[0] if found is not None and len(found) == 1 else found


def _recipe(config: Path | None, flags: dict[str, dict[str, Any]]) -> Recipe:
    tables: dict[str, Any] = {}
    if config is not None:
        if not config.is_file():
            raise HdnnError(f"there is no config file {config}")
        tables = toml.read(config)
        Recipe.check_names(tables, str(config))
    for name, values in flags.items():
        merged = {**tables.get(name, {}), **values}
        # T and step are two ways to say one thing: a flag replaces either.
        if name == "model" and ("T" in values) != ("step" in values):
            merged.pop("step" if "T" in values else "T", None)
        if merged or name != "record":  # an empty table of it asks for a record as well
            tables[name] = merged
    if "source" not in tables["data"]:
        raise HdnnError("say what to train on: hdnn train swiss-roll, or hdnn train data.csv ...")
    return Recipe.from_tables(tables, "the command line" if config is None else str(config))


def _default_folder(recipe: Recipe) -> Path:
    model = recipe.model
    layers = "-".join(map(str, model.layers)) if isinstance(model, ImageRecipe) else model.layers
    name = f"{Path(recipe.data.source).stem}-{model.architecture}-{layers}-{model.seed}"
    return Path("runs") / name


def _train(
    run: Run,
    csv: Path | None,
    tensorboard: Path | None,
    seconds: float,
    as_json: bool,
    group: Group,
) -> None:
    if group.lead(lambda: run.finished):
        if as_json:
            emit({"run": str(run.folder), "finished": True})
        else:
            say(f"{run.folder} is finished; nothing to do")
        return
    callbacks: list[Callback] = []
    group.lead(lambda: callbacks.extend(_loggers(csv, tensorboard)))
    recipe = group.lead(run.recipe)
    if group.size > 1 and not as_json:
        say(f"{group.size} processes share each batch of {recipe.training.batch_size}")
    # A termination is an interruption: it leaves a checkpoint too.
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with _Progress(recipe.training.epochs, quiet=as_json) as progress:
            metrics = run.train([*callbacks, progress], seconds, group)
    except KeyboardInterrupt:
        warn(f"interrupted; go on with: hdnn train --resume {run.folder}")
        raise typer.Exit(FAILED) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    if as_json:
        emit({"run": str(run.folder), "finished": True, **metrics})
        return
    for part, found in metrics.items():
        shown = ", ".join(
            f"{name} {value:.4f}" for name, value in found.items() if isinstance(value, float)
        )
        say(f"{part:5}  {shown}  ({found['samples']} samples)")
    say(f"run: {run.folder}")


def _loggers(csv: Path | None, tensorboard: Path | None) -> list[Callback]:
    found: list[Callback] = [] if csv is None else [CsvLogger(csv)]
    return found if tensorboard is None else [*found, TensorBoardLogger(tensorboard)]


class _Progress:
    """A progress bar on a terminal, a line now and then elsewhere, nothing if quiet."""

    def __init__(self, epochs: int, quiet: bool) -> None:
        self.epochs, self.quiet = epochs, quiet
        self.bar: Progress | None = None

    def __enter__(self) -> _Progress:
        if not self.quiet and console.is_terminal:
            self.bar = Progress(
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[figures]}"),
                console=console,
                transient=True,
            )
            self.bar.start()
            self.task = self.bar.add_task("training", total=self.epochs, figures="")
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def __call__(self, trainer: Trainer, entry: Entry) -> None:
        figures = f"loss {entry.loss:.4f}"
        if entry.accuracy is not None:
            figures += f"  accuracy {entry.accuracy:.4f}"
        if entry.validation_loss is not None:
            figures += f"  validation {entry.validation_loss:.4f}"
        if self.bar is not None:
            self.bar.update(self.task, completed=entry.epoch, figures=figures)
        elif not self.quiet and entry.epoch % max(1, self.epochs // 10) == 0:
            say(f"epoch {entry.epoch}/{self.epochs}  {figures}")
