"""`hdnn certify` and `hdnn advise` on runs, files and data."""

from __future__ import annotations

from pathlib import Path

import pytest

import hdnn
from commands import Trained, command, done, fails, record
from hdnn.schemes import ForwardEuler, Splitting

SMALL = ("--layers", 2, "--T", 0.1, "--size", 200, "--epochs", 1, "--batch-size", 50)


@pytest.fixture(scope="session")
def runs(home: Path) -> Path:
    for name, architecture, more in (
        ("good", "MS3", "model.time_invariant=true"),
        ("baseline", "ResNet", "model.dtype=float64"),
    ):
        words = ("swiss-roll", "--architecture", architecture, *SMALL, "--set", more)
        done("train", *words, "--out", home / name)
    return home


def test_certify_runs(runs: Path) -> None:
    good, baseline = (
        command("certify", runs / name, "--samples", 20) for name in ("good", "baseline")
    )
    assert good.exit_code == 0, good.output
    assert "everything that applies holds" in good.output
    assert "nothing is proved about the rest of the model: stem (TableStem)" in good.output
    assert baseline.exit_code == 0
    assert "no theorem applies here" in baseline.output
    certificate = record("certify", runs / "good", "--samples", 20)
    assert certificate["ok"]
    assert certificate["blocks"]["blocks.0"]["samples"] == 20


def test_certify_exits_with_1_where_a_theorem_fails(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of Verlet's scheme that does not keep what it promises."""
    monkeypatch.setattr(Splitting, "lower", ForwardEuler.lower)
    result = command("certify", runs / "good", "--samples", 20)
    assert result.exit_code == 1
    assert "FAILS   structure" in result.output


def test_certify_files(runs: Path) -> None:
    done("certify", runs / "good" / "model.safetensors")
    model = hdnn.load(runs / "good" / "model.safetensors")
    hdnn.save(model, "alone.safetensors")
    fails(2, ("certify", "alone.safetensors"), "pass --data")
    done("certify", "alone.safetensors", "--data", "swiss-roll", "--samples", 10)
    Path("data.csv").write_text("x0,x1\n0.1,0.2\n-0.3,0.4\n")
    done("certify", "alone.safetensors", "--data", "data.csv")
    hdnn.save(model.network, "network.safetensors")
    fails(2, ("certify", "network.safetensors"), "a network without a model")


def test_certify_images(digits: Path) -> None:
    done("train", "digits", "--layers", 1, "--epochs", 0, "--out", "run")
    assert record("certify", "run", "--samples", 5)["ok"]
    text = done("certify", digits, "--samples", 5).stdout
    certificate = record("certify", digits, "--samples", 5)
    assert certificate["ok"]
    for name in ("blocks.0", "blocks.2"):
        assert f"{name}:\n" in text
        checks = {c["name"]: c for c in certificate["blocks"][name]["checks"]}
        assert checks["structure"]["holds"] is checks["volume"]["holds"] is True
    rest = "nothing is proved about the rest of the model: stem (ImageStem), blocks.1"
    assert rest in " ".join(text.split())


def test_advise_on_data() -> None:
    words = ("advise", "--architecture", "H1", "--layers", 8, "--T", 30, "swiss-roll")
    text, advice = done(*words).stdout, record(*words)
    assert advice["ok"] is False
    assert len(advice["layer_norms"]) == 8
    assert advice["remedy"] in " ".join(text.split())
    fails(2, ("advise", "digits"), "not images")


def test_advise_takes_the_network_that_train_builds(houses: Trained) -> None:
    table = houses.table, "--target", "price"
    done("train", *table, "--epochs", 0, "--out", "run")
    spec = repr(hdnn.load("run/model.safetensors").network).splitlines()[1].strip()
    assert record("advise", *table)["network"] == spec
    assert record("advise", "run")["network"] == spec
    for flag in (("--architecture", "MS1"), ("--layers", 99), ("--T", 7), ("--seed", 1)):
        fails(2, ("advise", "run", *flag), "run has a network")
