"""Refinement and coarsening: the same ODE, the same T, another number of layers."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor
from torch.nn.utils import parametrize

import hdnn
from catalog import EACH, PAIRS, build, every_pair, skew
from hdnn.errors import HdnnError
from hdnn.fields import (
    EnergyField,
    HamiltonianField,
    Interconnection,
    Learned,
    Weights,
    canonical,
    signs,
)
from hdnn.refinement import INTERPOLATIONS
from hdnn.schemes import RK4

STEPPED = [pair for pair in PAIRS if pair != ("FCNN", "own")]
Y = torch.tensor([[0.5, -1.0, 0.8, 0.2], [-0.3, 0.4, 1.1, -0.6]], dtype=torch.float64)


def net_of(name: str, scheme: str, shared: bool) -> hdnn.HamiltonianNetwork:
    """Two layers of different length and, unless shared, different weights."""
    draw = torch.Generator().manual_seed(5)
    options = {"layers": 2, "step": [0.6, 0.4], "time_invariant": shared, "scale": 0.7}
    return build(name, scheme, generator=draw, **options)


@functools.cache
def flow(name: str, shared: bool) -> Tensor:
    """Where the ODE takes Y, piece by piece."""
    f = net_of(name, "RK4", shared).ode()
    state = Y.numpy().ravel()
    for j in range(2):
        piece = (float(f.breakpoints[j]), float(f.breakpoints[j + 1]))
        options: Any = {"method": "DOP853", "rtol": 1e-12, "atol": 1e-13}
        state = solve_ivp(f.layer(j), piece, state, **options).y[:, -1]
    return torch.from_numpy(state).reshape(Y.shape)


@pytest.mark.parametrize("shared", [True, False], ids=["time-invariant", "piecewise-constant"])
@every_pair([pair for pair in STEPPED if pair in EACH])
def test_refined_networks_converge_to_the_same_flow(name: str, scheme: str, shared: bool) -> None:
    net = net_of(name, scheme, shared)
    order = net.scheme.order
    depths = {1: (256, 512), 2: (16, 32)}.get(order, (12, 24))
    with torch.no_grad():
        errors = [float((hdnn.refine(net, N)(Y) - flow(name, shared)).norm()) for N in depths]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.15)


def kinds() -> dict[str, hdnn.HamiltonianNetwork]:
    """Every architecture, layout and array that has layers, with four of them."""
    net, w = hdnn.HamiltonianNetwork, Weights("dense", features=4, layers=4)
    energy = EnergyField(skew(4, 4), lambda x, t: (x**4).sum(-1), features=4)
    own = {name: build(name, scheme, layers=4) for name, scheme in STEPPED if scheme == "own"}
    return own | {
        "channels": build("MS3", channels=4, layers=4),
        "convolution": build("MS2", channels=4, kernel=3, layers=4),
        "ensemble": build("MS1", ensemble=3, layers=4),
        "graph": net(HamiltonianField("J1", Weights([[1, 0], [1, 1]], features=2, layers=4)), T=1),
        "steps": build("H1", layers=4, step=[0.1, 0.2, 0.3, 0.4]),
        "learned steps": build("H2", layers=4, learn_steps=True),
        "steps of an ensemble": build("H1", layers=4, ensemble=3, step=torch.rand(3, 4) + 0.1),
        "J(t)": net(HamiltonianField(skew(4, 4), w), T=1.0),
        "learned J(t)": net(HamiltonianField(Learned(4, layers=4, init=skew(4)), w), T=1.0),
        "learned X": build("HS", X="learned", layers=4),
        "energy": net(energy, RK4(), T=1.0),
        "time-invariant": build("H1", layers=4, time_invariant=True),
    }


every_kind = pytest.mark.parametrize("kind", kinds())


@every_kind
def test_coarsening_takes_a_nested_refinement_back(kind: str) -> None:
    for interpolation in INTERPOLATIONS:
        net = kinds()[kind]
        before = {k: v.clone() for k, v in net.state_dict().items()}
        for depth in (4, 8, 12):
            fine = hdnn.refine(net, depth, interpolation)
            assert fine.layers == depth
            assert pytest.approx(net.T, rel=1e-14) == fine.T
            back = hdnn.coarsen(fine, 4, interpolation)
            torch.testing.assert_close(back.state_dict(), before, rtol=1e-14, atol=1e-15)
            torch.testing.assert_close(
                torch.as_tensor(back.h), torch.as_tensor(net.h), rtol=1e-14, atol=0
            )
        torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)  # it is a copy


@every_kind
def test_any_depth_has_the_same_T_structure_and_gradients(kind: str) -> None:
    for interpolation in INTERPOLATIONS:
        net = kinds()[kind]
        for changed in (hdnn.refine(net, 7, interpolation), hdnn.coarsen(net, 3, interpolation)):
            assert pytest.approx(net.T, rel=1e-14) == changed.T
            lead = () if net.ensemble is None else (net.ensemble,)
            space = () if net.channels is None else (3, 5)
            out = changed(torch.randn(*lead, 2, net.field.layout.width, *space))
            if not isinstance(net.field, EnergyField):
                (gradient,) = torch.autograd.grad(out.sum(), changed.field.weights.theta)
                assert gradient.abs().sum() > 0
                zeros = torch.from_numpy(net.field.weights.pattern.code == 0)
                assert not changed.field.weights.K[..., zeros].any()


@pytest.mark.parametrize("kind", ["steps", "steps of an ensemble", "learned steps", "H1"])
def test_constant_interpolation_keeps_the_integral_of_the_weights(kind: str) -> None:
    def integral(net: hdnn.HamiltonianNetwork) -> Tensor:
        h = torch.as_tensor(net.h) * torch.ones(net.layers)
        return torch.einsum("...l,...lij->...ij", h, net.K)

    net = kinds()[kind]
    for changed in (hdnn.coarsen(net, 3), hdnn.refine(net, 5)):
        torch.testing.assert_close(integral(changed), integral(net))


def test_linear_interpolation_reproduces_lines_in_time() -> None:
    net, (start, slope) = build("H1", layers=6, T=3.0), torch.randn(2, 16)
    with torch.no_grad():
        net.field.weights.theta.copy_(start + 0.5 * torch.arange(6)[:, None] * slope)
    t = 0.2 * torch.arange(15)
    fine, line = hdnn.refine(net, 15, "linear").field.weights.theta, start + t[:, None] * slope
    inner = t <= 2.5  # between the times of old layers
    torch.testing.assert_close(fine[inner], line[inner])
    torch.testing.assert_close(fine[-1], net.field.weights.theta[-1])  # held, not extrapolated


def test_a_refined_model_is_saved_and_loaded(tmp_path: Path) -> None:
    images = {"channels": 1, "size": (8, 8), "classes": 10}
    stages = {"widths": (4, 4, 4), "layers": (2, 0, 4), "norm": "batch", "kernel": 3}
    model = hdnn.image_model(**images, **stages, T=0.4).eval()
    fine = hdnn.refine(model, (6, 12), "linear")
    assert [n.layers for n in fine.networks] == [6, 12]
    assert [n.T for n in fine.networks] == pytest.approx([n.T for n in model.networks])
    hdnn.save(fine, tmp_path / "fine")
    x = torch.randint(256, (3, 1, 8, 8), dtype=torch.uint8)
    torch.testing.assert_close(hdnn.load(tmp_path / "fine")(x), fine(x))
    back = hdnn.coarsen(fine, (2, 4), "linear")
    torch.testing.assert_close(back(x), model(x))


@pytest.mark.parametrize(
    ("change", "layers", "message"),
    [
        (hdnn.refine, 2, "hdnn.coarsen"),
        (hdnn.coarsen, 8, "hdnn.refine"),
        (hdnn.refine, 0, "positive integer"),
        (hdnn.refine, 4.5, "positive integer"),
        (hdnn.refine, (8, 8), "1 networks"),
    ],
)
def test_impossible_depth_raises(change: Any, layers: Any, message: str) -> None:
    with pytest.raises(HdnnError, match=message):
        change(build("H1", layers=4), layers)


class Alternating(Interconnection):
    """J(t) of a class that hdnn does not know."""

    layers = 3

    def matrix(self) -> Tensor:
        return torch.stack([canonical(4), signs(4), canonical(4)])


class Halved(torch.nn.Module):
    def forward(self, theta: Tensor) -> Tensor:
        return theta / 2


def test_weights_and_J_that_cannot_be_interpolated_raise() -> None:
    field = HamiltonianField(Alternating(), Weights("dense", features=4, layers=3))
    with pytest.raises(HdnnError, match="Alternating has layers, which hdnn cannot interpolate"):
        hdnn.refine(hdnn.HamiltonianNetwork(field, T=1.0), 6)
    net = build("H1")
    parametrize.register_parametrization(net.field.weights, "theta", Halved())
    with pytest.raises(HdnnError, match="the weights are parametrized; remove that"):
        hdnn.refine(net, 6)


def test_refining_what_has_no_ode_raises() -> None:
    with pytest.raises(HdnnError, match=r"FCNN .* no ODE"):
        hdnn.refine(build("FCNN"), 6)
    with pytest.raises(HdnnError, match="0 layers"):
        hdnn.refine(build("H1", layers=0), 6)
    with pytest.raises(HdnnError, match="no Hamiltonian network"):
        hdnn.refine(torch.nn.Linear(2, 2), 6)
    with pytest.raises(HdnnError, match="did you mean 'linear'"):
        hdnn.refine(build("H1"), 6, "liner")
