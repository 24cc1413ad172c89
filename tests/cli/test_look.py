"""`hdnn gradients` and `hdnn report`; `hdnn play` is tested with the playground."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import done, fails, record


def test_gradients_of_a_run_and_its_recordings(roll: Path) -> None:
    text = done("gradients", roll, "--out", "record.png").stdout
    assert "during training: 8 recordings" in text
    assert Path("record.png").stat().st_size > 5000
    result = record("gradients", roll)
    assert [entry["iteration"] for entry in result["recordings"]] == list(range(0, 16, 2))
    assert result["trained"]["layers"] == [0, 1, 2, 3, 4]
    assert result["trained"]["mean"][-1] == pytest.approx(1.0)


def test_errors(digits: Path, roll: Path) -> None:
    text = done("gradients", digits).stdout
    assert "of the output to a change at each layer" in text
    fails(2, ("gradients", "nothing"), "nothing is neither a run nor a file of hdnn.save")
    fails(2, ("gradients", roll, "--out", "norms.xyz"), "xyz")
    fails(2, ("report", roll, "--out", "r.pdf"), "html")
    fails(2, ("report", "nothing"), "nothing is not a run")


def test_a_report_is_written_to_the_run_and_goes_with_it() -> None:
    words = ("train", "swiss-roll", "--size", 200, "--layers", 2, "--epochs", 1, "--out", "run")
    done(*words)
    assert "during training" not in done("gradients", "run", "--out", "layers.svg").stdout
    assert record("gradients", "run")["recordings"] == []
    assert "run/report.html" in done("report", "run").stdout
    alone = Path("run/report.html").read_text()
    assert alone.startswith("<!doctype html>")
    assert "ResNet" not in alone
    done("report", "run", "--compare")
    assert "ResNet" in Path("run/report.html").read_text()
    done(*words, "--overwrite")
    assert sorted(path.name for path in Path("run").glob("[!.]*")) == [
        *("checkpoint", "config.toml", "history.jsonl", "metrics.json", "model.safetensors")
    ]
