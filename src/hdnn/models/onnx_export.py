"""Export to ONNX: a network or a model as a file that runs without hdnn and without torch.

What is matrices and activations of the catalog is written directly (`onnx_graph`). Convolutions,
maps, activations and schemes of one's own, image models and columns of texts are translated by
`torch.onnx.export`, which takes seconds. For it, the layers of a network are the iterations of one
`scan`.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import reprlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from hdnn.backends import reference
from hdnn.errors import HdnnError, is_count, optional
from hdnn.files import atomic
from hdnn.models.model import Model
from hdnn.networks import HamiltonianNetwork
from hdnn.program import Program, Stage, Values
from hdnn.statespace import StateSpace

if TYPE_CHECKING:
    import onnx

__all__ = ["Export", "export_onnx"]

SIZES = {"batch": 5, "time": 7, "height": 6, "width": 5}
"""Named sizes, which may be any, in the example that a file is checked on."""

Shape = tuple[int | str, ...]
"""A shape; a name stands for a size that may be any."""


@dataclass(frozen=True)
class Export:
    """What `export_onnx` wrote.

    Args:
        path: the file.
        size: its size in bytes.
        inputs: names and shapes of the inputs; a string stands for a size that may be any.
        outputs: names and shapes of the outputs.
        deviation: the largest difference between onnxruntime and hdnn on a batch, relative to the
            largest output (at least 1); None without onnxruntime or with ``check=False``.

    >>> from pathlib import Path
    >>> from hdnn.models.onnx_export import Export
    >>> Export(Path("m.onnx"), 2048, {"y": ("batch", 4)}, {"y_N": ("batch", 4)}, 1e-7).inputs
    {'y': ('batch', 4)}
    """

    path: Path
    size: int
    inputs: Mapping[str, Shape]
    outputs: Mapping[str, Shape]
    deviation: float | None


@torch.no_grad()
def export_onnx(
    thing: Any, path: str | os.PathLike[str], *, check: bool = True, unroll: int = 64
) -> Export:
    """Write a network or a model as an ONNX file, which runs without hdnn and without torch.

    The layers of shallow networks are written out, which onnxruntime computes up to twice as fast;
    those of deep ones are the iterations of one `Scan`, so that the graph does not grow with depth.

    A network takes a state ``state``, ``([E,] batch, n)`` or ``([E,] batch, n, height, width)``,
    and gives ``final_state`` of the same shape. A model takes what it was trained on: ``images``
    ``(batch, C, H, W)`` in uint8, ``columns`` ``(batch, features)`` where all are numbers (NaN is a
    missing value), or else every column ``(batch,)`` under its own name (numbers in float64, texts
    with "" for a missing one, dates as days since 1970 in float64). It gives ``probabilities``
    ``(batch, classes)`` or, for regression, ``prediction``. Labels and names of columns are in the
    file's metadata, as JSON.

    A state-space network takes ``u`` ``([E,] batch, time, inputs)`` and the states ``x0`` ``([E,]
    batch, layers * states)``, and gives ``y`` and the states ``x`` after them; its matrices are
    those after scaling. ``export_onnx(model.step, path)`` writes one step, from ``x`` and ``u``
    to ``next_x`` and ``y``, for a loop on hardware.

    Args:
        thing: the network, state-space network, its `step`, model or fitted estimator, in float32
            or float64; exported as in evaluation mode.
        path: the file; an existing one is replaced.
        check: compare the file with hdnn on a batch, if onnxruntime is installed.
        unroll: the most layers of a network that are written out; 0 is always a `Scan`, as are
            images, convolutions, RK4, and maps and activations of your own.

    Returns:
        Names, shapes and size of what was written, and the deviation that was measured.

    Raises:
        HdnnError: there is no ONNX form of it (an implicit scheme, J(y, t), an energy of your own),
            onnx or onnxscript is not installed, unroll is no number of layers, or the file computes
            something else.
        StorageError: the file cannot be written.

    >>> import hdnn, tempfile
    >>> net = hdnn.network("H1", features=4, layers=64, T=1.2)
    >>> export = hdnn.export_onnx(net, Path(tempfile.mkdtemp()) / "net.onnx")
    >>> export.inputs, export.outputs
    ({'state': ('batch', 4)}, {'final_state': ('batch', 4)})
    """
    thing = getattr(thing, "model_", thing)
    owner = getattr(thing, "__self__", None)
    if isinstance(owner, StateSpace) and thing == owner.step:
        thing = SingleStep(owner)
    if not isinstance(thing, Exportable):
        raise HdnnError(
            "export_onnx takes a network, a model or a fitted estimator, or the step of a "
            f"StateSpace, got {type(thing).__name__}"
        )
    if not is_count(unroll, least=0):
        raise HdnnError(f"unroll is a number of layers, 0 or more, got {unroll!r:.40}")
    for package in ("onnx", "onnxscript"):
        optional(package, "onnx")
    thing = copy.deepcopy(thing).cpu().eval()
    interface = _interface(thing)
    columns = thing.columns if isinstance(thing, Model) else None
    if columns is not None:
        onnx_columns = optional("hdnn.data.onnx_columns", "app")
        interface = onnx_columns.column_interface(interface, columns)
    proto = _graph(thing, interface, unroll)
    if columns is not None:
        onnx_columns.take_columns(proto, interface)
    _describe(proto, thing, interface)
    content = proto.SerializeToString()
    deviation = _deviation(thing, interface, content) if check else None
    with atomic(path) as temporary:
        temporary.write_bytes(content)
    return Export(Path(path), len(content), interface.inputs, interface.outputs, deviation)


class SingleStep(nn.Module):
    """`StateSpace.step` as a module.

    Args:
        model: whose step it is.
    """

    def __init__(self, model: StateSpace) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """The next state and the output."""
        return self.model.step(x, u)


Exportable = HamiltonianNetwork | StateSpace | SingleStep | Model


# --- inputs and outputs ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Interface:
    """What an exported file takes and gives, with an example that it is checked on.

    Args:
        inputs: names and shapes.
        outputs: names and shapes.
        example: a batch as hdnn takes it, one tensor for every argument.
        feeds: the same as the file takes it; arrays of objects hold texts.
        features: makes the example of the feeds; None where they are the same.
        facts: for the file's metadata.
    """

    inputs: dict[str, Shape]
    outputs: dict[str, Shape]
    example: tuple[Tensor, ...]
    feeds: dict[str, Any]
    features: nn.Module | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def _interface(thing: Exportable) -> Interface:
    inputs, outputs = _shapes(thing)
    draw, dtype = torch.Generator().manual_seed(0), _dtype(thing)
    example = []
    for name, shape in inputs.items():
        sizes = [SIZES[size] if isinstance(size, str) else size for size in shape]
        x = torch.randn(sizes, generator=draw, dtype=dtype)
        if name == "images":
            x = torch.randint(256, sizes, generator=draw).to(torch.uint8)
        elif isinstance(thing, Model) and thing.scaler is not None:
            x = x * thing.scaler.scale + thing.scaler.mean
            x.view(-1)[:: len(thing.scaler.mean) + 1] = torch.nan
        example.append(x)
    feeds = {name: x.numpy() for name, x in zip(inputs, example, strict=True)}
    return Interface(inputs, outputs, tuple(example), feeds)


def _shapes(thing: Exportable) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """Names and shapes of inputs and outputs."""
    if isinstance(thing, HamiltonianNetwork):
        layout = thing.field.layout
        space = ("height", "width") if layout.channels else ()
        shape = (*layout.lead, "batch", layout.width, *space)
        return {"state": shape}, {"final_state": shape}
    if isinstance(thing, Model):
        name = "images" if thing.stem.takes_images else "columns"
        output, size = "prediction", thing.head.out_features
        if thing.task == "classification":
            output, size = "probabilities", len(thing.labels)
        return {name: ("batch", *thing.stem.shape)}, {output: ("batch", size)}
    model = thing.model if isinstance(thing, SingleStep) else thing
    lead = () if model.ensemble is None else (model.ensemble,)
    x = (*lead, "batch", model.layers * model.states)
    if isinstance(thing, SingleStep):
        u, y = ((*lead, "batch", size) for size in (model.inputs, model.outputs))
        return {"x": x, "u": u}, {"next_x": x, "y": y}
    u, y = ((*lead, "batch", "time", size) for size in (model.inputs, model.outputs))
    return {"u": u, "x0": x}, {"y": y, "x": x}


def _dtype(thing: Exportable) -> torch.dtype:
    part = thing.head if isinstance(thing, Model) else thing
    dtype = next((p.dtype for p in part.parameters()), torch.get_default_dtype())
    if dtype not in (torch.float32, torch.float64):
        raise HdnnError(f"networks in float32 or float64 are exported, got {dtype}; use .float()")
    return dtype


# --- the graph ------------------------------------------------------------------------------------


class ScannedNetwork(nn.Module):
    """A network as one `scan`, whose iteration j is the reference backend on the values of layer j.

    Numbers that differ from layer to layer are what it scans; those that all layers share stay
    outside, so that a file holds them once.

    Args:
        net: the network.

    Raises:
        HdnnError: its layers are not of a form that ONNX can hold.
    """

    def __init__(self, net: HamiltonianNetwork) -> None:
        super().__init__()
        layout, values = net.field.layout, net.values()
        self.layers, self.field = net.layers, net.field  # the stages use constants of the field
        self.velocity = _velocity(net)
        assert values.theta is not None
        # As tensors, since torch.onnx rounds numbers of Python to float32.
        h = torch.as_tensor(values.h, dtype=values.theta.dtype)
        steps = [
            replace(step, factor=h.new_tensor(step.factor))  # type: ignore[arg-type]
            if isinstance(step, Stage) and step.factor != 1.0
            else step
            for step in net.program.steps
        ]
        self.program = Program(1, tuple(steps), layout, net.program.sizes)
        h = h if h.ndim else h.expand(*layout.lead, net.layers)
        stacks = {"h": h, "theta": values.theta, "beta": values.beta, "S": values.S}
        self.scanned, self.shared = list[str](), list[str]()
        for name, stack in stacks.items():
            if stack is None:
                continue
            # The axis of layers follows that of an ensemble; a single matrix S has none.
            axis = stack.ndim - 3 if name == "S" else len(layout.lead)
            scanned = axis >= 0 and stack.shape[axis] == net.layers
            (self.scanned if scanned else self.shared).append(name)
            if scanned:
                stack = stack.unsqueeze(axis + 1).movedim(axis, 0)  # the program has one layer
            self.register_buffer(name, stack.detach().clone().contiguous())

    def forward(self, y: Tensor) -> Tensor:
        """y_N of a state ``([E,] batch, n)`` or ``([E,] batch, n, height, width)``."""
        from torch._higher_order_ops.scan import scan

        if not self.layers:
            return y.clone()  # a graph does not give back its own input

        def layer(x: Tensor, slices: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            # Copies, since a scan takes no two views of a memory; the file has none of them.
            arrays = {name: self.get_buffer(name).clone() for name in self.shared}
            arrays |= dict(zip(self.scanned, slices, strict=True))
            values = Values(**arrays)  # type: ignore[arg-type]
            return self._advance(values, x).clone(), []

        final: Tensor = scan(layer, y, [self.get_buffer(name) for name in self.scanned])[0]
        return final

    def _advance(self, values: Values, x: Tensor) -> Tensor:
        velocity = self.velocity
        if velocity is not None:
            assert isinstance(values.h, Tensor)
            unit = values._replace(h=torch.ones_like(values.h))
            values = values._replace(velocity=lambda j, t, v: reference.run(velocity, unit, v))
        return reference.run(self.program, values, x)


def _velocity(net: HamiltonianNetwork) -> Program | None:
    """The velocity of a layer as a program, where a scheme calls it (RK4)."""
    if net.scheme.implicit:
        raise HdnnError(
            f"{type(net.scheme).__name__}() solves an equation in every layer, with as many "
            "iterations as it takes, which ONNX has no operator for; use an explicit scheme, such "
            "as RK4()"
        )
    if not net.program.has_flows:
        return None
    stage = net.field.stage(carry=0)
    if stage is None:
        raise HdnnError(
            f"{net.scheme} of this {type(net.field).__name__} is a torch function of yours "
            "(J(y, t) or an energy), which has no ONNX form; export networks with weights K, b and "
            "a J that does not depend on the state"
        )
    return Program(1, (stage,), net.field.layout, net.program.sizes)


class _Exported(nn.Module):
    """What the file computes: the final state, probabilities or predictions."""

    def __init__(self, thing: HamiltonianNetwork | Model, features: nn.Module | None) -> None:
        super().__init__()
        self.features = features
        if isinstance(thing, HamiltonianNetwork):
            self.thing: nn.Module = ScannedNetwork(thing)
        else:
            self.thing = copy.deepcopy(thing)
            for number, block in enumerate(thing.blocks):
                if isinstance(block, HamiltonianNetwork):
                    self.thing.blocks[number] = ScannedNetwork(block)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return _outputs(self.thing, inputs if self.features is None else (self.features(*inputs),))


def _outputs(thing: nn.Module, example: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """What an exported file must give, of a batch as hdnn takes it."""
    if isinstance(thing, Model) and thing.task == "classification":
        return (thing.probabilities(*example),)
    out: Tensor | tuple[Tensor, ...] = thing(*example)
    return out if isinstance(out, tuple) else (out,)


def _graph(thing: Exportable, interface: Interface, unroll: int) -> onnx.ModelProto:
    from hdnn.models import onnx_graph

    single = isinstance(thing, SingleStep)
    own = thing.model if isinstance(thing, SingleStep) else thing
    if isinstance(own, StateSpace) or (interface.features is None and onnx_graph.has_form(own)):
        shapes = interface.inputs, interface.outputs
        return onnx_graph.write(own, *shapes, _dtype(thing), unroll, single_step=single)
    return _translate(own, interface)


def _translate(thing: HamiltonianNetwork | Model, interface: Interface) -> onnx.ModelProto:
    import onnx_ir.passes.common as passes

    # torch has no texts: there they are codes.
    arrays = [np.zeros(len(x), int) if x.dtype == object else x for x in interface.feeds.values()]
    named = [
        {axis: size for axis, size in enumerate(shape) if isinstance(size, str)}
        for shape in interface.inputs.values()
    ]
    module = _Exported(thing, interface.features).eval()
    try:
        with _quiet():
            program = torch.onnx.export(
                module,
                tuple(map(torch.from_numpy, arrays)),
                dynamo=True,
                # Columns of a table get their names later: here they might be those of values.
                input_names=None if interface.facts else [*interface.inputs],
                output_names=[*interface.outputs],
                dynamic_shapes=(tuple(named),),
                verbose=False,
            )
    except Exception as error:  # of torch, which has many
        raise HdnnError(
            f"torch cannot translate this to ONNX: {reprlib.repr(str(error))}; hdnn exports its "
            "own parts with torch 2.8 or later"
        ) from error
    assert program is not None
    # Torch notes where in our sources every node is from.
    passes.ClearMetadataAndDocStringPass()(program.model)
    passes.RemoveUnusedNodesPass()(program.model)
    return program.model_proto


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's remarks on packages that it does not find and on its own deprecations."""
    levels = {log: log.level for log in map(logging.getLogger, ("torch.onnx", "onnx_ir"))}
    for log in levels:
        log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in levels.items():
            log.setLevel(level)


