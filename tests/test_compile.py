"""torch.compile keeps the kernels as one operator; torch.export and torch.jit.trace see layers."""

from __future__ import annotations

import copy
import gc
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

import hdnn
from catalogue import PAIRS, build, every_pair
from hdnn.backends import activation_pool
from hdnn.errors import HdnnError
from hdnn.fields import HamiltonianField, Learned, Weights
from hdnn.schemes import RK4
from twins import Net, agree, derivatives, twin

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


def derivatives_of(function: Callable[[Tensor], Tensor], net: Net, y: Tensor) -> dict[str, Tensor]:
    x = y.clone().requires_grad_()
    out, named = function(x), dict(net.named_parameters())
    found = torch.autograd.grad(out, [x, *named.values()], y)
    return {"value": out.detach()} | dict(zip(["state", *named], found, strict=True))


# --- torch.compile --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "layout"),
    [*((name, "features") for name in NAMES), ("MS1", "channels"), ("H2", "tokens")],
)
def test_a_compiled_network_is_the_kernel_to_the_last_bit(name: str, layout: str) -> None:
    options, sample = LAYOUTS[layout]
    net, graphs, y = build(name, **options), Graphs(), torch.randn(6, *sample)
    compiled = torch.compile(net, backend=graphs, fullgraph=True)
    agree(derivatives_of(compiled, net, y), derivatives(net, y, y), 0.0)
    assert graphs.count("hdnn.fused") == 1
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
        assert graphs.count("hdnn.fused") == 0, kind


def test_the_operator_keeps_the_rules_of_torch() -> None:
    net, y = build("H1"), torch.randn(5, 4, requires_grad=True)
    stage = (net.program().stages or ())[0]
    tensors = stage.W.stack.theta, stage.b.stack.theta
    call = (y, *tensors, [net.J], net._owner, True)
    # Its second output stands for memory that is kept, so autograd under dynamic shapes is tested
    # above; this covers schema, fake tensors and the registration for autograd.
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.hdnn.fused.default, call, test_utils=tests)


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


def test_activations_of_a_compiled_call_are_given_back() -> None:
    net, y = build("H1", layers=16), torch.randn(7, 4, requires_grad=True)
    compiled = torch.compile(net, backend="aot_eager")
    compiled(y).sum().backward()
    gc.collect()

    def held() -> int:
        rooms = [room for rooms in activation_pool._rooms.values() for room in rooms]
        return sum(room.holder() is not None for room in rooms)

    before = held()
    out = compiled(y)
    assert held() == before + 1
    del out
    gc.collect()
    assert held() == before
    with torch.no_grad():
        kept = compiled(y)
    assert held() == before
    assert torch.equal(kept, net(y))


# --- torch.export, AOTInductor, torch.jit.trace ---------------------------------------------------

BATCH = torch.export.Dim("batch", min=2)
EXPLICIT = [pair for pair in PAIRS if pair[1] != "ImplicitMidpoint"]


@every_pair(EXPLICIT)
def test_torch_export_takes_every_explicit_scheme(name: str, scheme: str) -> None:
    exports(build(name, scheme), (4,))


@pytest.mark.parametrize("layout", ["tokens", "channels", "convolution"])
@pytest.mark.parametrize("name", NAMES)
def test_torch_export_takes_every_layout(name: str, layout: str) -> None:
    options, sample = LAYOUTS[layout]
    exports(build(name, **options), sample)


def exports(net: Net, sample: tuple[int, ...]) -> None:
    exported = torch.export.export(net, (torch.randn(3, *sample),), dynamic_shapes=({0: BATCH},))
    for samples in (2, 300):
        y = torch.randn(samples, *sample)
        torch.testing.assert_close(exported.module()(y), twin(net, "reference")(y))


