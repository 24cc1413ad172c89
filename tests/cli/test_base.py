"""What all commands share: help, exit codes, lines of 80 columns, pipes, the bar, Ctrl-C."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import pytest
import torch
import typer
from rich.console import Console

import hdnn
from commands import command, done, fails
from hdnn import progress
from hdnn.cli import app, base
from hdnn.errors import HdnnError

ROLL = ("swiss-roll", "--size", 200, "--layers", 3, "--epochs", 4)


def all_commands() -> Iterator[str]:
    for name, group in typer.main.get_group(app).commands.items():
        yield name
        for inner in getattr(group, "commands", {}):
            yield f"{name} {inner}"


def test_the_commands_are_those_of_the_design() -> None:
    assert set(typer.main.get_group(app).commands) == set(base.ORDER)
    assert "Usage" in command().output
    assert done("--version").stdout == f"hdnn {hdnn.__version__}\n"


@pytest.mark.parametrize("name", ["", *all_commands()])
def test_every_command_has_help_of_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    text = done(*name.split(), "--help").stdout
    assert "Usage" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "<bool>" not in text
    assert "…" not in text


def test_lines_are_wrapped_where_the_width_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    (line,) = command("train", "swis-roll").stderr.splitlines()
    assert line.endswith("did you mean 'swiss-roll'?")
    monkeypatch.setenv("COLUMNS", "80")
    lines = command("train", "swis-roll").stderr.splitlines()
    assert len(line) > 80 >= max(map(len, lines))


@pytest.mark.parametrize(("error", "code"), [(hdnn.errors.FileFormatError, 1), (HdnnError, 2)])
def test_errors_are_exit_codes(
    error: Callable[[str], HdnnError], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error("so it is [bold]")

    monkeypatch.setattr(torch, "get_num_threads", fail)
    fails(code, ("info",), "so it is [bold]")


def test_one_bar_for_the_outermost_step(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=80)
    places: list[float] = []
    monkeypatch.setattr(base, "errors", terminal)
    monkeypatch.setattr(base, "SOON", 0.0)
    monkeypatch.setattr(
        base.Progress, "update", lambda *_, completed, total: places.append(completed)
    )
    with base._progress_bar():
        for _ in progress.track(range(2), "training"):
            for _ in progress.track(range(2), "batches"):
                pass
        list(progress.track(range(1), "another"))
    assert places == [0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 1.5, 2.0, 0.0]
