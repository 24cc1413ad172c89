"""What the kernels compute is what the reference computes: values, gradients, special values."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import hdnn
from catalogue import OWN, build
from hdnn.backends.compiled_program import compile_program
from hdnn.backends.selection import ACTIVATIONS
from hdnn.fields import HamiltonianField, Weights
from hdnn.kernels import tiling
from hdnn.kernels.stage_table import AT_B, M
from twins import CATALOGUE, Net, agree, derivatives, error, stepped, twin

WIDTHS = (2, 4, 6, 8, 10, 16, 34, 64)
DEPTHS = (1, 2, 17, 64)
BATCHES = (1, 7, 125, 1000)


def shapes(k: int) -> list[tuple[int, int, int]]:
    """(n, layers, batch): every width with every depth, a Latin square of batches for every k."""
    return [
        (n, layers, BATCHES[(i + j + k) % 4])
        for i, n in enumerate(WIDTHS)
        for j, layers in enumerate(DEPTHS)
    ]


# --- accuracy -------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", CATALOGUE)
def test_float32_is_as_accurate_as_the_reference(label: str) -> None:
    """The error against float64 is at most 3 x that of the reference in float32, plus 1e-6."""
    k = list(CATALOGUE).index(label)
    for n, layers, batch in shapes(k):
        options: dict[str, Any] = {"T": 1.2} if stepped(label) else {}
        if stepped(label) and (k + n + layers) % 2:
            options["learn_steps"] = True
        single = torch.float32
        net = CATALOGUE[label](features=n, layers=layers, scale=n**-0.5, dtype=single, **options)
        y, weight = torch.randn(batch, n, dtype=single), torch.randn(batch, n, dtype=single)
        fused = derivatives(twin(net, "fused"), y, weight)
        plain = derivatives(twin(net, "reference"), y, weight)
        exact = derivatives(
            twin(net, "reference", dtype=torch.float64), y.double(), weight.double()
        )
        for name, target in exact.items():
            mine, theirs = error(fused[name], target), error(plain[name], target)
            # Of a handful of numbers, each a sum that cancels, the reference may hit one by luck.
            least = 1e-6 if target.numel() >= 16 else 1e-5
            assert mine <= 3 * theirs + least, (n, layers, batch, name, mine, theirs)


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, dict[str, Any], tuple[int, ...]]:
    """A network of the catalogue with any layout, and the shape of a state for it."""
    label = draw(st.sampled_from(sorted(CATALOGUE)))
    n, layers = draw(st.sampled_from((2, 4, 6, 10))), draw(st.sampled_from((1, 2, 5, 33)))
    layout = draw(st.sampled_from(("features", "channels")))
    ensemble = draw(st.sampled_from((None, 1, 3, 9)))
    options: dict[str, Any] = {layout: n, "layers": layers, "ensemble": ensemble}
    options["time_invariant"] = draw(st.booleans())
    if stepped(label):
        options |= {"T": draw(st.floats(0.01, 1.2)), "learn_steps": draw(st.booleans())}
    lead = () if ensemble is None else (draw(st.sampled_from((1, ensemble))),)
    sizes = st.lists(st.integers(1, 9), max_size=3)
    batch, spatial = draw(sizes), draw(sizes)
    if layout == "channels":
        return label, options, (*lead, draw(st.integers(1, 40)), n, *spatial)
    return label, options, (*lead, *batch, n)


@settings(max_examples=150)
@given(call=calls(), seed=st.integers(0, 10**6))
def test_float64_is_the_reference_for_every_shape(
    call: tuple[str, dict[str, Any], tuple[int, ...]], seed: int
) -> None:
    label, options, shape = call
    torch.manual_seed(seed)
    n = options.get("features") or options["channels"]
    net = CATALOGUE[label](scale=n**-0.5, dtype=torch.float64, **options)
    y = torch.randn(shape, dtype=torch.float64)
    fused, plain = twin(net, "fused"), twin(net, "reference")
    weight = torch.randn_like(plain(y))
    agree(derivatives(fused, y, weight), derivatives(plain, y, weight), 1e-11)


@pytest.mark.parametrize("units", [1, 3, 8])
@pytest.mark.parametrize("n", [1, 3, 5])
def test_odd_widths_and_any_number_of_hidden_units(n: int, units: int) -> None:
    """K need not be square, nor full: a graph with an empty row and an empty column."""
    graph = np.random.default_rng(0).random((units, n)) < 0.7
    graph[0], graph[:, 0], graph[-1, -1] = False, False, True
    R = torch.eye(n) / 10
    field = HamiltonianField("J2", Weights(graph, features=n, layers=3), dissipation=R)
    net, y = Net(field, T=1.0), torch.randn(9, n)
    fused, plain = (derivatives(twin(net, b), y, y) for b in ("fused", "reference"))
    agree(fused, plain)


def test_J_of_every_layer() -> None:
    J = torch.randn(3, 4, 4)
    field = HamiltonianField(J - J.mT, Weights("dense", features=4, layers=3))
    net, y = Net(field, T=1.0), torch.randn(9, 4)
    fused, plain = (derivatives(twin(net, b), y, y) for b in ("fused", "reference"))
    agree(fused, plain)


@pytest.mark.parametrize("name", ["H1", "MS3"])
@pytest.mark.parametrize("layers", [300, 1500])
def test_very_deep_networks(name: str, layers: int) -> None:
    """More layers than fit into the scratch at once, and more segments than it has room for."""
    net, y = build(name, features=64, layers=layers, T=1.0, scale=0.125), torch.randn(20, 64)
    table = compile_program(net.program(), y.dtype, y.device).tables.table
    plan = tiling.plan(table, (1, 1, 64, 20), layers, 8)
    cut = plan.tiling
    assert cut.segment < layers
    assert (cut.slots < -(-layers // cut.segment)) == (layers == 1500)
    fused, plain = (derivatives(twin(net, b), y, y) for b in ("fused", "reference"))
    agree(fused, plain)


@pytest.mark.parametrize("label", CATALOGUE)
def test_rows_of_parameters_a_few_layers_at_a_time(
    label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where not all rows are held, each segment fills its own and folds its own gradients."""
    options: dict[str, Any] = {"T": 1.0, "learn_steps": True} if stepped(label) else {}
    net = CATALOGUE[label](features=6, layers=23, scale=0.4, **options)
    y, weight = torch.randn(300, 6), torch.randn(300, 6)
    exact = derivatives(twin(net, "reference"), y, weight)
    monkeypatch.setattr(tiling, "BUDGET", 12_000)
    monkeypatch.setattr(tiling, "WINDOW", 0)
    table = compile_program(net.program(), y.dtype, y.device).tables.table
    plan = tiling.plan(table, (1, 1, 6, 300), 23, 8)
    assert plan.window == plan.tiling.segment < 23
    assert plan.tiling.pieces > 1
    agree(derivatives(twin(net, "fused"), y, weight), exact)


