"""The planar problems lie where they should, and their splits are what they say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from hdnn.data import PROBLEMS, SPLITS, double_moons, peaks, split, swiss_roll
from hdnn.data.planar import PEAKS_LEVELS
from hdnn.errors import HdnnError

every_problem = pytest.mark.parametrize("name", PROBLEMS)
every_kind = pytest.mark.parametrize("kind", SPLITS)


# --- geometry -------------------------------------------------------------------------------------


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
    assert [PROBLEMS[name].noise for name in PROBLEMS] == [0.0, 0.15, 0.0]
    X, labels = double_moons(400, generator, noise=0.0)
    pair = 2.0 * (torch.arange(400) // 2 % 2)
    x, y = X[:, 0] - pair, X[:, 1]
    up = labels == 0
    torch.testing.assert_close(x[up] ** 2 + y[up] ** 2, torch.ones(200))
    torch.testing.assert_close((1 - x[~up]) ** 2 + (0.5 - y[~up]) ** 2, torch.ones(200))
    assert (y[up] >= 0).all()
    assert (y[~up] <= 0.5).all()


def test_peaks_are_bands_of_equal_area(generator: torch.Generator) -> None:
    X, labels = peaks(20_000, generator)
    x, y = X.unbind(1)
    assert 2.99 < X.abs().max() <= 3
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
    assert 0.299 < shift.abs().max() <= 0.3
    assert shift.mean().abs() < 0.01
    torch.testing.assert_close(shift.std(), torch.tensor(0.3 / math.sqrt(3)), rtol=0.03, atol=0)
    assert np.corrcoef(shift.T.numpy())[0, 1] == pytest.approx(0, abs=0.06)


# --- splits ---------------------------------------------------------------------------------------


@every_problem
def test_the_paper_split_is_one_shuffled_sample_dealt_out_in_turn(name: str) -> None:
    generator, problem = torch.Generator().manual_seed(4), PROBLEMS[name]
    X, labels = problem.draw(1000, generator, problem.noise)
    order = torch.randperm(1000, generator=generator)
    data = split(name, size=1000, seed=4)
    for k, (part, y) in enumerate([(data.X, data.y), (data.X_test, data.y_test)]):
        assert torch.equal(part, X[order][k::2])
        assert torch.equal(y, labels[order][k::2])
    assert (data.source, data.kind) == (name, "planar")
    assert data.classes == tuple(range(problem.classes)) == tuple(labels.unique().tolist())


@every_problem
def test_the_independent_split_is_two_noisy_samples(name: str) -> None:
    generator, problem = torch.Generator().manual_seed(4), PROBLEMS[name]
    assert problem.independent_noise > 0
    data = split(name, "independent", size=1000, seed=4)
    for X, labels in ((data.X, data.y), (data.X_test, data.y_test)):
        expected = problem.draw(500, generator, problem.independent_noise)
        assert torch.equal(X, expected[0])
        assert torch.equal(labels, expected[1])


@every_kind
def test_a_seed_means_the_same_points_in_every_precision(kind: str) -> None:
    double, other = (split("double-moons", kind, size=200, seed=seed) for seed in (1, 2))
    torch.set_default_dtype(torch.float32)
    before = torch.get_rng_state()
    single = split("double-moons", kind, size=200, seed=1)
    assert torch.equal(before, torch.get_rng_state())
    for part in ("X", "X_test"):
        assert not torch.equal(getattr(double, part), getattr(other, part))
        assert getattr(single, part).dtype == torch.float32
        assert torch.equal(getattr(single, part), getattr(double, part).float())


def test_impossible_splits_raise() -> None:
    wrong: list[tuple[Any, str]] = [
        (("moons",), "did you mean 'double-moons'"),
        (("peaks", "papers"), "did you mean 'paper'"),
        (("peaks", "paper", 9), "even number of points"),
        (("peaks", "paper", 0), "even number of points"),
    ]
    for options, message in wrong:
        with pytest.raises(HdnnError, match=message):
            split(*options)
