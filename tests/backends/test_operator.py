"""torch.compile keeps the kernels as one operator; torch.export and torch.jit.trace see layers."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

import hdnn
from catalogue import EACH, build, every_pair
from hdnn.backends import operator
from hdnn.fields import HamiltonianField, Learned, Weights
from skips import needs_kernels
from twins import Net, agree, derivatives, derivatives_of, twin

pytestmark = pytest.mark.slow  # torch.compile and torch.export take about a second a call

LAYOUTS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "features": ({"features": 4}, (4,)),
    "tokens": ({"features": 4}, (2, 4)),
    "channels": ({"channels": 4}, (4, 5, 3)),
    "convolution": ({"channels": 4, "kernel": 3}, (4, 5, 3)),
}
NAMES = ("MS1", "MS2", "MS3", "H1", "H2", "HS", "FCNN", "ResNet")

every_layout = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()  # torch counts compilations of the whole process


class Graphs:
    """A compiler that keeps the graphs and runs them as they are."""

    def __init__(self) -> None:
        self.operators: list[str] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        self.operators += [str(node.target) for node in graph.graph.nodes]
        return graph.forward

    def count(self, name: str) -> int:
        return sum(name in operator for operator in self.operators)


# --- torch.compile --------------------------------------------------------------------------------


@needs_kernels
@pytest.mark.parametrize(
    ("name", "layout"),
    [*((name, "features") for name in NAMES), ("MS1", "channels"), ("H2", "tokens")],
)
def test_a_compiled_network_is_the_kernel_to_the_last_bit(name: str, layout: str) -> None:
    options, sample = LAYOUTS[layout]
    net, graphs, y = build(name, **options), Graphs(), torch.randn(6, *sample)
    compiled = torch.compile(net, backend=graphs, fullgraph=True)
    agree(derivatives_of(compiled, net, y), derivatives(net, y, y), 0.0)
    assert graphs.count("hdnn.forward") == 1
    assert graphs.count("tanh") == graphs.count("matmul") == graphs.count("linear") == 0


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("backend", "memory"), [("auto", "fast"), ("fused", "lean"), ("reference", "lean")]
)
def test_any_backend_and_batch_compiles(backend: str, memory: str, dynamic: bool) -> None:
    net = build("MS3", memory=memory, backend=backend)
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for samples in (5, 300):
        y = torch.randn(samples, 4)
        agree(derivatives_of(compiled, net, y), derivatives(twin(net, "reference"), y, y))


def test_what_the_operator_does_not_know_is_compiled_as_plain_torch() -> None:
    learned = HamiltonianField(Learned(4), Weights(features=4, layers=3))
    nets: dict[str, Net] = {
        "learned J": hdnn.HamiltonianNetwork(learned, step=0.1),
        "learned steps": build("H1", T=1.0, learn_steps=True),
        "convolution": build("H1", channels=4, kernel=3),
    }
    for kind, net in nets.items():
        y, graphs = (
            torch.randn(2, net.field.layout.width, *(5, 3)[: 2 * (net.kernel > 1)]),
            Graphs(),
        )
        compiled = torch.compile(net, backend=graphs, fullgraph=True)
        agree(derivatives_of(compiled, net, y), derivatives(twin(net, "reference"), y, y))
        assert graphs.count("hdnn.forward") == 0, kind


def test_other_tensors_may_stand_in_for_the_parameters() -> None:
    net, other, y = build("H1"), build("H1"), torch.randn(5, 4)
    given = dict(other.named_parameters())

    def call(x: Tensor) -> Tensor:
        return functional_call(net, given, (x,))

    assert torch.equal(torch.compile(call, backend="aot_eager")(y), other(y))
    clone = copy.deepcopy(other)
    compiled = torch.compile(clone, backend="aot_eager")
    with torch.no_grad():
        for parameter in clone.parameters():
            parameter.mul_(2.0)
    assert torch.equal(compiled(y), clone(y))
    assert not torch.equal(clone(y), other(y))


@needs_kernels
def test_a_compiled_training_follows_its_parameters() -> None:
    """Steps of an optimizer between calls: neither numbers nor graphs go stale."""
    net, y = build("H1"), torch.randn(5, 4)
    plain = twin(net, "reference")
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    for one, call in ((net, compiled), (plain, plain)):
        optimizer = torch.optim.SGD(one.parameters(), 0.05)
        for _ in range(5):
            optimizer.zero_grad()
            call(y).square().sum().backward()
            optimizer.step()
    for a, b in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@needs_kernels
def test_the_operators_keep_their_promises() -> None:
    """Shapes, strides and autograd as torch.library checks them."""
    net, y = build("H1", step=[0.1, 0.2, 0.3]), torch.randn(5, 4, requires_grad=True)
    theta, beta = net.field.weights.theta, net.field.weights.beta
    place = operator._place(net.program)
    given = (y, theta, beta, net.J, net.h, 0.0, place)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(operator._forward, given, test_utils=tests)
    detached = [t.detach() if isinstance(t, Tensor) else t for t in given]
    torch.library.opcheck(operator._backward, (torch.randn(5, 4), *detached), test_utils=tests)


# --- torch.export, AOTInductor, torch.jit.trace ---------------------------------------------------

BATCH = torch.export.Dim("batch", min=2)
EXPLICIT = [pair for pair in EACH if pair[1] != "ImplicitMidpoint"]


@every_pair(EXPLICIT)
def test_torch_export_takes_every_explicit_scheme(name: str, scheme: str) -> None:
    exports(build(name, scheme), (4,))


@pytest.mark.parametrize("layout", ["tokens", "channels", "convolution"])
@pytest.mark.parametrize("name", ["MS1", "H2"])
def test_torch_export_takes_every_layout(name: str, layout: str) -> None:
    options, sample = LAYOUTS[layout]
    exports(build(name, **options), sample)


def exports(net: Net, sample: tuple[int, ...]) -> None:
    exported = torch.export.export(net, (torch.randn(3, *sample),), dynamic_shapes=({0: BATCH},))
    for samples in (2, 300):
        y = torch.randn(samples, *sample)
        torch.testing.assert_close(exported.module()(y), twin(net, "reference")(y))


@every_layout
@pytest.mark.parametrize("name", ["MS1", "H2"])
def test_jit_trace_takes_any_batch(name: str, layout: str) -> None:
    options, sample = LAYOUTS[layout]
    net = build(name, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torch.jit is old, and that Python values are fixed
        traced = torch.jit.trace(net, torch.randn(3, *sample))
    y = torch.randn(50, *sample)
    torch.testing.assert_close(traced(y), net(y))
