"""Whatever is done to a network, the kernels compute what the reference computes, or both raise.

They take addresses: a tensor that they should not have taken is a crash, or silent garbage. There
are thousands of cases in tests/slow/test_tampering.py.
"""

from __future__ import annotations

import pytest

from skips import needs_fork, needs_kernels
from tampered import check

pytestmark = [needs_kernels, needs_fork]


@pytest.mark.parametrize("first", [0, 1000])
def test_tampered_calls_compute_what_the_reference_does_or_raise_as_it_does(first: int) -> None:
    """Those that went wrong once (seeds from 0), and some at random."""
    check(first, 100)
