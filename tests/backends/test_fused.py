"""What the kernels compute is what the reference computes, alone and inside torch graphs."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

import hdnn
from catalogue import OWN, build
from hdnn.fields import HamiltonianField, Weights
from hdnn.kernels import native
from skips import needs_kernels
from twins import (
    CATALOGUE,
    OWN_ONLY,
    Net,
    agree,
    derivatives,
    derivatives_of,
    error,
    stepped,
    twin,
)

pytestmark = needs_kernels

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
        steps = (
            ((layers,) if ensemble is None else (ensemble, layers)) if draw(st.booleans()) else ()
        )
        options["step"] = torch.rand(steps, dtype=torch.float64) / layers if steps else 0.3 / layers
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


@pytest.mark.parametrize("name", ["H1", "MS3"])
@pytest.mark.parametrize("layers", [300, 1500])
def test_very_deep_networks(name: str, layers: int) -> None:
    net, y = build(name, features=64, layers=layers, T=1.0, scale=0.125), torch.randn(20, 64)
    fused, plain = (derivatives(twin(net, b), y, y) for b in ("fused", "reference"))
    agree(fused, plain)


def test_a_singular_X_couples_less_and_a_zero_one_nothing() -> None:
    for rank in (0, 1):
        X = torch.zeros(2, 2)
        X[:rank, :rank] = 1.0
        net, y = build("HS", X=X, backend="fused"), torch.randn(5, 4)
        agree(derivatives(net, y, y), derivatives(twin(net, "reference"), y, y))
        if not rank:
            gradients = torch.autograd.grad(net(y).sum(), net.parameters())
            assert torch.equal(net(y), y)
            assert not any(bool(g.any()) for g in gradients)


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
@pytest.mark.parametrize("activation", native.ACTIVATIONS)
def test_activations_and_their_derivatives(activation: str, dtype: torch.dtype) -> None:
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


@pytest.mark.parametrize("activation", native.ACTIVATIONS)
@pytest.mark.parametrize("name", ["H1", "MS3", "FCNN"])
def test_special_values_stay_in_their_sample(name: str, activation: str) -> None:
    """As in the reference, forward and backward, for a whole sample and for one of its entries.

    In gradients of weights a sum may be NaN in one and infinite in the other: the reference
    multiplies by the zeros of J, the kernels leave them out.
    """
    for special in SPECIAL.values():
        net = build(name, layers=3, activation=activation, scale=0.5)
        y, weight = torch.randn(37, 4), torch.randn(37, 4)
        y[11] = y[36, 2] = special  # the last sample is the one that fills a vector
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
    assert {"MS1-Yoshida4", "MS3-Leapfrog", "HS-Yoshida4"} <= set(CATALOGUE)


# --- in torch graphs ------------------------------------------------------------------------------


def pair(name: str = "H1", **options: Any) -> tuple[Net, Net]:
    """A network on the kernels, and the same on the reference."""
    net = build(name, **options)
    return twin(net, "fused"), twin(net, "reference")


def close(a: Tensor, b: Tensor, tolerance: float = 1e-11) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def same(function: Callable[[Net], Tensor], *nets: Net, inputs: tuple[Tensor, ...] = ()) -> None:
    """Equal losses and equal gradients of all parameters, and of the inputs."""
    results = []
    for net in nets:
        loss = function(net)
        wanted = [p for p in (*inputs, *net.parameters()) if p.requires_grad]
        results.append((loss.detach(), *torch.autograd.grad(loss, wanted)))
    for a, b in zip(*results, strict=True):
        close(a, b)


# --- inputs of every kind -------------------------------------------------------------------------

VIEWS: dict[str, Callable[[], Tensor]] = {
    "transposed": lambda: torch.randn(4, 40).t(),
    "every second row": lambda: torch.randn(80, 4)[::2],
    "every third feature": lambda: torch.randn(40, 12)[:, ::3],
    "a slice": lambda: torch.randn(50, 9)[3:43, 2:6],
    "batch axes swapped": lambda: torch.randn(5, 8, 4).transpose(0, 1),
    "one row for all": lambda: torch.randn(4).expand(40, 4),
    "one column for all": lambda: torch.randn(40, 1).expand(40, 4),
    "one number": lambda: torch.randn(()).expand(40, 4),
    "imaginary part of a conjugate": lambda: torch.randn(40, 4, dtype=torch.complex128).conj().imag,
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", ["H1", "MS3"])
def test_states_with_any_strides(name: str, view: str) -> None:
    mine, plain = pair(name)
    y = VIEWS[view]()
    weight = torch.randn_like(y)
    agree(derivatives(mine, y, weight), derivatives(plain, y.clone(), weight))


@pytest.mark.parametrize("view", [v for v in VIEWS if "batch" not in v])
def test_incoming_gradients_with_any_strides(view: str) -> None:
    mine, plain = pair()
    y, weight = torch.randn(40, 4), VIEWS[view]()
    agree(derivatives(mine, y, weight), derivatives(plain, y, weight.clone()))


@pytest.mark.parametrize("view", ["channels last", "cropped", "one pixel for all"])
def test_images_with_any_strides(view: str) -> None:
    mine, plain = pair("H2", channels=4)
    y = {
        "channels last": torch.randn(3, 5, 7, 4).movedim(-1, 1),
        "cropped": torch.randn(3, 8, 9, 11)[:, 1:8:2, 2:7, 1:11:2],
        "one pixel for all": torch.randn(3, 4, 1, 1).expand(3, 4, 5, 5),
    }[view]
    weight = torch.randn_like(y)
    agree(derivatives(mine, y, weight), derivatives(plain, y.contiguous(), weight))


# --- parts of larger graphs -----------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
def test_in_the_middle_of_a_graph_and_twice(shared: bool) -> None:
    """Before, after and around it is other torch; one network is used twice."""
    mine, plain = pair(time_invariant=shared)
    before, x = nn.Linear(3, 4), torch.randn(6, 3, requires_grad=True)

    def loss(net: Net) -> Tensor:
        y = before(x).relu()
        z = net(y)
        return (net(z * y).cos() * z).sum() + net.K.square().sum()

    same(loss, mine, plain, inputs=(x, *before.parameters()))


def test_weights_that_other_torch_computes() -> None:
    """Weights that depend on the state: gradients arrive by both ways, once each."""
    mine, plain = pair()
    y = torch.randn(6, 4, requires_grad=True)

    def loss(net: Net) -> Tensor:
        theta = net.field.weights.theta * torch.tanh(y.sum())
        return functional_call(net, {"field.weights.theta": theta}, (y,)).square().sum()

    for create_graph in (False, True):
        found, expected = (
            torch.autograd.grad(loss(net), y, create_graph=create_graph)[0] for net in (mine, plain)
        )
        close(found, expected)


def test_gradients_only_where_they_are_wanted() -> None:
    mine, plain = pair("HS")
    names = [name for name, _ in mine.named_parameters()]
    for wanted in (*([name] for name in names), ["state"], names):
        y = torch.randn(5, 4).requires_grad_("state" in wanted)
        for net in (mine, plain):
            for name, parameter in net.named_parameters():
                parameter.requires_grad_(name in wanted)
        same(lambda net, y=y: net(y).square().sum(), mine, plain, inputs=(y,))
    for net in (mine, plain):
        net.requires_grad_(False)
    assert not mine(torch.randn(5, 4)).requires_grad


def test_backward_twice_through_a_retained_graph() -> None:
    mine, plain = pair()
    y = torch.randn(5, 4, requires_grad=True)
    out = mine(y)
    for weight in (torch.randn(5, 4), torch.randn(5, 4)):
        found = torch.autograd.grad(out, [y, *mine.parameters()], weight, retain_graph=True)
        expected = derivatives(plain, y, weight)
        for a, b in zip(found, list(expected.values())[1:], strict=True):
            close(a, b)
    out.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("label", ["H1-own", "MS1-own", "FCNN-own"])
def test_without_gradients_the_same_values_and_training_goes_on(
    label: str, mode: Callable[[], Any]
) -> None:
    net = twin(CATALOGUE[label](features=4, layers=3), "fused")
    y = torch.randn(5, 4)
    with mode():
        out = net(y)
    assert not out.requires_grad
    expected = derivatives(twin(net, "reference"), y, y)
    agree(derivatives(net, y, y), expected)
    close(out, expected["value"])


def test_a_network_made_in_inference_mode() -> None:
    with torch.inference_mode():
        net, y = build("H1", backend="fused", T=0.77), torch.randn(5, 4)
        close(net(y), twin(net, "reference")(y))
        net.field.interconnection.J.mul_(2)
        close(net(y), twin(net, "reference")(y))
    other = build("H1", backend="fused", T=0.77)
    agree(
        derivatives(other, y.clone(), y.clone()),
        derivatives(twin(other, "reference"), y.clone(), y.clone()),
    )


# --- changes between calls, and between forward and backward --------------------------------------


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("changed", ["theta", "beta", "state", "J"])
def test_what_changes_before_backward_is_an_error_or_harmless(
    changed: str, create_graph: bool
) -> None:
    """Torch's version error, or the gradient of what was computed; never a mixture."""
    mine, plain = pair()
    y = torch.randn(5, 4, requires_grad=True)
    x = y * 1
    expected = derivatives(plain, y, torch.ones_like(y))["state"]
    loss = mine(x).sum()
    field = mine.field
    with torch.no_grad():
        {
            "theta": field.weights.theta,
            "beta": field.weights.beta,
            "state": x,
            "J": field.interconnection.J,
        }[changed].mul_(1.5)
    try:
        found = torch.autograd.grad(loss, y, create_graph=create_graph)[0]
    except RuntimeError as error:
        assert "inplace" in str(error)  # noqa: PT017
        return
    assert changed == "J"
    close(found, expected)


