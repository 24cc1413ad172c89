"""torch.compile keeps the kernels as one operator; torch.export sees layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from catalog import EACH, IMPLICIT, NAMES, build
from hdnn.backends import operator
from hdnn.fields import HamiltonianField, Learned, Weights
from skips import needs_kernels
from twins import Net, agree, derivatives, twin

pytestmark = pytest.mark.slow  # torch.compile and torch.export take about a second a call

LAYOUTS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "features": ({"features": 4}, (4,)),
    "tokens": ({"features": 4}, (2, 4)),
    "channels": ({"channels": 4}, (4, 5, 3)),
    "convolution": ({"channels": 4, "kernel": 3}, (4, 5, 3)),
}


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
    agree(derivatives(net, y, y, compiled), derivatives(net, y, y), 0.0)
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
        agree(derivatives(net, y, y, compiled), derivatives(twin(net, "reference"), y, y))


def learned() -> Net:
    return Net(HamiltonianField(Learned(4), Weights(features=4, layers=3)), step=0.1)


def many_units() -> Net:
    weights = Weights(np.ones((514, 4), bool), features=4, layers=3)
    return Net(HamiltonianField("J1", weights), T=1.0)


PLAIN: dict[str, tuple[Callable[[], Net], tuple[int, ...]]] = {
    "learned J": (learned, (2, 4)),
    "learned steps": (lambda: build("H1", T=1.0, learn_steps=True), (2, 4)),
    "convolution": (lambda: build("H1", channels=4, kernel=3), (2, 4, 5, 3)),
    "wide": (lambda: build("H1", features=514), (2, 514)),
    "many units": (many_units, (2, 4)),
    "no samples": (lambda: build("H1"), (0, 4)),
    "reference": (lambda: build("H1", backend="reference"), (2, 4)),
}


@pytest.mark.parametrize("kind", PLAIN)
def test_other_networks_compile_to_plain_torch(kind: str) -> None:
    make, shape = PLAIN[kind]
    net, y, graphs = make(), torch.randn(shape), Graphs()
    compiled = torch.compile(net, backend=graphs, fullgraph=True)
    agree(derivatives(net, y, y, compiled), derivatives(twin(net, "reference"), y, y))
    assert graphs.count("hdnn.forward") == 0


@needs_kernels
def test_the_operators_keep_their_promises() -> None:
    """Shapes, strides and autograd as torch.library checks them."""
    net, y = build("H1", step=[0.1, 0.2, 0.3]), torch.randn(5, 4, requires_grad=True)
    theta, beta = net.field.weights.theta, net.field.weights.beta
    number = operator._number(net.program)
    inputs = (y, theta, beta, net.J, net.h, 0.0, number)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    assert torch.equal(operator.run(net.program, net.values(), y), net(y))
    torch.library.opcheck(operator._forward, inputs, test_utils=tests)
    detached = [t.detach() if isinstance(t, Tensor) else t for t in inputs]
    torch.library.opcheck(operator._backward, (torch.randn(5, 4), *detached), test_utils=tests)


# --- torch.export ----------------------------------------------------------------

EXPLICIT = [(*pair, "features") for pair in EACH if pair[1] not in IMPLICIT]
EXPLICIT += [("MS1", "own", layout) for layout in LAYOUTS]


@pytest.mark.parametrize(("name", "scheme", "layout"), EXPLICIT)
def test_torch_export_takes_any_batch(name: str, scheme: str, layout: str) -> None:
    options, sample = LAYOUTS[layout]
    net = build(name, scheme, **options)
    shapes = ({0: torch.export.Dim("batch", min=2)},)
    exported = torch.export.export(net, (torch.randn(3, *sample),), dynamic_shapes=shapes)
    for samples in (2, 300):
        y = torch.randn(samples, *sample)
        torch.testing.assert_close(exported.module()(y), twin(net, "reference")(y))
