"""Fields: y' = (J - R) dH/dy, with J skew, R positive semidefinite, and K of every structure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import hdnn
from catalogue import build, skew
from hdnn.errors import HdnnError
from hdnn.fields import (
    ACTIVATIONS,
    STRUCTURES,
    EnergyField,
    HamiltonianField,
    Interconnection,
    Learned,
    Weights,
    canonical,
    signs,
)
from hdnn.fields.activations import activation

N, L = 4, 3
every_structure = pytest.mark.parametrize("structure", STRUCTURES)
every_activation = pytest.mark.parametrize("sigma", ACTIVATIONS)


def state_dependent(y: Tensor, t: Tensor | float) -> Tensor:
    """Skew for every y and t, and visibly a function of both."""
    r = (y**2).sum(-1)[..., None, None]
    return (1 + t) * canonical(N).to(y) + torch.sin(r) * signs(N).to(y)


def learned(layers: int | None = None) -> Interconnection:
    J = Learned(N, "skew", layers=layers)
    torch.nn.init.normal_(J.theta)
    return J


INTERCONNECTIONS: dict[str, Callable[[], object]] = {
    "named": lambda: "J2",
    "constant": lambda: skew(N),
    "J(t)": lambda: skew(N, L),
    "learned": learned,
    "learned J(t)": lambda: learned(L),
    "J(y,t)": lambda: state_dependent,
}
every_interconnection = pytest.mark.parametrize("kind", INTERCONNECTIONS)


def grad(function: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
    y = y.clone().requires_grad_()
    return torch.autograd.grad(function(y).sum(), y)[0]


@every_structure
@every_activation
@every_interconnection
def test_velocity_is_J_times_the_gradient_of_the_energy(
    structure: str, sigma: str, kind: str
) -> None:
    weights = Weights(structure, features=N, layers=L)
    R = torch.randn(N, N)
    R = R @ R.mT
    J = INTERCONNECTIONS[kind]()
    free = HamiltonianField(J, weights, activation=sigma)
    damped = HamiltonianField(J, weights, activation=sigma, dissipation=R)
    y, t = torch.randn(2, 3, N), 0.7
    for layer in range(L):
        g = grad(lambda y, j=layer: free.energy(y, j, t), y)
        torch.testing.assert_close(free.gradient(y, layer, t), g)
        J_here = free.J_at(y, layer, t)
        torch.testing.assert_close(J_here, -J_here.mT)
        f = free.velocity(y, layer, t)
        torch.testing.assert_close(f, (J_here @ g[..., None])[..., 0])
        # H' = dH/dy . y' vanishes without dissipation, and is -|R^(1/2) dH/dy|^2 with it.
        torch.testing.assert_close((f * g).sum(-1), torch.zeros(2, 3), rtol=0, atol=1e-10)
        loss = -((R @ g[..., None])[..., 0] * g).sum(-1)
        torch.testing.assert_close((damped.velocity(y, layer, t) * g).sum(-1), loss)


@every_activation
def test_the_derivative_of_the_energy_is_the_activation(sigma: str) -> None:
    row = ACTIVATIONS[sigma]
    x = torch.cat([torch.linspace(-40, 40, 2002), torch.linspace(-2, 2, 1000)])
    torch.testing.assert_close(grad(row.energy, x), row.function(x), rtol=1e-10, atol=1e-12)
    slope = grad(row.function, x).abs().max()
    assert 0.99 * row.slope <= slope <= row.slope * (1 + 1e-12)
    assert row.odd == torch.allclose(row.function(-x), -row.function(x))


def test_log_cosh_neither_overflows_nor_loses_its_curvature() -> None:
    energy = activation("tanh").energy
    x = torch.tensor([-1e4, -1.5, 0.0, 1.5, 1e4])
    small, large = np.log(np.cosh(1.5)), 1e4 - np.log(2)
    expected = torch.tensor([large, small, 0.0, small, large])
    torch.testing.assert_close(energy(x), expected, rtol=1e-14, atol=1e-15)
    curvature = torch.func.vmap(torch.func.grad(torch.func.grad(energy)))(x)
    torch.testing.assert_close(curvature, 1 - torch.tanh(x) ** 2, rtol=1e-12, atol=1e-15)


def test_channels_and_ensembles_have_the_energy_and_velocity_of_their_parts() -> None:
    weights = Weights("dense", channels=N, layers=L, ensemble=2)
    field = HamiltonianField("J2", weights)
    y = torch.randn(2, 3, N, 2, 5)
    H = field.energy(y, 1)
    assert H.shape == (2, 3)
    for e in range(2):
        part = HamiltonianField("J2", Weights("dense", features=N, layers=L))
        with torch.no_grad():
            part.weights.theta.copy_(weights.theta[e])
            part.weights.beta.copy_(weights.beta[e])
        x = y[e].movedim(1, -1)
        torch.testing.assert_close(H[e], part.energy(x, 1).sum((1, 2)))
        torch.testing.assert_close(
            field.velocity(y, 1)[e], part.velocity(x, 1).movedim(-1, 1), rtol=1e-12, atol=1e-12
        )


def test_an_energy_of_ones_own_in_channels_sees_the_canonical_state_everywhere() -> None:
    """(B, n, S), whatever the spatial shape: in energy and gradient as in velocity."""
    field = EnergyField("J1", lambda x, t: (x[:, 0] ** 4).sum(-1) + x[:, 1].sum(-1), channels=2)
    y = torch.randn(3, 2, 4, 5)
    H = field.energy(y)
    assert H.shape == (3,)
    torch.testing.assert_close(H, (y[:, 0] ** 4 + y[:, 1]).sum((-2, -1)))
    cubes, ones = 4 * y[:, 0] ** 3, torch.ones(3, 4, 5)
    torch.testing.assert_close(field.velocity(y), torch.stack([ones, -cubes], 1))
    torch.testing.assert_close(field.gradient(y), torch.stack([cubes, ones], 1))


def test_energy_decreases_along_a_damped_network_and_stays_along_a_free_one() -> None:
    weights = Weights("dense", features=N, layers=200, time_invariant=True)
    for R, holds in ((None, False), (torch.eye(N) / 2, True)):
        field = HamiltonianField("J2", weights, dissipation=R)
        net = hdnn.HamiltonianNetwork(field, hdnn.schemes.RK4(), T=2.0)
        H = field.energy(net.trajectory(torch.randn(5, N)))
        assert bool((H.diff(dim=0) < -1e-6).all()) is holds
        assert bool(((H[-1] - H[0]).abs() < 1e-4).all()) is not holds


# --- J --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("J", "message"),
    [
        (np.eye(4), "skew"),
        (np.full((4, 4), np.nan), "skew"),
        (np.stack([signs(4).numpy(), np.ones((4, 4))]), "skew"),
        (signs(6).numpy(), r"\(4, 4\)"),
        (hdnn.fields.Fixed(signs(6)), "4"),
        (Learned(6), "4"),
        (np.zeros((3, 4)), r"\(3, 4\)"),
        (np.zeros(4), r"\(4,\)"),
        (np.zeros((5, 4, 4)), "5 layers"),
        ([["a"]], "J"),
        ("J3", "J1, J2"),
    ],
    ids=str,
)
def test_a_J_that_is_none_is_refused(J: object, message: str) -> None:
    with pytest.raises(HdnnError, match=message):
        HamiltonianField(J, Weights("dense", features=4, layers=2))


@pytest.mark.parametrize(
    "R", [-np.eye(4), np.triu(np.ones((4, 4))), np.eye(3), np.full((4, 4), np.nan)], ids=str
)
def test_a_dissipation_that_is_none_is_refused(R: np.ndarray) -> None:
    with pytest.raises(HdnnError, match="dissipation"):
        HamiltonianField("J1", Weights("dense", features=4, layers=2), dissipation=R)


@pytest.mark.parametrize("structure", ["skew", "off-diagonal-skew"])
@pytest.mark.parametrize("layers", [None, 3])
def test_a_learned_J_starts_where_it_is_told_and_stays_skew(
    structure: str, layers: int | None
) -> None:
    start = canonical(6, torch.randn(3, 3))
    J = Learned(6, structure, layers=layers, init=start)
    torch.testing.assert_close(J.matrix(), start.expand_as(J.matrix()), rtol=0, atol=0)
    torch.nn.init.normal_(J.theta)
    assert torch.equal(J.matrix(), -J.matrix().mT)
    J.matrix()[..., 0, 5].sum().backward()
    assert (J.theta.grad != 0).sum() == (layers or 1)


@pytest.mark.parametrize("name", ["MS1", "MS2"])
def test_a_singular_K_has_no_J_but_the_network_runs(name: str) -> None:
    net = build(name, features=4, layers=3)
    with torch.no_grad():
        net.field.weights.theta[1].zero_()
    with pytest.raises(HdnnError, match="K_1 is singular"):
        _ = net.J
    assert net(torch.randn(2, 4)).shape == (2, 4)


def test_a_skew_K_of_odd_width_is_always_singular() -> None:
    net = build("MS2", features=5)
    with pytest.raises(HdnnError, match=r"odd width.*augment"):
        _ = net.J
    assert net(torch.randn(2, 5)).shape == (2, 5)


def test_J_is_an_error_where_it_depends_on_the_state_and_for_baselines() -> None:
    field = HamiltonianField(state_dependent, Weights("dense", features=N, layers=L))
    for net in (hdnn.HamiltonianNetwork(field, T=1.0), build("ResNet"), build("FCNN")):
        with pytest.raises(HdnnError):
            _ = net.J
