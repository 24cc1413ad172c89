"""The reference: plain torch in any dtype, with less memory where that is asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from catalogue import EACH, as_function, build, each, every_name, every_pair
from twins import Net, agree, derivatives, error, twin


def lean(net: Net) -> Net:
    return twin(net, "reference", "lean")


# --- memory="lean" --------------------------------------------------------------------------------


@each
def test_lean_is_the_same_at_any_depth(name: str, scheme: str) -> None:
    """Also where the last segment is shorter than the others."""
    for layers in (1, 3, 70):
        layers = min(layers, 10) if scheme == "ImplicitMidpoint" else layers
        net = build(name, scheme, layers=layers, scale=0.5)
        y, weight = torch.randn(6, 4), torch.randn(6, 4)
        agree(derivatives(lean(net), y, weight), derivatives(twin(net, "reference"), y, weight))


@settings(max_examples=60)
@given(data=st.data(), pair=st.sampled_from(EACH[:8]), layers=st.integers(1, 40))
def test_lean_serves_every_layout(data: st.DataObject, pair: tuple[str, str], layers: int) -> None:
    layout = data.draw(st.sampled_from(("features", "channels")))
    ensemble = data.draw(st.sampled_from((None, 1, 3)))
    options: dict[str, Any] = {
        layout: 4,
        "layers": layers,
        "ensemble": ensemble,
        "dtype": torch.float64,
        "time_invariant": data.draw(st.booleans()),
    }
    if pair[0] != "FCNN":
        options |= {"T": 1.0, "learn_steps": data.draw(st.booleans())}
    net = build(*pair, scale=0.5, **options)
    lead = () if ensemble is None else (data.draw(st.sampled_from((1, ensemble))),)
    rest = tuple(data.draw(st.lists(st.integers(0, 4), max_size=2)))
    shape = (*lead, *rest, 4) if layout == "features" else (*lead, 3, 4, *rest)
    y = torch.randn(shape, dtype=torch.float64)
    plain = twin(net, "reference")
    weight = torch.randn_like(plain(y))
    agree(derivatives(lean(net), y, weight), derivatives(plain, y, weight))


@every_name
@pytest.mark.parametrize("time_invariant", [False, True])
def test_lean_serves_convolutions(name: str, time_invariant: bool) -> None:
    net = build(name, channels=4, kernel=3, scale=2.0, layers=6, time_invariant=time_invariant)
    y, weight = torch.randn(2, 2, 4, 3, 3)
    agree(derivatives(lean(net), y, weight), derivatives(net, y, weight), 1e-10)


TRANSFORMS = {
    "vmap": lambda net, y: torch.func.vmap(net)(y),
    "jacrev": lambda net, y: torch.func.vmap(torch.func.jacrev(net))(y),
    "jacfwd": lambda net, y: torch.func.vmap(torch.func.jacfwd(net))(y),
    "hessian": lambda net, y: torch.func.hessian(lambda x: net(x).square().sum())(y[0]),
}


# Torch's own, when forward-mode differentiation is first used in a process.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_lean_stands_aside_for_transforms(transform: str) -> None:
    net, y, apply = twin(build("H1"), "reference"), torch.randn(3, 4), TRANSFORMS[transform]
    torch.testing.assert_close(apply(lean(net), y), apply(net, y))


def test_lean_can_be_differentiated_twice() -> None:
    function, parameters = as_function(lean(build("MS3", features=2, layers=5)))
    y = torch.randn(2, 2, requires_grad=True)
    assert torch.autograd.gradgradcheck(function, (y, *parameters))


class _Held:
    """A tensor that a graph keeps, and the bytes that are kept so at any one time."""

    now = most = 0

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        _Held.now += tensor.numel() * tensor.element_size()
        _Held.most = max(_Held.most, _Held.now)

    def __del__(self) -> None:
        _Held.now -= self.tensor.numel() * self.tensor.element_size()


def most_held(net: Net, y: Tensor) -> int:
    """The most bytes of states that graphs keep at once, over forward and backward."""
    _Held.now = _Held.most = 0

    def pack(tensor: Tensor) -> Tensor | _Held:
        return _Held(tensor) if len(y) in tensor.shape else tensor

    def unpack(kept: Tensor | _Held) -> Tensor:
        return kept.tensor if isinstance(kept, _Held) else kept

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        net(y.detach().requires_grad_()).sum().backward()
    return _Held.most


@pytest.mark.parametrize("name", ["H1", "MS3", "FCNN"])
def test_lean_memory_hardly_grows_with_depth(name: str) -> None:
    """Only a segment is differentiated at a time."""
    y = torch.randn(37, 4)
    nets = {layers: build(name, layers=layers) for layers in (32, 512)}
    found = {layers: most_held(lean(net), y) for layers, net in nets.items()}
    plain = {layers: most_held(twin(net, "reference"), y) for layers, net in nets.items()}
    assert plain[512] > 12 * plain[32]
    assert found[512] < 6 * found[32]
    assert found[512] < plain[512] / 4


@pytest.mark.parametrize("special", [torch.nan, torch.inf])
@pytest.mark.parametrize("memory", ["fast", "lean"])
@pytest.mark.parametrize("name", ["H1", "MS3"])
def test_a_sample_that_is_not_finite_spoils_no_other(
    name: str, memory: str, special: float
) -> None:
    net, y = twin(build(name, layers=9), "reference", memory), torch.randn(6, 4)
    others = [0, 1, 3, 4, 5]
    expected = derivatives(net, y[others], torch.ones(5, 4))
    y[2, 1] = special
    found = derivatives(net, y, torch.ones_like(y))
    for key in ("value", "state"):
        torch.testing.assert_close(found[key][others], expected[key], rtol=1e-12, atol=1e-12)
    assert not bool(found["value"][2].isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("activation", ["relu", "identity", "tanh"])
@pytest.mark.parametrize(("layers", "T"), [(64, 20.0), (300, 15.0)])
def test_lean_is_the_same_where_states_grow(
    activation: str, layers: int, T: float, dtype: torch.dtype
) -> None:
    """Growing states leave no digits of y_0 in y_N: what is undone would be wrong."""
    net = build("MS3", features=8, layers=layers, T=T, activation=activation, dtype=dtype)
    y, weight = torch.randn(10, 8).to(dtype), torch.randn(10, 8).to(dtype)
    mine = derivatives(lean(net), y, weight)
    plain = derivatives(twin(net, "reference"), y, weight)
    if not all(bool(t.isfinite().all()) for t in plain.values()):
        assert all(torch.equal(mine[k].isfinite(), plain[k].isfinite()) for k in plain)
        return
    agree(mine, plain, tolerance=1000 * torch.finfo(dtype).eps)


def test_a_huge_sample_does_not_hide_what_the_others_lose() -> None:
    net = build("MS3", features=8, layers=64, T=6.0, activation="relu", scale=0.5)
    y = torch.randn(10, 8)
    y[0] *= 1e30
    state = [derivatives(twin(net, "reference", m), y, y)["state"] for m in ("lean", "fast")]
    for mine, plain in zip(*state, strict=True):
        assert error(mine, plain) <= 1e-12


# --- precision ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lower", "memory"), [(torch.bfloat16, "fast"), (torch.float16, "lean")])
@every_pair([pair for pair in EACH if pair[1] != "ImplicitMidpoint"])
def test_a_low_precision_network_computes_in_its_own_dtype(
    name: str, scheme: str, lower: torch.dtype, memory: str
) -> None:
    """Nothing in float32 behind one's back: result and gradients have the dtype asked for."""
    net = build(name, scheme, dtype=torch.float32, memory=memory)
    y = torch.randn(5, 4, dtype=torch.float32) / 2
    exact = net(y).detach()
    net.to(lower)
    out = net(y.to(lower))
    assert out.dtype == lower
    assert not torch.equal(out.detach().float(), exact)
    # At most three layers, each with a few roundings of its own.
    assert error(out.float(), exact) < 20 * torch.finfo(lower).eps
    out.sum().backward()
    assert all(p.grad is not None and p.grad.dtype == lower for p in net.parameters())


@pytest.mark.parametrize("name", ["MS1", "MS3", "H1"])
def test_float32_stays_accurate_at_depth(name: str) -> None:
    single = torch.float32
    net = build(name, features=16, layers=1000, T=2.0, scale=0.25, dtype=single)
    y, weight = torch.randn(2, 50, 16, dtype=single)
    exact = derivatives(twin(net, "reference", dtype=torch.float64), y.double(), weight.double())
    mine, plain = (derivatives(n, y, weight) for n in (lean(net), twin(net, "reference")))
    for key, target in exact.items():
        assert error(mine[key], target) <= 3 * error(plain[key], target) + 1e-6, key
        assert error(plain[key], target) < 1e-3, key
