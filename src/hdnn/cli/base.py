"""The application and what its commands share: errors to exit codes, printing, progress.

Commands import what they need inside their functions: `hdnn --help` then loads no torch.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from typer.core import TyperGroup

from hdnn.errors import (
    ConvergenceError,
    DivergenceError,
    FetchError,
    FileFormatError,
    HdnnError,
    StorageError,
)
from hdnn.files import finite
from hdnn.progress import listening, logger, note

FAILED, MISUSE, INTERRUPTED = 1, 2, 130
"""Exit codes: something went wrong on the way; the request cannot be met as given; Ctrl-C."""
_FAILURES = DivergenceError, ConvergenceError, FetchError, FileFormatError, StorageError
USE, LOOK, CHECK, MORE = "Use", "Look", "Check", "More"
"""Panels of `hdnn --help`."""

console = Console()
errors = Console(stderr=True)
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


ORDER = (
    *("demo", "train", "predict", "evaluate", "report", "play", "gradients"),
    *("certify", "advise", "data", "reproduce", "export", "info"),
)
"""Commands as `hdnn --help` lists them."""


class _Main(TyperGroup):
    """Turns an `HdnnError` into a message and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=ORDER.index)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HdnnError as error:
            warn(f"error: {error}", "red")
            raise typer.Exit(FAILED if isinstance(error, _FAILURES) else MISUSE) from error


app = typer.Typer(
    cls=_Main,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        say(f"hdnn {metadata.version('hdnn')}")
        raise typer.Exit


@app.callback()
def main(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Hamiltonian deep neural networks: train them, look at them, check what theory says."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see hdnn.__main__
        signal.signal(signal.SIGINT, signal.default_int_handler)
    logger.setLevel(logging.INFO)
    if not any(isinstance(handler, _LogLines) for handler in logger.handlers):
        logger.addHandler(_LogLines())
    ctx.with_resource(_progress_bar())


class _LogLines(logging.Handler):
    """Shows what hdnn logs, as announcements of long steps, on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        warn(record.getMessage(), "dim" if record.levelno < logging.WARNING else "yellow")


def say(text: str) -> None:
    """A line for people."""
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def warn(text: str, style: str = "yellow") -> None:
    """A line for people on standard error."""
    errors.print(text, style=style, highlight=False, soft_wrap=True, markup=False)


def emit(record: Any) -> None:
    """A record for programs, as JSON on standard output."""
    sys.stdout.write(json.dumps(finite(record), indent=1, allow_nan=False) + "\n")


@cache
def note_kernels() -> None:
    """A line on why trainings will be slow, where there are no compiled kernels: once a process."""
    from hdnn.kernels import native

    if native.obstacle() is not None:
        note(f"{native.obstacle()}; until then the slower reference backend computes")


# --- progress -------------------------------------------------------------------------------------


class _Bar:
    """A listener of `hdnn.progress`: one bar, for the step under way, if it takes a while."""

    def __init__(self) -> None:
        self.text, self.began = "", 0.0
        self.bar: Progress | None = None

    def __call__(self, text: str, done: int, total: int) -> None:
        complete = total and done >= total
        if text != self.text or complete:
            self.close()
            self.text, self.began = text, time.monotonic()
        if complete or time.monotonic() - self.began < 0.5:
            return
        if self.bar is None:
            columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            text_column = TextColumn("{task.description}")
            self.bar = Progress(text_column, *columns, console=errors, transient=True)
            self.bar.start()
            self.bar.add_task(text)
        self.bar.update(self.bar.task_ids[0], completed=done, total=total or None)

    def close(self) -> None:
        """Take the bar away."""
        if self.bar is not None:
            self.bar.stop()
        self.bar, self.text = None, ""


@contextmanager
def _progress_bar() -> Iterator[None]:
    """Show how far steps are on a terminal; elsewhere they tell the log."""
    if not errors.is_terminal:
        yield
        return
    bar = _Bar()
    try:
        with listening(bar):
            yield
    finally:
        bar.close()


@contextmanager
def working(text: str) -> Iterator[None]:
    """Say what is done while nobody knows how long it takes; on a terminal, it moves."""
    with listening(lambda *_: None), errors.status(text):
        yield
