"""`hdnn advise` on data and runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

import hdnn
from hdnn.cli import app


def command(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_advise_on_the_command_line() -> None:
    words = ("advise", "--architecture", "H1", "--layers", 8, "--T", 30, "swiss-roll")
    text, record = command(*words), command(*words, "--json")
    assert text.exit_code == record.exit_code == 0
    assert "layers at this T" in text.output
    found = json.loads(record.output)
    assert found["ok"] is False
    assert len(found["layer_norms"]) == 8
    assert found["remedy"] in " ".join(text.output.split())
    assert command("advise", "no-such-data").exit_code == 2


def test_advise_looks_at_the_network_that_train_builds(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(60, 3))
    rows = "".join(f"{a:.3f},{b:.3f},{c:.3f},{a > b}\n" for a, b, c in X)
    (tmp_path / "data.csv").write_text("a,b,c,label\n" + rows)
    table = tmp_path / "data.csv", "--target", "label"
    advised = json.loads(command("advise", *table, "--json").output)
    trained = command("train", *table, "--epochs", 1, "--out", tmp_path / "run", "--json")
    assert trained.exit_code == 0
    spec = repr(hdnn.load(tmp_path / "run" / "model.safetensors").network).splitlines()[1].strip()
    assert advised["network"] == spec
