"""Export to ONNX: a network or a model as a file that runs without hdnn and without torch.

`torch.onnx.export` translates stems, blocks and heads. A network is brought into a form for it in
which the layers are the iterations of one `scan`, so that the graph does not grow with depth.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import reprlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hdnn.errors import HdnnError, optional
from hdnn.fields.maps import affine
from hdnn.files import atomic
from hdnn.models.model import Model
from hdnn.networks import HamiltonianNetwork
from hdnn.program import Flow, Stage, Values
from hdnn.schemes import ImplicitMidpoint

if TYPE_CHECKING:
    import onnx

__all__ = ["Export", "export_onnx"]

SAMPLES = 5
"""How many samples an export is checked on."""
PIXELS = (6, 5)
"""Height and width of the states that a network over channels is checked on."""

Shape = tuple[int | str, ...]
"""A shape; a name stands for a size that may be any."""


@dataclass(frozen=True)
class Export:
    """What `export_onnx` wrote.

    Args:
        path: the file.
        size: its bytes.
        inputs, outputs: names and shapes; a string stands for a size that may be any.
        deviation: the largest difference between onnxruntime and hdnn on a batch, relative to the
            largest output (at least 1); None where onnxruntime is not installed or not asked.

    >>> from pathlib import Path
    >>> from hdnn.models.export import Export
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
    thing: HamiltonianNetwork | Model,
    path: str | os.PathLike[str],
    *,
    check: bool = True,
    encoded: bool = False,
) -> Export:
    """Write a network or a model as an ONNX file, in which depth is one `Scan` over layers.

    A network takes a state ``state``, ``([E,] batch, n)`` or ``([E,] batch, n, height, width)``,
    and gives ``final_state`` of the same shape. A model takes what it was trained on: ``images``
    ``(batch, C, H, W)`` in uint8, ``columns`` ``(batch, features)`` where all are numbers (NaN is a
    missing value), or else every column ``(batch,)`` under its own name (numbers in float64, texts
    with "" for a missing one, dates as days since 1970 in float64). It gives ``probabilities``
    ``(batch, classes)`` or, for regression, ``prediction``. Labels and names of columns are in the
    file's metadata, as JSON.

    Args:
        thing: a network or a model, in float32 or float64; it is exported as in evaluation mode.
        path: the file to write.
        check: compare the file with hdnn on a batch, if onnxruntime is installed.
        encoded: take ``columns`` as the model's encoder gives them, also where some were texts.

    Returns:
        Names, shapes and size of what was written, and the deviation that was measured.

    Raises:
        HdnnError: there is no ONNX form of it (an implicit scheme, J(y, t), an energy of your own),
            onnx or onnxscript is not installed, or the file computes something else.
        StorageError: the file cannot be written there.

    >>> import hdnn, tempfile
    >>> net = hdnn.network("H1", features=4, layers=64, T=1.2)
    >>> export = export_onnx(net, Path(tempfile.mkdtemp()) / "net.onnx")
    >>> export.inputs, export.outputs
    ({'state': ('batch', 4)}, {'final_state': ('batch', 4)})
    """
    if not isinstance(thing, HamiltonianNetwork | Model):
        raise HdnnError(
            f"export_onnx takes a network or a model, got {type(thing).__name__}; "
            "of an estimator, its model_"
        )
    for package in ("onnx", "onnxscript"):
        optional(package, "onnx")
    thing = copy.deepcopy(thing).cpu().eval()
    interface = _interface(thing)
    proto = _translate(thing, interface)
    if isinstance(thing, Model) and thing.columns is not None and not encoded:
        from hdnn.models.onnx_columns import put_columns_before

        interface = put_columns_before(proto, interface, thing.columns)
    _describe(proto, thing, interface)
    content = _serialize(proto)
    deviation = None
    if check and (session := _session(content)) is not None:
        deviation = _deviation(thing, interface, session)
    with atomic(path) as temporary:
        temporary.write_bytes(content)
    outputs = dict([interface.output])
    return Export(Path(path), len(content), dict(interface.inputs), outputs, deviation)