# --- twice differentiable -------------------------------------------------------------------------


@pytest.mark.parametrize("label", OWN_ONLY)
def test_second_derivatives(label: str) -> None:
    steps = {} if label.startswith("FCNN") else {"step": [0.2, 0.3]}
    net = CATALOGUE[label](features=2, layers=2, scale=0.5, **steps)
    mine = twin(net, "fused")
    names, values = zip(*mine.named_parameters(), strict=True)

    def function(y: Tensor, *values: Tensor) -> Tensor:
        return functional_call(mine, dict(zip(names, values, strict=True)), (y,))

    y = torch.randn(2, 2, requires_grad=True)
    inputs = (y, *(v.detach().clone().requires_grad_() for v in values))
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("label", CATALOGUE)
def test_a_gradient_penalty_trains_as_with_the_reference(label: str) -> None:
    net = CATALOGUE[label](features=4, layers=3, scale=0.5)
    y = torch.randn(6, 4, requires_grad=True)

    def loss(net: Net) -> Tensor:
        found = torch.autograd.grad(
            net(y).square().sum(), [y, *net.parameters()], create_graph=True
        )
        return sum((g.square().sum() for g in found), torch.zeros(()))

    same(loss, twin(net, "fused"), twin(net, "reference"), inputs=(y,))


