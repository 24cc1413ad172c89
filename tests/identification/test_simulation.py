"""Free runs and predictions, against loops and formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hdnn.data import Recordings
from hdnn.identification.simulation import Fit, free_run, predict, scored, simulate
from hdnn.statespace import StateSpace


def model_of() -> StateSpace:
    model = StateSpace(inputs=1, outputs=2, states=3, units=4, scale=0.8, learn_initial=True)
    for parameter in (model.x0, model.weights[0].D, model.weights[0].c):
        torch.nn.init.normal_(parameter)
    return model


@torch.no_grad()
def test_predictions_follow_the_formula() -> None:
    model, r, steps = model_of(), 0.3, 3
    u, y = torch.randn(12, 1), torch.randn(12, 2)
    found = predict(model, u.numpy(), y.numpy(), steps, r)
    cell, C = model.assemble(), model.weights[0].C
    gain = C.mT @ torch.linalg.inv(C @ C.mT + r * torch.eye(2))
    x = model.x0
    for t in range(12 - steps):
        x = x + gain @ (y[t] - cell.step(x, u[t])[1])
        ahead = x
        for k in range(steps):
            ahead, _ = cell.step(ahead, u[t + k])
        assert np.allclose(found[t + steps], cell.step(ahead, u[t + steps])[1], atol=1e-12)
        x, _ = cell.step(x, u[t])
    assert np.allclose(found[:steps], free_run(model, u.numpy())[:steps])


@pytest.mark.parametrize("steps", [1, 4])
def test_infinite_r_is_a_free_run_and_exact_measurements_change_nothing(steps: int) -> None:
    model, u = model_of(), np.random.default_rng(0).standard_normal((30, 1))
    y = free_run(model, u)
    assert np.allclose(predict(model, u, y + 1, steps, np.inf), y, atol=1e-12)
    assert np.allclose(predict(model, u, y, steps, 0.1), y, atol=1e-12)
    assert np.allclose(predict(model, u[:2], y[:2], 4, 0.1), y[:2])


@torch.no_grad()
def test_the_correction_brings_no_two_states_apart() -> None:
    C = torch.randn(2, 5)
    for r in (1e-6, 0.1, 10.0):
        correct = torch.eye(5) - C.mT @ torch.linalg.inv(C @ C.mT + r * torch.eye(2)) @ C
        assert float(torch.linalg.matrix_norm(correct, 2)) <= 1 + 1e-12


def test_fit_is_one_for_exact_and_zero_for_the_mean() -> None:
    y = np.random.default_rng(0).standard_normal((50, 2)) * [1.0, 100.0]
    assert Fit.of([y], [y]) == Fit(1.0, (0.0, 0.0))
    mean = Fit.of([y[:20], y[20:]], [np.tile(y.mean(0), (20, 1)), np.tile(y.mean(0), (30, 1))])
    assert mean.fit == pytest.approx(0.0)
    assert mean.rmse == pytest.approx(tuple(y.std(0)))
    off = Fit.of([y], [y + np.array([0.0, 100.0])])
    assert off.fit == pytest.approx(
        1 - 100 * np.sqrt(50) / np.linalg.norm(y[:, 1] - y[:, 1].mean()) / 2
    )
    assert str(off).startswith("fit ")


@pytest.mark.parametrize("level", [0.0, 0.1, -3e7])
def test_a_constant_output_has_no_fit(level: float) -> None:
    """Whatever the rounding of its mean; the number stays finite, and 1 where it is exact."""
    y = np.stack([np.full(9999, level), np.arange(9999.0)], 1)
    found = Fit.of([y], [y + 10])
    assert found.constant
    assert np.isfinite(found.fit)
    assert str(found) == "fit constant, RMSE 10, 10"
    assert Fit.of([y], [y]).fit == 1.0
    assert Fit.of([y * (1 + 2e-16)], [y]).percent == "constant"


def test_a_fit_of_an_output_that_hardly_moves_is_no_long_number() -> None:
    y = 5 + 1e-6 * np.random.default_rng(0).standard_normal((200, 1))
    found = Fit.of([y], [y + 1])
    assert found.fit < -1e5
    assert not found.constant
    assert found.percent == "below -1000 %"
    assert [Fit(fit, ()).percent for fit in (-10.0, -10.1)] == ["-1000.0 %", "below -1000 %"]


def test_simulations_begin_where_the_first_outputs_say_and_skip_them() -> None:
    model, u = model_of(), np.random.default_rng(0).standard_normal((80, 1))
    y = free_run(model, u, torch.randn(3))
    data = Recordings((u,), (y,), skip=(30,))
    assert np.allclose(simulate(model, data)[0], y, atol=1e-6)
    wrong = y.copy()
    wrong[:30] += 1
    assert scored(data, [wrong]).fit == 1.0