def _describe(proto: onnx.ModelProto, thing: Exportable, interface: Interface) -> None:
    """What a user of the file needs to know, in its metadata as JSON."""
    from onnx import helper

    proto.producer_name, proto.producer_version = "hdnn", ""
    networks: Sequence[nn.Module]
    if isinstance(thing, Model):
        networks = thing.networks
    else:
        networks = (thing.model if isinstance(thing, SingleStep) else thing,)
    about = {"network": "; ".join(net.extra_repr() for net in networks)}
    if isinstance(thing, Model):
        facts = {"task": thing.task, "columns": thing.feature_names, **interface.facts}
        if thing.task == "classification":
            facts["labels"] = thing.labels
        about |= {name: json.dumps(value) for name, value in facts.items() if value is not None}
    helper.set_model_props(proto, about)


# --- the check ------------------------------------------------------------------------------------


def _deviation(thing: Exportable, interface: Interface, content: bytes) -> float | None:
    """The largest difference between onnxruntime and hdnn; None without onnxruntime."""
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own, without a type in common
        raise HdnnError(
            f"onnxruntime cannot run the exported file ({reprlib.repr(str(error))}); it has fewer "
            "operators for float64: export in float32, or write it all the same with check=False"
        ) from error
    example = interface.example
    expected = _outputs(thing, example)
    results = map(torch.from_numpy, session.run(None, interface.feeds))
    deviation = max(map(_difference, results, expected))
    # A network that magnifies its own rounding errors magnifies those of onnxruntime too.
    wide = tuple(x if x.dtype == torch.uint8 else x.double() for x in example)
    exact = _outputs(copy.deepcopy(thing).double(), wide)
    rounding = max(map(_difference, exact, expected))
    tolerance = max(torch.finfo(expected[0].dtype).eps ** 0.5, 10 * rounding)
    if not deviation <= tolerance:
        raise HdnnError(
            f"onnxruntime and hdnn differ by {deviation:.2g}, more than {tolerance:.2g}, on a "
            "batch, so nothing was written; check=False writes it all the same, and a report "
            "of what was exported helps us to repair it"
        )
    return deviation


def _difference(result: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest expected number or 1; inf for NaN."""
    scale = max(1.0, float(expected.abs().max()))
    difference = float((result.double() - expected.double()).abs().max()) / scale
    return difference if math.isfinite(difference) else math.inf