# --- transforms -----------------------------------------------------------------------------------

# Torch's own, when forward-mode differentiation is first used in a process.
ignore_script = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")


def jvp(net: Net, y: Tensor) -> Tensor:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(y, torch.ones_like(y))
        return torch.autograd.forward_ad.unpack_dual(net(dual)).tangent


def forward_over_reverse(net: Net, y: Tensor) -> Tensor:
    """A Hessian-vector product: the tangent of a gradient."""
    with torch.autograd.forward_ad.dual_level():
        x = y.clone().requires_grad_()
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        (g,) = torch.autograd.grad(net(dual).square().sum(), dual, create_graph=True)
        return torch.autograd.forward_ad.unpack_dual(g).tangent


def batched_vjp(net: Net, y: Tensor) -> Tensor:
    """`is_grads_batched` runs the backward pass alone under vmap."""
    x = y.clone().requires_grad_()
    weights = torch.randn(3, *y.shape, generator=torch.Generator().manual_seed(0))
    found = torch.autograd.grad(net(x), [x, *net.parameters()], weights, is_grads_batched=True)
    return torch.cat([g.flatten(1) for g in found], 1)


def vectorized(net: Net, y: Tensor) -> Tensor:
    found: Any = torch.autograd.functional.jacobian(
        lambda x: net(x.reshape(1, *x.shape)), y, vectorize=True
    )
    return found