# --- inputs and outputs ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Interface:
    """What an exported file takes and gives, with an example that it is checked on.

    Args:
        inputs: names and shapes.
        output: name and shape.
        example: a batch as hdnn takes it.
        feeds: the same as the file takes it; arrays of objects hold texts.
        kinds: of the columns of a table, where every one is an input.
    """

    inputs: Mapping[str, Shape]
    output: tuple[str, Shape]
    example: Tensor
    feeds: Mapping[str, Any]
    kinds: list[str] | None = None

    def first_sample(self) -> tuple[Tensor, dict[str, Any]]:
        """An example of one sample, as hdnn and as the file takes it."""
        axes = {name: shape.index("batch") for name, shape in self.inputs.items()}
        example = self.example.narrow(self.output[1].index("batch"), 0, 1)
        return example, {name: self.feeds[name].take([0], axis) for name, axis in axes.items()}


def _interface(thing: HamiltonianNetwork | Model) -> Interface:
    draw, dtype = torch.Generator().manual_seed(0), _dtype(thing)
    if isinstance(thing, HamiltonianNetwork):
        layout = thing.field.layout
        sizes = (*layout.lead, SAMPLES, layout.width, *(PIXELS if layout.channels else ()))
        space = ("height", "width") if layout.channels else ()
        shape = (*layout.lead, "batch", layout.width, *space)
        state = torch.randn(sizes, generator=draw, dtype=dtype)
        return Interface({"state": shape}, ("final_state", shape), state, {"state": state.numpy()})
    outputs, shape = thing.head.out_features, ("batch", *thing.stem.shape)
    output: tuple[str, Shape] = "prediction", ("batch", outputs)
    if thing.task == "classification":
        output = "probabilities", ("batch", max(2, outputs))
    if thing.stem.takes_images:
        images = torch.randint(256, (SAMPLES, *thing.stem.shape), generator=draw).to(torch.uint8)
        return Interface({"images": shape}, output, images, {"images": images.numpy()})
    columns = torch.randn((SAMPLES, *thing.stem.shape), generator=draw, dtype=dtype)
    if thing.scaler is not None:
        columns = columns * thing.scaler.scale + thing.scaler.mean
        columns.view(-1)[:: len(thing.scaler.mean) + 1] = torch.nan
    return Interface({"columns": shape}, output, columns, {"columns": columns.numpy()})


def _dtype(thing: HamiltonianNetwork | Model) -> torch.dtype:
    part = thing.head if isinstance(thing, Model) else thing.field
    dtype = next((p.dtype for p in part.parameters()), torch.get_default_dtype())
    if dtype not in (torch.float32, torch.float64):
        raise HdnnError(f"networks in float32 or float64 are exported, got {dtype}; use .float()")
    return dtype


# --- the graph ------------------------------------------------------------------------------------


Numbers = tuple[int, int, int]
"""Of the arrays W, b and A of a stage."""


