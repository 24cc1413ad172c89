"""net.ode(): the equation behind a network, solved by scipy and torchdiffeq."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hdnn
from catalog import HAMILTONIAN, build
from hdnn.errors import HdnnError
from hdnn.fields import EnergyField


@pytest.mark.parametrize("name", [*HAMILTONIAN, "ResNet"])
def test_layer_j_holds_from_t_j_on(name: str) -> None:
    net, y = build(name, layers=4, step=(0.1, 0.3, 0.2, 0.4)), torch.randn(3, 4)
    ode = net.ode()
    assert ode.breakpoints.tolist() == pytest.approx([0.0, 0.1, 0.4, 0.6, 1.0])
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
    ode = net.ode()
    expected, flat = ode(0.5, y).detach().numpy(), ode(0.5, y.numpy().ravel())
    assert flat.dtype == np.float64
    assert np.array_equal(flat, expected.ravel())
    assert np.array_equal(ode(0.5, y.numpy()), expected)
    images, z = build("H2", channels=4), torch.randn(2, 4, 3)
    assert images.ode()(0.5, z.numpy()).shape == (2, 4, 3)
    with pytest.raises(HdnnError, match=r"\(B, 4, \*spatial\), got \(24,\)"):
        images.ode()(0.5, z.numpy().ravel())


def test_torchdiffeq_agrees_and_differentiates() -> None:
    torchdiffeq = pytest.importorskip("torchdiffeq", reason="torchdiffeq is in the extra bench")
    net, y = build("H1", layers=3, T=0.9), torch.randn(4, 4, requires_grad=True)
    ode = net.ode()
    options = {"jump_t": ode.breakpoints[1:-1]}
    ends = torch.tensor([0.0, ode.T])
    fine = build("H1", "RK4", layers=60, T=0.9)  # the same pieces, 20 steps in each
    with torch.no_grad():
        for mine, theirs in zip(fine.parameters(), net.parameters(), strict=True):
            mine.copy_(theirs.repeat_interleave(20, 0))
    exact = torch.autograd.grad(fine(y).square().sum(), [y, *fine.parameters()])
    for solve in (torchdiffeq.odeint, torchdiffeq.odeint_adjoint):
        end = solve(ode, y, ends, rtol=1e-9, atol=1e-10, options=options)[-1]
        torch.testing.assert_close(end, fine(y), rtol=1e-6, atol=1e-6)
        own = torch.autograd.grad(end.square().sum(), [y, *net.parameters()])
        torch.testing.assert_close(own[0], exact[0], rtol=1e-5, atol=1e-6)
        for a, b in zip(own[1:], exact[1:], strict=True):
            torch.testing.assert_close(a, b.unflatten(0, (3, 20)).sum(1), rtol=1e-5, atol=1e-6)


def test_energies_get_the_time_itself() -> None:
    field = EnergyField("J1", lambda x, t: t * x.square().sum(-1) / 2, features=2)
    ode = hdnn.HamiltonianNetwork(field, layers=2, T=1.0).ode()
    y = torch.tensor([1.0, 2.0])
    assert torch.allclose(ode(0.7, y), 0.7 * torch.tensor([2.0, -1.0]))


def test_networks_without_an_ode_raise() -> None:
    for net, words in (
        (build("FCNN"), "no step size"),
        (build("H1", layers=0), "without layers"),
        (build("H1", layers=2, ensemble=2, step=[[0.1, 0.2], [0.3, 0.4]]), "ensemble"),
    ):
        with pytest.raises(HdnnError, match=words):
            net.ode()
    with pytest.raises(HdnnError, match="out of range"):
        build("H1").ode().layer(3)


def test_arrays_have_the_dtype_of_an_energy_without_parameters() -> None:
    field = EnergyField("J1", lambda x, t: x.square().sum(-1) / 2, features=2, dtype=torch.float32)
    f = hdnn.HamiltonianNetwork(field, layers=3, T=1.0).ode()
    np.testing.assert_allclose(f(0.0, np.array([1.0, 2.0])), [2.0, -1.0])
