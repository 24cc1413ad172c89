"""`hdnn certify` and `hdnn advise` on runs, files and data."""

from __future__ import annotations

from pathlib import Path

import pytest

import hdnn
from commands import Trained, command, done, fails, record

SMALL = ("--layers", 2, "--T", 0.1, "--size", 200, "--epochs", 1, "--batch-size", 50)


@pytest.fixture(scope="session")
def runs(home: Path) -> Path:
    for name, architecture, more in (
        ("good", "MS3", "model.time_invariant=true"),
        ("bad", "ResNet", "model.dtype=float64"),
    ):
        words = ("swiss-roll", "--architecture", architecture, *SMALL, "--set", more)
        done("train", *words, "--out", home / name)
    return home


def test_certify_runs(runs: Path) -> None:
    good, bad = (command("certify", runs / name, "--samples", 20) for name in ("good", "bad"))
    assert good.exit_code == 0, good.output
    assert "everything that applies holds" in good.output
    assert bad.exit_code == 1
    assert "FAILS" in bad.output
    certificate = record("certify", runs / "good", "--samples", 20)
    assert (certificate["ok"], certificate["samples"]) == (True, 20)


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
    fails(2, ("certify", digits), "hdnn.analysis.watch")  # a convolution couples pixels


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
        fails(2, ("advise", "run", *flag), "run is a run, which has a network and data")
