"""The parts of a model as ONNX nodes: one function for every type of part.

A new part (of a stem, say) is one more function here, registered with `add_part`.
"""

from __future__ import annotations

from functools import singledispatch

from torch import nn

from hdnn.errors import HdnnError
from hdnn.models.images import ImageStem, PixelMean
from hdnn.models.model import Model
from hdnn.models.onnx.graph import Graph
from hdnn.models.onnx.layers import add_network
from hdnn.models.stems import Augmentation, Scaler, TableStem
from hdnn.networks import HamiltonianNetwork


@singledispatch
def add_part(part: nn.Module, graph: Graph, x: str) -> str:
    """Add the nodes of a part to a graph.

    Args:
        part: a module, in evaluation mode.
        graph: the graph.
        x: the name of what enters it.

    Returns:
        The name of what leaves it.

    Raises:
        HdnnError: there is no function for modules of this type.
    """
    raise HdnnError(
        f"{type(part).__name__} has no ONNX form in hdnn; exported are networks and models of "
        "hdnn's own parts"
    )


# --- stems ----------------------------------------------------------------------------------------


@add_part.register
def _scaler(part: Scaler, graph: Graph, x: str) -> str:
    centered = graph.add("Sub", x, graph.constant(part.mean, "mean"))
    scaled = graph.add("Div", centered, graph.constant(part.scale, "scale"))
    return graph.add("Where", graph.add("IsNaN", x), graph.constant(0.0), scaled)


@add_part.register
def _augmentation(part: Augmentation, graph: Graph, x: str) -> str:
    zeros = graph.integers(0, 0, 0, part.width - part.features)
    front = part.features if part.mode == "append" else (part.features + 1) // 2
    sizes = [size for size in (front, part.features - front) if size]
    first, *last = graph.split(x, sizes, -1)
    return graph.join([graph.add("Pad", first, zeros), *last], -1)


@add_part.register
def _table_stem(part: TableStem, graph: Graph, x: str) -> str:
    parts = part.scaler, part.augmentation, part.projection
    steps = [step for step in parts if step is not None]
    if forgotten := set(part.children()) - set(steps):
        raise HdnnError(f"{forgotten.pop()} in the stem of a table has no place in its ONNX form")
    for step in steps:
        x = add_part(step, graph, x)
    return x


@add_part.register
def _image_stem(part: ImageStem, graph: Graph, x: str) -> str:
    scaled = graph.add("Mul", graph.convert(x), graph.constant(part.gain / 255, "gain"))
    normalized = graph.add("Add", scaled, graph.constant(part.offset, "offset"))
    return add_part(part.opening, graph, normalized)


# --- blocks ---------------------------------------------------------------------------------------


@add_part.register
def _network(part: HamiltonianNetwork, graph: Graph, x: str) -> str:
    return add_network(graph, part, x)


@add_part.register
def _sequential(part: nn.Sequential, graph: Graph, x: str) -> str:
    for step in part:
        x = add_part(step, graph, x)
    return x


@add_part.register
def _identity(part: nn.Identity, graph: Graph, x: str) -> str:
    return x


@add_part.register
def _convolution(part: nn.Conv2d, graph: Graph, x: str) -> str:
    # "same" is written in our blocks for odd kernels only, where it is half of them on all sides.
    padding = (
        part.padding if isinstance(part.padding, tuple) else [k // 2 for k in part.kernel_size]
    )
    bias = () if part.bias is None else (graph.constant(part.bias, "bias"),)
    return graph.add(
        "Conv",
        x,
        graph.constant(part.weight, "kernel"),
        *bias,
        pads=[*padding, *padding],
        strides=list(part.stride),
    )


@add_part.register
def _batch_norm(part: nn.BatchNorm2d, graph: Graph, x: str) -> str:
    names = ("weight", "bias", "running_mean", "running_var")
    statistics = [graph.constant(getattr(part, name), name) for name in names]
    return graph.add("BatchNormalization", x, *statistics, epsilon=part.eps)


@add_part.register
def _group_norm(part: nn.GroupNorm, graph: Graph, x: str) -> str:
    # The operator of ONNX for groups is younger than OPSET: a group is an "instance" of its own.
    groups = graph.add("Reshape", x, graph.integers(0, part.num_groups, -1))
    one, zero = (
        graph.constant(part.weight.new_full((part.num_groups,), value)) for value in (1.0, 0.0)
    )
    normal = graph.add("InstanceNormalization", groups, one, zero, epsilon=part.eps)
    normal = graph.add("Reshape", normal, graph.add("Shape", x))
    weight, bias = (graph.constant(t.reshape(-1, 1, 1)) for t in (part.weight, part.bias))
    return graph.add("Add", graph.add("Mul", normal, weight), bias)


@add_part.register
def _relu(part: nn.ReLU, graph: Graph, x: str) -> str:
    return graph.add("Relu", x)


@add_part.register
def _max_pool(part: nn.MaxPool2d, graph: Graph, x: str) -> str:
    side = [part.kernel_size] * 2
    return graph.add("MaxPool", x, kernel_shape=side, strides=side)


@add_part.register
def _flatten(part: nn.Flatten, graph: Graph, x: str) -> str:
    return graph.add("Flatten", x, axis=1)


@add_part.register
def _pixel_mean(part: PixelMean, graph: Graph, x: str) -> str:
    return graph.add("Flatten", graph.add("GlobalAveragePool", x), axis=1)


# --- head -----------------------------------------------------------------------------------------


@add_part.register
def _linear(part: nn.Linear, graph: Graph, x: str) -> str:
    weight, bias = graph.constant(part.weight, "weight"), graph.constant(part.bias, "bias")
    return graph.add("Gemm", x, weight, bias, transB=1)


@add_part.register
def _model(part: Model, graph: Graph, x: str) -> str:
    for step in (part.stem, part.blocks, part.head):
        x = add_part(step, graph, x)
    if part.task == "regression":
        return x
    if part.head.out_features > 1:
        return graph.add("Softmax", x, axis=-1)
    return graph.join([graph.add("Sigmoid", graph.add("Neg", x)), graph.add("Sigmoid", x)], -1)
