"""Every instruction set passes the tests of the kernels; AVX-512 does so without asking."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from skips import needs_kernels

pytestmark = [needs_kernels, pytest.mark.slow]
HERE = Path(__file__).parent


@pytest.mark.parametrize("variant", ["baseline", "avx2"])
def test_an_instruction_set_computes_the_same(variant: str) -> None:
    environment = {**os.environ, "HDNN_ISA": variant}
    ask = "from hdnn.kernels import native; print(native.instruction_set())"
    python = [sys.executable, "-W", "ignore"]
    available = subprocess.check_output([*python, "-c", ask], env=environment, text=True).strip()
    if available != variant:
        pytest.skip(f"this machine has no {variant}, but {available}")
    tests = [str(HERE / "test_native.py"), str(HERE / "test_passes.py")]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=HERE.parents[1],
    )
    assert run.returncode == 0, run.stdout[-5000:]
    assert " passed" in run.stdout
