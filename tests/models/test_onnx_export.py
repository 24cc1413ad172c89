"""What leaves hdnn as an ONNX file computes what hdnn computes, for any number of samples."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import hdnn
from catalog import IMPLICIT, build, skew
from hdnn.errors import HdnnError
from hdnn.fields import ACTIVATIONS, Activation, EnergyField, HamiltonianField, Weights
from hdnn.models.onnx_export import ScannedNetwork
from hdnn.schemes import RK4
from hdnn.zoo import ARCHITECTURES

onnx = pytest.importorskip("onnx", reason="export needs onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime runs what is exported")

pytest.importorskip("onnxscript", reason="torch.onnx needs onnxscript")

from hdnn.models import onnx_graph  # noqa: E402


def mostly_slow(names: Iterable[str], fast: str) -> list[Any]:
    """Torch's exporter takes about a second: one is fast enough for `make test`."""
    return [pytest.param(n, marks=() if n == fast else pytest.mark.slow) for n in names]


def operators(graph: Any) -> list[str]:
    return [node.op_type for node in graph.node]


def run(path: Path, x: Tensor) -> Tensor:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    (result,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return torch.from_numpy(result)


def states(net: hdnn.HamiltonianNetwork, batch: int) -> Tensor:
    lead = () if net.ensemble is None else (net.ensemble,)
    space = () if net.channels is None else (7, 3)
    dtype = next(net.parameters()).dtype
    return torch.randn(*lead, batch, net.field.layout.width, *space, dtype=dtype)


FLOAT: dict[str, Any] = {"dtype": torch.float32}  # onnxruntime convolves nothing else
NETWORKS: dict[str, Callable[[], hdnn.HamiltonianNetwork]] = {
    **{name: lambda name=name: build(name) for name in ARCHITECTURES},
    "H2, channels": lambda: build("H2", channels=4),
    "MS3, convolution": lambda: build("MS3", channels=4, kernel=3, **FLOAT),
    "MS3, time-invariant ensemble": lambda: build("MS3", time_invariant=True, ensemble=2),
    "H1, no layers": lambda: build("H1", layers=0),
    "Yoshida4": lambda: build("MS3", "Yoshida4", time_invariant=True),
    "RK4, steps": lambda: build("H1", "RK4", step=torch.rand(2, 3), ensemble=2, channels=4),
    "J(t), weights shared": lambda: hdnn.HamiltonianNetwork(
        HamiltonianField(skew(4, 3), Weights(features=4, layers=3, time_invariant=True)), step=0.1
    ),
    "learned steps": lambda: build("H2", T=1.0, learn_steps=True, time_invariant=True),
    "own activation": lambda: build(
        "H1", activation=Activation("mine", F.elu, torch.cosh), **FLOAT
    ),
}


BY_TORCH = {"MS3, convolution", "RK4, steps", "own activation"}


@pytest.mark.parametrize(
    ("name", "unroll"),
    [
        pytest.param(name, unroll, marks=pytest.mark.slow if name in BY_TORCH else ())
        for name in NETWORKS
        for unroll in (0, 64)
        if unroll or name not in BY_TORCH
    ],
)
def test_networks_compute_the_same_for_any_batch(name: str, unroll: int, tmp_path: Path) -> None:
    net = NETWORKS[name]()
    export = hdnn.export_onnx(net, tmp_path / "net.onnx", unroll=unroll)
    scanned = net.layers > 0 and (name in BY_TORCH or net.layers > unroll)
    assert ("Scan" in operators(onnx.load(export.path).graph)) == scanned
    tolerance = 1e-5 if next(net.parameters()).dtype == torch.float32 else 1e-12
    for batch in (1, 6):
        y = states(net, batch)
        result = run(export.path, y)
        torch.testing.assert_close(result, net(y).detach(), rtol=tolerance, atol=tolerance)
    assert 0 <= (export.deviation or 0) <= tolerance


def test_a_scanned_graph_does_not_grow_with_depth(tmp_path: Path) -> None:
    def nodes_and_size(layers: int, shared: bool) -> tuple[int, int]:
        net = build("MS3", layers=layers, time_invariant=shared)
        export = hdnn.export_onnx(net, tmp_path / "net.onnx", unroll=0)
        return len(onnx.load(export.path).graph.node), export.size

    assert nodes_and_size(2, False)[0] == nodes_and_size(256, False)[0]
    shallow, deep = nodes_and_size(2, True), nodes_and_size(256, True)
    assert shallow[0] == deep[0]
    assert deep[1] - shallow[1] < 256 * 8 + 100  # the array that counts, no weights
    assert b".py" not in (tmp_path / "net.onnx").read_bytes()  # nor where it was made


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_has_an_operator(name: str, tmp_path: Path) -> None:
    net = build("FCNN", activation=name, layers=2, **FLOAT)
    export = hdnn.export_onnx(net, tmp_path / "net.onnx")
    assert b"Scan" not in export.path.read_bytes()  # torch would have written one
    y = 3 * states(net, 50)
    torch.testing.assert_close(run(export.path, y), net(y).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layers", [3, 4])
def test_layers_are_written_out_up_to_a_number(layers: int, tmp_path: Path) -> None:
    """Each with the weights that all layers share, which the file holds once."""
    net = build("H1", layers=layers, time_invariant=True)
    export = hdnn.export_onnx(net, tmp_path / "net.onnx", unroll=3)
    graph = onnx.load(export.path).graph
    assert operators(graph).count("Tanh") == (3 if layers == 3 else 0)
    assert operators(graph).count("Scan") == (layers == 4)
    assert sum(len(each.dims) == 2 for each in graph.initializer) == 3  # W, b and A
    y = states(net, 2)
    torch.testing.assert_close(run(export.path, y), net(y).detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("unroll", [-1, 2.5, "all", None, True])
def test_a_wrong_number_of_layers_raises(unroll: Any, tmp_path: Path) -> None:
    with pytest.raises(HdnnError, match="unroll is a number of layers"):
        hdnn.export_onnx(build("H1"), tmp_path / "net.onnx", unroll=unroll)


# --- models ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "outputs", "mode"),
    [
        ("classification", 1, "append"),
        ("classification", 3, "spread"),
        ("regression", 2, "append"),
    ],
)
def test_a_table_model_goes_from_raw_columns_to_predictions(
    task: str, outputs: int, mode: str, tmp_path: Path
) -> None:
    x = 3 * torch.randn(20, 5) + 5
    net = hdnn.network("H1", features=8, layers=5, T=1.0)
    parts = hdnn.Padding(5, 8, mode=mode), hdnn.Scaler.fit(x)
    labels = None if task == "regression" else ["no", "yes", "maybe"][: max(2, outputs)]
    model = hdnn.Model(net, outputs, *parts, task=task, classes=labels, feature_names=[*"abcde"])
    torch.nn.init.normal_(model.head.weight)
    export = hdnn.export_onnx(model, tmp_path / "model.onnx")
    x[2, 0] = x[4] = torch.nan
    expected = model.probabilities(x) if task == "classification" else model(x)
    torch.testing.assert_close(run(export.path, x), expected.detach(), rtol=1e-12, atol=1e-12)
    facts = {entry.key: entry.value for entry in onnx.load(export.path).metadata_props}
    assert json.loads(facts["columns"]) == model.feature_names
    assert json.loads(facts.get("labels", "null")) == model.classes


def test_a_projection_and_two_networks_become_a_graph(tmp_path: Path) -> None:
    first, second = (hdnn.network(name, features=4, layers=3, T=1.0) for name in ("MS1", "H2"))
    blocks, projection = hdnn.models.Blocks(first, second), hdnn.models.Projection(7, 4)
    model = hdnn.Model(blocks, 2, projection=projection, task="regression")
    path, x = hdnn.export_onnx(model, tmp_path / "model.onnx", unroll=0).path, torch.randn(9, 7)
    assert operators(onnx.load(path).graph).count("Scan") == 2
    torch.testing.assert_close(run(path, x), model(x).detach(), rtol=1e-12, atol=1e-12)


IMAGES: dict[str, dict[str, Any]] = {
    "paper": {},
    "colors": {"channels": 3, "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7), "kernel": 3},
    "batch": {"norm": "batch", "widths": (4, 8), "layers": (2, 0)},
    "plain": {"block": "convolution", "kernel": 3},
}


@pytest.mark.parametrize("kind", mostly_slow(IMAGES, fast="paper"))
def test_an_image_model_goes_from_uint8_to_probabilities(kind: str, tmp_path: Path) -> None:
    options = {"size": (9, 7), "channels": 1, "classes": 10} | IMAGES[kind]
    model = hdnn.image_model(**options, dtype=torch.float32)
    images = torch.randint(256, (6, options["channels"], 9, 7), dtype=torch.uint8)
    with torch.no_grad():
        model(images)  # in training mode, so that batch norm has statistics of its own
    path = hdnn.export_onnx(model, tmp_path / "model.onnx").path
    assert model.training
    expected = model.eval().probabilities(images).detach()
    torch.testing.assert_close(run(path, images), expected, rtol=1e-5, atol=1e-6)


# --- state-space networks -------------------------------------------------------------------------

STATE_SPACE: dict[str, dict[str, Any]] = {
    "contracting": {"outputs": 3},
    "passive": {"passive": True, "gain": 3.0},
    "passive ensemble": {"passive": True, "ensemble": 2},
    "series": {"layers": 3, "activation": "softsign"},
    "linear": {"units": 0},
    "float32": {"dtype": torch.float32},
}


@pytest.mark.parametrize("kind", STATE_SPACE)
def test_sequences_and_steps_of_state_space_networks(kind: str, tmp_path: Path) -> None:
    """For any batch and any length; the file of a step is what a loop calls."""
    sizes = {"inputs": 2, "states": 4, "units": 5, "step": 0.3, "scale": 1.0}
    model = hdnn.StateSpace(**{**sizes, **STATE_SPACE[kind]})
    lead = () if model.ensemble is None else (2,)
    dtype, tolerance = model.x0.dtype, 1e-5 if model.x0.dtype == torch.float32 else 1e-12
    paths = [tmp_path / name for name in ("sequence.onnx", "step.onnx")]
    whole = hdnn.export_onnx(model, paths[0])
    single = hdnn.export_onnx(model.step, paths[1])
    assert [*whole.inputs, *whole.outputs] == ["u", "x0", "y", "x"]
    assert [*single.inputs, *single.outputs] == ["x", "u", "next_x", "y"]
    assert whole.inputs["u"] == (*lead, "batch", "time", 2)
    sessions = [onnxruntime.InferenceSession(path) for path in paths]
    for batch, time in ((1, 1), (3, 40)):
        u = torch.randn(*lead, batch, time, 2, dtype=dtype)
        x = torch.randn(*lead, batch, 4 * model.layers, dtype=dtype)
        y, last = (t.detach() for t in model(u, x))
        found = map(torch.from_numpy, sessions[0].run(None, {"u": u.numpy(), "x0": x.numpy()}))
        for one, other in zip(found, (y, last), strict=True):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
        for t in range(time):
            feeds = {"x": x.numpy(), "u": u[..., t, :].numpy()}
            x, out = map(torch.from_numpy, sessions[1].run(None, feeds))
            torch.testing.assert_close(out, y[..., t, :], rtol=tolerance, atol=tolerance)


# --- what has no ONNX form ------------------------------------------------------------------------


def unsupported() -> dict[str, tuple[Any, str]]:
    pendulum = EnergyField("J1", lambda x, t: (x**2).sum(-1), features=2)
    state = HamiltonianField(lambda y, t: skew(4), Weights(features=4, layers=2))
    return {
        **{name: (build("H1", name), rf"{name}.*solves an equation") for name in IMPLICIT},
        "energy": (hdnn.HamiltonianNetwork(pendulum, RK4(), layers=2, T=1.0), "function of yours"),
        "J(y, t)": (hdnn.HamiltonianNetwork(state, T=1.0), "function of yours"),
        "half": (build("H1").to(torch.bfloat16), "float32 or float64"),
        "module": (torch.nn.Linear(2, 2), "a network, a model or a fitted estimator"),
        "double convolution": (build("H1", channels=2, kernel=3), "float32"),
    }


@pytest.mark.parametrize("kind", unsupported())
def test_what_has_no_form_raises_with_the_reason(kind: str, tmp_path: Path) -> None:
    thing, reason = unsupported()[kind]
    with pytest.raises(HdnnError, match=reason):
        hdnn.export_onnx(thing, tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("scheme", ["ForwardEuler", pytest.param("RK4", marks=pytest.mark.slow)])
def test_a_file_that_computes_something_else_is_not_written(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether hdnn writes it or torch, which translates RK4."""
    advance, stacks = ScannedNetwork._advance, onnx_graph._stacks
    monkeypatch.setattr(ScannedNetwork, "_advance", lambda *args: 1.01 * advance(*args))
    monkeypatch.setattr(onnx_graph, "_stacks", lambda net: [1.01 * M for M in stacks(net)])
    net = build("H1", scheme)
    with pytest.raises(HdnnError, match="differ"):
        hdnn.export_onnx(net, tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())
    assert hdnn.export_onnx(net, tmp_path / "net.onnx", check=False).deviation is None
    assert (tmp_path / "net.onnx").is_file()


def test_a_network_that_magnifies_rounding_is_exported(tmp_path: Path) -> None:
    net = build("H1", features=64, layers=128, T=10.0, dtype=torch.float32)
    export = hdnn.export_onnx(net, tmp_path / "net.onnx")
    assert export.deviation is not None
    assert export.deviation > torch.finfo(torch.float32).eps ** 0.5
    net.double()
    assert (hdnn.export_onnx(net, tmp_path / "net.onnx").deviation or 1) < 1e-8


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(HdnnError, match=r"hdnn\[onnx\]"):
        hdnn.export_onnx(build("H1"), tmp_path / "net.onnx")
