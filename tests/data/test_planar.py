"""The planar problems lie where they should, and their splits are what they say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hdnn.data import (
    KINDS,
    PROBLEMS,
    double_circles,
    double_moons,
    holdout,
    peaks,
    split,
    swiss_roll,
)
from hdnn.data.planar import PEAKS_LEVELS
from hdnn.errors import HdnnError

every_problem = pytest.mark.parametrize("name", PROBLEMS)
every_kind = pytest.mark.parametrize("kind", KINDS)
CLASSES = {"swiss-roll": 2, "double-moons": 2, "double-circles": 2, "peaks": 5}


def rows(X: Tensor) -> set[tuple[float, ...]]:
    return {tuple(row) for row in X.tolist()}


# ------------------------------------------------------------------------------------- geometry
def test_the_swiss_roll_lies_on_its_two_spirals(generator: torch.Generator) -> None:
    X, labels = swiss_roll(400, generator)
    r = X.norm(dim=1)
    t = (r - torch.where(labels == 1, 0.0, 0.2)) * 4 * math.pi
    assert (t >= 0).all()
    assert (t < 4 * math.pi).all()
    torch.testing.assert_close(X, torch.stack([r * t.cos(), r * t.sin()], 1))
    assert t.max() > 12
    assert t.min() < 0.5


def test_double_moons_lie_on_four_half_circles(generator: torch.Generator) -> None:
    X, labels = double_moons(400, generator, noise=0.0)
    pair = 2.0 * (torch.arange(400) // 2 % 2)
    x, y = X[:, 0] - pair, X[:, 1]
    up = labels == 0
    torch.testing.assert_close(x[up] ** 2 + y[up] ** 2, torch.ones(200))
    torch.testing.assert_close((1 - x[~up]) ** 2 + (0.5 - y[~up]) ** 2, torch.ones(200))
    assert (y[up] >= 0).all()
    assert (y[~up] <= 0.5).all()


def test_double_circles_have_radii_1_to_4_and_alternating_classes(
    generator: torch.Generator,
) -> None:
    X, labels = double_circles(400, generator, noise=0.0)
    r = X.norm(dim=1)
    torch.testing.assert_close(r, r.round())
    assert r.round().long().bincount().tolist() == [0, 100, 100, 100, 100]
    assert torch.equal(labels, (r.round().long() + 1) % 2)


def test_peaks_are_bands_of_equal_area(generator: torch.Generator) -> None:
    X, labels = peaks(20_000, generator)
    x, y = X.unbind(1)
    assert X.abs().max() <= 3
    assert X.abs().max() > 2.99
    value = 3 * (1 - x) ** 2 * torch.exp(-(x**2) - (y + 1) ** 2)
    value -= 10 * (x / 5 - x**3 - y**5) * torch.exp(-(x**2) - y**2)
    value -= torch.exp(-((x + 1) ** 2) - y**2) / 3
    assert 8 < value.max() < 8.1063  # MATLAB's extremes
    assert -6.5512 < value.min() < -6.4
    bounds = [-math.inf, *PEAKS_LEVELS, math.inf]
    for label in range(5):
        inside = (value > bounds[label]) & (value <= bounds[label + 1])
        assert torch.equal(inside, labels == label)
    share = labels.bincount() / 20_000
    assert (share - 0.2).abs().max() < 4 * math.sqrt(0.2 * 0.8 / 20_000)


@every_problem
def test_noise_is_uniform_and_does_not_change_what_it_is_added_to(name: str) -> None:
    draw = PROBLEMS[name].draw
    clean, labels = draw(4000, torch.Generator().manual_seed(3), 0.0)
    noisy, same = draw(4000, torch.Generator().manual_seed(3), 0.3)
    shift = noisy - clean
    assert torch.equal(labels, same)
    assert shift.abs().max() <= 0.3
    assert shift.abs().max() > 0.299
    assert shift.mean().abs() < 0.01
    torch.testing.assert_close(shift.std(), torch.tensor(0.3 / math.sqrt(3)), rtol=0.03, atol=0)
    assert np.corrcoef(shift.T.numpy())[0, 1] == pytest.approx(0, abs=0.06)


@every_problem
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_sizes_labels_and_dtypes(name: str, size: int) -> None:
    row = PROBLEMS[name]
    X, labels = row.draw(size, torch.Generator().manual_seed(0), row.noise)
    assert X.shape == (size, 2)
    assert X.dtype == torch.float64
    assert labels.shape == (size,)
    assert labels.dtype == torch.int64
    assert labels.max() < row.classes
    counts = labels.bincount(minlength=row.classes)
    assert counts.max() - counts.min() <= (1 if row.classes == 2 else size)


@every_problem
def test_the_default_noise_is_that_of_the_catalogue(name: str) -> None:
    row = PROBLEMS[name]
    torch.manual_seed(5)
    X, _ = row.draw(50)  # type: ignore[call-arg]
    torch.manual_seed(5)
    again, _ = row.draw(50, None, row.noise)
    assert torch.equal(X, again)


@every_problem
@pytest.mark.parametrize("size", [0, -1, 2.0, True])
def test_sizes_that_are_none(name: str, size: Any) -> None:
    with pytest.raises(HdnnError, match="size is a positive integer"):
        PROBLEMS[name].draw(size, None, 0.0)


@every_problem
@pytest.mark.parametrize("noise", [-0.1, math.nan, math.inf])
def test_noise_that_is_none(name: str, noise: float) -> None:
    with pytest.raises(HdnnError, match="noise is an amplitude"):
        PROBLEMS[name].draw(4, None, noise)


# --------------------------------------------------------------------------------------- splits
@every_problem
@every_kind
def test_a_split_has_two_disjoint_halves_of_every_class(name: str, kind: str) -> None:
    data = split(name, kind, seed=7)
    assert data.X.shape == data.X_test.shape == (5000, 2)
    assert data.y.shape == data.y_test.shape == (5000,)
    assert len(rows(data.X) | rows(data.X_test)) == 10_000
    assert (data.source, data.kind, data.classes) == (name, "planar", tuple(range(CLASSES[name])))
    even = 5000 / CLASSES[name]
    for labels in (data.y, data.y_test):
        counts = labels.bincount(minlength=CLASSES[name])
        assert (counts - even).abs().max() < 4 * math.sqrt(even)


@every_problem
def test_the_paper_split_is_one_shuffled_sample_dealt_out_in_turn(name: str) -> None:
    generator = torch.Generator().manual_seed(4)
    X, labels = PROBLEMS[name].draw(1000, generator, PROBLEMS[name].noise)
    order = torch.randperm(1000, generator=generator)
    data = split(name, size=1000, seed=4)
    assert torch.equal(data.X, X[order][0::2])
    assert torch.equal(data.y, labels[order][0::2])
    assert torch.equal(data.X_test, X[order][1::2])
    assert torch.equal(data.y_test, labels[order][1::2])


@every_problem
def test_the_independent_split_is_two_noisy_samples(name: str) -> None:
    generator = torch.Generator().manual_seed(4)
    row = PROBLEMS[name]
    assert row.independent_noise > 0
    data = split(name, "independent", size=1000, seed=4)
    for X, labels in ((data.X, data.y), (data.X_test, data.y_test)):
        expected = row.draw(500, generator, row.independent_noise)
        assert torch.equal(X, expected[0])
        assert torch.equal(labels, expected[1])


@every_problem
@every_kind
def test_a_seed_means_the_same_points_in_every_precision(name: str, kind: str) -> None:
    double = split(name, kind, size=200, seed=1)
    again = split(name, kind, size=200, seed=1)
    other = split(name, kind, size=200, seed=2)
    torch.set_default_dtype(torch.float32)
    single = split(name, kind, size=200, seed=1)
    for part in ("X", "X_test"):
        assert torch.equal(getattr(double, part), getattr(again, part))
        assert not torch.equal(getattr(double, part), getattr(other, part))
        assert getattr(single, part).dtype == torch.float32
        assert torch.equal(getattr(single, part), getattr(double, part).float())
    for part in ("y", "y_test"):
        assert torch.equal(getattr(single, part), getattr(double, part))


def test_a_split_leaves_the_default_generator_alone() -> None:
    before = torch.get_rng_state()
    split("peaks", size=100).hold_out()
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "moons"}, "double-moons"),
        ({"kind": "papers"}, "did you mean 'paper'"),
        ({"size": 9}, "even number of points"),
        ({"size": 0}, "even number of points"),
        ({"size": 10.0}, "even number of points"),
        ({"seed": -1}, "seed is an integer"),
        ({"seed": 1.5}, "seed is an integer"),
        ({"seed": True}, "seed is an integer"),
    ],
    ids=str,
)
def test_splits_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(HdnnError, match=message):
        split(**({"name": "swiss-roll"} | options))


# ----------------------------------------------------------------------------------- validation
@every_problem
def test_validation_data_are_cut_from_the_training_data_class_by_class(name: str) -> None:
    data = split(name, size=1000, seed=2)
    smaller = data.hold_out(0.3, seed=5)
    assert rows(smaller.X) | rows(smaller.X_test) == rows(data.X)
    assert not rows(smaller.X) & rows(smaller.X_test)
    whole, held = data.y.bincount(), smaller.y_test.bincount()
    assert ((held - 0.3 * whole).abs() <= 0.5).all()
    assert torch.equal(held + smaller.y.bincount(), whole)
    assert torch.equal(smaller.X_test, data.hold_out(0.3, seed=5).X_test)
    assert not torch.equal(smaller.X_test, data.hold_out(0.3, seed=6).X_test)


@given(
    labels=st.lists(st.integers(0, 3), min_size=2, max_size=40),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**63 - 1),
)
def test_holding_out_keeps_some_of_every_class(
    labels: list[int], fraction: float, seed: int
) -> None:
    counts = np.bincount(labels)
    if counts.max() < 2:
        with pytest.raises(HdnnError, match="too few rows"):
            holdout(len(labels), fraction, seed, labels)
        return
    kept, held = holdout(len(labels), fraction, seed, np.array(labels))
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(len(labels)))
    assert kept.tolist() == sorted(kept.tolist())
    inside = np.bincount(np.array(labels)[held.numpy()], minlength=len(counts))
    for count, taken in zip(counts, inside, strict=True):
        assert taken == (0 if count < 2 else min(max(round(fraction * count), 1), count - 1))


def test_holding_out_without_labels() -> None:
    kept, held = holdout(100, 0.25, seed=3)
    assert (len(kept), len(held)) == (75, 25)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 2, math.nan])
def test_fractions_that_are_none(fraction: float) -> None:
    with pytest.raises(HdnnError, match="fraction is a share"):
        holdout(10, fraction)


def test_holding_out_needs_rows_and_fitting_labels() -> None:
    with pytest.raises(HdnnError, match="too few rows"):
        holdout(1)
    with pytest.raises(HdnnError, match="3 rows need 3 labels"):
        holdout(3, labels=[0, 1])
