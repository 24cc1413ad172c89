"""Data sets: arrays in, and parts held out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hdnn.data import Dataset, holdout, split
from hdnn.errors import HdnnError


def test_arrays_of_different_lengths_raise() -> None:
    X = np.zeros((3, 2))
    with pytest.raises(HdnnError, match=r"same number of rows, got \(3, 2, 3\)"):
        Dataset.from_arrays(X, [0, 1])
    with pytest.raises(HdnnError, match=r"same number of rows, got \(3, 3, 1\)"):
        Dataset.from_arrays(X, [0, 1, 0], weight=[1.0])


@given(
    labels=st.lists(st.integers(0, 3), min_size=2, max_size=40),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**63 - 1),
)
def test_holding_out_leaves_some_of_every_class(
    labels: list[int], fraction: float, seed: int
) -> None:
    counts = np.bincount(labels)
    if counts.max() < 2:
        with pytest.raises(HdnnError, match="too few rows"):
            holdout(len(labels), fraction, seed, labels)
        return
    train, held = holdout(len(labels), fraction, seed, np.array(labels))
    assert sorted([*train.tolist(), *held.tolist()]) == list(range(len(labels)))
    assert train.tolist() == sorted(train.tolist())
    inside = np.bincount(np.array(labels)[held.numpy()], minlength=len(counts))
    for count, out in zip(counts, inside, strict=True):
        assert out == (0 if count < 2 else min(max(round(fraction * count), 1), count - 1))


def test_parts_held_out_of_a_data_set() -> None:
    data = split("peaks", size=200)
    parts = data.hold_out(0.25)
    assert (len(parts.X), len(parts.X_test)) == (74, 26)  # a quarter of every class, rounded
    assert torch.equal(data.hold_out(seed=5).X, data.hold_out(seed=5).X)
    assert not torch.equal(data.hold_out(seed=5).X, data.hold_out(seed=6).X)
    weighted = Dataset.from_arrays(data.X, data.y, weight=data.X[:, 0]).hold_out()
    assert torch.equal(weighted.weight, weighted.X[:, 0])
    train, held = holdout(100, 0.25)
    assert (len(train), len(held)) == (75, 25)
    for fraction in (0.0, 1.0, -0.1, math.nan):
        with pytest.raises(HdnnError, match="fraction is a share"):
            holdout(10, fraction)