def per_sample_gradients(net: Net, y: Tensor) -> Tensor:
    given = {name: p.detach() for name, p in net.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(net, parameters, (x,)).square().sum()

    found = torch.func.vmap(torch.func.grad(loss), (None, 0))(given, y)
    return torch.cat([g.flatten(1) for g in found.values()], 1)


TRANSFORMS: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "vmap": lambda net, y: torch.func.vmap(net)(y),
    "jacrev": lambda net, y: torch.func.vmap(torch.func.jacrev(net))(y),
    "jacfwd": lambda net, y: torch.func.vmap(torch.func.jacfwd(net))(y),
    "grad": lambda net, y: torch.func.grad(lambda x: net(x).square().sum())(y),
    "hessian": lambda net, y: torch.func.hessian(lambda x: net(x).square().sum())(y[0]),
    "jvp": lambda net, y: torch.func.jvp(net, (y,), (torch.ones_like(y),))[1],
    "forward-mode": jvp,
    "forward over reverse": forward_over_reverse,
    "batched vjp": batched_vjp,
    "vectorized jacobian": lambda net, y: vectorized(net, y[0]),
    "per-sample gradients": per_sample_gradients,
}


@ignore_script
@pytest.mark.parametrize("layout", ["features", "channels"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_are_those_of_the_reference(transform: str, layout: str) -> None:
    """The kernels compute values and gradients; whatever else is asked for is the reference's."""
    for name in ("H1", "MS1"):
        mine, plain = pair(name, **{layout: 4})
        y, apply = torch.randn(5, 4), TRANSFORMS[transform]
        if layout == "channels" and transform in (
            "vmap",
            "jacrev",
            "jacfwd",
            "per-sample gradients",
        ):
            y = torch.randn(2, 3, 4, 2)  # a batch of batches
        elif layout == "channels":
            y = torch.randn(2, 3, 4)[0:1].expand(2, 3, 4) if transform == "hessian" else y
        close(apply(mine, y), apply(plain, y))


@ignore_script
def test_forward_mode_sees_tangents_of_parameters() -> None:
    mine, plain = pair()
    y = torch.randn(5, 4)
    tangents = {name: torch.randn_like(p) for name, p in mine.named_parameters()}

    def moved(net: Net, with_state: bool) -> Tensor:
        with torch.autograd.forward_ad.dual_level():
            make = torch.autograd.forward_ad.make_dual
            duals = {n: make(p.detach(), tangents[n]) for n, p in net.named_parameters()}
            state = make(y, torch.ones_like(y)) if with_state else y
            out = functional_call(net, duals, (state,))
            return torch.autograd.forward_ad.unpack_dual(out).tangent

    for with_state in (False, True):
        close(moved(mine, with_state), moved(plain, with_state))


def test_checkpoints_of_torch_recompute_the_same() -> None:
    net, y = build("H1", backend="fused"), torch.randn(5, 4)

    def again(x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(net, x, use_reentrant=False)

    agree(derivatives_of(again, net, y), derivatives(net, y, y), 0.0)


# --- what the graph keeps -------------------------------------------------------------------------


def saved_tensors(net: Net, y: Tensor) -> list[Tensor]:
    """What the graph of a forward pass keeps."""
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = net(y)
    assert out.requires_grad
    return kept


@pytest.mark.parametrize("layers", [16, 1024])
@pytest.mark.parametrize("name", ["H1", "MS3", "FCNN"])
def test_the_graph_keeps_nothing_but_the_inputs(name: str, layers: int) -> None:
    mine, plain = pair(name, layers=layers)
    y = torch.randn(37, 4, requires_grad=True)
    inputs = (y, *mine.values()[1:4])  # theta, beta and, where there is one, J
    kept = saved_tensors(mine, y)
    assert {t.data_ptr() for t in kept} == {t.data_ptr() for t in inputs if t is not None}
    assert len(saved_tensors(plain, y)) > layers  # so the count does count


def test_a_tensor_that_a_transform_has_left_behind() -> None:
    net, left = build("H1", backend="fused"), []

    def leaky(y: Tensor) -> Tensor:
        left.append(2 * y)
        return y.sum()

    y = torch.randn(5, 4)
    torch.func.grad(leaky)(y)
    close(net(left[0]), net(2 * y))


MEMORY = """
import resource, sys
import torch, hdnn
layers = int(sys.argv[1])
torch.set_num_threads(1)
net = hdnn.network("H1", features=8, layers=layers, T=1.0, backend="fused")
y = torch.randn(100_000, 8, requires_grad=True)
net(y[:1]).sum().backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
net(y).sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts kilobytes as Linux does")
def test_depth_costs_no_memory_per_sample() -> None:
    """A state of this batch has 3 MB; a graph of 512 layers would hold thousands."""
    run = [sys.executable, "-c", MEMORY]
    shallow, deep = (int(subprocess.check_output([*run, layers])) for layers in ("8", "512"))
    assert deep < 1.2 * shallow + 4000
