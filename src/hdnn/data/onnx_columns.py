"""The columns of a table in an ONNX file: numbers, dates and texts to the features of a model.

torch translates the arithmetic. It has no texts, so they enter the graph through a `LabelEncoder`
each, which gives the number of a category.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import torch
from onnx import helper
from torch import Tensor, nn

from hdnn.data import ColumnEncoder
from hdnn.data.columns import MISSING
from hdnn.data.encoder import PERIODS, EncodedColumn, as_days

if TYPE_CHECKING:
    from hdnn.models.onnx_export import Interface

OURS = "hdnn/"
"""What our names in the graph begin with, so that a column may have any other."""
UNKNOWN, ABSENT = -1, -2
"""Codes of a category that training did not have, and of a missing one."""


class ColumnFeatures(nn.Module):
    """The features of a table's columns, computed in float64 as `hdnn.data.ColumnEncoder` does.

    Args:
        encoder: of the model.
        dtype: of the model.
    """

    def __init__(self, encoder: ColumnEncoder, dtype: torch.dtype) -> None:
        super().__init__()
        self.encoder, self.dtype = encoder, dtype

    def forward(self, *columns: Tensor) -> Tensor:
        """Numbers, days since 1970 or codes of categories, ``(batch,)`` each, to the features."""
        pairs = zip(self.encoder.columns, columns, strict=True)
        parts = [part for column, x in pairs for part in _features(column, x[:, None])]
        return torch.cat(parts, 1).to(self.dtype)


def _features(column: EncodedColumn, x: Tensor) -> list[Tensor]:
    if column.kind == "category":
        levels = torch.arange(len(column.levels) + column.rare)
        parts, missing = [(x == levels).double()], x == ABSENT
    else:
        parts, missing = [x - _number(column.origin)], x.isnan()
    for period in column.periods:
        turns = x / _number(PERIODS[period])
        # The sine of the part of a turn, so that no digits are lost.
        angle = (turns - turns.floor()) * _number(2 * math.pi)
        # Cosine as a sine: onnxruntime has had that one in float64 for longer.
        parts += [angle.sin(), (angle + _number(math.pi / 2)).sin()]
    return [*parts, missing.double()] if column.indicator else parts


def _number(value: float) -> Tensor:
    """A constant as a tensor, since torch.onnx rounds numbers of Python to float32."""
    return torch.tensor(value, dtype=torch.float64)


def take_columns(proto: onnx.ModelProto, interface: Interface) -> None:
    """Let a graph take the columns under their names, and categories as texts.

    Args:
        proto: the graph, which is changed.
        interface: what `column_interface` gave.
    """
    assert isinstance(interface.features, ColumnFeatures)
    columns = interface.features.encoder.columns
    _prefix(proto.graph)
    entries = []
    for column, value in zip(columns, proto.graph.input, strict=True):
        names = [column.name], [value.name]
        if column.kind == "category":
            codes = dict.fromkeys(MISSING, ABSENT) | {t: k for k, t in enumerate(column.levels)}
            entry = helper.make_node(
                "LabelEncoder",
                *names,
                domain="ai.onnx.ml",
                keys_strings=list(codes),
                values_int64s=list(codes.values()),
                default_int64=len(column.levels) if column.rare else UNKNOWN,
            )
            value.type.tensor_type.elem_type = onnx.TensorProto.STRING
        else:
            entry = helper.make_node("Identity", *names)
        value.name = column.name
        entries.append(entry)
    (result,), output = proto.graph.output, interface.output[0]
    nodes = [*entries, *proto.graph.node, helper.make_node("Identity", [result.name], [output])]
    result.name = output
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    onnx.checker.check_model(proto)


def _prefix(graph: onnx.GraphProto) -> None:
    """Let all names in a graph and in the bodies of its loops begin alike: a column has any other.

    `onnx.compose.add_prefix` misses what the body of a loop uses from around it.
    """
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [name and OURS + name for name in names]  # "" stands for an optional input
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _prefix(attribute.g)
    for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        value.name = OURS + value.name


# --- an example -----------------------------------------------------------------------------------


def column_interface(interface: Interface, columns: list[dict[str, Any]]) -> Interface:
    """Every column of a table as an input of its own, under its name.

    Args:
        interface: of the model's features.
        columns: as `hdnn.data.ColumnEncoder.to_list` gives them.

    Returns:
        Inputs, output and an example.
    """
    encoder = ColumnEncoder.from_list(columns)
    values, at = {}, 0
    for column in encoder.columns:
        values[column.name] = _example(column, interface.example[:, at].double().numpy())
        at += len(column.feature_names)
    example = torch.from_numpy(encoder.transform(values)).to(interface.example.dtype)
    feeds = {column.name: _feed(column, values[column.name]) for column in encoder.columns}
    output, shape = interface.output
    return replace(
        interface,
        inputs={name: ("batch",) for name in feeds},
        output=(output + "_" * (output in feeds), shape),
        example=example,
        feeds=feeds,
        features=ColumnFeatures(encoder, example.dtype),
        facts={
            "columns": list(feeds),
            "kinds": [column.kind for column in encoder.columns],
            "formats": [column.format for column in encoder.columns],  # of dates
        },
    )


def _example(column: EncodedColumn, numbers: Any) -> Any:
    """Values of a column, among them missing ones and, of categories, an unknown one."""
    if column.kind == "category":
        texts = [*column.levels[: len(numbers) - 2], "a text that no table holds", None]
        return np.resize(np.array(texts, object), len(numbers))
    if column.kind == "date":
        seconds = 86_400 * (np.nan_to_num(numbers) + column.origin)
        dates = seconds.astype(np.int64).astype("M8[s]")
        return np.where(np.isnan(numbers), np.datetime64("NaT"), dates)
    return numbers


def _feed(column: EncodedColumn, values: Any) -> Any:
    """The values as the file takes them."""
    if column.kind == "category":
        return np.array(["" if text is None else text for text in values], object)
    return as_days(values) if column.kind == "date" else values
