"""`hdnn train`: flags, config files, tables, images, what it says at the end, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import hdnn
from commands import Trained, command, done, fails, record, write_rows
from hdnn.training.runs import Run

ROLL = ("swiss-roll", "--size", 200, "--layers", 3)
SHORT = ("--layers", 2, "--epochs", 1)


def test_it_ends_with_the_result_beside_others_and_what_to_do_next() -> None:
    lines = done("train", *ROLL, "--epochs", 20, "--out", "my run").stdout.splitlines()
    epochs = [line for line in lines if line.startswith("epoch ")]
    assert [line.split()[1] for line in epochs] == [f"{k}/20" for k in range(2, 21, 2)]
    loss, accuracy = epochs[-1].split()[3::2]
    results = {line.split()[0]: line for line in lines[10:14]}
    assert list(results) == ["train", "test", "linear", "baseline"]
    assert f"loss {loss}, accuracy {accuracy} " in results["train"]  # the model that is kept
    assert [line.split("#")[0].strip() for line in lines[-3:]] == [
        "saved in my run. Next:",
        "hdnn report 'my run'",
        "hdnn predict 'my run' DATA",
    ]


def test_json_and_nothing_else(mail: Trained) -> None:
    words = (mail.table, "--target", "label", "--drop", "id", *SHORT, "--out", "run")
    found = record("train", *words)
    assert (found["run"], found["finished"]) == ("run", True)
    assert found["test"] == json.loads(Path("run/metrics.json").read_text())["test"]
    assert {"linear", "baseline", "warnings"} < set(found)


def test_a_report_that_is_asked_for() -> None:
    result = done("train", *ROLL, "--epochs", 1, "--out", "run", "--report")
    assert "open run/report.html" in result.stdout
    assert Path("run/report.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("name", ["double-moons", "peaks", "iris", "diabetes"])
def test_data_sets_by_name(name: str) -> None:
    done("train", name, *SHORT)
    assert Run.open(f"runs/{name}-H1-2-0").finished


@pytest.mark.parametrize("name", list(hdnn.zoo.ARCHITECTURES))
def test_every_architecture_by_name(name: str) -> None:
    done("train", *ROLL, "--epochs", 1, "--architecture", name.lower(), "--out", "run")
    assert Run.open("run").load_model().network.name == name


def test_flags_override_a_config_file() -> None:
    """That every flag reaches the config is in test_config.py."""
    Path("my.toml").write_text(
        '[data]\nsource = "double-moons"\nsize = 200\n[model]\narchitecture = "MS1"\nlayers = 4\n'
        "T = 3.0\n[training]\nepochs = 2\nalpha = 0.25\n"
    )
    done("train", "--config", "my.toml", "--out", "plain")
    found = Run.open("plain").config
    assert (found.data.source, found.model.architecture, found.model.T) == (
        "double-moons",
        "MS1",
        3,
    )
    words = ("peaks", "--layers", 2, "--step", 0.1, "--epochs", 1, "--seed", 5, "--out", "over")
    done("train", "--config", "my.toml", *words)
    found = Run.open("over").config
    assert (found.data.source, found.data.size) == ("peaks", 200)
    assert (found.model.layers, found.model.T, found.model.step) == (2, None, 0.1)
    assert (found.training.epochs, found.training.alpha) == (1, 0.25)
    assert (found.data.seed, found.model.seed, found.training.seed) == (5, 5, 5)


def test_the_config_of_a_run_trains_it_again(roll: Path) -> None:
    done("train", "--config", roll / "config.toml", "--out", "again")
    assert Run("again").model_file.read_bytes() == Run(roll).model_file.read_bytes()


# --- tables of one's own --------------------------------------------------------------------------


def test_a_table_with_labels_gaps_and_an_odd_number_of_features(mail: Trained) -> None:
    assert "missing values" in mail.result.stderr
    assert "links 15" in mail.result.stderr
    metrics = json.loads((mail.run / "metrics.json").read_text())
    assert (metrics["train"]["samples"], metrics["test"]["samples"]) == (120, 30)
    assert metrics["test"]["accuracy"] > 0.8
    model = Run.open(mail.run).load_model()
    assert model.classes == ["ham", "spam"]
    assert model.feature_names == ["length", "links", "score"]


def test_numbers_are_a_regression(houses: Trained) -> None:
    found = json.loads((houses.run / "metrics.json").read_text())["test"]
    assert found["r2"] > 0.97
    assert 0 < found["mae"] <= found["rmse"] < 8  # prices spread by 36
    assert "accuracy" not in found


def test_parquet_files(numbers: np.ndarray) -> None:
    columns = {"a": numbers[:, 0], "b": numbers[:, 1], "y": (numbers[:, 0] > 0).astype(int)}
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame(columns).to_parquet("t.parquet")
    done("train", "t.parquet", "--target", "y", "--layers", 2, "--epochs", 20, "--out", "run")
    assert record("evaluate", "run", "t.parquet")["accuracy"] > 0.8


def test_one_held_out_row_and_none() -> None:
    """R^2 of one value is no number, and JSON has no NaN."""
    write_rows(Path("t.csv"), a=[1, 2, 3, 4, 5], y=[1.5, 2.5, 3.5, 4.5, 5.6])
    record("train", "t.csv", "--target", "y", *SHORT, "--out", "one")
    record("evaluate", "one")
    done("train", "t.csv", "--target", "y", *SHORT, "--test", 0, "--out", "none")
    fails(2, ("evaluate", "none"), "held out no data")


# --- images ---------------------------------------------------------------------------------------


def test_stages_of_images(digits: Path) -> None:
    config = Run.open(digits).config
    assert (config.model.layers, config.model.width, config.model.head) == (
        (1, 1),
        (4, 8),
        "linear",
    )
    assert config.training.method == "joint"
    assert record("evaluate", digits)["accuracy"] > 0.7


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "say what to train on"),
        (("swis-roll",), "did you mean 'swiss-roll'"),
        (("data.csv", "--target", "y"), "there is no such file or folder: data.csv"),
        ((*ROLL, "--architecture", "H9"), "unknown architecture 'H9'"),
        ((*ROLL, "--T", 1, "--step", 0.1), "exactly one of T"),
        ((*ROLL, "--T", "nan"), "T should be a finite number"),
        ((*ROLL, "--set", "training.optimizer=Adamm"), "did you mean 'Adam'"),
        ((*ROLL, "--set", "training.warmup"), "TABLE.NAME=VALUE"),
        ((*ROLL, "--set", "model.layer=3"), "did you mean 'layers'"),
        ((*ROLL, "--early-stopping", 3), "validation"),
        (("swiss-roll", "--layers", "4,x"), "takes integers, as in 4 or 4,4,4"),
        (("swiss-roll", "--layers", 0), "greater than or equal to 1"),
        (("swiss-roll", "--size", 3), "even"),
        ((*ROLL, "--record", 0), "every should be greater than or equal to 1"),
        (("digits", "--record", 5), "gradients are recorded for tables"),
        ((*ROLL, "--config", "none.toml"), "no config file none.toml"),
        ((*ROLL, "--data", "x.csv"), "--data goes with --resume"),
        (("--resume", "nothing"), "nothing is not a run"),
        ((*ROLL, "--device", "gpu"), "unknown device 'gpu'"),
    ],
    ids=lambda value: " ".join(map(str, value))[-40:] if isinstance(value, tuple) else "",
)
def test_errors(words: tuple[object, ...], said: str, tmp_path: Path) -> None:
    fails(2, ("train", *words), said)
    assert not list(tmp_path.iterdir())  # nothing is left behind


def test_errors_of_tables(mail: Trained) -> None:
    words = ("train", mail.table, "--target", "label")
    fails(2, ("train", mail.table), "--target")
    fails(2, ("train", mail.table, "--target", "lable"), "did you mean 'label'")
    fails(2, (*words, "--numeric", "id"), "'id'", "needs finite numbers")
    fails(2, (*words, "--drop", "links_"), "did you mean 'links'")
    fails(2, (*words, "--task", "regression"), "label")
    Path("empty.csv").touch()
    fails(1, ("train", "empty.csv", "--target", "y"), "empty")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[model]\nlayer = 4", "did you mean 'layers'"),
        ("[dta]\nsource = 4", "did you mean 'data'"),
        ("model = 3", "table"),
        ("x = [", "not TOML"),
        ("[data]\ntest = 'x'", "test should be a valid number, got 'x'"),
    ],
    ids=lambda value: value.replace("\n", " "),
)
def test_a_wrong_config_file_is_named(text: str, said: str) -> None:
    Path("my.toml").write_text(text)
    fails(2, ("train", *ROLL, "--config", "my.toml"), "my.toml: " if text != "x = [" else "", said)


def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    Path("x.parquet").touch()
    fails(2, ("train", "x.parquet", "--target", "y"), "pip install 'hdnn[data]'")


def test_brackets_are_no_markup() -> None:
    assert "saved in run[red]." in done("train", *ROLL, "--epochs", 1, "--out", "run[red]").stdout
    assert "odd[/b].csv" in command("train", "odd[/b].csv", "--target", "y").stderr
