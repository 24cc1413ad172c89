"""`hdnn train`: from data to a run folder."""

from __future__ import annotations

import functools
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hdnn.cli.base import INTERRUPTED, USE, app, emit, errors, note_kernels, say, warn
from hdnn.cli.evaluate import show_warnings
from hdnn.cli.flags import Tables, add_assignments, with_settings
from hdnn.config import Config, read_toml
from hdnn.errors import HdnnError

if TYPE_CHECKING:
    from hdnn.training.runs import Prepared, Run
    from hdnn.training.trainer import EpochRecord, Trainer

run_option = functools.partial(typer.Option, rich_help_panel="Run")
SHOWN = {"log_loss": "loss", "accuracy": "accuracy", "rmse": "RMSE", "mae": "MAE", "r2": "R²"}
"""Metrics that the last lines show, and their names."""


@app.command(rich_help_panel=USE)
@with_settings
def train(
    settings: Tables,
    source: Annotated[
        str | None,
        typer.Argument(
            help="A data set (swiss-roll, mnist, ...), a table, or a folder of images by class."
        ),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any other setting, as --set training.warmup=2; repeatable. See docs/settings.md.",
            rich_help_panel="Training",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        run_option(help="TOML file with tables data, model, training; flags override it."),
    ] = None,
    out: Annotated[Path | None, run_option(help="Run folder to write.")] = None,
    resume: Annotated[
        Path | None, run_option(help="Resume a run. To extend a finished run, also pass --epochs.")
    ] = None,
    overwrite: Annotated[bool, run_option("--overwrite", help="Replace the run in --out.")] = False,
    checkpoint_seconds: Annotated[float, run_option(help="Seconds between checkpoints.")] = 5.0,
    as_json: Annotated[bool, run_option("--json", help="Print JSON.")] = False,
) -> None:
    """Train on a table, images, or a data set by name."""
    from hdnn.training.runs import Run, prepare, read_history

    add_assignments(settings, assignments or ())
    if source is not None:
        settings["data"]["source"] = source
    prepared: Prepared | None = None
    if resume is not None:
        if config or out or overwrite or _changes_run(settings):
            raise HdnnError(
                "--resume takes no other settings than --epochs and --device: the run's "
                "config.toml has them"
            )
        run = Run.open(resume)
        run.update(**settings["training"])
    else:
        prepared = prepare(_config(config, settings))
        run = Run.create(out or _default_folder(prepared.config), prepared.config, overwrite)
        for note in prepared.data.notes:
            warn(f"note: {note}")
    if run.finished:
        if as_json:
            emit({"run": str(run.folder), "finished": True})
        else:
            say(f"{run.folder} is finished; nothing to do")
        return
    note_kernels()
    if prepared is None:
        prepared = prepare(run.config)
    with _interruptible(run):
        epochs = prepared.config.training.epochs
        progress = _Progress(len(read_history(run.history)), epochs, quiet=as_json)
        metrics = run.train([progress], checkpoint_seconds, prepared)
        progress.show(epochs)  # also where it stopped early
    _show_results(run, prepared, metrics, as_json)
    if not as_json:
        folder = shlex.quote(str(run.folder))
        say(f"saved in {run.folder}. Next:")
        say(f"  hdnn report {folder}        # a page about it")
        say(f"  hdnn predict {folder} DATA  # predictions for new data")


def _changes_run(settings: Tables) -> bool:
    """Whether there are settings that a run keeps from its beginning: all but two."""
    return "protocol" in settings or any(
        values and (table != "training" or not {*values} <= {"epochs", "device"})
        for table, values in settings.items()
    )


