"""The columns of a table in an ONNX file: numbers, dates and texts to the features of a model.

They are computed in float64, as `hdnn.data.ColumnEncoder` does, and then converted.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

if TYPE_CHECKING:
    from hdnn.data.encoder import EncodedColumn
    from hdnn.models.export import Interface

OURS = "hdnn/"
"""What our names in the graph begin with, so that any column may have any other."""


def put_columns_before(
    proto: onnx.ModelProto, interface: Interface, described: list[dict[str, Any]]
) -> Interface:
    """Let a graph that takes features take the columns of a table, one input for each.

    Args:
        proto: the graph, which is changed.
        interface: what it takes and gives.
        described: the columns, as `hdnn.data.ColumnEncoder.to_list` gives them.

    Returns:
        What it takes and gives now.

    Raises:
        HdnnError: a column has no ONNX form.
    """
    from hdnn.data import ColumnEncoder  # of the application

    encoder = ColumnEncoder.from_list(described)
    values, at, numbers = {}, 0, interface.example.double().numpy()
    for column in encoder.columns:
        values[column.name] = _example(column, numbers[:, at])
        at += len(column.feature_names)
    example = torch.from_numpy(encoder.transform(values)).to(interface.example.dtype)
    feeds = {column.name: _feed(column, values[column.name]) for column in encoder.columns}
    output = interface.output[0] + "_" * (interface.output[0] in feeds)

    _prefix(proto.graph)
    nodes = _Nodes(proto.graph.initializer)
    features = [_column(column, nodes) for column in encoder.columns]
    cast = nodes.add("Concat", *features, axis=1)
    kind = proto.graph.input[0].type.tensor_type.elem_type
    entry, end = proto.graph.input[0].name, proto.graph.output[0].name
    first = [*nodes.nodes, helper.make_node("Cast", [cast], [entry], to=kind)]
    last = helper.make_node("Identity", [end], [output])
    after = list(proto.graph.node)
    del proto.graph.node[:], proto.graph.input[:]
    proto.graph.node.extend([*first, *after, last])
    for name, feed in feeds.items():
        what = onnx.TensorProto.STRING if feed.dtype == object else onnx.TensorProto.DOUBLE
        proto.graph.input.append(helper.make_tensor_value_info(name, what, ["batch"]))
    proto.graph.output[0].name = output
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    onnx.checker.check_model(proto)
    return replace(
        interface,
        inputs={name: ("batch",) for name in feeds},
        output=(output, interface.output[1]),
        example=example,
        feeds=feeds,
        kinds=[column.kind for column in encoder.columns],
    )


def _prefix(graph: onnx.GraphProto) -> None:
    """Let all names in a graph, and in the bodies of its loops, begin with `OURS`."""
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [name and OURS + name for name in names]  # "" is an input that is not given
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _prefix(attribute.g)
    for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        value.name = OURS + value.name


class _Nodes:
    """Nodes under construction; constants go to the initializers of the graph."""

    def __init__(self, initializers: Any) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers = initializers

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """The name of the value that an operator makes of others."""
        name = f"{OURS}columns/{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def constant(self, value: Any, dtype: Any = np.float64) -> str:
        """The name of a constant."""
        name = f"{OURS}constants/{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name


def _column(column: EncodedColumn, nodes: _Nodes) -> str:
    """The name of a column's features ``(batch, .)`` in float64."""
    add, constant = nodes.add, nodes.constant
    x = add("Unsqueeze", column.name, constant([1], np.int64))
    if column.kind == "category":
        features, missing = _category(column, nodes, x)
    else:
        features, missing = _numbers(column, nodes, x), add("IsNaN", x)
    if column.indicator:
        features.append(add("Cast", missing, to=onnx.TensorProto.DOUBLE))
    return add("Concat", *features, axis=1)


def _category(column: EncodedColumn, nodes: _Nodes, x: str) -> tuple[list[str], str]:
    """A feature for every level, 1 where the text is that level; and where it is missing."""
    from hdnn.data.columns import MISSING  # of the application

    unknown, absent, count = -1, -2, len(column.levels)
    codes = {text: absent for text in MISSING} | {text: k for k, text in enumerate(column.levels)}
    code = nodes.add(
        "LabelEncoder",
        x,
        domain="ai.onnx.ml",
        keys_strings=list(codes),
        values_int64s=list(codes.values()),
        default_int64=count if column.rare else unknown,
    )
    levels = nodes.constant(range(count + column.rare), np.int64)
    one_hot = nodes.add("Cast", nodes.add("Equal", code, levels), to=onnx.TensorProto.DOUBLE)
    return [one_hot], nodes.add("Equal", code, nodes.constant([absent], np.int64))


def _numbers(column: EncodedColumn, nodes: _Nodes, x: str) -> list[str]:
    add, constant = nodes.add, nodes.constant
    if column.kind != "date":
        return [x]
    from hdnn.data.encoder import PERIODS  # of the application

    features = [add("Sub", x, constant(column.origin))]
    for period in column.periods:
        turns = add("Div", x, constant(PERIODS[period]))
        # The sine of the part of a turn, so that no digits are lost.
        angle = add("Mul", add("Sub", turns, add("Floor", turns)), constant(2 * math.pi))
        # Cosine as a sine: onnxruntime has had that one in float64 for longer.
        features += [add("Sin", angle), add("Sin", add("Add", angle, constant(math.pi / 2)))]
    return features


# --- an example -----------------------------------------------------------------------------------


def _example(column: EncodedColumn, numbers: Any) -> Any:
    """Values of a column, among them missing ones and, of categories, an unknown one."""
    if column.kind == "category":
        texts = [*column.levels[: len(numbers) - 2], "a text that no table holds", None]
        return np.array([texts[row % len(texts)] for row in range(len(numbers))], object)
    if column.kind == "date":
        missing = np.isnan(numbers)
        seconds = 86_400 * (np.where(missing, 0.0, numbers) + column.origin)
        dates = seconds.astype(np.int64).astype("M8[s]")
        dates[missing] = np.datetime64("NaT")
        return dates
    return numbers


def _feed(column: EncodedColumn, values: Any) -> Any:
    """The values as the file takes them."""
    if column.kind == "category":
        return np.array(["" if text is None else text for text in values], object)
    if column.kind != "date":
        return values
    from hdnn.data.encoder import as_days  # of the application

    return as_days(values)
