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
TESTS = ("kernels/test_native.py", "kernels/test_passes.py", "training/test_compiled.py")


@pytest.mark.parametrize("variant", ["baseline", "avx2"])
def test_an_instruction_set_computes_the_same(variant: str) -> None:
    def python(*arguments: str) -> str:
        run = [sys.executable, *arguments]
        result = subprocess.run(
            run, env=os.environ | {"HDNN_ISA": variant}, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout[-5000:] + result.stderr
        return result.stdout.strip()

    available = python("-c", "from hdnn.kernels import native; print(native.instruction_set())")
    if available != variant:
        pytest.skip(f"this machine has no {variant}, but {available}")
    tests = [str(HERE.parent / test) for test in TESTS]
    assert " passed" in python("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
