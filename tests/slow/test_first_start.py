"""The first start of a fresh installation: no home, nothing configured, an extra missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def container(tmp_path: Path) -> dict[str, str]:
    """The environment of a user without a home, as in a container."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
    nowhere = {"HOME": "/dev/null/home", "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    return kept | nowhere


def python(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    run = subprocess.run(
        [sys.executable, *arguments],
        check=False,
        env=environment,
        cwd=environment["TMPDIR"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert run.returncode == 0, run.stderr
    return run


def test_demo_train_and_predict_in_a_container(container: dict[str, str]) -> None:
    place = Path(container["TMPDIR"])
    X = np.random.default_rng(0).normal(size=(60, 2))
    rows = [f"{a:.3f},{b:.3f},{'up' if a > b else 'down'}" for a, b in X]
    (place / "data.csv").write_text("\n".join(["a,b,label", *rows]) + "\n")
    options = "--target", "label", "--layers", "2", "--epochs", "3", "--out", "run"
    runs = [
        python(container, "-m", "hdnn", *words)
        for words in (
            ("demo", "--epochs", "2", "--out", "demo.png"),
            ("train", "data.csv", *options),
            ("predict", "run", "data.csv", "--out", "predictions.csv"),
        )
    ]
    assert len((place / "predictions.csv").read_text().splitlines()) == 61
    assert not any("\x1b" in run.stdout + run.stderr for run in runs)


def test_without_kernels_the_command_line_says_so_once_and_trains(
    container: dict[str, str],
) -> None:
    bare = container | {"HDNN_LIBRARY": "/nonexistent"}
    trained = python(
        bare, "-m", "hdnn", "train", "swiss-roll", "--epochs", "1", "--out", "run", "--json"
    )
    assert trained.stderr.count("install a C++ compiler (gcc or clang) and hdnn again") == 1
    assert '"finished": true' in trained.stdout
    assert "the compiled kernels are not there" in python(bare, "-m", "hdnn", "info").stdout
    # A library says nothing by itself.
    code = (
        "import hdnn, torch; net = hdnn.network('H1', features=4, layers=3, T=1.0); "
        "y = torch.zeros(2, 4); net(y); print(net.explain_backend(y).reason)"
    )
    used = python(bare, "-c", code)
    assert used.stderr == ""
    assert "install a C++ compiler" in used.stdout
