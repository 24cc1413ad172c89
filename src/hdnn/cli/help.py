"""Help that is read at any width: names beside what they mean, or above it where it is narrow."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

WIDEST, NARROW = 100, 60
"""Columns that help takes at most, and below which a meaning stands under its name."""

INDENT, MOST_NAME = 2, 24
"""Columns before a name, and those of a name; a longer one has a line of its own."""

Entry = tuple[str, str]
"""A name, as ``--epochs <int>``, and what it means."""


def show_help(command: Any, ctx: Any) -> None:
    """Print the help of a command: usage, what it does, then names in their groups.

    Args:
        command: of typer.
        ctx: its context.
    """
    console = Console(highlight=False)
    width = min(console.width, WIDEST)
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    paragraphs = [usage and f"Usage: {usage}", *inspect.cleandoc(command.help or "").split("\n\n")]
    for text in filter(None, paragraphs):
        for line in Text(" ".join(text.split())).wrap(console, width):
            console.print(line)
        console.print()
    for title, entries in _groups(command, ctx).items():
        console.print(Text(title, style="bold"))
        names = max(len(name) for name, _ in entries)
        column = 0 if width < NARROW else INDENT + min(names, MOST_NAME) + 2
        for name, meaning in entries:
            for line in _lines(console, name, meaning, column, width):
                console.print(line)
        console.print()


def _groups(command: Any, ctx: Any) -> dict[str, list[Entry]]:
    """Arguments, options and commands by the title of their group; other options come last."""
    found: dict[str, list[Entry]] = {"Arguments": []}
    others: list[Entry] = []
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is not None:
            title = "Arguments" if param.param_type_name == "argument" else param.rich_help_panel
            (others if title is None else found.setdefault(title, [])).append(_cleaned(*record))
    for name in getattr(command, "list_commands", lambda ctx: [])(ctx):
        listed = command.get_command(ctx, name)
        title = listed.rich_help_panel or "Commands"
        found.setdefault(title, []).append((name, listed.get_short_help_str(WIDEST)))
    return {title: entries for title, entries in {**found, "Options": others}.items() if entries}


def _cleaned(name: str, meaning: str) -> Entry:
    """An entry of typer without brackets in brackets."""
    name = re.sub(r"<list\[(\w+)\]>", r"<\1>", name)
    meaning = " ".join(meaning.split()).removesuffix("[default: (false)]").rstrip()
    return name, re.sub(r"\[default: \((.*)\)\]", r"[default: \1]", meaning)


def _lines(console: Console, name: str, meaning: str, column: int, width: int) -> Iterator[Text]:
    head = Text(" " * INDENT + name)
    head.highlight_regex(r"--?[\w-]+|^ +\w+", "cyan")
    head.highlight_regex(r"<\w+>", "yellow")
    indent = column or 2 * INDENT
    lines = list(_explained(meaning).wrap(console, width - indent))
    for line in lines:
        line.rstrip()
    if column and len(head) + 2 <= column and lines:
        head.append(" " * (column - len(head)))
        yield head + lines.pop(0)
    else:
        yield from head.wrap(console, width)
    yield from (Text(" " * indent) + line for line in lines)


def _explained(meaning: str) -> Text:
    text = Text(meaning)
    text.highlight_regex(r"\[(default|required|env var).*\]$", "dim")
    return text