# --- activations, element by element --------------------------------------------------------------


def elementwise(activation: str, dtype: torch.dtype, backend: str) -> Net:
    """One layer y -> sigma(y)."""
    net = build("FCNN", features=1, layers=1, activation=activation, dtype=dtype, backend=backend)
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_tanh(dtype: torch.dtype) -> None:
    """Odd, at most 1, exactly 1 when saturated, few units in the last place from the truth."""
    x, eps = points(dtype), torch.finfo(dtype).eps
    t = elementwise("tanh", dtype, "fused")(x).detach()
    assert torch.equal(t, -t.flip(0))
    assert torch.equal(t.sign(), x.sign())
    assert bool((t.abs() <= 1).all())
    assert bool((t[x >= (10 if dtype == torch.float32 else 20)] == 1).all())
    exact = torch.tanh(x.double())
    assert bool(((t.double() - exact).abs() <= 4 * eps * exact.abs() + 1e-300).all())
    if dtype == torch.float32:
        assert float((t.double() - exact).abs().max()) <= 3e-7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_and_slopes_element_by_element(activation: str, dtype: torch.dtype) -> None:
    x, eps = points(dtype), torch.finfo(dtype).eps
    x = torch.cat([x, torch.full_like(x[:3], torch.nan)])
    fused, plain = (
        derivatives(elementwise(activation, dtype, b), x, torch.ones_like(x))
        for b in ("fused", "reference")
    )
    for name in ("value", "state"):
        torch.testing.assert_close(
            fused[name], plain[name], rtol=8 * eps, atol=2 * eps, equal_nan=True
        )


# --- special values -------------------------------------------------------------------------------

SPECIAL = {
    "large": 1e4,
    "zero": 0.0,
    "denormal": 1e-310,
    "nan": torch.nan,
    "inf": torch.inf,
    "-inf": -torch.inf,
}


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", ["H1", "MS3", "FCNN"])
def test_special_values_stay_in_their_sample(name: str, activation: str, special: str) -> None:
    """As in the reference, forward and backward, for a whole sample and for one of its entries.

    In gradients of weights a sum may be NaN in one and infinite in the other: the reference
    multiplies by the zeros of J, the kernels leave them out.
    """
    net = build(name, layers=3, activation=activation, scale=0.5)
    y, weight = torch.randn(37, 4), torch.randn(37, 4)
    y[11], y[36, 2] = SPECIAL[special], SPECIAL[special]  # the last is the one that fills a vector
    fused, plain = (derivatives(twin(net, b), y, weight) for b in ("fused", "reference"))
    for key, expected in plain.items():
        found = fused[key]
        tolerance = 1e-11 * max(1.0, float(expected.nan_to_num(0, 0, 0).abs().max()))
        if key not in ("value", "state"):
            assert torch.equal(found.isfinite(), expected.isfinite())
            found, expected = (t.nan_to_num(0, 0, 0) for t in (found, expected))
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=tolerance, equal_nan=True)
    others = torch.ones(37, dtype=torch.bool)
    others[[11, 36]] = False
    assert bool(fused["value"][others].isfinite().all())
    assert bool(fused["state"][others].isfinite().all())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["H1", "H2", "MS1", "MS2", "MS3", "FCNN"])
