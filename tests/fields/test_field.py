"""Fields of any energy: the gradient comes from autograd, states are canonical."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hdnn
from catalog import NAMES, as_function, build, skew, structure_defect
from hdnn.errors import HdnnError, IncompatibleError
from hdnn.fields import ActivationField, EnergyField, HamiltonianField, Weights, canonical
from hdnn.schemes import SCHEMES
from hdnn.testing import assert_invertible


def coupled(x: Tensor, t: Any) -> Tensor:
    """Any number of samples and ensembles; not separable, changes with time."""
    return (1 + t) * (x.square().sum(-1) / 2 + (x[..., 0] * x[..., 3]).sin())


def split(x: Tensor, t: Any) -> Tensor:
    """V(y) + U(z)."""
    return x[..., :2].cos().sum(-1) + x[..., 2:].square().sum(-1)


def test_velocity_is_J_times_the_gradient_of_autograd() -> None:
    J, R = skew(4), torch.diag(torch.rand(4))
    field = EnergyField(J, coupled, features=4, dissipation=R)
    y = torch.randn(2, 3, 4, requires_grad=True)
    H = field.energy(y, t=0.5)
    assert H.shape == (2, 3)
    (g,) = torch.autograd.grad(H.sum(), y)
    torch.testing.assert_close(field.gradient(y, t=0.5), g)
    torch.testing.assert_close(field.velocity(y, t=0.5), g @ (J - R).mT)


def test_over_channels_an_energy_sees_samples_channels_and_pixels() -> None:
    """(B, n, *spatial): in energy and gradient as in velocity."""

    def energy(x: Tensor, t: Any) -> Tensor:
        return (x[:, 0] ** 4 + x[:, 1]).sum((-2, -1))

    field = EnergyField("J1", energy, channels=2)
    y = torch.randn(3, 2, 4, 5)
    torch.testing.assert_close(field.energy(y), (y[:, 0] ** 4 + y[:, 1]).sum((-2, -1)))
    cubes, ones = 4 * y[:, 0] ** 3, torch.ones(3, 4, 5)
    torch.testing.assert_close(field.velocity(y), torch.stack([ones, -cubes], 1))
    torch.testing.assert_close(field.gradient(y), torch.stack([cubes, ones], 1))


class Potential(nn.Linear):
    def forward(self, x: Tensor, t: Any) -> Tensor:
        return torch.tanh(super().forward(x)).sum(-1)


@pytest.mark.parametrize("scheme", ["ForwardEuler", "RK4", "ImplicitMidpoint"])
def test_an_energy_with_parameters_is_trained(scheme: str) -> None:
    field = EnergyField("J1", Potential(4, 5), features=4)
    net = hdnn.HamiltonianNetwork(field, SCHEMES[scheme](), layers=2, T=0.5)
    function, parameters = as_function(net)
    assert len(parameters) == 2
    assert torch.autograd.gradcheck(function, (torch.randn(2, 4, requires_grad=True), *parameters))


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if SCHEMES[name]().needs_separable])
def test_splitting_needs_the_promise_of_a_separable_energy(scheme: str) -> None:
    method = SCHEMES[scheme]()
    with pytest.raises(IncompatibleError, match="separable"):
        hdnn.HamiltonianNetwork(EnergyField("J1", split, features=4), method, layers=3, T=1.0)
    promised = EnergyField(canonical(4, torch.randn(2, 2)), split, features=4, separable=True)
    net = hdnn.HamiltonianNetwork(promised, method, layers=3, T=1.0)
    y = torch.randn(3, 4)
    assert_invertible(net, net.inverse, y, tolerance=3e-13)
    assert structure_defect(net, y[0], net.J) < 1e-13


@pytest.mark.parametrize(
    ("J", "R"), [("J2", None), (skew(4), None), ("J1", torch.eye(4))], ids=["J2", "skew", "R"]
)
def test_separable_promise_that_J_or_R_breaks_raises(J: Any, R: Any) -> None:
    with pytest.raises(IncompatibleError, match="separable field needs"):
        EnergyField(J, split, features=4, separable=True, dissipation=R)


def test_a_field_says_what_holds() -> None:
    """`hamiltonian`, `conservative`, `separable`, of the catalog and of fields of one's own."""
    said = {name: build(name).field for name in NAMES}
    hamiltonian = {"MS1", "MS2", "MS3", "H1", "H2", "HS"}
    assert {name for name, field in said.items() if field.hamiltonian} == hamiltonian
    assert {name for name, field in said.items() if field.conservative} == hamiltonian
    assert {name for name, field in said.items() if field.separable} == {"MS1", "MS3", "HS"}
    damped = HamiltonianField("J1", Weights("dense", features=4, layers=2), dissipation=np.eye(4))
    assert damped.hamiltonian
    assert not damped.conservative
    plain = said["ResNet"]
    for ask in (plain.energy, plain.J_at, plain.gradient):
        with pytest.raises(HdnnError, match="is a baseline, not Hamiltonian"):
            ask(torch.zeros(3, 4))


@pytest.mark.parametrize(("features", "units", "turn"), [(4, 3, False), (4, 6, True), (3, 3, True)])
def test_units_that_do_not_match_the_features_raise(features: int, units: int, turn: bool) -> None:
    weights = Weights(np.ones((units, features), bool), features=features, layers=2)
    with pytest.raises(HdnnError, match=f"K has {units} for {features}"):
        ActivationField(weights, turn=turn)


@pytest.mark.parametrize(
    "R", [-np.eye(4), np.triu(np.ones((4, 4))), np.eye(3), np.full((4, 4), np.nan)], ids=str
)
def test_impossible_dissipation_raises(R: np.ndarray) -> None:
    with pytest.raises(HdnnError, match="dissipation R must be"):
        EnergyField("J1", split, features=4, dissipation=R)
