"""`hdnn certify` on runs and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import hdnn
from hdnn.cli import app


def command(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, more in (
        ("good", ("--set", "model.time_invariant=true")),
        ("bad", ("--set", "model.dtype=float64")),
    ):
        architecture = "MS3" if name == "good" else "ResNet"
        result = command(
            "train",
            "swiss-roll",
            "--architecture",
            architecture,
            "--layers",
            2,
            "--T",
            0.1,
            "--size",
            200,
            "--epochs",
            1,
            "--batch-size",
            50,
            "--out",
            folder / name,
            *more,
        )
        assert result.exit_code == 0, result.output
    return folder


def test_certify_a_run(runs: Path) -> None:
    good, bad = (command("certify", runs / name, "--samples", 20) for name in ("good", "bad"))
    assert good.exit_code == 0, good.output
    assert "everything that applies holds" in good.output
    assert "norm-at-least-one" in good.output
    assert bad.exit_code == 1
    assert "FAILS" in bad.output
    found = command("certify", runs / "bad", "--json", "--samples", 20)
    assert found.exit_code == 1
    assert json.loads(found.output)["ok"] is False
    assert json.loads(found.output)["samples"] == 20


def test_the_default_run_of_the_swiss_roll_keeps_what_is_proved(tmp_path: Path) -> None:
    assert command("train", "swiss-roll", "--out", tmp_path / "run").exit_code == 0
    result = command("certify", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "not met smooth-weights" in result.output  # a fact about what was trained


def test_certify_files(runs: Path, tmp_path: Path) -> None:
    assert command("certify", runs / "good" / "model.safetensors").exit_code == 0
    model = hdnn.load(runs / "good" / "model.safetensors")
    hdnn.save(model, tmp_path / "alone.safetensors")
    assert command("certify", tmp_path / "alone.safetensors").exit_code == 2  # which data?
    words = ("certify", tmp_path / "alone.safetensors", "--data")
    assert command(*words, "swiss-roll", "--samples", 10).exit_code == 0
    (tmp_path / "data.csv").write_text("x0,x1\n0.1,0.2\n-0.3,0.4\n")
    assert command(*words, tmp_path / "data.csv").exit_code == 0
    hdnn.save(model.network, tmp_path / "network.safetensors")
    assert command("certify", tmp_path / "network.safetensors").exit_code == 0
    for missing in (tmp_path, tmp_path / "nothing"):
        assert command("certify", missing).exit_code == 2
    assert command("certify", runs / "good", "--samples", 0).exit_code == 2
