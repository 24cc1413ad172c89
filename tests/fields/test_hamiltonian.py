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
from catalog import build, skew, structure_defect
from hdnn.errors import HdnnError
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


# --- signs ----------------------------------------------------------------------------------------

SIGNED = {
    "dense": ("J2", "dense", {}),
    "wide": ("J1", "dense", {"units": 7}),
    "J(t)": (skew(N, L), "dense", {"units": 6}),
    "J(y,t)": (state_dependent, "dense", {}),
    "halves": ("J1", "block-diagonal", {"units": 10}),
    "shared": ("J1", "off-diagonal", {"time_invariant": True}),
}


@pytest.mark.parametrize("kind", SIGNED)
def test_hidden_units_with_signs_count_negatively_in_the_energy(kind: str) -> None:
    """H = s' log cosh(K y + b), dH/dy = K' s tanh(K y + b); and stages are that velocity."""
    J, structure, options = SIGNED[kind]
    weights = Weights(structure, features=N, layers=L, **options)
    s = torch.randint(0, 2, (weights.map.units,)) * 2 - 1
    s[:2] = torch.tensor([1, -1])
    field, y = HamiltonianField(J, weights, signs=s), torch.randn(5, N)
    for layer in range(L):
        K, b = weights.K[layer], weights.b[layer]
        z = y @ K.mT + b
        torch.testing.assert_close(field.energy(y, layer), (s * z.cosh().log()).sum(-1))
        g = torch.func.grad(lambda y, j=layer: field.energy(y, j).sum())(y)
        torch.testing.assert_close(field.gradient(y, layer), g)
        torch.testing.assert_close(field.gradient(y, layer), (s * z.tanh()) @ K)
    x = y
    for layer, out in enumerate(hdnn.HamiltonianNetwork(field, step=0.3).trajectory(y)[1:]):
        x = x + 0.3 * field.velocity(x, layer, 0.3 * layer)
        torch.testing.assert_close(out, x)
    assert field.separable is (kind in ("halves", "shared"))


def test_stages_of_halves_have_the_signs_of_their_units() -> None:
    s = [1, -1, 1, 1, 1, 1]
    net = build("MS3", units=6, signs=s)
    # K = [0 K1; K2 0]: the first three units read z and drive y.
    assert [stage.signs for stage in net.program.stages] == [(1, -1, 1), None]
    y, z = torch.randn(2, 5, 2)
    x = torch.cat([y, z], -1)
    for K, b in zip(net.K, net.b, strict=True):
        y = y + net.h * (torch.tensor(s[:3]) * (z @ K[:3, 2:].mT + b[:3]).tanh()) @ K[:3, 2:]
        z = z - net.h * (y @ K[3:, :2].mT + b[3:]).tanh() @ K[3:, :2]
    torch.testing.assert_close(net(x), torch.cat([y, z], -1))
    torch.testing.assert_close(net.inverse(net(x)), x, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["H1", "H2", "MS3", "HS"])
@pytest.mark.parametrize("options", [{"channels": 4, "kernel": 3}, {"ensemble": 2}], ids=str)
def test_signs_of_channels_and_ensembles(name: str, options: dict[str, Any]) -> None:
    """Flipping a sign takes twice the unit's energy away."""
    plain = build(name, units=6, **options)
    flipped = build(name, units=6, signs=[1, 1, -1, 1, 1, -1], **options)
    flipped.load_state_dict(plain.state_dict())
    y = torch.randn(2, 4, 3, 5) if plain.channels else torch.randn(2, 7, 4)
    x, _ = plain.field.layout.flatten(y)
    units = plain.field.units_fn()(1, x)
    E = plain.field.activation.energy(
        units.index_select(plain.field.layout.axis, torch.tensor([2, 5]))
    )
    lost = 2 * E.flatten(plain.field.layout.axis).sum(-1)
    torch.testing.assert_close(flipped.field.energy(y, 1), plain.field.energy(y, 1) - lost)
    assert not torch.allclose(flipped(y), plain(y))


@pytest.mark.parametrize("scheme", ["own", "Leapfrog", "ImplicitMidpoint"])
def test_signs_keep_the_structure(scheme: str) -> None:
    """Symplectic with signs as without; what needs a convex energy does not hold any more."""
    options = {"units": 8, "signs": [1, -1] * 4, "step": 0.2}
    net, y = build("HS", scheme, **options), torch.randn(6, N)
    assert net.structure_preserving
    assert all(structure_defect(net, sample, net.J) < 1e-13 for sample in y)


def test_signs_are_constants_and_all_positive_ones_are_none() -> None:
    positive = build("H1", signs=[1.0] * 4)
    assert positive.field.signs is None
    assert (
        positive.explain_backend(torch.randn(3, 4)).reason
        == build("H1").explain_backend(torch.randn(3, 4)).reason
    )
    signed = build("H1", signs=torch.tensor([1, -1, 1, 1]))
    assert not signed.explain_backend(torch.randn(3, 4)).in_stages  # but explicit matrices
    assert "1 of 4 signs negative" in repr(signed)
    for wrong in ([1, -1], [1, 0, 1, 1], [2.0] * 4, [[1] * 4], [float("nan")] * 4):
        with pytest.raises(HdnnError, match="signs must be"):
            build("H1", signs=wrong)
    for name in ("MS1", "MS2", "ResNet", "FCNN"):
        with pytest.raises(HdnnError, match=f"leave them out of {name}"):
            build(name, signs=[1, -1, 1, -1])
