"""net.ode(): the equation behind a network, solved by scipy and torchdiffeq."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

import hdnn
from catalogue import HAMILTONIAN, build
from hdnn.errors import HdnnError
from hdnn.fields import EnergyField

TIGHT = {"method": "DOP853", "rtol": 1e-12, "atol": 1e-13}


def solved(net: hdnn.HamiltonianNetwork, y: torch.Tensor) -> torch.Tensor:
    """y(T), layer by layer."""
    ode, state = net.ode(), y.numpy().ravel()
    t = ode.breakpoints.tolist()
    for j in range(net.layers):
        state = solve_ivp(ode.layer(j), (t[j], t[j + 1]), state, **TIGHT).y[:, -1]
    return torch.from_numpy(state).reshape(y.shape)


@pytest.mark.parametrize("name", [*HAMILTONIAN, "ResNet"])
def test_layer_j_holds_from_t_j_on(name: str) -> None:
    net, y = build(name, layers=4, step=(0.1, 0.3, 0.2, 0.4)), torch.randn(3, 4)
    ode = net.ode()
    starts = [0.0, 0.1, 0.4, 0.6, 1.0]
    assert ode.breakpoints.tolist() == pytest.approx(starts)
    for j in range(4):
        for t in (float(ode.breakpoints[j]), float(ode.breakpoints[j]) + 0.05):
            assert ode.layer_at(t) == j
            assert torch.equal(ode(t, y), net.field.velocity(y, j))
            assert torch.equal(ode(torch.tensor(t), y), ode.layer(j)(t, y))
    rounded = [ode.layer_at(t) for t in ode.breakpoints.float()]
    assert rounded == [0, 1, 2, 3, 3]  # as a solver in float32 asks
    assert (ode.layer_at(-1.0), ode.layer_at(ode.T), ode.layer_at(9.0)) == (0, 3, 3)


def test_arrays_and_tensors_are_the_same_numbers() -> None:
    net, y = build("H2"), torch.randn(5, 4)
    ode, found = net.ode(), net.ode()(0.5, torch.zeros(5, 4) + y)
    flat = ode(0.5, y.numpy().ravel())
    assert flat.dtype == np.float64
    assert np.array_equal(flat, found.detach().numpy().ravel())
    assert np.array_equal(ode(0.5, y.numpy()), found.detach().numpy())
    images = build("H2", channels=4)
    z = torch.randn(2, 4, 3)
    assert images.ode(shape=z.shape)(0.5, z.numpy().ravel()).shape == (24,)
    with pytest.raises(HdnnError, match=r"shape=y\.shape"):
        images.ode()(0.5, z.numpy().ravel())


@pytest.mark.parametrize(
    ("name", "scheme", "order"),
    [
        ("H1", "ForwardEuler", 1),
        ("MS3", "Leapfrog", 2),
        ("H2", "ImplicitMidpoint", 2),
        ("MS1", "Yoshida4", 4),
        ("H2", "RK4", 4),
    ],
)
def test_networks_converge_to_it_with_the_order_of_their_scheme(
    name: str, scheme: str, order: int
) -> None:
    y, errors = torch.randn(3, 4), []
    for layers in (10, 20):
        net = build(
            name,
            scheme,
            layers=layers,
            T=0.8,
            time_invariant=True,
            scale=0.7,
            generator=torch.Generator().manual_seed(3),
        )
        with torch.no_grad():
            errors.append(float((net(y) - solved(net, y)).abs().max()))
    assert np.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.35)
    assert errors[1] > 1e-11  # else it measures rounding


def test_torchdiffeq_agrees_and_differentiates() -> None:
    torchdiffeq = pytest.importorskip("torchdiffeq", reason="torchdiffeq is in the extra bench")
    net, y = build("H1", layers=3, T=0.9), torch.randn(4, 4, requires_grad=True)
    ode = net.ode()
    options = {"jump_t": ode.breakpoints[1:-1]}
    ends = torch.tensor([0.0, ode.T])
    found = torchdiffeq.odeint(ode, y, ends, rtol=1e-9, atol=1e-10, options=options)[-1]
    torch.testing.assert_close(found, solved(net, y.detach()), rtol=1e-7, atol=1e-7)

    fine = build("H1", "RK4", layers=60, T=0.9)  # the same pieces, 20 steps in each
    with torch.no_grad():
        for mine, theirs in zip(fine.parameters(), net.parameters(), strict=True):
            mine.copy_(theirs.repeat_interleave(20, 0))
    for exact, own in zip(
        torch.autograd.grad(fine(y).square().sum(), [y, *fine.parameters()]),
        torch.autograd.grad(found.square().sum(), [y, *net.parameters()]),
        strict=True,
    ):
        pieces = exact if exact.shape == own.shape else exact.unflatten(0, (3, 20)).sum(1)
        torch.testing.assert_close(own, pieces, rtol=1e-5, atol=1e-6)


def test_the_adjoint_method_finds_the_parameters() -> None:
    torchdiffeq = pytest.importorskip("torchdiffeq", reason="torchdiffeq is in the extra bench")
    net, y = build("MS2", layers=1, T=0.5), torch.randn(2, 4)
    ends = torch.tensor([0.0, 0.5])
    options = {"rtol": 1e-9, "atol": 1e-10}
    grads = [
        torch.autograd.grad(solve(net.ode(), y, ends, **options)[-1].sum(), [*net.parameters()])
        for solve in (torchdiffeq.odeint, torchdiffeq.odeint_adjoint)
    ]
    for direct, adjoint in zip(*grads, strict=True):
        torch.testing.assert_close(adjoint, direct, rtol=1e-5, atol=1e-6)


def test_energies_get_the_time_itself() -> None:
    field = EnergyField("J1", lambda x, t: t * x.square().sum(-1) / 2, features=2)
    ode = hdnn.HamiltonianNetwork(field, layers=2, T=1.0).ode()
    y = torch.tensor([1.0, 2.0])
    assert torch.allclose(ode(0.7, y), 0.7 * torch.tensor([2.0, -1.0]))


def test_what_has_no_ode() -> None:
    for net, words in (
        (build("FCNN"), "no step size"),
        (build("H1", layers=0), "without layers"),
        (build("H1", layers=2, ensemble=2, step=[[0.1, 0.2], [0.3, 0.4]]), "ensemble"),
    ):
        with pytest.raises(HdnnError, match=words):
            net.ode()
    with pytest.raises(HdnnError, match="out of range"):
        build("H1").ode().layer(3)
