"""`hdnn train`: flags, config files, tables, images, its last lines, and its errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from commands import Trained, command, done, fails, record, write_rows
from hdnn.training.runs import Run

ROLL = ("swiss-roll", "--size", 200, "--layers", 3)
SHORT = ("--layers", 2, "--epochs", 1)


def test_json_and_nothing_else(mail: Trained) -> None:
    words = (mail.table, "--target", "label", "--drop", "id", *SHORT, "--out", "run")
    result = record("train", *words)
    assert (result["run"], result["finished"]) == ("run", True)
    assert result["test"] == json.loads(Path("run/metrics.json").read_text())["test"]
    assert {"linear", "baseline", "warnings"} < set(result)


@pytest.mark.parametrize("name", ["double-moons", "iris", "diabetes"])
def test_data_sets_by_name(name: str) -> None:
    done("train", name, *SHORT)
    assert Run.open(f"runs/{name}-H1-2-0").finished


def test_flags_override_a_config_file() -> None:
    """So does --set; a step replaces T."""
    Path("my.toml").write_text(
        '[data]\nsource = "double-moons"\nsize = 200\n[model]\narchitecture = "MS1"\nlayers = 4\n'
        "T = 3.0\n[training]\nepochs = 2\nalpha = 0.25\n"
    )
    words = ("peaks", "--layers", 2, "--step", 0.1, "--epochs", 1, "--seed", 5, "--balanced")
    done("train", "--config", "my.toml", *words, "--set", "training.alpha_c=0.5", "--out", "run")
    config = Run.open("run").config
    assert (config.data.source, config.data.size) == ("peaks", 200)
    assert (config.model.architecture, config.model.layers) == ("MS1", 2)
    assert (config.model.T, config.model.step) == (None, 0.1)
    assert (config.training.epochs, config.training.alpha) == (1, 0.25)
    assert (config.training.alpha_c, config.training.class_weight) == (0.5, "balanced")
    assert (config.data.seed, config.model.seed, config.training.seed) == (5, 5, 5)


def test_missing_values_are_noted(mail: Trained) -> None:
    assert "missing values" in mail.result.stderr
    assert "links 15" in mail.result.stderr


def test_a_regression_shows_one_scale() -> None:
    """R² of standardized targets is that of their own units; a squared loss is of neither."""
    lines = done("train", "diabetes", "--layers", 2, "--epochs", 2).stdout.splitlines()
    last, train = (next(line for line in lines if line.startswith(s)) for s in ("epoch 2", "train"))
    r2 = [re.findall(r"R² (-?[\d.]+)", line)[0] for line in (last, train)]
    assert float(r2[0]) == pytest.approx(float(r2[1]), abs=2e-4)
    assert "loss" not in "".join(lines)


def test_one_held_out_row_and_none() -> None:
    """R^2 of one value is no number, and JSON has no NaN."""
    write_rows(Path("t.csv"), a=[1, 2, 3, 4, 5], y=[1.5, 2.5, 3.5, 4.5, 5.6])
    record("train", "t.csv", "--target", "y", *SHORT, "--out", "one")
    record("evaluate", "one")
    done("train", "t.csv", "--target", "y", *SHORT, "--test", 0, "--out", "none")
    fails(2, ("evaluate", "none"), "held out no data")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "say what to train on"),
        (("swis-roll",), "did you mean 'swiss-roll'"),
        (("data.csv", "--target", "y"), "there is no such file or folder: data.csv"),
        ((*ROLL, "--architecture", "H9"), "unknown architecture 'H9'"),
        ((*ROLL, "--set", "training.warmup"), "TABLE.NAME=VALUE"),
        ((*ROLL, "--set", "model.layer=3"), "did you mean 'layers'"),
        ((*ROLL, "--T", 1.0, "--step", 0.1), "exactly one of T"),  # found when it is built
        (("swiss-roll", "--layers", "4,x"), "takes integers, as in 4 or 4,4,4"),
        ((*ROLL, "--config", "none.toml"), "no config file none.toml"),
        (("--resume", "nothing"), "nothing is not a run"),
    ],
    ids=lambda value: " ".join(map(str, value))[-40:] if isinstance(value, tuple) else "",
)
def test_errors(words: tuple[object, ...], message: str, tmp_path: Path) -> None:
    fails(2, ("train", *words), message)
    assert not list(tmp_path.iterdir())  # nothing is left behind


def test_brackets_are_no_markup() -> None:
    assert "saved in run[red]." in done("train", *ROLL, "--epochs", 1, "--out", "run[red]").stdout
    assert "odd[/b].csv" in command("train", "odd[/b].csv", "--target", "y").stderr
