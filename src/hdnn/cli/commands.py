"""How every command reads its options: flags without placeholders, no option twice, rehearsals."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from hdnn.cli.help import show_help
from hdnn.progress import note

F = TypeVar("F", bound=Callable[..., Any])

QUICK = "HDNN_QUICK"
"""Set, it makes rehearsals of long commands: they do everything, but little of it."""

REHEARSALS: dict[str, dict[str, Any]] = {
    "train": {"epochs": 3},
    "demo": {"epochs": 2},
    "table1": {"seeds": 1, "layers": [4], "jobs": 1},
    "table2": {"seeds": 1, "layers": [2]},
    "figure2": {"seeds": 1, "quick": True},
    "robustness": {"seeds": 1, "samples": 20},
}
"""By command, what its options are then, whatever was asked for.

Only options: what is written says itself what was done, so that no record is wrong.
"""


class _Options:
    """What all commands have in common."""

    name: str | None

    def get_params(self, ctx: Any) -> list[Any]:
        """All options and arguments; help has no placeholder (<bool>) where there is no value."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help; see `hdnn.cli.help`."""
        show_help(self, ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line; an option of one value that is given twice is a misuse."""
        if not ctx.resilient_parsing:
            _, _, given = self.make_parser(ctx).parse_args(args=list(args))  # type: ignore[attr-defined]
            for param, times in Counter(given).items():
                if times > 1 and param.param_type_name == "option" and not param.multiple:
                    ctx.fail(f"Option '{param.opts[0]}' is given {times} times; give it once")
        rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        return rest

    def invoke(self, ctx: Any) -> Any:
        """Call the command, or a rehearsal of it."""
        changed = REHEARSALS.get(self.name or "")
        if changed and os.environ.get(QUICK) and not ctx.params.get("resume"):
            ctx.params.update(changed)
            words = ", ".join(f"{name} {value}" for name, value in changed.items())
            note(f"{QUICK} is set, so this is a rehearsal: {words}")
        return super().invoke(ctx)  # type: ignore[misc]


def with_ending(ending: str) -> Callable[[Path | None], Path | None]:
    """For an option that is a file to write: a name without an ending gets this one, as is told.

    Args:
        ending: as ".png".
    """

    def complete(path: Path | None) -> Path | None:
        if path is None or path.suffix or not path.name:
            return path
        completed = path.with_name(path.name + ending)
        note(f"{path} has no ending: {completed} is written")
        return completed

    return complete


class Command(_Options, TyperCommand):
    """A command."""


class CommandGroup(_Options, TyperGroup):
    """A command with commands of its own."""


class App(typer.Typer):
    """An application, or a group of commands, whose commands are `Command`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"cls": CommandGroup, **options})

    def command(self, name: str | None = None, **options: Any) -> Callable[[F], F]:
        """Register a function as a command."""
        return super().command(name, **{"cls": Command, **options})
