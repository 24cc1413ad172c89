"""J is skew, whatever it is: named, given, learned, a function of the state, the inverse of K'."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import hdnn
from catalog import build
from hdnn.errors import HdnnError
from hdnn.fields import HamiltonianField, Learned, Weights, canonical, signs


@pytest.mark.parametrize(
    ("J", "message"),
    [
        (np.eye(4), "skew"),
        (np.full((4, 4), np.nan), "skew"),
        (np.stack([signs(4).numpy(), np.ones((4, 4))]), "skew"),
        (signs(6).numpy(), r"\(4, 4\)"),
        (Learned(6), "4"),
        (np.zeros((3, 4)), r"\(3, 4\)"),
        (np.zeros((5, 4, 4)), "5 layers"),
        ("J3", "J1, J2"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_impossible_J_raises(J: Any, message: str) -> None:
    with pytest.raises(HdnnError, match=message):
        HamiltonianField(J, Weights("dense", features=4, layers=2))


def test_learned_J_of_another_structure_raises() -> None:
    with pytest.raises(HdnnError, match="unknown structure of J 'dense': known are skew"):
        Learned(4, "dense")


@pytest.mark.parametrize("structure", ["skew", "off-diagonal-skew"])
@pytest.mark.parametrize("layers", [None, 3])
def test_learned_J_starts_at_init_and_stays_skew(structure: str, layers: int | None) -> None:
    start = canonical(6, torch.randn(3, 3))
    J = Learned(6, structure, layers=layers, init=start)
    torch.testing.assert_close(J.matrix(), start.expand_as(J.matrix()), rtol=0, atol=0)
    torch.nn.init.normal_(J.theta)
    assert torch.equal(J.matrix(), -J.matrix().mT)
    J.matrix()[..., 0, 5].sum().backward()
    assert (J.theta.grad != 0).sum() == (layers or 1)


def test_the_zeros_of_X_are_values_not_structure() -> None:
    """Weights that are loaded bring their own X."""
    net, other = build("HS", X=torch.zeros(2, 2)), build("HS", X=torch.randn(2, 2))
    net.load_state_dict(other.state_dict())
    y = torch.randn(5, 4)
    assert torch.equal(net(y), other(y))


@pytest.mark.parametrize(("name", "features"), [("MS1", 4), ("MS2", 4), ("MS2", 5)])
def test_singular_K_has_no_J_but_the_network_runs(name: str, features: int) -> None:
    net = build(name, features=features)
    with torch.no_grad():
        net.field.weights.theta[1].zero_()
    message = "K_1 is singular" if features == 4 else "odd width.*augment"
    with pytest.raises(HdnnError, match=message):
        _ = net.J
    assert net(torch.randn(2, features)).shape == (2, features)


def field_of(function: Any) -> HamiltonianField:
    return HamiltonianField(function, Weights("dense", features=4, layers=3))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda y, t: torch.eye(4).expand(*y.shape, 4), "skew"),
        (lambda y, t: torch.full((4, 4), torch.nan), "finite"),
        (lambda y, t: signs(3), r"shape \(2, 4, 4\)"),
        (lambda y, t: 1.0, "got float"),
    ],
    ids=["not skew", "not finite", "narrow", "a number"],
)
def test_function_that_gives_no_J_raises(function: Any, message: str) -> None:
    with pytest.raises(HdnnError, match=message):
        field_of(function)


def test_J_of_the_state_and_of_baselines_raises() -> None:
    field = field_of(lambda y, t: (1 + y.square().sum(-1))[..., None, None] * signs(4).to(y))
    for net in (hdnn.HamiltonianNetwork(field, T=1.0), build("ResNet"), build("FCNN")):
        with pytest.raises(HdnnError, match=r"depends on the state|is a baseline"):
            _ = net.J
