"""Every instruction set that the machine has passes the tests of the kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from skips import needs_kernels

pytestmark = needs_kernels
NATIVE = Path(__file__).with_name("test_native.py")


@pytest.mark.parametrize("variant", ["baseline", "avx2", "avx512"])
def test_an_instruction_set_computes_the_same(variant: str) -> None:
    environment = {**os.environ, "HDNN_ISA": variant}
    ask = "from hdnn.kernels import native; print(native.instruction_set())"
    python = [sys.executable, "-W", "ignore"]
    found = subprocess.check_output([*python, "-c", ask], env=environment, text=True).strip()
    if found != variant:
        pytest.skip(f"this machine has no {variant}, but {found}")
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            str(NATIVE),
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=NATIVE.parents[2],
    )
    assert run.returncode == 0, run.stdout[-5000:]
    assert " passed" in run.stdout