def _config(path: Path | None, flags: Tables) -> Config:
    """The settings of a config file, and those of flags, which override them."""
    tables: Tables = {}
    if path is not None:
        if not path.is_file():
            raise HdnnError(f"there is no config file {path}")
        tables = read_toml(path)
    # T and step are two ways to say one thing: a flag replaces either.
    if ("T" in flags["model"]) != ("step" in flags["model"]):
        other = "step" if "T" in flags["model"] else "T"
        flags = {**flags, "model": {other: None, **flags["model"]}}
    for name, values in flags.items():
        if isinstance(values, dict):
            own = tables.get(name, {})
            if not values or not isinstance(own, dict):  # the latter is an error of `Config`
                continue
            values = {**own, **values}
        tables[name] = values
    config = Config(**tables) if path is None else Config.from_tables(tables, str(path))
    if "source" not in config.data.model_fields_set:
        raise HdnnError("say what to train on: hdnn train swiss-roll, or hdnn train data.csv ...")
    return config


def _default_folder(config: Config) -> Path:
    """Such as runs/iris-H1-8-0: data, architecture, layers and seed."""
    model = config.model
    layers = (model.layers,) if isinstance(model.layers, int) else model.layers
    parts = Path(config.data.source).stem, model.architecture, *layers, model.seed
    return Path("runs") / "-".join(map(str, parts))


@contextmanager
def _interruptible(run: Run) -> Iterator[None]:
    """SIGTERM, like Ctrl-C, leaves a checkpoint; a message says how to resume."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        yield
    except KeyboardInterrupt:
        warn(f"interrupted; resume it with: hdnn train --resume {run.folder}")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _show_results(run: Run, prepared: Prepared, metrics: dict[str, Any], as_json: bool) -> None:
    """Show the metrics beside those of a linear model and a baseline, then the warnings."""
    from hdnn.training.diagnosis import convergence_warning
    from hdnn.training.evaluation import (
        REFERENCES,
        evaluate,
        metric_text,
        references,
        result_warnings,
    )
    from hdnn.training.runs import read_history

    _, data, model = prepared
    test = (data.X_test, data.y_test) if len(data.X_test) else (data.X, data.y)
    others = references(model, data.X, data.y, *test)
    history = read_history(run.history)
    problem = convergence_warning(model, data, history[-1]["loss"]) if history else None
    warnings = [*filter(None, [problem]), *result_warnings(evaluate(model, *test), others)]
    if as_json:
        result = {**metrics, **others, "warnings": warnings}
        emit({"run": str(run.folder), "finished": True, **result})
        return
    for name in ("train", "test", *REFERENCES):
        values = metrics.get(name) or others.get(name, {})
        texts = [f"{SHOWN[k]} {metric_text(values[k])}" for k in SHOWN if k in values]
        samples = f"  ({values['samples']} samples)" if "samples" in values else ""
        if values:
            say(f"{name:8}  {', '.join(texts)}{samples}")
    show_warnings(warnings)


class _Progress:
    """After every epoch, moves the progress bar; ten lines in all show loss and accuracy."""

    def __init__(self, done: int, epochs: int, quiet: bool) -> None:
        from hdnn.progress import Meter

        self.epochs, self.quiet, self.meter = epochs, quiet, Meter("training")
        self.show(done)

    def show(self, done: int) -> None:
        """Move the bar; elsewhere lines tell."""
        if errors.is_terminal:
            self.meter(done, self.epochs)

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        self.show(record.epoch)
        if self.quiet or record.epoch % max(1, self.epochs // 10):
            return
        loss, accuracy = trainer.evaluate_now()
        losses = {"": loss, "validation ": record.validation_loss}
        name = "loss"
        if accuracy is None:  # of standardized targets: R² is the same in their own units
            name, most = "R²", trainer.model.head.out_features / 2
            losses = {k: None if v is None else 1 - v / most for k, v in losses.items()}
        texts = [f"{part}{name} {v:.4f}" for part, v in losses.items() if v is not None]
        if accuracy is not None:
            texts.insert(1, f"accuracy {accuracy:.4f}")
        text = "  ".join(texts)
        say(f"epoch {record.epoch}/{self.epochs}  {text}")
