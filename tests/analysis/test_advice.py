"""Advice on steps: right for an oscillator, helpful where it is followed; and what broke."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import Tensor

import hdnn
from catalogue import build
from hdnn.analysis import advise
from hdnn.config import TrainingConfig
from hdnn.data import Dataset
from hdnn.errors import HdnnError
from hdnn.fields import HamiltonianField, Weights
from hdnn.schemes import ForwardEuler, SemiImplicitEuler
from hdnn.training import DivergenceError, Trainer


def test_advice_that_is_followed_helps() -> None:
    y = torch.randn(40, 4)
    for name in ("H1", "H2", "MS3"):
        net = build(name, layers=16, T=30.0)
        found = advise(net, y)
        assert not found.ok
        assert found.T_range is not None
        assert found.layers is not None
        assert found.layers > 16
        better = build(name, layers=16, T=found.T_range[1])
        better.load_state_dict(net.state_dict())
        again = advise(better, y)
        assert (again.added or 1.0) < (found.added or 1.0)
        assert again.T_range is not None
        assert again.T_range[0] <= again.T_range[1]
        assert float(again.forward_norms.max()) < float(found.forward_norms.max())


def test_the_factor_of_forward_euler_is_its_amplification() -> None:
    """A linear rotation of frequency 1: |1 + i h| in every step, and 1 in splitting schemes."""
    for scheme, factor in ((ForwardEuler(), (1 + 0.1**2) ** 10), (SemiImplicitEuler(), 1.0)):
        weights = Weights("block-diagonal", features=2, layers=20)
        field = HamiltonianField("J1", weights, activation="identity")
        net = hdnn.HamiltonianNetwork(field, scheme, step=0.1)
        with torch.no_grad():
            weights.theta.fill_(1.0)
        found = advise(net, torch.randn(3, 2))
        assert found.added == pytest.approx(factor, rel=1e-2)
        assert found.turns is not None
        assert found.turns.tolist() == pytest.approx([0.1] * 20)
        assert found.ok
        assert found.T_range is not None
        assert found.T_range[0] == pytest.approx(1.0)
        if factor > 1:  # 2 = (1 + h^2)^10
            assert found.T_range[1] == pytest.approx(20 * (2**0.1 - 1) ** 0.5, rel=1e-2)
        else:
            assert found.T_range[1] == pytest.approx(40.0, rel=1e-2)


def test_which_layer_breaks() -> None:
    net = build("H1", layers=6, step=0.1)
    with torch.no_grad():
        net.field.weights.theta[3].mul_(100.0)
        net.field.weights.theta[:3] *= 0.1
        net.field.weights.beta.zero_()
    found = advise(net, 1e-3 * torch.randn(5, 4))
    assert (found.worst, found.breaks) == (3, 3)
    assert "explode" in str(found)
    vanishing = advise(build("FCNN", layers=60, scale=0.3), torch.randn(5, 4))
    assert vanishing.T_range is None
    assert "vanish" in vanishing.remedy
    assert json.dumps(vanishing.to_dict())


def test_numbers_that_are_not_finite_are_explained() -> None:
    """As after a training of one's own that has diverged."""
    y = torch.randn(5, 4)
    net = build("H1", layers=6, T=1.0)
    limit = advise(net, y).T_range
    with torch.no_grad():
        net.field.weights.theta[2] = torch.nan
    broken = advise(net, y)
    assert broken.breaks == 2
    assert "weights of layer 2 are not finite" in broken.remedy
    assert "restore earlier weights" in broken.remedy
    assert limit is not None
    assert broken.T_range is not None  # from the layers whose weights are finite
    assert 0 < broken.T_range[1] < 10 * limit[1]
    with torch.no_grad():
        net.field.weights.theta.fill_(torch.nan)
    assert advise(net, y).T_range is None
    y[3] = torch.nan
    assert "1 of 5 samples are not finite" in str(advise(build("H1"), y)).replace("\n", " ")
    overflow = advise(build("H1", layers=80, step=1e5, activation="relu"), torch.randn(5, 4))
    assert "its state is not finite" in overflow.remedy
    assert "use T <= " in overflow.remedy


@pytest.mark.parametrize("T", [1e100, 1e-100])
@pytest.mark.parametrize("name", ["H1", "MS1", "MS3", "ResNet"])
def test_advice_for_any_step(name: str, T: float) -> None:
    net, y = build(name, layers=16, T=T), torch.randn(20, 4)
    found = advise(net, y)
    assert str(found)
    assert json.loads(json.dumps(found.to_dict()))
    assert found.T_range is not None
    assert found.step_range is not None
    for low, high in (found.T_range, found.step_range):
        assert 0 < low <= high < math.inf
    assert found.ok == (T < 1)
    assert isinstance(found.layers, int)


@pytest.mark.parametrize("size", [1e200, 1e-200, 0.0, math.nan, math.inf])
@pytest.mark.parametrize("name", ["H1", "MS1", "MS3", "FCNN"])
def test_advice_for_any_weights_and_data(name: str, size: float) -> None:
    for net, y in (
        (build(name, layers=6), torch.randn(5, 4) * size),
        (build(name, layers=6), torch.randn(5, 4)),
    ):
        if bool((y.abs() < 10).all()):
            with torch.no_grad():
                net.field.weights.theta.mul_(size)
        found = advise(net, y)
        assert str(found)
        low, high = found.T_range or (0.0, 0.0)
        assert low <= high
        assert found.breaks is not None or bool(found.forward_norms.isfinite().all())


def test_a_failure_of_lapack_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(A: Tensor) -> Tensor:
        raise torch.linalg.LinAlgError("the algorithm failed to converge")

    monkeypatch.setattr("hdnn.analysis.advice.unit_eigenvalues", fails)
    with pytest.raises(HdnnError, match=r"no advice.*converge"):
        advise(build("H1"), torch.randn(5, 4))


def test_a_training_that_diverges_is_advised() -> None:
    net = build("H1", features=4, layers=3, T=1e39, dtype=torch.float32)
    X, target = torch.randn(64, 4, dtype=torch.float32), torch.arange(64) % 2
    with pytest.raises(DivergenceError, match=r"layer 0 breaks first.*use T <= [0-9.]+ \(h <= "):
        Trainer(hdnn.Model(net, 1), TrainingConfig(epochs=1)).fit(Dataset.from_arrays(X, target))