@every_layout
@pytest.mark.parametrize("name", NAMES)
def test_jit_trace_takes_any_batch(name: str, layout: str) -> None:
    options, sample = LAYOUTS[layout]
    net = build(name, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torch.jit is old, and that Python values are fixed
        traced = torch.jit.trace(net, torch.randn(3, *sample))
    y = torch.randn(50, *sample)
    torch.testing.assert_close(traced(y), net(y))


ALONE = """
import sys
sys.modules["hdnn"] = None  # importing it raises
import torch
x = torch.load(sys.argv[2])
torch.save(torch.export.load(sys.argv[1]).module()(x), sys.argv[3])
"""


def alone(program: Path, x: Tensor) -> Tensor:
    """What a process without hdnn computes."""
    files = [program, program.with_name("x.pt"), program.with_name("y.pt")]
    torch.save(x, files[1])
    call = [sys.executable, "-W", "ignore", "-c", ALONE, *map(str, files)]
    subprocess.run(call, capture_output=True, check=True)
    return torch.load(files[2])


@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        *((name, {"features": 4}, (50, 4)) for name in NAMES),
        ("H1", {"features": 4, "scheme": RK4()}, (50, 4)),  # functions, so unrolled
        ("H1", {"features": 4, "step": [0.1, 0.2, 0.3], "T": None}, (50, 4)),
        ("MS1", {"channels": 4, "kernel": 3}, (2, 4, 9, 7)),
        ("H1", {"channels": 4, "kernel": 3}, (2, 4, 9, 7)),
        ("H2", {"channels": 4}, (2, 4, 9, 7)),
        ("MS3", {"features": 4, "ensemble": 3}, (3, 50, 4)),
        ("MS1", {"features": 4, "ensemble": 3}, (3, 50, 4)),
    ],
)
def test_a_scanned_export_is_the_network(
    name: str, options: dict[str, Any], shape: tuple[int, ...], tmp_path: Path
) -> None:
    options = {"T": 1.0, **options}
    if name == "FCNN" or options["T"] is None:
        del options["T"]
    net = hdnn.network(name, layers=3, **options)
    found = hdnn.export_torch(net, tmp_path / "net.pt2")
    y = torch.randn(shape)
    program = torch.export.load(tmp_path / "net.pt2").module()
    torch.testing.assert_close(program(y), net(y).detach())
    assert found.deviation is not None


def test_the_scanned_graph_does_not_grow_with_depth(tmp_path: Path) -> None:
    counts = []
    for layers in (2, 40):
        net = hdnn.network("H1", features=4, layers=layers, T=1.0)
        hdnn.export_torch(net, tmp_path / "net.pt2")
        counts.append(len(torch.export.load(tmp_path / "net.pt2").graph.nodes))
    assert counts[0] == counts[1]


def test_a_table_with_gaps_is_predicted_by_torch_alone(tmp_path: Path) -> None:
    """A CSV with categories and missing values: the encoder's features in, probabilities out."""
    import pandas as pd

    frame = pd.DataFrame(
        {"city": ["Rome", "Bern", None, "Rome"] * 5, "size": [1.0, None, 3, 4] * 5}
    )
    labels = ["yes", "no", "no", "yes"] * 5
    clf = hdnn.HDNNClassifier(layers=3, max_iter=3, random_state=0).fit(frame, labels)
    hdnn.export_torch(clf.model_, tmp_path / "model.pt2")
    columns = clf.model_.columns
    features = torch.from_numpy(columns.transform(columns.read_frame(frame)))
    assert bool(features.isnan().any())
    found = alone(tmp_path / "model.pt2", features.to(clf.model_.head.weight.dtype))
    torch.testing.assert_close(found.double(), torch.from_numpy(clf.predict_proba(frame)))
    extra = {"labels": ""}
    torch.export.load(tmp_path / "model.pt2", extra_files=extra)
    assert json.loads(extra["labels"]) == ["no", "yes"]


def test_what_torch_cannot_export_raises(tmp_path: Path) -> None:
    with pytest.raises(HdnnError, match="network or a model"):
        hdnn.export_torch(torch.nn.Linear(2, 2), tmp_path / "x.pt2")  # type: ignore[arg-type]
    half = hdnn.network("H1", features=4, layers=2, T=1.0, dtype=torch.bfloat16)
    with pytest.raises(HdnnError, match="float32 or float64"):
        hdnn.export_torch(half, tmp_path / "x.pt2")
    assert not list(tmp_path.iterdir())


def test_an_exported_model_runs_without_hdnn(tmp_path: Path) -> None:
    """Raw uint8 images to logits, the whole model."""
    config = hdnn.ImageConfig(size=(9, 7), layers=3, kernel=3, norm="batch")
    model = hdnn.ImageClassifier(config, dtype=torch.float32).eval()
    images = torch.randint(256, (6, 1, 9, 7), dtype=torch.uint8)
    exported = torch.export.export(model, (images,), dynamic_shapes=({0: BATCH},))
    torch.export.save(exported, tmp_path / "model.pt2")
    found = alone(tmp_path / "model.pt2", images[:2])
    torch.testing.assert_close(found, model(images[:2]).detach())