def test_weights_that_are_not_finite_show_as_in_the_reference(name: str, bad: float) -> None:
    """The samples and the gradients that say so are those of the reference."""
    net, y = build(name, layers=3), torch.randn(9, 4)
    with torch.no_grad():
        net.field.weights.theta[1, 1] = bad
    fused, plain = (derivatives(twin(net, b), y, y) for b in ("fused", "reference"))
    for key, expected in plain.items():
        if key in ("value", "state"):
            assert torch.equal(fused[key].isfinite().all(-1), expected.isfinite().all(-1)), key
        else:
            assert bool(fused[key].isfinite().all()) == bool(expected.isfinite().all()), key


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_saturated_networks(dtype: torch.dtype) -> None:
    """All units saturated: the state moves on, and no gradient comes back through them."""
    net = build("H1", layers=4, T=1.0, scale=100.0, dtype=dtype)
    y = (1 + torch.rand(50, 4, dtype=dtype)) * 1e4
    fused, plain = (derivatives(twin(net, b), y, y) for b in ("fused", "reference"))
    agree(fused, plain, 1e-6 if dtype == torch.float32 else 1e-13)


# --- the plan: scratch and chunks -----------------------------------------------------------------


@settings(max_examples=200)
@given(
    label=st.sampled_from(sorted(CATALOGUE)),
    half=st.integers(1, 32),
    layers=st.integers(1, 10_000),
    sizes=st.tuples(st.integers(1, 20), st.integers(1, 200), st.integers(1, 100_000)),
    itemsize=st.sampled_from((4, 8)),
)
def test_scratch_stays_in_the_cache_at_any_depth(
    label: str, half: int, layers: int, sizes: tuple[int, int, int], itemsize: int
) -> None:
    net = CATALOGUE[label](features=2 * half, layers=1)
    program = net.program()
    table = compile_program(program, torch.float64, torch.device("cpu")).tables.table
    networks, groups, samples = sizes
    plan = tiling.plan(table, (networks, groups, 2 * half, samples), layers, itemsize)
    cut = plan.tiling
    assert plan.scratch * itemsize <= tiling.BUDGET
    size = int((table[:, AT_B] + table[:, M]).max()) * itemsize
    assert plan.window == cut.segment or (plan.window == layers and layers * size <= tiling.WINDOW)
    assert 1 <= cut.pieces <= groups * -(-samples // cut.block)
    assert cut.block >= 1
    assert 1 <= cut.segment <= layers
    assert 1 <= cut.slots <= -(-layers // cut.segment)


# --- what a call leaves alone ---------------------------------------------------------------------


def test_nothing_of_torch_is_touched() -> None:
    net, y = build("H1", backend="fused", layers=20), torch.randn(500, 4)
    kept, before = copy.deepcopy(net.state_dict()), y.clone()
    random, threads = torch.get_rng_state(), torch.get_num_threads()
    state, grad = np.random.get_state()[1].copy(), torch.is_grad_enabled()
    derivatives(net, y, torch.ones_like(y))
    hdnn.analysis.sensitivities(net, y)
    assert torch.equal(torch.get_rng_state(), random)
    assert (np.random.get_state()[1] == state).all()
    assert torch.get_num_threads() == threads
    assert torch.is_grad_enabled() == grad
    assert torch.equal(y, before)
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, kept[name])


def test_outputs_are_tensors_of_their_own() -> None:
    """Writing into a result or a gradient changes neither the next result nor any parameter."""
    net, y = build("H1", backend="fused"), torch.randn(9, 4)
    first = derivatives(net, y, y)
    expected = copy.deepcopy(first)
    for tensor in first.values():
        tensor.fill_(7.0)
    for name, tensor in derivatives(net, y, y).items():
        assert torch.equal(tensor, expected[name])


def test_the_catalogue_has_what_the_kernels_must_serve() -> None:
    assert {f"{name}-{OWN}" for name in hdnn.zoo.ARCHITECTURES} <= set(CATALOGUE)
    assert {"MS1-Yoshida4", "MS3-Leapfrog", "HS-Yoshida4", "learned J"} <= set(CATALOGUE)
