"""Thousands of programs that misuse a network, on the kernels and on the reference."""

from __future__ import annotations

import pytest

from skips import needs_fork, needs_kernels
from stress import SCALE
from tampered import check

pytestmark = [pytest.mark.slow, needs_kernels, needs_fork]


@pytest.mark.parametrize("first", [10**6, 2 * 10**6, 3 * 10**6, 4 * 10**6])
def test_tampered_calls_compute_what_the_reference_does_or_raise_as_it_does(first: int) -> None:
    check(first, 600 * SCALE)
