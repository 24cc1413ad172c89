"""Advice on steps: right for an oscillator, helpful where it is followed; and what broke."""

from __future__ import annotations

import json
import math

import pytest
import torch

import hdnn
from catalog import build
from hdnn.analysis import advise
from hdnn.fields import HamiltonianField, Weights
from hdnn.schemes import ForwardEuler, Scheme, SemiImplicitEuler


@pytest.mark.parametrize("name", ["H1", "H2", "MS3"])
def test_advice_that_is_followed_helps(name: str) -> None:
    net, y = build(name, layers=16, T=30.0), torch.randn(40, 4)
    before = advise(net, y)
    assert not before.ok
    assert before.layers is not None
    assert before.layers > 16
    assert before.T_range is not None
    better = build(name, layers=16, T=before.T_range[1])
    better.load_state_dict(net.state_dict())
    after = advise(better, y)
    assert (after.added or 1.0) < (before.added or 1.0)
    assert float(after.forward_norms.max()) < float(before.forward_norms.max())


@pytest.mark.parametrize(
    ("scheme", "factor", "limit"),
    [
        (ForwardEuler(), (1 + 0.1**2) ** 10, 20 * (2**0.1 - 1) ** 0.5),  # 2 = (1 + h^2)^10
        (SemiImplicitEuler(), 1.0, 40.0),  # 2 radians in each of 20 steps
    ],
)
def test_a_rotation_of_frequency_one(scheme: Scheme, factor: float, limit: float) -> None:
    """Forward Euler multiplies amplitudes by |1 + i h| in every step, splitting schemes by 1."""
    weights = Weights("block-diagonal", features=2, layers=20)
    field = HamiltonianField("J1", weights, activation="identity")
    net = hdnn.HamiltonianNetwork(field, scheme, step=0.1)
    with torch.no_grad():
        weights.theta.fill_(1.0)
    advice = advise(net, torch.randn(3, 2))
    assert advice.ok
    assert advice.added == pytest.approx(factor, rel=1e-2)
    assert advice.turns is not None
    assert advice.turns.tolist() == pytest.approx([0.1] * 20)
    assert advice.T_range == pytest.approx((1.0, limit), rel=1e-2)


def test_which_layer_breaks() -> None:
    net = build("H1", layers=6, step=0.1)
    with torch.no_grad():
        net.field.weights.theta[3].mul_(100.0)
        net.field.weights.theta[:3] *= 0.1
        net.field.weights.beta.zero_()
    advice = advise(net, 1e-3 * torch.randn(5, 4))
    assert (advice.worst, advice.breaks) == (3, 3)
    assert "explode" in str(advice)
    vanishing = advise(build("FCNN", layers=60, scale=0.3), torch.randn(5, 4))
    assert vanishing.T_range is vanishing.step_range is None
    assert "vanish" in vanishing.remedy
    assert advise(build("FCNN", layers=1), torch.randn(5, 4)).remedy == "nothing to change"


def test_weights_states_and_data_that_are_not_finite() -> None:
    """As after a custom training that has diverged."""
    net, y = build("H1", layers=6, T=1.0), torch.randn(5, 4)
    limit = advise(net, y).T_range
    with torch.no_grad():
        net.field.weights.theta[2] = torch.nan
    broken = advise(net, y)
    assert broken.breaks == 2
    assert "weights of layer 2 are not finite" in broken.remedy
    assert limit is not None
    assert broken.T_range is not None  # from the layers whose weights are finite
    assert 0 < broken.T_range[1] < 10 * limit[1]
    assert "weights of layer 2" in advise(net, torch.full_like(y, torch.nan)).remedy
    y[3] = torch.nan
    assert "1 of 5 samples are not finite" in advise(build("H1"), y).remedy
    overflow = advise(build("H1", layers=80, step=1e5, activation="relu"), torch.randn(5, 4))
    assert "its state is not finite" in overflow.remedy
    assert "use T <= " in overflow.remedy


@pytest.mark.parametrize("T", [1e100, 1e-100])
@pytest.mark.parametrize("name", ["H1", "MS1", "ResNet"])
def test_any_step_gives_finite_limits(name: str, T: float) -> None:
    advice = advise(build(name, layers=16, T=T), torch.randn(20, 4))
    assert json.loads(json.dumps(advice.to_dict()))["remedy"] == advice.remedy
    low, high = advice.T_range or (math.nan, math.nan)
    assert 0 < low <= high < math.inf
    assert advice.ok == (T < 1)
    assert isinstance(advice.layers, int)


@pytest.mark.parametrize("size", [1e200, 1e-200, 0.0, math.nan, math.inf])
@pytest.mark.parametrize("name", ["H1", "FCNN"])
def test_any_size_of_weights_and_data_gives_advice(name: str, size: float) -> None:
    scaled = build(name, layers=6)
    with torch.no_grad():
        scaled.field.weights.theta.mul_(size)
    for net, scale in ((build(name, layers=6), size), (scaled, 1.0)):
        advice = advise(net, scale * torch.randn(5, 4))
        low, high = advice.T_range or (0.0, 0.0)
        assert low <= high
        assert advice.breaks is not None or bool(advice.forward_norms.isfinite().all())
        assert str(advice)
