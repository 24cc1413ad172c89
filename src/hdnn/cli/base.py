"""The application and what its commands share: errors to exit codes, printing, progress."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import typer
from rich.console import Console

from hdnn.errors import (
    ConvergenceError,
    FetchError,
    FileFormatError,
    HdnnError,
    StorageError,
    as_flag,
)
from hdnn.training.evaluation import finite
from hdnn.training.group import LostRankError, is_distributed, refuse_distributed
from hdnn.training.trainer import DivergenceError

FAILED, MISUSE = 1, 2
"""Exit codes: something went wrong on the way; the request cannot be met as given."""

_FAILURES = (
    DivergenceError,
    ConvergenceError,
    FetchError,
    FileFormatError,
    StorageError,
    LostRankError,
)
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

console = Console()
errors = Console(stderr=True)


class _Group(typer.core.TyperGroup):
    """Turns an `HdnnError` into a message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            if errors.quiet:
                raise typer.Exit(MISUSE) from error
            raise
        except HdnnError as error:
            if isinstance(error, LostRankError):  # rank 0 may be the one that is gone
                errors.quiet = False
            warn(f"error: {error.text(as_flag)}", "red")
            raise typer.Exit(FAILED if isinstance(error, _FAILURES) else MISUSE) from error


app = typer.Typer(
    help="Hamiltonian deep neural networks: gradients that neither vanish nor explode.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(cls=_Group)
def main(ctx: typer.Context) -> None:
    """Hamiltonian deep neural networks: gradients that neither vanish nor explode."""
    if is_distributed():
        console.quiet = errors.quiet = os.environ["RANK"] != "0"  # all would say the same
        if ctx.invoked_subcommand != "train":
            refuse_distributed(f"hdnn {ctx.invoked_subcommand}")


def say(text: str) -> None:
    """A line for people."""
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def warn(text: str, style: str = "yellow") -> None:
    """A line for people on standard error."""
    errors.print(text, style=style, highlight=False, soft_wrap=True, markup=False)


def emit(record: Any) -> None:
    """A record for programs, as JSON on standard output."""
    if console.quiet:
        return
    sys.stdout.write(json.dumps(finite(record), indent=1, allow_nan=False) + "\n")
