"""Whatever is done to a network, the kernels compute what the reference computes, or both raise.

They take addresses, so that a tensor they should not have taken is a crash or silent garbage.
"""

from __future__ import annotations

import os

import pytest

from skips import needs_kernels
from stress import SCALE
from tampered import run

pytestmark = [
    needs_kernels,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="a process for every batch of cases"),
]


def check(first: int, count: int) -> None:
    """The cases of some seeds; many of which compute, and many of these in kernels."""
    found = run(first, count)
    assert not found.disagreements, "\n".join(found.disagreements)
    assert found.computed > 0.3 * count
    assert found.fused > 0.1 * count


@pytest.mark.parametrize("first", [0, 1000])
def test_tampered_calls_compute_what_the_reference_does_or_raise_as_it_does(first: int) -> None:
    """Those of the past (seeds from 0), and some drawn at random."""
    check(first, 100)


@pytest.mark.slow
@pytest.mark.parametrize("first", [10_000, 20_000, 30_000, 40_000])
def test_thousands_of_tampered_calls(first: int) -> None:
    check(first, 600 * SCALE)
