"""Forward sensitivities, factors, norms over samples and the product bound."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import jacrev, vmap

import hdnn
from catalogue import NAMES, build, every_pair
from hdnn.analysis import forward_sensitivities, layer_factors, norms, product_bound, sensitivities
from hdnn.errors import HdnnError


@every_pair()
def test_factors_multiply_to_both_sensitivities(name: str, scheme: str) -> None:
    net, y = build(name, scheme, layers=4, scale=0.5), torch.randn(3, 4)
    factors, forward = layer_factors(net, y), forward_sensitivities(net, y)
    backward = sensitivities(net, y)
    assert factors.shape == (4, 3, 4, 4)
    assert forward.shape == backward.shape == (5, 3, 4, 4)
    for l in range(5):
        whole = backward[l] @ forward[l]  # d y_N / d y_l  d y_l / d y_0
        torch.testing.assert_close(whole, backward[0], rtol=1e-9, atol=1e-10)
    for l in range(4):
        torch.testing.assert_close(backward[l + 1] @ factors[l], backward[l], rtol=1e-9, atol=1e-10)
    to_third = vmap(jacrev(lambda x: net.trajectory(x)[3]))(y)
    torch.testing.assert_close(forward[3], to_third.detach(), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    "options",
    [
        {"step": [0.1, 0.3, 0.2]},
        {"T": 1.0, "learn_steps": True},
        {"T": 1.0, "time_invariant": True},
    ],
    ids=["steps", "learned-steps", "time-invariant"],
)
def test_layers_side_by_side_are_the_layers(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, y = hdnn.network("H1", features=4, layers=3, **options), torch.randn(5, 4)
    monkeypatch.setattr("hdnn.analysis.sensitivity.ENTRIES", 100)  # two samples at a time
    backward, factors = sensitivities(net, y), layer_factors(net, y)
    for l in range(3):
        torch.testing.assert_close(backward[l + 1] @ factors[l], backward[l], rtol=1e-9, atol=1e-10)


def test_factors_in_other_layouts() -> None:
    net, images = build("H2"), build("H2", channels=4)
    images.load_state_dict(net.state_dict())
    y = torch.randn(5, 4, 2, 3)
    rows = y.movedim(1, -1)
    torch.testing.assert_close(layer_factors(images, y), layer_factors(net, rows))
    torch.testing.assert_close(forward_sensitivities(images, y), forward_sensitivities(net, rows))
    together = build("H2", ensemble=2)
    own = torch.randn(2, 5, 4)
    found = layer_factors(together, own)
    with torch.no_grad():
        for mine, theirs in zip(net.parameters(), together.parameters(), strict=True):
            mine.copy_(theirs[1])
    torch.testing.assert_close(found[:, 1], layer_factors(net, own[1]))
    assert layer_factors(build("H1", layers=0), torch.randn(3, 4)).shape == (0, 3, 4, 4)
    assert torch.equal(
        forward_sensitivities(build("H1", layers=0), torch.randn(3, 4)),
        torch.eye(4).expand(1, 3, 4, 4),
    )


def test_norms_are_of_every_sample_and_apart_from_that_of_the_mean() -> None:
    """Two rotations that cancel: each has norm 1, their mean has norm 0."""
    turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    found = norms(torch.stack([torch.stack([turn, -turn]), torch.stack([3 * turn, turn])]))
    assert found.mean.tolist() == pytest.approx([1.0, 2.0])
    assert found.minimum.tolist() == pytest.approx([1.0, 1.0])
    assert found.maximum.tolist() == pytest.approx([1.0, 3.0])
    assert found.smallest.tolist() == pytest.approx([1.0, 1.0])
    assert found.of_mean.tolist() == pytest.approx([0.0, 2.0])
    assert found.quantiles.shape == (5, 2)
    assert found.quantiles[found.levels.index(0.5)].tolist() == pytest.approx([1.0, 2.0])


def test_no_gradient_of_MS3_vanishes_at_depth_1024() -> None:
    """Sample by sample; the norm of the batch mean is another matter, see above."""
    for scale in (0.3, 1.0, 3.0):
        net = build("MS3", layers=1024, T=2.0, scale=scale)
        found = norms(sensitivities(net, 2 * torch.randn(20, 4)))
        assert float(found.minimum.min()) >= 1 - 1e-11


def test_norms_of_float32_and_of_what_is_not_finite() -> None:
    M = torch.randn(3, 7, 4, 4, dtype=torch.float32)
    M[1, 2, 0, 0] = torch.inf
    found = norms(M)
    assert found.mean.dtype == torch.float64
    assert found.maximum.isnan().tolist() == [False, True, False]
    assert float(found.maximum[0]) == pytest.approx(
        max(float(torch.linalg.matrix_norm(m.double(), 2)) for m in M[0])
    )
    for bad in (torch.zeros(3), torch.zeros(2, 3, 4, 5), torch.zeros(3, 0, 4, 4)):
        with pytest.raises(HdnnError, match="norms"):
            norms(bad)


@settings(max_examples=25)
@given(
    name=st.sampled_from(NAMES),
    layers=st.integers(0, 6),
    n=st.sampled_from((2, 4, 6)),
    activation=st.sampled_from(("tanh", "erf", "softsign")),
    scale=st.floats(0.01, 3.0),
)
def test_no_sample_exceeds_the_product_bound(
    name: str, layers: int, n: int, activation: str, scale: float
) -> None:
    net = build(name, features=n, layers=layers, activation=activation, scale=scale)
    found, bound = norms(sensitivities(net, torch.randn(9, n))), product_bound(net)
    assert bound.shape == (layers + 1,)
    assert bound[-1] == 1
    assert bool((found.maximum <= bound * (1 + 1e-12)).all())


def test_the_product_bound_is_attained() -> None:
    """Where sigma is at its steepest and all norms add up: scalars a and w, y = 0."""
    for name, carry in (("ResNet", 1), ("FCNN", 0)):
        net = build(name, features=1, layers=3)
        with torch.no_grad():
            net.field.weights.theta.copy_(torch.tensor([[1.0], [2.0], [3.0]]))
            net.field.weights.beta.zero_()
        h = net.h if carry else 1.0
        expected = [carry + h * w for w in (1.0, 2.0, 3.0)]
        bound = product_bound(net)
        assert float(bound[0]) == pytest.approx(expected[0] * expected[1] * expected[2])
        assert float(bound[2]) == pytest.approx(expected[2])
        assert float(norms(sensitivities(net, torch.zeros(1, 1))).maximum[0]) == pytest.approx(
            float(bound[0])
        )


def test_the_product_bound_elsewhere() -> None:
    assert product_bound(build("MS1", ensemble=2, dtype=torch.float32)).shape == (4, 2)
    with pytest.raises(HdnnError, match="RK4"):
        product_bound(build("H1", "RK4"))
    assert hdnn.analysis.norms is norms
