"""The application and what its commands share: errors to exit codes, printing, progress."""

from __future__ import annotations

import json
import sys
from typing import Any

import typer
from rich.console import Console

from hdnn.errors import ConvergenceError, FileFormatError, HdnnError
from hdnn.training.trainer import DivergenceError

FAILED, MISUSE = 1, 2
"""Exit codes: something went wrong on the way; the request cannot be met as given."""

console = Console()
errors = Console(stderr=True)


class _Group(typer.core.TyperGroup):
    """Turns an `HdnnError` into a message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HdnnError as error:
            failed = isinstance(error, DivergenceError | ConvergenceError | FileFormatError)
            errors.print(f"error: {error}", style="red", highlight=False, soft_wrap=True)
            raise typer.Exit(FAILED if failed else MISUSE) from error


app = typer.Typer(
    help="Hamiltonian deep neural networks: gradients that neither vanish nor explode.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(cls=_Group)
def main() -> None:
    """Hamiltonian deep neural networks: gradients that neither vanish nor explode."""


def say(text: str) -> None:
    """A line for people."""
    console.print(text, highlight=False, soft_wrap=True)


def emit(record: Any) -> None:
    """A record for programs, as JSON on standard output."""
    sys.stdout.write(json.dumps(record, indent=1) + "\n")
