"""`hdnn gradients` and `hdnn margins` of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hdnn.cli import app


def command(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_gradients_and_margins_of_a_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = (
        "train",
        "double-moons",
        "--size",
        200,
        "--layers",
        4,
        "--epochs",
        3,
        "--batch-size",
        25,
    )
    run, plain = tmp_path / "run", tmp_path / "plain"
    command(*words, "--record", 2, "--out", run)
    command(*words, "--out", plain)
    assert (run / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()
    text = command("gradients", run, "--out", tmp_path / "record.png")
    assert "recorded: 6 iterations, the last 10" in text
    assert "recorded" not in command("gradients", plain, "--out", tmp_path / "layers.svg")
    assert (tmp_path / "record.png").stat().st_size > 5000
    found = json.loads(command("gradients", run, "--json"))
    assert [entry["iteration"] for entry in found["record"]] == [0, 2, 4, 6, 8, 10]
    assert found["trained"]["layers"] == [0, 1, 2, 3, 4]
    assert found["trained"]["mean"][-1] == pytest.approx(1.0)
    assert json.loads(command("gradients", plain, "--json"))["record"] == []
    margins = json.loads(command("margins", run, "--radius", 0.0, "--radius", 9.0, "--json"))
    accuracy = json.loads(command("evaluate", run, "--json"))["accuracy"]
    assert (margins["random"][0], margins["worst"][0]) == pytest.approx((accuracy, accuracy))
    assert "random" in command("margins", run)
    refused = CliRunner().invoke(app, ["train", "swiss-roll", "--record", "0"])
    assert refused.exit_code == 2
    assert "every should be greater than or equal to 1" in refused.stderr
    refused = CliRunner().invoke(
        app, ["train", "digits", "--record", "5", "--out", str(tmp_path / "p")]
    )
    assert refused.exit_code == 2
    assert "gradients are recorded for tables" in refused.stderr
    assert not (tmp_path / "p").exists()
