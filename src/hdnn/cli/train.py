"""`hdnn train`: from data to a run folder."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hdnn.cli.base import INTERRUPTED, app, console, emit, note_kernels, say, warn
from hdnn.cli.flags import Tables, add_assignments, with_settings
from hdnn.cli.report import say_report
from hdnn.cli.show_metrics import show_references
from hdnn.config import Config, read_toml
from hdnn.errors import HdnnError
from hdnn.progress import listening
from hdnn.report.terminal import Charts
from hdnn.training.diagnosis import convergence_warning, overfitting_warning
from hdnn.training.loops import BATCHES
from hdnn.training.references import compare_with_references
from hdnn.training.runs import Prepared, Run, prepare, read_history
from hdnn.training.trainer import EpochRecord, Trainer

RUN = "Run"


@app.command()
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
            metavar="TABLE.NAME=VALUE",
            help="Any other setting, as --set training.warmup=2; repeatable. See docs/settings.md.",
            rich_help_panel="Training",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with tables data, model, training; flags override it.",
            rich_help_panel=RUN,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder to write.", rich_help_panel=RUN)
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Resume a run. To extend a finished run, also pass --epochs.",
            rich_help_panel=RUN,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="With --resume: where the run's data are now.", rich_help_panel=RUN),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run in --out.", rich_help_panel=RUN)
    ] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder of downloaded data sets (default: HDNN_DATA, or the cache).",
            rich_help_panel="Data",
        ),
    ] = None,
    checkpoint_seconds: Annotated[
        float, typer.Option(help="Seconds between checkpoints.", rich_help_panel=RUN)
    ] = 5.0,
    report: Annotated[
        bool, typer.Option("--report", help="Also write a report page.", rich_help_panel=RUN)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON.", rich_help_panel=RUN)
    ] = False,
) -> None:
    """Train on a table, images, or a data set by name."""
    if data_dir is not None:
        os.environ["HDNN_DATA"] = str(data_dir)
    if data is not None and resume is None:
        raise HdnnError(
            "--data goes with --resume; a new run takes its data first: hdnn train DATA"
        )
    add_assignments(settings, assignments or ())
    if source is not None:
        settings["data"]["source"] = source
    prepared: Prepared | None = None
    if resume is not None:
        if config or out or overwrite or _unfit(settings):
            raise HdnnError(
                "--resume takes no other settings than --epochs and --device: the run's "
                "config.toml has them"
            )
        run = Run.open(resume)
        run.update(data, **settings["training"])
    else:
        prepared = prepare(_config(config, settings))
        for note in prepared.data.notes:
            warn(f"note: {note}")
        run = Run.create(out or _default_folder(prepared.config), prepared.config, overwrite)
    if run.finished:
        _say_finished(run, as_json)
        return
    charts = Charts()
    note_kernels()
    if prepared is None:
        prepared = prepare(run.config)
    epochs = prepared.config.training.epochs
    with _interruptible(run), _Progress(epochs, quiet=as_json) as progress:
        metrics = run.train([charts, progress], checkpoint_seconds, prepared)
    _report(run, prepared, metrics, charts, as_json)
    if report:
        say_report(run.folder, quiet=as_json)


def _unfit(settings: Tables) -> bool:
    """Whether settings are given that a run has had from its beginning."""
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
        own = tables.get(name, {})
        if isinstance(values, dict) and isinstance(own, dict):
            values = {**own, **values}
        if values != {}:
            tables[name] = values
    config = Config(**tables) if path is None else Config.from_tables(tables, str(path))
    if "source" not in config.data.given:
        raise HdnnError("say what to train on: hdnn train swiss-roll, or hdnn train data.csv ...")
    return config


def _default_folder(config: Config) -> Path:
    layers = config.model.layers
    depth = layers if isinstance(layers, int) else "-".join(map(str, layers))
    model = config.model
    return Path("runs") / (
        f"{Path(config.data.source).stem}-{model.architecture}-{depth}-{model.seed}"
    )


def _say_finished(run: Run, as_json: bool) -> None:
    if as_json:
        emit({"run": str(run.folder), "finished": True})
    else:
        say(f"{run.folder} is finished; nothing to do")


@contextmanager
def _interruptible(run: Run) -> Iterator[None]:
    """A termination is an interruption, which leaves a checkpoint; either is told."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        yield
    except KeyboardInterrupt:
        warn(f"interrupted; resume it with: hdnn train --resume {run.folder}")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _report(
    run: Run, prepared: Prepared, metrics: dict[str, Any], charts: Charts, as_json: bool
) -> None:
    _, data, model = prepared
    references, warnings = compare_with_references(model, data)
    history = read_history(run.history)
    found = convergence_warning(model, data, history), overfitting_warning(metrics)
    warnings = [*filter(None, found), *warnings]
    if as_json:
        added = {**references, "warnings": warnings}
        emit({"run": str(run.folder), "finished": True, **metrics, **added})
        return
    for part, values in metrics.items():
        figures = ", ".join(
            f"{name} {value:.4f}" for name, value in values.items() if isinstance(value, float)
        )
        say(f"{part:8}  {figures}  ({values['samples']} samples)")
    show_references(references, warnings)
    charts.show(run.history, console)
    say(f"run: {run.folder}")


class _Progress:
    """A progress bar on a terminal, a line now and then elsewhere, nothing if quiet."""

    def __init__(self, epochs: int, quiet: bool) -> None:
        self.epochs, self.quiet = epochs, quiet
        self.bar: Progress | None = None
        self.epoch, self.listener = 0, ExitStack()

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
            self.listener.enter_context(listening(self._in_epoch))
        return self

    def __exit__(self, *error: object) -> None:
        self.listener.close()
        if self.bar is not None:
            self.bar.stop()

    def _in_epoch(self, text: str, done: int, total: int) -> None:
        """The bar moves with every batch."""
        if self.bar is not None and text == BATCHES and total:
            self.bar.update(self.task, completed=self.epoch + done / total)

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        self.epoch = record.epoch
        if self.bar is not None:
            self.bar.update(self.task, completed=record.epoch)
        if self.quiet or record.epoch % max(1, self.epochs // 10):
            return
        loss, accuracy = trainer.evaluate_now()
        figures = f"loss {loss:.4f}"
        if accuracy is not None:
            figures += f"  accuracy {accuracy:.4f}"
        if record.validation_loss is not None:
            figures += f"  validation {record.validation_loss:.4f}"
        if self.bar is not None:
            self.bar.update(self.task, figures=figures)
        else:
            say(f"epoch {record.epoch}/{self.epochs}  {figures}")
