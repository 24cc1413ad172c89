"""The first start of a fresh installation: no home, nothing configured, perhaps no kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stress import write_table

pytestmark = pytest.mark.slow


def python(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process of a user without a home, as in a container."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
    variables |= {"HOME": "/dev/null/home", "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    run = subprocess.run(
        [sys.executable, *words],
        check=False,
        env=variables | environment,
        cwd=folder,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert run.returncode == 0, run.stderr
    return run


def test_demo_train_and_predict_in_a_container(tmp_path: Path) -> None:
    write_table(tmp_path / "data.csv")
    for line in (
        "demo --epochs 2 --out demo.png",
        "train data.csv --target label --layers 2 --epochs 3 --out run",
        "predict run data.csv --out predictions.csv",
    ):
        run = python(tmp_path, "-m", "hdnn", *line.split())
        assert "\x1b" not in run.stdout + run.stderr
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 121


def test_without_kernels_the_command_line_says_so_once_and_trains(tmp_path: Path) -> None:
    bare = {"HDNN_LIBRARY": "/nonexistent"}
    words = ["-m", "hdnn", "train", "swiss-roll", "--epochs", "1", "--out", "run", "--json"]
    trained = python(tmp_path, *words, **bare)
    assert trained.stderr.count("install a C++ compiler (gcc or clang) and hdnn again") == 1
    assert '"finished": true' in trained.stdout
    info = python(tmp_path, "-m", "hdnn", "info", **bare)
    assert "the compiled kernels are not there" in info.stdout
    # A library says nothing by itself.
    code = (
        "import hdnn, torch; net = hdnn.network('H1', features=4, layers=3, T=1.0); "
        "y = torch.zeros(2, 4); net(y); print(net.explain_backend(y).reason)"
    )
    used = python(tmp_path, "-c", code, **bare)
    assert used.stderr == ""
    assert "install a C++ compiler" in used.stdout