class ScannedNetwork(nn.Module):
    """A network that computes its layers as the iterations of one `scan`.

    Arrays that differ from layer to layer are what it scans; those that all layers share stay
    outside, so that a file holds them once.

    Args:
        net: the network.

    Raises:
        HdnnError: its layers are not of a form that ONNX can hold.
    """

    def __init__(self, net: HamiltonianNetwork) -> None:
        super().__init__()
        self.layout, self.layers, self.steps = net.field.layout, net.layers, net.program.steps
        self.scanned: list[int] = []
        self.stacks: list[Tensor] = []
        values, velocity = net.values(), _velocity(net)
        self.arrays = [self._arrays(stage, values) for stage in net.program.stages]
        if velocity is not None:  # its flow multiplies by the step itself
            self.velocity = velocity, self._arrays(velocity, values._replace(h=1.0))
            self.h = self._keep(self._factor(values.h, values))
        if not self.scanned:  # a scan needs an array to count its iterations by
            self._keep(torch.zeros(*self.layout.lead, self.layers))

    def _arrays(self, stage: Stage, values: Values) -> Numbers:
        """The numbers of W, b and A of a stage."""
        theta, beta, factor = values.theta, values.beta, stage.factor * values.h
        assert theta is not None
        assert beta is not None
        W, b = stage.W.assemble(theta), stage.b.assemble(beta)
        A: Tensor | None = self._factor(factor, values)
        if stage.adjoint:
            assert values.S is not None
            A = stage.W.mixed(values.S[..., slice(*stage.write), slice(*stage.read)], W)
            if A is None:
                raise HdnnError(
                    f"{stage.W.name} is a map of your own without `mixed`, which has no ONNX form; "
                    "export networks whose K is a matrix or a convolution"
                )
            if isinstance(factor, Tensor):
                factor = factor[(..., *(None,) * (A.ndim - factor.ndim))]
            A = A * factor
        assert A is not None
        return self._keep(W), self._keep(b), self._keep(A)

    def _factor(self, factor: float | Tensor, values: Values) -> Tensor:
        """A factor of states for every layer: as a tensor, lest float64 is rounded to float32."""
        assert values.theta is not None
        stack = torch.as_tensor(factor, dtype=values.theta.dtype)
        if not stack.ndim:
            stack = stack.expand(*self.layout.lead, 1)
        # Of an ensemble, one for every network; states have a batch, a width, and perhaps pixels.
        axes = 0 if self.layout.ensemble is None else 4 if self.layout.channels else 2
        return stack.reshape(*stack.shape, *(1,) * axes)

    def _keep(self, stack: Tensor) -> int:
        """The number of an array; a stack ``([E,] L or 1, ...)`` is scanned or shared."""
        for number, other in enumerate(self.stacks):  # stages of a scheme share their W and b
            if torch.equal(other, stack):
                return number
        axis, number = len(self.layout.lead), len(self.stacks)
        shared = stack.shape[axis] == 1 and self.layers > 1
        if not shared:
            self.scanned.append(number)
        array = stack.detach().select(axis, 0) if shared else stack.detach().movedim(axis, 0)
        # A copy: torch.export takes no two arrays of the same memory.
        self.register_buffer(f"array{number}", array.clone(memory_format=torch.contiguous_format))
        self.stacks.append(stack)
        return number

    def forward(self, y: Tensor) -> Tensor:
        """y_N of a state ``([E,] batch, n)`` or ``([E,] batch, n, height, width)``."""
        from torch._higher_order_ops.scan import scan

        if not self.layers:
            return y.clone()
        arrays = [self.get_buffer(f"array{number}") for number in range(len(self.stacks))]

        def layer(x: Tensor, slices: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            entries = dict(zip(self.scanned, slices, strict=True))
            # Copies, since a scan takes no two views of a memory; the file has none of them.
            shared = {k: array.clone() for k, array in enumerate(arrays) if k not in entries}
            return self._advance(x, {**shared, **entries}).clone(), []

        final: Tensor = scan(layer, y, [arrays[number] for number in self.scanned])[0]
        return final

    def _advance(self, x: Tensor, arrays: dict[int, Tensor]) -> Tensor:
        """One layer."""
        axis, width, numbers = self.layout.axis, self.layout.width, iter(self.arrays)
        for step in self.steps:
            if isinstance(step, Flow):
                velocity = partial(_change, *self.velocity, arrays)
                x = step.advance(velocity, x, arrays[self.h], self.layout)
                continue
            (r0, r1), (w0, w1) = step.read, step.write
            new = _change(step, next(numbers), arrays, x.narrow(axis, r0, r1 - r0))
            if step.carry:
                new = x.narrow(axis, w0, w1 - w0) + new
            sides = x.narrow(axis, 0, w0), new, x.narrow(axis, w1, width - w1)
            x = torch.cat([side for side in sides if side.shape[axis]], axis)
        return x


def _change(stage: Stage, numbers: Numbers, arrays: dict[int, Tensor], x: Tensor) -> Tensor:
    """A sigma(W x + b)."""
    W, b, A = (arrays[number] for number in numbers)
    s = stage.activation.function(affine(stage.W, W, b, x))
    return stage.W.multiply(A, s) if stage.adjoint else A * s


def _velocity(net: HamiltonianNetwork) -> Stage | None:
    """The velocity as a stage, where a scheme calls it; None where layers are stages only."""
    if isinstance(net.scheme, ImplicitMidpoint):
        raise HdnnError(
            "ImplicitMidpoint() solves an equation in every layer, with as many iterations as it "
            "takes, which ONNX has no operator for; use an explicit scheme, such as RK4()"
        )
    stage = net.field.stage()
    if net.program.has_flows and stage is None:
        raise HdnnError(
            f"{net.scheme} of this {type(net.field).__name__} is a torch function of yours "
            "(J(y, t) or an energy), which has no ONNX form; export networks with weights K, b and "
            "a J that does not depend on the state"
        )
    return stage if net.program.has_flows else None


class _Exported(nn.Module):
    """What the file computes: the final state, probabilities or predictions."""

    def __init__(self, thing: HamiltonianNetwork | Model) -> None:
        super().__init__()
        if isinstance(thing, HamiltonianNetwork):
            self.thing: nn.Module = ScannedNetwork(thing)
            return
        self.thing = copy.deepcopy(thing)
        for number, block in enumerate(thing.blocks):
            if isinstance(block, HamiltonianNetwork):
                self.thing.blocks[number] = ScannedNetwork(block)

    def forward(self, x: Tensor) -> Tensor:
        return _output(self.thing, x)


def _output(thing: nn.Module, x: Tensor) -> Tensor:
    """What an exported file must give, of a batch as hdnn takes it."""
    if isinstance(thing, Model) and thing.task == "classification":
        return thing.probabilities(x)
    out: Tensor = thing(x)
    return out


def _translate(thing: HamiltonianNetwork | Model, interface: Interface) -> onnx.ModelProto:
    import onnx_ir.passes.common as passes

    ((name, shape),) = interface.inputs.items()
    named = {axis: size for axis, size in enumerate(shape) if isinstance(size, str)}
    dynamic = {axis: torch.export.Dim(size) for axis, size in named.items()}
    module = _Exported(thing).eval()
    try:
        with _quiet():
            program = torch.onnx.export(
                module,
                (interface.example,),
                dynamo=True,
                input_names=[name],
                output_names=[interface.output[0]],
                dynamic_shapes=({**dynamic},),
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
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _describe(
    proto: onnx.ModelProto, thing: HamiltonianNetwork | Model, interface: Interface
) -> None:
    """What a user of the file needs to know, in its metadata as JSON."""
    from onnx import helper

    from hdnn import __version__

    proto.producer_name, proto.producer_version = "hdnn", __version__
    networks = (thing,) if isinstance(thing, HamiltonianNetwork) else thing.networks
    about = {"network": "; ".join(net.extra_repr() for net in networks)}
    if isinstance(thing, Model):
        facts: dict[str, Any] = {"task": thing.task, "columns": thing.feature_names}
        if interface.kinds is not None:
            facts |= {"columns": list(interface.inputs), "kinds": interface.kinds}
        if thing.task == "classification":
            facts["labels"] = thing.labels
        about |= {name: json.dumps(value) for name, value in facts.items() if value is not None}
    helper.set_model_props(proto, about)


def _serialize(proto: onnx.ModelProto) -> bytes:
    try:
        return proto.SerializeToString()
    except ValueError as error:  # of protobuf, which holds at most 2 GB
        raise HdnnError(f"the network is too large for one ONNX file: {error!s:.100}") from error


# --- the check ------------------------------------------------------------------------------------


def _session(content: bytes) -> Any:
    """A session of onnxruntime; None where that is not installed."""
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own, without a type in common
        raise HdnnError(
            f"onnxruntime cannot run the exported file ({reprlib.repr(str(error))}); it has fewer "
            "operators for float64: export in float32, or write it all the same with check=False"
        ) from error


def _deviation(thing: HamiltonianNetwork | Model, interface: Interface, session: Any) -> float:
    """The largest difference between onnxruntime and hdnn, on the example and on a sample of it."""
    largest, tolerance, exact = 0.0, 0.0, copy.deepcopy(thing).double()
    for example, feeds in ((interface.example, dict(interface.feeds)), interface.first_sample()):
        expected = _output(thing, example)
        (found,) = session.run(None, feeds)
        if found.shape != expected.shape:
            raise HdnnError(f"the exported file gives {found.shape} instead of {expected.shape}")
        largest = max(largest, _difference(torch.from_numpy(found), expected))
        # A network that magnifies its own rounding errors magnifies those of onnxruntime too.
        wide = example if example.dtype == torch.uint8 else example.double()
        rounding = _difference(_output(exact, wide), expected)
        tolerance = max(tolerance, torch.finfo(expected.dtype).eps ** 0.5, 10 * rounding)
    if not largest <= tolerance:
        raise HdnnError(
            f"onnxruntime and hdnn differ by {largest:.2g} on a batch, more than {tolerance:.2g}, "
            "so that nothing was written; check=False writes it all the same, and a report of "
            "what was exported helps us to repair it"
        )
    return largest


def _difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest expected number or 1; inf for NaN."""
    scale = max(1.0, float(expected.abs().max()))
    difference = float((found.double() - expected.double()).abs().max()) / scale
    return difference if math.isfinite(difference) else math.inf
