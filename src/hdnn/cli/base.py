"""The application and what its commands share: errors to exit codes, printing, progress.

Commands import what they need inside their functions: `hdnn --help` then loads no torch.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from typing import Annotated, Any, Literal

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from hdnn.errors import (
    ConvergenceError,
    DivergenceError,
    FetchError,
    FileFormatError,
    HdnnError,
    StorageError,
    printable,
)
from hdnn.files import finite
from hdnn.progress import listening, logger, note

FAILED, MISUSE, INTERRUPTED = 1, 2, 130
"""Exit codes: the work failed; the request cannot be met as it is; Ctrl-C."""
_UsageError: Any = typer.BadParameter.__base__  # typer has not that name, and a click of its own
_FAILURES = DivergenceError, ConvergenceError, FetchError, FileFormatError, StorageError
USE, LOOK, CHECK, MORE = "Use", "Look", "Check", "More"
"""Panels of `hdnn --help`."""

BAR_DELAY = 0.5
"""Seconds after which a step that is not over gets a bar: a shorter one would only flicker."""

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

    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))

    def get_command(self, ctx: Any, name: str) -> Any:
        command: Any = super().get_command(ctx, name)
        if command is not None:
            for each in (command, *getattr(command, "commands", {}).values()):
                _without_types(each.get_params(ctx))
        return command

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HdnnError as error:
            warn(f"error: {error}", "red")
            raise typer.Exit(FAILED if isinstance(error, _FAILURES) else MISUSE) from error
        except _UsageError as error:  # it repeats words of the command line, as names of files
            error.message = printable(error.message)
            raise


def _without_types(parameters: Any) -> Any:
    """Parameters whose flags show no type in the help: typer would write `<bool>`."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


app = typer.Typer(
    cls=_Main,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(show: bool) -> None:
    if show:
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
    """Shows what hdnn logs, on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        warn(record.getMessage(), "dim" if record.levelno < logging.WARNING else "yellow")


def say(text: str, indent: int = 2) -> None:
    """Print a line for people, wrapped with a hanging indent."""
    wrapped = _wrapped(printable(text), console, indent)
    console.print(wrapped, highlight=False, soft_wrap=True, markup=False)


def warn(text: str, style: str = "yellow") -> None:
    """Print a line for people on standard error."""
    wrapped = _wrapped(printable(text), errors)
    _screen().print(wrapped, style=style, highlight=False, soft_wrap=True, markup=False)


def _screen() -> Console:
    """The console of messages and the bar: lines of another one would end up inside the bar."""
    return console if sys.stdout.isatty() and sys.stderr.isatty() else errors


def _wrapped(text: str, where: Console, indent: int = 2) -> str:
    """Lines wrapped between words; not in a pipe of unknown width, where programs read lines."""
    if not (where.is_terminal or "COLUMNS" in os.environ):
        return text
    layout: Any = {"break_long_words": False, "break_on_hyphens": False}
    return "\n".join(
        line
        if len(line) <= where.width
        else textwrap.fill(line, where.width, subsequent_indent=" " * indent, **layout)
        for line in text.split("\n")
    )


def show_table(
    header: Iterable[str], rows: Iterable[Sequence[str]], title: str | None = None, names: int = 1
) -> None:
    """Print a table: names to the left, numbers to the right; rows that end in "no" stand out.

    Args:
        header: titles of the columns; a frame iterates over its own.
        rows: cells as texts.
        title: above the table.
        names: how many of the first columns hold names.
    """
    # The edges are blank lines: around a table with a title; tables without follow each other.
    edge: Any = {"pad_edge": False, "show_edge": title is not None, "collapse_padding": True}
    table = Table(title=title, box=box.SIMPLE_HEAD, **edge)
    for k, name in enumerate(header):
        justify: Literal["left", "right"] = "left" if k < names else "right"
        table.add_column(_cell(name), justify=justify, no_wrap=console.width >= 60)
    for row in rows:
        table.add_row(*map(_cell, row), style="yellow" if row[-1] == "no" else None)
    console.print(table, *([""] if title is None else []))


def _cell(text: str) -> Text:
    """A cell of a table: Text, as brackets in the names of classes and columns are not markup."""
    return Text(printable(text))


def emit(record: Any) -> None:
    """Print a record as JSON; NaN and infinity become null, as JSON has neither."""
    sys.stdout.write(json.dumps(finite(record), indent=1, allow_nan=False) + "\n")


@cache
def note_kernels() -> None:
    """Say once a process why training will be slow, if there are no compiled kernels."""
    from hdnn.kernels import native

    if native.obstacle() is not None:
        note(f"{native.obstacle()}; until then the slower reference backend computes")


# --- progress -------------------------------------------------------------------------------------


class _Bar:
    """A listener of `hdnn.progress`: one bar, for the outermost step, if it takes a while.

    Steps within a step (the batches of an epoch) move it between two counts.
    """

    def __init__(self) -> None:
        self.text, self.began, self.at = "", 0.0, 0.0
        self.bar: Progress | None = None

    def __call__(self, text: str, done: int, total: int) -> None:
        if not self.text:
            self.text, self.began, self.at = text, time.monotonic(), 0.0
        if text == self.text:
            self.at, self.total = float(done), total
            if done >= total:
                self.close()
                return
        if time.monotonic() - self.began < BAR_DELAY:
            return
        if self.bar is None:
            columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            text_column = TextColumn("{task.description}")
            # The time left is estimated from the last hour: one training of Table 2 takes minutes.
            options: Any = {"transient": True, "speed_estimate_period": 3600.0}
            self.bar = Progress(text_column, *columns, console=_screen(), **options)
            self.bar.start()
            self.bar.add_task(printable(self.text))
        inner = 0.0 if text == self.text else done / max(total, 1)
        self.bar.update(self.bar.task_ids[0], completed=self.at + inner, total=self.total)

    def close(self) -> None:
        """Take the bar away."""
        if self.bar is not None:
            self.bar.stop()
        self.bar, self.text = None, ""


@contextmanager
def _progress_bar() -> Iterator[None]:
    """Show a bar on a terminal; elsewhere steps write to the log."""
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
    """Show a spinner on a terminal, for work of unknown length."""
    with listening(lambda *_: None), _screen().status(text):
        yield
