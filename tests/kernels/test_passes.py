"""Forward, backward and Jacobians of the kernels, against the reference.

`test_variants` runs this file once more for every other instruction set that the machine has.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from catalog import build
from hdnn.backends import fused, reference
from hdnn.fields import ACTIVATIONS, HamiltonianField, Weights
from hdnn.kernels import native
from skips import needs_kernels
from twins import CATALOG, Net, Results, agree, derivatives, error, stepped, twin

pytestmark = needs_kernels

COMPILED = [name for name, row in ACTIVATIONS.items() if row.code is not None]
WIDTHS = (2, 4, 6, 8, 10, 16, 34, 64)
DEPTHS = (1, 2, 17, 64)
BATCHES = (1, 7, 125, 1000)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def both(net: Net, y: Tensor, weight: Tensor | None = None) -> tuple[Results, Results]:
    """Values and derivatives by the kernels, and by the reference."""
    weight = y if weight is None else weight
    mine, plain = (derivatives(twin(net, b), y, weight) for b in ("fused", "reference"))
    return mine, plain


@pytest.mark.parametrize("label", CATALOG)
def test_float32_is_as_accurate_as_the_reference(label: str) -> None:
    """The error against float64 is at most 3 x that of the reference in float32, plus 1e-6.

    Every width with every depth; the batches are a Latin square, another for every network.
    """
    k, single = list(CATALOG).index(label), torch.float32
    for i, n in enumerate(WIDTHS):
        for j, layers in enumerate(DEPTHS):
            options: dict[str, Any] = {"T": 1.2} if stepped(label) else {}
            options |= {"features": n, "layers": layers, "scale": n**-0.5, "dtype": single}
            net = CATALOG[label](**options)
            y, weight = torch.randn(2, BATCHES[(i + j + k) % 4], n, dtype=single)
            mine, plain = both(net, y, weight)
            wide = twin(net, "reference", dtype=torch.float64)
            for name, exact in derivatives(wide, y.double(), weight.double()).items():
                # Of a handful of numbers, each a sum that cancels, the reference may hit by luck.
                least = 1e-6 if exact.numel() >= 16 else 1e-5
                bound = 3 * error(plain[name], exact) + least
                assert error(mine[name], exact) <= bound, (n, layers, len(y), name)


@st.composite
def calls(draw: st.DrawFn) -> tuple[Net, Tensor]:
    """A network of the catalog with any layout, and a state for it."""
    label = draw(st.sampled_from(sorted(CATALOG)))
    n, layers = draw(st.sampled_from((2, 4, 6, 10))), draw(st.sampled_from((1, 2, 5, 33)))
    layout = draw(st.sampled_from(("features", "channels")))
    ensemble = draw(st.sampled_from((None, 1, 3, 9)))
    options: dict[str, Any] = {layout: n, "layers": layers, "ensemble": ensemble}
    options["time_invariant"] = draw(st.booleans())
    if stepped(label):
        shape = (layers,) if ensemble is None else (ensemble, layers)
        steps = torch.rand(shape, dtype=torch.float64) / layers
        options["step"] = steps if draw(st.booleans()) else 0.3 / layers
    lead = () if ensemble is None else (draw(st.sampled_from((1, ensemble))),)
    sizes = tuple(draw(st.lists(st.integers(1, 9), max_size=3)))
    images = (draw(st.integers(1, 40)), n, *sizes)
    torch.manual_seed(draw(st.integers(0, 10**6)))
    net = CATALOG[label](scale=n**-0.5, dtype=torch.float64, **options)
    shape = (*lead, *(images if layout == "channels" else (*sizes, n)))
    return net, torch.randn(shape, dtype=torch.float64)


@settings(max_examples=150)
@given(call=calls())
def test_float64_is_the_reference_for_every_shape(call: tuple[Net, Tensor]) -> None:
    net, y = call
    agree(*both(net, y, torch.randn_like(twin(net, "reference")(y))))


@settings(max_examples=25)
@given(call=calls())
def test_jacobians_are_those_of_the_reference(call: tuple[Net, Tensor]) -> None:
    """d y_N / d y_l and y_l, at the ends and between."""
    net, y = call
    depths = sorted({0, net.layers // 2, net.layers})
    mine, plain = (b.jacobians(net.program, net.values(), y, depths) for b in (fused, reference))
    for a, b in zip(mine, plain, strict=True):
        assert error(a, b) <= 1e-11


@pytest.mark.parametrize("units", [1, 3, 8])
@pytest.mark.parametrize("n", [1, 3, 5])
def test_odd_widths_and_any_number_of_hidden_units(n: int, units: int) -> None:
    """K need not be square, nor full: a graph with an empty row and an empty column."""
    graph = np.random.default_rng(0).random((units, n)) < 0.7
    graph[0], graph[:, 0], graph[-1, -1] = False, False, True
    R = torch.eye(n) / 10
    field = HamiltonianField("J2", Weights(graph, features=n, layers=3), dissipation=R)
    agree(*both(Net(field, T=1.0), torch.randn(9, n)))


class Periodic:
    """A network of 6 layers, of which layer j has the parameters of layer j % period."""

    def __init__(self, name: str, period: int, samples: int = 301, n: int = 4) -> None:
        self.net = build(name, layers=6, features=n)
        self.layers = [j % period for j in range(6)]
        self.J = None if name == "MS2" else self.net.J.contiguous()  # MS2: y' = tanh(K y + b)
        sizes = (p.shape[-1] for p in self.net.field.weights.parameters())
        self.theta, self.beta = (torch.randn(period, size) / 2 for size in sizes)
        self.x, self.gout = torch.randn(2, samples, n)
        self.plan = native.Plan(self.net.program, 8, (samples, n), period)

    def by_torch(self) -> tuple[Tensor, ...]:
        """y_N, and its gradients with respect to the state, theta and beta."""
        inputs = [t.clone().requires_grad_() for t in (self.x, self.theta, self.beta)]
        y, K, beta = inputs[0], self.net.field.weights.map.assemble(inputs[1]), inputs[2]
        for j in self.layers:
            units = torch.tanh(y @ K[j].mT + beta[j])
            y = y + self.net.h * (units if self.J is None else units @ K[j] @ self.J.mT)
        return y.detach(), *torch.autograd.grad(y, inputs, self.gout)

    def by_kernels(self, wanted: tuple[bool, ...] = (True,) * 3) -> list[Tensor]:
        library, (x, gout) = native.library(), (self.x.data_ptr(), self.gout.data_ptr())
        numbers = (None if t is None else t.data_ptr() for t in (self.theta, self.beta, self.J))
        values, out = native.Addresses(*numbers, self.net.h), torch.empty_like(self.x)
        native.check(library.hdnn_forward(self.plan.handle, values, x, out.data_ptr(), None, 2))
        grads = [torch.full_like(t, torch.nan) for t in (self.x, self.theta, self.beta)]
        into = (g.data_ptr() if want else None for g, want in zip(grads, wanted, strict=True))
        native.check(library.hdnn_backward(self.plan.handle, values, x, gout, None, *into, 2))
        return [out, *grads]


every_shape = pytest.mark.parametrize("shape", [(301, 4), (3, 18)], ids=["many", "few"])


@every_shape
@pytest.mark.parametrize("period", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("name", ["H1", "H2", "MS2"])
def test_parameters_of_layers_repeat_with_the_period(
    name: str, period: int, shape: tuple[int, int]
) -> None:
    periodic = Periodic(name, period, *shape)
    for mine, exact in zip(periodic.by_kernels(), periodic.by_torch(), strict=True):
        assert error(mine, exact) <= 1e-13


@every_shape
@pytest.mark.parametrize("wanted", list(itertools.product((False, True), repeat=3)))
@pytest.mark.parametrize("name", ["H1", "MS2"])
def test_gradients_that_are_not_wanted_are_left_alone(
    name: str, wanted: tuple[bool, ...], shape: tuple[int, int]
) -> None:
    """And the others have the same bits."""
    periodic = Periodic(name, 6, *shape)
    out, *everything = periodic.by_kernels()
    again, *some = periodic.by_kernels(wanted)
    assert torch.equal(again, out)
    for gradient, full, want in zip(some, everything, wanted, strict=True):
        assert torch.equal(gradient, full) if want else bool(gradient.isnan().all())


def test_pixels_of_small_images_fill_blocks_as_samples_do() -> None:
    """With the same bits, gradients of weights included."""
    images, rows = (build("H2", layers=5, **{layout: 4}) for layout in ("channels", "features"))
    rows.load_state_dict(images.state_dict())
    for size in (1, 2, 3):
        y, weight = torch.randn(2, 50, 4, size, size)
        flat = [t.movedim(1, -1).reshape(-1, 4) for t in (y, weight)]
        expected = derivatives(twin(rows, "fused"), *flat)
        results = derivatives(twin(images, "fused"), y, weight)
        for name in ("value", "state"):
            results[name] = results[name].movedim(1, -1).reshape(-1, 4)
        agree(results, expected, 0.0)


@pytest.mark.parametrize("name", ["H1", "MS3"])
def test_very_deep_networks(name: str) -> None:
    net = build(name, features=64, layers=1500, T=1.0, scale=0.125)
    agree(*both(net, torch.randn(20, 64)))


# --- activations, element by element --------------------------------------------------------------


def elementwise(activation: str, dtype: torch.dtype) -> Net:
    """One layer y -> sigma(y)."""
    net = build("FCNN", features=1, layers=1, activation=activation, dtype=dtype, backend="fused")
    with torch.no_grad():
        net.field.weights.theta.fill_(1.0)
        net.field.weights.beta.fill_(0.0)
    return net


def points(dtype: torch.dtype) -> Tensor:
    info = torch.finfo(dtype)
    sizes = torch.logspace(-40 if dtype == torch.float32 else -310, 4, 5000, dtype=torch.float64)
    near = torch.linspace(0, 25, 20001, dtype=torch.float64)
    edge = torch.tensor([0.0, info.tiny, info.eps, info.max, torch.inf], dtype=torch.float64)
    x = torch.cat([sizes, near, edge]).to(dtype).sort().values.unique()
    return torch.cat([-x.flip(0), x]).unsqueeze(-1)


@every_dtype
def test_tanh(dtype: torch.dtype) -> None:
    """Odd, at most 1, exactly 1 when saturated, few units in the last place from the truth."""
    x, eps = points(dtype), torch.finfo(dtype).eps
    t = elementwise("tanh", dtype)(x).detach()
    assert torch.equal(t, -t.flip(0))
    assert torch.equal(t.sign(), x.sign())
    assert bool((t.abs() <= 1).all())
    assert bool((t[x >= (10 if dtype == torch.float32 else 20)] == 1).all())
    exact = torch.tanh(x.double())
    assert bool(((t.double() - exact).abs() <= 4 * eps * exact.abs() + 1e-300).all())
    if dtype == torch.float32:
        assert float((t.double() - exact).abs().max()) <= 3e-7


@every_dtype
@pytest.mark.parametrize("activation", COMPILED)
def test_activations_and_their_derivatives(activation: str, dtype: torch.dtype) -> None:
    x, eps = points(dtype), torch.finfo(dtype).eps
    x = torch.cat([x, torch.full_like(x[:3], torch.nan)])
    mine, plain = both(elementwise(activation, dtype), x, torch.ones_like(x))
    for name in ("value", "state"):
        torch.testing.assert_close(
            mine[name], plain[name], rtol=8 * eps, atol=2 * eps, equal_nan=True
        )


# --- special values -------------------------------------------------------------------------------


@pytest.mark.parametrize("special", [1e4, 0.0, 1e-310, torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("activation", COMPILED)
@pytest.mark.parametrize("name", ["H1", "MS3", "FCNN"])
def test_special_values_stay_in_their_sample(name: str, activation: str, special: float) -> None:
    """As in the reference, forward and backward, for a whole sample and for one of its entries.

    In gradients of weights a sum may be NaN in one and infinite in the other: the reference
    multiplies by the zeros of J, the kernels leave them out.
    """
    net = build(name, layers=3, activation=activation, scale=0.5)
    y, weight = torch.randn(2, 37, 4)
    y[11] = y[36, 2] = special  # the last sample is the one that fills a vector
    mine, plain = both(net, y, weight)
    for key, expected in plain.items():
        value = mine[key]
        tolerance = 1e-11 * max(1.0, float(expected.nan_to_num(0, 0, 0).abs().max()))
        if key not in ("value", "state"):
            assert torch.equal(value.isfinite(), expected.isfinite())
            value, expected = (t.nan_to_num(0, 0, 0) for t in (value, expected))
        torch.testing.assert_close(value, expected, rtol=1e-11, atol=tolerance, equal_nan=True)
    others = [k for k in range(37) if k not in (11, 36)]
    assert bool(mine["value"][others].isfinite().all())
    assert bool(mine["state"][others].isfinite().all())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["H1", "H2", "MS1", "MS2", "MS3", "FCNN"])
def test_weights_that_are_not_finite_show_as_in_the_reference(name: str, bad: float) -> None:
    """In the same samples, and in the same gradients."""
    net = build(name, layers=3)
    with torch.no_grad():
        net.field.weights.theta[1, 1] = bad
    mine, plain = both(net, torch.randn(9, 4))
    for key, expected in plain.items():
        if key in ("value", "state"):
            assert torch.equal(mine[key].isfinite().all(-1), expected.isfinite().all(-1)), key
        else:
            assert bool(mine[key].isfinite().all()) == bool(expected.isfinite().all()), key
