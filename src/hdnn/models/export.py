"""Export to ONNX: a network or a model as a file that runs without hdnn and without torch."""

from __future__ import annotations

import copy
import importlib.metadata
import importlib.util
import json
import math
import os
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hdnn.errors import HdnnError
from hdnn.files import atomic
from hdnn.models.model import Model
from hdnn.models.onnx.interface import Interface, Shape, interface_of
from hdnn.networks import HamiltonianNetwork

if TYPE_CHECKING:
    import onnx

    from hdnn.data import ColumnEncoder

__all__ = ["Export", "export_onnx"]


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
        HdnnError: there is no ONNX form of it (an implicit scheme, J(y, t), an energy or an
            activation of your own), onnx is not installed, or the file computes something else.

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
    if importlib.util.find_spec("onnx") is None:
        raise HdnnError("export needs the package onnx: pip install 'hdnn[onnx]'")
    thing = copy.deepcopy(thing).cpu().eval()
    interface = interface_of(thing, number_type(thing), encoded)
    model = _model_proto(thing, interface)
    content = _serialize(model)
    deviation = None
    if check and importlib.util.find_spec("onnxruntime") is not None:
        deviation = _deviation(thing, interface, content)
    with atomic(path) as temporary:
        temporary.write_bytes(content)
    outputs = {model.graph.output[0].name: interface.output[1]}
    return Export(Path(path), len(content), dict(interface.inputs), outputs, deviation)


def number_type(thing: HamiltonianNetwork | Model) -> torch.dtype:
    """The dtype of what is exported.

    Args:
        thing: a network or a model.

    Returns:
        float32 or float64.

    Raises:
        HdnnError: it has another.
    """
    part = thing.head if isinstance(thing, Model) else thing.field
    dtype = next((p.dtype for p in part.parameters()), torch.get_default_dtype())
    if dtype not in (torch.float32, torch.float64):
        raise HdnnError(f"networks in float32 or float64 are exported, got {dtype}; use .float()")
    return dtype


# --- the file -------------------------------------------------------------------------------------


def _model_proto(thing: HamiltonianNetwork | Model, interface: Interface) -> onnx.ModelProto:
    import onnx
    from onnx import helper

    from hdnn.models.onnx.graph import IR_VERSION, Graph
    from hdnn.models.onnx.parts import add_part

    graph = Graph(number_type(thing))
    names = [graph.name(name) for name in interface.inputs]
    end = graph.name(interface.output[0])
    first = names[0]
    if interface.encoder is not None:
        from hdnn.models.onnx.columns import add_columns  # of the application

        first = add_columns(interface.encoder, graph)
    result = add_part(thing, graph, first)
    graph.nodes.append(helper.make_node("Identity", [result], [end]))
    declared = zip(interface.inputs.items(), interface.feeds.values(), strict=True)
    inputs = [graph.value(name, shape, feed.dtype) for (name, shape), feed in declared]
    proto = graph.finish("hdnn", inputs, [graph.value(end, interface.output[1])])
    model = helper.make_model(
        proto,
        opset_imports=graph.opsets,
        ir_version=IR_VERSION,
        producer_name="hdnn",
        producer_version=_version(),
    )
    helper.set_model_props(model, metadata_of(thing, interface.encoder))
    onnx.checker.check_model(model)
    return model


def _version() -> str:
    try:
        return importlib.metadata.version("hdnn")
    except importlib.metadata.PackageNotFoundError:
        return ""


def metadata_of(thing: HamiltonianNetwork | Model, encoder: ColumnEncoder | None) -> dict[str, str]:
    """What a user of the file needs to know.

    Args:
        thing: a network or a model.
        encoder: of the columns of a table, where the file takes these.

    Returns:
        JSON by name.
    """
    if isinstance(thing, HamiltonianNetwork):
        return {"network": thing.extra_repr()}
    facts: dict[str, Any] = {"task": thing.task, "columns": thing.feature_names}
    if encoder is not None:
        facts["columns"] = [column.name for column in encoder.columns]
        facts["kinds"] = [column.kind for column in encoder.columns]
    if thing.task == "classification":
        facts["labels"] = thing.labels
    known = {name: json.dumps(value) for name, value in facts.items() if value is not None}
    return {**known, "network": "; ".join(net.extra_repr() for net in thing.networks)}


def _serialize(model: onnx.ModelProto) -> bytes:
    try:
        return model.SerializeToString()
    except ValueError as error:  # of protobuf, which holds at most 2 GB
        raise HdnnError(f"the network is too large for one ONNX file: {error!s:.100}") from error


# --- the check ------------------------------------------------------------------------------------


def _deviation(thing: HamiltonianNetwork | Model, interface: Interface, content: bytes) -> float:
    """The largest difference between onnxruntime and hdnn, on the example and on a sample of it."""
    largest, tolerance = 0.0, 0.0
    session, exact = _session(content), copy.deepcopy(thing).double()
    for some in (interface, interface.first_sample()):
        example, expected = some.example, expected_of(thing, some.example)
        (found,) = session.run(None, dict(some.feeds))
        if found.shape != expected.shape:
            raise HdnnError(f"the exported file gives {found.shape} instead of {expected.shape}")
        largest = max(largest, difference(torch.from_numpy(found), expected))
        # A network that magnifies its own rounding errors magnifies those of onnxruntime too.
        wide = example if example.dtype == torch.uint8 else example.double()
        rounding = difference(expected_of(exact, wide), expected)
        tolerance = max(tolerance, torch.finfo(expected.dtype).eps ** 0.5, 10 * rounding)
    if not largest <= tolerance:
        raise HdnnError(
            f"onnxruntime and hdnn differ by {largest:.2g} on a batch, more than {tolerance:.2g}, "
            "so that nothing was written; check=False writes it all the same, and a report of "
            "what was exported helps us to repair it"
        )
    return largest


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest expected number or 1.

    Args:
        found, expected: of the same shape.

    Returns:
        A number of at least 0; infinity where anything is not finite.
    """
    if not expected.numel():
        return 0.0
    scale = max(1.0, float(expected.abs().max()))
    difference = float((found.double() - expected.double()).abs().max()) / scale
    return difference if math.isfinite(difference) else math.inf


def expected_of(thing: HamiltonianNetwork | Model, x: Tensor) -> Tensor:
    """What an exported file must give.

    Args:
        thing: a network or a model.
        x: a batch, as hdnn takes it.

    Returns:
        The final state, probabilities or predictions.
    """
    if isinstance(thing, Model) and thing.task == "classification":
        return thing.probabilities(x)
    out: Tensor = thing(x)
    return out


def _session(content: bytes) -> Any:
    import onnxruntime

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
