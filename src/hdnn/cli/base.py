"""The application and what its commands share: errors to exit codes, printing, progress."""

from __future__ import annotations

import importlib
import json
import logging
import signal
import sys
from functools import cache
from importlib import metadata
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console

from hdnn.cli.bars import step_bars
from hdnn.cli.commands import App, Command, CommandGroup
from hdnn.errors import (
    ConvergenceError,
    DivergenceError,
    FetchError,
    FileFormatError,
    HdnnError,
    StorageError,
)
from hdnn.files import finite
from hdnn.progress import logger, note

FAILED, MISUSE, INTERRUPTED = 1, 2, 130
"""Exit codes: something went wrong on the way; the request cannot be met as given; Ctrl-C."""

_FAILURES = (
    DivergenceError,
    ConvergenceError,
    FetchError,
    FileFormatError,
    StorageError,
)
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

console = Console()
errors = Console(stderr=True)


class Listed(NamedTuple):
    """A command as ``hdnn --help`` lists it, without loading it (or torch)."""

    module: str
    panel: str
    help: str


USE, LOOK, CHECK, MORE = "Use", "Look", "Check", "More"

COMMANDS = {
    "demo": Listed("demo", USE, "Train H1, MS1 and a plain network, and draw what they learn."),
    "train": Listed("train", USE, "Train on a table, images, or a data set by name."),
    "predict": Listed("use", USE, "Append predictions to a table, or list those of images."),
    "evaluate": Listed("use", USE, "Measure a trained run on held-out data or on another table."),
    "play": Listed("play", LOOK, "Train networks in the browser."),
    "report": Listed("report", LOOK, "Write a page about a run, to open in a browser."),
    "animate": Listed("animate", LOOK, "Animate the data of a run on its way through depth."),
    "gradients": Listed("gradients", LOOK, "Show norms of d y_N / d y_l along depth and training."),
    "margins": Listed("gradients", LOOK, "Show how far data are from the decision boundary."),
    "certify": Listed("theory", CHECK, "Check which statements of the theory hold, with numbers."),
    "advise": Listed("advise", CHECK, "Suggest T, step and depth for a network on your data."),
    "data": Listed("data", MORE, "List and fetch data sets."),
    "reproduce": Listed("reproduce", MORE, "Reproduce the paper's tables and figures."),
    "export": Listed("export", MORE, "Write a trained model as ONNX."),
    "info": Listed("tools", MORE, "Show versions, threads and what hdnn knows by name."),
}
"""Every command, in the order and the groups of the help; its module registers it with `app`."""


def _stand_in(name: str) -> Command:
    """What the help needs to know of a command."""
    return Command(name, help=COMMANDS[name].help, rich_help_panel=COMMANDS[name].panel)


class _Main(CommandGroup):
    """Loads a command when it is called; turns an `HdnnError` into a message and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.commands or cmd_name not in COMMANDS:
            return self.commands.get(cmd_name)
        return _stand_in(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in COMMANDS:  # typer suggests a name of a command that it knows
            self.commands = {name: _stand_in(name) for name in COMMANDS}
        elif args[0] not in self.commands:
            importlib.import_module(f"hdnn.cli.{COMMANDS[args[0]].module}")
            self.commands = typer.main.get_group(app).commands
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as `hdnn.__main__` leaves it
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HdnnError as error:
            warn(f"error: {error}", "red")
            raise typer.Exit(FAILED if isinstance(error, _FAILURES) else MISUSE) from error


app = App(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        say(f"hdnn {metadata.version('hdnn')}")
        raise typer.Exit


@app.callback(cls=_Main)
def main(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Hamiltonian deep neural networks: deep residual networks whose gradients stay alive."""
    _show_log()
    ctx.with_resource(step_bars(errors))


class _LogLines(logging.Handler):
    """Shows what hdnn logs, as announcements of long steps, on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        warn(record.getMessage(), "dim" if record.levelno < logging.WARNING else "yellow")


def _show_log() -> None:
    logger.setLevel(logging.INFO)
    if not any(isinstance(handler, _LogLines) for handler in logger.handlers):
        logger.addHandler(_LogLines())


def say(text: str) -> None:
    """A line for people."""
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def warn(text: str, style: str = "yellow") -> None:
    """A line for people on standard error."""
    errors.print(text, style=style, highlight=False, soft_wrap=True, markup=False)


@cache
def note_kernels() -> None:
    """A line on why trainings will be slow, where there are no compiled kernels: once a process."""
    from hdnn.kernels import native

    if native.obstacle() is not None:
        note(f"{native.obstacle()}; until then the slower reference backend computes")


def emit(record: Any) -> None:
    """A record for programs, as JSON on standard output."""
    if console.quiet:
        return
    sys.stdout.write(json.dumps(finite(record), indent=1, allow_nan=False) + "\n")
