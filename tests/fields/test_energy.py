"""Fields of any energy: the gradient comes from autograd, states are canonical."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hdnn
from catalogue import skew
from hdnn.errors import HdnnError, IncompatibleError
from hdnn.fields import EnergyField, InverseTranspose, canonical
from hdnn.schemes import SCHEMES


def coupled(x: Tensor, t: Any) -> Tensor:
    """Any number of samples and ensembles; not separable, changes with time."""
    return (1 + t) * (x.square().sum(-1) / 2 + (x[..., 0] * x[..., 3]).sin())


def kept(x: Tensor, t: Any) -> Tensor:
    """V(y) + U(z)."""
    return x[..., :2].cos().sum(-1) + x[..., 2:].square().sum(-1)


def test_velocity_is_J_times_the_gradient_that_autograd_finds() -> None:
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
    seen = []

    def energy(x: Tensor, t: Any) -> Tensor:
        seen.append(tuple(x.shape))
        return (x[:, 0] ** 4 + x[:, 1]).sum((-2, -1))

    field = EnergyField("J1", energy, channels=2)
    y = torch.randn(3, 2, 4, 5)
    H = field.energy(y)
    assert H.shape == (3,)
    torch.testing.assert_close(H, (y[:, 0] ** 4 + y[:, 1]).sum((-2, -1)))
    cubes, ones = 4 * y[:, 0] ** 3, torch.ones(3, 4, 5)
    torch.testing.assert_close(field.velocity(y), torch.stack([ones, -cubes], 1))
    torch.testing.assert_close(field.gradient(y), torch.stack([cubes, ones], 1))
    assert seen == [(3, 2, 4, 5)] * 3


class Learnt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 5)

    def forward(self, x: Tensor, t: Any) -> Tensor:
        return torch.tanh(self.hidden(x)).sum(-1)


@pytest.mark.parametrize("scheme", ["ForwardEuler", "RK4", "ImplicitMidpoint"])
def test_an_energy_with_parameters_is_trained(scheme: str) -> None:
    field = EnergyField("J1", Learnt(), features=4)
    net = hdnn.HamiltonianNetwork(field, SCHEMES[scheme](), layers=2, T=0.5)
    names = [name for name, _ in net.named_parameters()]
    assert names == ["field.function.hidden.weight", "field.function.hidden.bias"]

    def function(y: Tensor, *values: Tensor) -> Tensor:
        given = dict(zip(names, values, strict=True))
        return torch.func.functional_call(net, given, (y,))

    values = tuple(p.detach().requires_grad_() for p in net.parameters())
    y = torch.randn(2, 4, requires_grad=True)
    assert torch.autograd.gradcheck(function, (y, *values))


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if SCHEMES[name]().needs_separable])
def test_a_promise_of_halves_is_what_splitting_needs(scheme: str) -> None:
    method = SCHEMES[scheme]()
    with pytest.raises(IncompatibleError, match="separable"):
        hdnn.HamiltonianNetwork(EnergyField("J1", kept, features=4), method, layers=3, T=1.0)
    promised = EnergyField(canonical(4, torch.randn(2, 2)), kept, features=4, separable=True)
    net = hdnn.HamiltonianNetwork(promised, method, layers=3, T=1.0)
    y = torch.randn(3, 4)
    torch.testing.assert_close(net.inverse(net(y)), y, rtol=0, atol=1e-12)
    M = torch.autograd.functional.jacobian(net, y[0])
    torch.testing.assert_close(M @ net.J @ M.mT, net.J, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [{"J": "J2"}, {"J": "J1", "dissipation": torch.eye(4)}, {"J": skew(4)}],
    ids=["J2", "R within a half", "J within a half"],
)
def test_a_promise_that_J_or_R_breaks_raises(options: dict[str, Any]) -> None:
    J = options.pop("J")
    with pytest.raises(IncompatibleError, match="separable field needs"):
        EnergyField(J, kept, features=4, separable=True, **options)


def test_J_that_inverts_K_raises() -> None:
    with pytest.raises(HdnnError, match="needs weights K"):
        EnergyField(InverseTranspose(), kept, features=4)
