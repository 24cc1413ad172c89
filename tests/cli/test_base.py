"""What all commands share: help, exit codes, lines of 80 columns, pipes, the bar, Ctrl-C."""

from __future__ import annotations

import functools
import io
import json
import random
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import typer
from rich.console import Console
from safetensors.torch import save_file

import hdnn
from commands import command, done, fails, read_rows, write_rows
from hdnn import progress
from hdnn.cli import app, base, predict
from hdnn.errors import HdnnError, printable

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
    monkeypatch.setattr(base, "BAR_DELAY", 0.0)
    monkeypatch.setattr(
        base.Progress, "update", lambda *_, completed, total: places.append(completed)
    )
    with base._progress_bar():
        for _ in progress.track(range(2), "training"):
            for _ in progress.track(range(2), "batches"):
                pass
        list(progress.track(range(1), "another"))
    *training, another = places
    assert training == sorted(training)  # the bar never goes back
    assert {0.0, 0.5, 1.0, 1.5, 2.0} <= {*training}  # and batches move it between two counts
    assert another == 0.0


def test_the_bar_knows_the_time_left_of_long_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(base, "errors", Console(file=io.StringIO(), force_terminal=True))
    monkeypatch.setattr(base, "BAR_DELAY", 0.0)
    timed = functools.partial(base.Progress, get_time=lambda: clock[0])
    monkeypatch.setattr(base, "Progress", timed)
    bar = base._Bar()
    try:
        for done in range(4):
            clock[0] = 600.0 * done
            bar("trainings", done, 10)
        assert bar.bar is not None
        assert bar.bar.tasks[0].time_remaining == 7 * 600
    finally:
        bar.close()


# --- names that would control the terminal --------------------------------------------------------

EVIL = "\x1b[2J\x1b]title\x07\u202e\x9b"


def controls(text: str) -> set[str]:
    """Control characters and marks of direction but line breaks."""
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cf")} - {"\n"}


def said(code: int, *words: object) -> str:
    """What a command says, which must be harmless."""
    result = command(*words)
    assert result.exit_code == code, (result.output, result.exception)
    assert not controls(result.output), words
    return result.output


@pytest.fixture
def evil(folder: Path) -> Path:
    """A table whose names of file, columns, classes and categories are control sequences."""
    rng = random.Random(0)
    numbers = [rng.random() for _ in range(60)]
    columns = {
        f"a{EVIL}": numbers,
        f"kind{EVIL}": [rng.choice(("red", "blue")) + EVIL for _ in numbers],
        f"label{EVIL}": [("spam" if x > 0.5 else "ham") + EVIL for x in numbers],
    }
    return write_rows(folder / f"table{EVIL}.csv", **columns)


def test_no_name_in_a_table_reaches_the_terminal_raw(evil: Path, folder: Path) -> None:
    run, target = f"run{EVIL}", ("--target", f"label{EVIL}")
    words = ("train", evil, *target, "--layers", 2, "--epochs", 2)
    assert r"kind\x1b[2J" in said(0, *words, "--out", run)
    said(2, *words, "--out", run)
    said(0, "train", "--resume", run)
    assert r"spam\x1b[2J" in said(0, "evaluate", run)
    assert command("evaluate", run, "--json").exit_code == 0
    for name in ("report", "certify", "gradients"):
        said(0, name, run)
    said(0, "gradients", run, "--out", "figure.png")
    said(0, "advise", evil, *target)
    said(0, "predict", run, evil, "--out", f"rows{EVIL}.csv")
    assert f"p_spam{EVIL}" in read_rows(folder / f"rows{EVIL}.csv")[0]
    said(0, "train", evil, "--target", f"a{EVIL}", "--layers", 2, "--epochs", 2, "--out", "value")
    said(0, "evaluate", "value")


def test_no_name_in_a_graph_or_an_error_reaches_the_terminal_raw(evil: Path, folder: Path) -> None:
    words, run = ("train", evil, "--target", f"label{EVIL}", "--layers", 2, "--epochs", 2), "run"
    done(*words, "--out", run)
    other = write_rows(folder / "other.csv", x=[1, 2])
    said(2, *words, "--drop", f"none{EVIL}")
    said(2, *words, "--set", f"none{EVIL}=3")
    said(2, *words, "--config", f"none{EVIL}")
    said(2, "train", "iris", "--layers", EVIL)
    said(2, "train", f"none{EVIL}.csv")
    said(2, "predict", run, other)
    said(2, "predict", run, evil, f"second{EVIL}")
    said(2, "evaluate", run, evil, f"second{EVIL}")  # typer says this
    said(2, f"none{EVIL}")
    said(2, "evaluate", run, f"--none{EVIL}")
    said(2, "evaluate", f"none{EVIL}")
    save_file({"x": torch.ones(3)}, "net", {"hdnn": json.dumps({"format": EVIL})})
    assert r"it has format \x1b[2J" in said(1, "predict", "net", other)
    pytest.importorskip("onnxscript")
    said(0, "export", run, "--out", f"model{EVIL}.onnx")


@pytest.mark.parametrize("terminal", [True, False])
def test_predictions_are_harmless_on_a_terminal_and_exact_in_a_pipe(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stdout", out)
    with predict._writer(None, ["prediction"]) as write:
        write([[EVIL]])
    shown = printable(EVIL) if terminal else EVIL
    assert out.getvalue() == f"prediction\n{shown}\n"


def test_the_bar_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(base, "errors", Console(file=out, force_terminal=True, width=80))
    monkeypatch.setattr(base, "BAR_DELAY", 0.0)
    with base._progress_bar():
        for _ in progress.track(range(2), "\x1b[31mred"):
            pass
    assert r"\x1b[31mred" in out.getvalue()
