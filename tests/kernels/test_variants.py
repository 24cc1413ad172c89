"""Every instruction set passes the tests of the kernels; AVX-512 does so without asking."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hdnn.kernels import native
from skips import needs_kernels

pytestmark = [needs_kernels, pytest.mark.slow]
HERE = Path(__file__).parent
TESTS = (
    "kernels/test_native.py",
    "kernels/test_passes.py",
    "kernels/test_few.py",
    "training/test_compiled.py",
)


@pytest.mark.parametrize("variant", ["baseline", "avx2"])
def test_an_instruction_set_computes_the_same(variant: str) -> None:
    if variant not in native.instruction_sets():
        pytest.skip(f"this machine has no {variant}")
    tests = [str(HERE.parent / test) for test in TESTS]
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"HDNN_ISA": variant}
    result = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr
    assert " passed" in result.stdout
