"""`hdnn train`: from data to a run folder."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hdnn.cli.base import INTERRUPTED, app, console, emit, note_kernels, say, warn
from hdnn.cli.flags import Tables, with_settings
from hdnn.cli.report import say_report
from hdnn.cli.show_metrics import show_references
from hdnn.data import problem
from hdnn.errors import HdnnError, unknown_name
from hdnn.progress import listening
from hdnn.training import toml
from hdnn.training.loops import BATCHES
from hdnn.training.prepare import PreparedRun
from hdnn.training.references import compare_with_references
from hdnn.training.run_config import RunConfig, check_tables
from hdnn.training.runs import Run
from hdnn.training.settings import ImageModelConfig, ModelConfig
from hdnn.training.trainer import EpochRecord, Trainer

RUN = "Run"
PROTOCOLS = ("tuned", "paper")


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
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML with tables data, model, training; flags override it.", rich_help_panel=RUN
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder.", rich_help_panel=RUN)] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Go on with this run; a finished one with more --epochs.", rich_help_panel=RUN
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="What is not given: tuned (chosen for the planar problem, or from the table; the "
            "default) or paper (appendix B.1). Images have --preset.",
            rich_help_panel="Training",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="With --resume: where the data of the run are now.", rich_help_panel=RUN),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option(help="Replace the run in --out.", rich_help_panel=RUN)
    ] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Where data sets are kept, else HDNN_DATA or the cache.", rich_help_panel="Data"
        ),
    ] = None,
    checkpoint_seconds: Annotated[
        float, typer.Option(help="Between checkpoints.", rich_help_panel=RUN)
    ] = 5.0,
    report: Annotated[
        bool, typer.Option("--report", help="Also write a page about it.", rich_help_panel=RUN)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON.", rich_help_panel=RUN)
    ] = False,
) -> None:
    """Train on a table, images, or a data set by name."""
    if data_dir is not None:
        os.environ["HDNN_DATA"] = str(data_dir)
    if source is not None:
        settings["data"]["source"] = source
    if data is not None and resume is None:
        raise HdnnError(
            "--data goes with --resume; a new run takes its data first: hdnn train DATA"
        )
    if resume is not None and (config or out or overwrite or protocol or _unfit(settings)):
        raise HdnnError(
            "--resume takes no other settings than --epochs and --device: the run's config.toml "
            "has them"
        )

    prepared: PreparedRun | None = None
    if resume is not None:
        run, run_config = _reopened(resume, data, settings["training"])
    else:
        prepared = _prepared(*_run_config(config, settings, protocol))
        run_config = prepared.config
        run = Run.create(out or _default_folder(run_config), run_config, overwrite)
    if run.finished:
        run.tidy()
        _say_finished(run, as_json)
        return
    note_kernels()
    with _interruptible(run), _Progress(run_config.training.epochs, quiet=as_json) as progress:
        metrics = run.train([progress], checkpoint_seconds, prepared)
    _report(run, metrics, as_json)
    if report:
        say_report(run.folder, quiet=as_json)


def _unfit(settings: Tables) -> bool:
    """Whether settings are given that a run has had from its beginning."""
    given = {name for values in settings.values() for name in values}
    return not given <= {"epochs", "device"}


def _reopened(
    folder: Path, data: Path | None, training: Mapping[str, Any]
) -> tuple[Run, RunConfig]:
    """An existing run to go on with, whose data may be elsewhere now."""
    run = Run.open(folder)
    if data is not None:
        run.find_data(data)
    if "epochs" in training:
        run.extend(training["epochs"])
    if "device" in training:
        run.move_to(training["device"])
    return run, run.read_config()


def _prepared(config: RunConfig, given: dict[str, Any] | None) -> PreparedRun:
    """Data and model of a new run; whatever is wrong with them is said before it has a folder."""
    if config.record is not None and config.data.is_image:
        raise HdnnError("--record serves tables; see hdnn.analysis.watch for images")
    prepared = PreparedRun.of(config, given)
    for note in prepared.data.notes:
        warn(f"note: {note}")
    return prepared


def _run_config(
    config: Path | None, flags: Tables, protocol: str | None
) -> tuple[RunConfig, dict[str, Any] | None]:
    """The run config, and the settings that were asked for: flags, and those of a config file.

    These are None where all the others are to be the paper's.
    """
    tables: dict[str, Any] = {}
    if config is not None:
        if not config.is_file():
            raise HdnnError(f"there is no config file {config}")
        tables = toml.read(config)
        check_tables(tables, str(config))
    for name, values in flags.items():
        merged = {**tables.get(name, {}), **values}
        # T and step are two ways to say one thing: a flag replaces either.
        if name == "model" and ("T" in values) != ("step" in values):
            merged.pop("step" if "T" in values else "T", None)
        if merged or name != "record":  # an empty table of it asks for a record as well
            tables[name] = merged
    if "source" not in tables["data"]:
        raise HdnnError("say what to train on: hdnn train swiss-roll, or hdnn train data.csv ...")
    where = "the command line" if config is None else str(config)
    if protocol not in (None, *PROTOCOLS):
        raise unknown_name("protocol", protocol, PROTOCOLS)
    found = RunConfig.from_tables(tables, where)
    if found.data.is_image and protocol is not None:
        raise HdnnError("--protocol serves planar problems and tables; images have --preset")
    if found.data.is_table or found.data.is_image:
        return found, None if protocol == "paper" else tables
    return RunConfig.from_tables(_planar(tables, found, protocol or "tuned"), where), None


def _planar(tables: dict[str, Any], config: RunConfig, protocol: str) -> dict[str, Any]:
    """The settings of a planar problem under a protocol, where they are not given."""
    from hdnn.paper.table1 import run_settings  # not for tables, which need none of it

    model, training = tables["model"], tables["training"]
    assert isinstance(config.model, ModelConfig)
    if config.training.method != "coordinate":
        return tables  # protocols are of coordinate descent
    data = problem(config.data.source).name
    usual = run_settings(protocol, data, config.model.architecture, config.model.layers)
    if "step" in model:
        usual["model"].pop("T", None)
    return {
        **tables,
        "model": {**usual["model"], **model},
        "training": {**usual["training"], **training},
    }


def _default_folder(config: RunConfig) -> Path:
    model = config.model
    layers = (
        "-".join(map(str, model.layers)) if isinstance(model, ImageModelConfig) else model.layers
    )
    name = f"{Path(config.data.source).stem}-{model.architecture}-{layers}-{model.seed}"
    return Path("runs") / name


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
        warn(f"interrupted; go on with: hdnn train --resume {run.folder}")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _report(run: Run, metrics: dict[str, Any], as_json: bool) -> None:
    assert run.trained is not None
    references, warnings = compare_with_references(*run.trained)
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
