"""Hamiltonian fields: y' = (J - R) dH/dy, with J skew and R positive semidefinite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

import hdnn
from catalog import build, skew
from hdnn.fields import (
    ACTIVATIONS,
    STRUCTURES,
    HamiltonianField,
    Interconnection,
    Learned,
    Weights,
    canonical,
    signs,
)

N, L = 4, 3


def state_dependent(y: Tensor, t: Tensor | float) -> Tensor:
    """Skew for every y and t, and visibly a function of both."""
    r = (y**2).sum(-1)[..., None, None]
    return (1 + t) * canonical(N).to(y) + torch.sin(r) * signs(N).to(y)


def learned(layers: int | None = None) -> Interconnection:
    J = Learned(N, "skew", layers=layers)
    torch.nn.init.normal_(J.theta)
    return J


INTERCONNECTIONS: dict[str, Callable[[], Any]] = {
    "named": lambda: "J2",
    "constant": lambda: skew(N),
    "J(t)": lambda: skew(N, L),
    "learned": learned,
    "learned J(t)": lambda: learned(L),
    "J(y,t)": lambda: state_dependent,
}
CASES = [
    *((structure, "tanh", "named") for structure in STRUCTURES),
    *(("dense", sigma, "named") for sigma in ACTIVATIONS if sigma != "tanh"),
    *(("skew", "tanh", kind) for kind in INTERCONNECTIONS),
]


@pytest.mark.parametrize(("structure", "sigma", "kind"), CASES)
def test_velocity_is_J_times_the_gradient_of_the_energy(
    structure: str, sigma: str, kind: str
) -> None:
    weights, J = Weights(structure, features=N, layers=L), INTERCONNECTIONS[kind]()
    A = torch.randn(N, N)
    R = A @ A.mT
    free = HamiltonianField(J, weights, activation=sigma)
    damped = HamiltonianField(J, weights, activation=sigma, dissipation=R)
    y, t = torch.randn(2, 3, N), 0.7
    for layer in range(L):
        g = torch.func.grad(lambda y, j=layer: free.energy(y, j, t).sum())(y)
        torch.testing.assert_close(free.gradient(y, layer, t), g)
        J_here = free.J_at(y, layer, t)
        torch.testing.assert_close(J_here, -J_here.mT)
        f = free.velocity(y, layer, t)
        torch.testing.assert_close(f, (J_here @ g[..., None])[..., 0])
        # H' = dH/dy . y' vanishes without dissipation, and is -|R^(1/2) dH/dy|^2 with it.
        torch.testing.assert_close((f * g).sum(-1), torch.zeros(2, 3), rtol=0, atol=1e-10)
        loss = -((R @ g[..., None])[..., 0] * g).sum(-1)
        torch.testing.assert_close((damped.velocity(y, layer, t) * g).sum(-1), loss)


@pytest.mark.parametrize("name", ["MS1", "H2"])
def test_the_energy_of_a_convolution_sums_over_channels_and_pixels(name: str) -> None:
    """H = sum log cosh(K y + b); K' sigma(K y + b) is its derivative."""
    net = build(name, channels=4, kernel=3, scale=2.0)
    field, y = net.field, torch.randn(3, 4, 4, 3, requires_grad=True)
    H = field.energy(y, layer=1)
    units = F.conv2d(y, net.K[1], field.b[1], padding=1)
    torch.testing.assert_close(H, units.cosh().log().sum((1, 2, 3)))
    (gradient,) = torch.autograd.grad(H.sum(), y)
    torch.testing.assert_close(field.gradient(y, layer=1), gradient, rtol=1e-12, atol=1e-12)
    if name == "H2":
        J = torch.einsum("wr,brpq->bwpq", net.J, gradient)
        torch.testing.assert_close(field.velocity(y, layer=1), J, rtol=1e-12, atol=1e-12)


def test_energy_decreases_along_a_damped_network_and_stays_along_a_free_one() -> None:
    weights = Weights("dense", features=N, layers=200, time_invariant=True)
    for R, holds in ((None, False), (torch.eye(N) / 2, True)):
        field = HamiltonianField("J2", weights, dissipation=R)
        net = hdnn.HamiltonianNetwork(field, hdnn.schemes.RK4(), T=2.0)
        H = field.energy(net.trajectory(torch.randn(5, N)))
        assert bool((H.diff(dim=0) < -1e-6).all()) is holds
        assert bool(((H[-1] - H[0]).abs() < 1e-4).all()) is not holds


@given(
    graph=st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=5),
    kind=st.sampled_from(("J1", "J2", "R inside", "R across")),
)
def test_the_jacobian_of_a_graph_field_and_whether_it_is_separable(
    graph: list[list[bool]], kind: str
) -> None:
    """df/dy = (J - R) K' diag(sigma') K; what is declared from supports is what it shows."""
    R = {"R inside": torch.eye(4), "R across": torch.ones(4, 4)}.get(kind)
    J = "J2" if kind == "J2" else "J1"
    weights = Weights(graph, features=4, layers=1)
    field, y = HamiltonianField(J, weights, dissipation=R), torch.randn(4)
    M = torch.autograd.functional.jacobian(field.velocity, y)
    K, b, S = weights.K[0].detach(), weights.b[0].detach(), field.J_minus_R()
    assert torch.equal(K != 0, torch.tensor(graph))
    torch.testing.assert_close(M, S @ K.mT @ torch.diag(1 - torch.tanh(K @ y + b) ** 2) @ K)
    inside = bool((M[:2, :2] != 0).any()) or bool((M[2:, 2:] != 0).any())
    assert not (field.separable and inside)
    if kind == "J1":
        assert field.separable is not inside
