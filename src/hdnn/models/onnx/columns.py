"""Columns of a table as ONNX nodes: numbers, dates and texts to the features of a model.

They are computed in float64, as `hdnn.data.ColumnEncoder` does, and then converted.
"""

from __future__ import annotations

import math

from hdnn.data import ColumnEncoder
from hdnn.data.columns import MISSING
from hdnn.data.encoder import PERIODS, EncodedColumn
from hdnn.models.onnx.graph import Graph

UNKNOWN, ABSENT = -1, -2
"""The numbers of a text that is no level of its column, and of a missing one."""


def add_columns(encoder: ColumnEncoder, graph: Graph) -> str:
    """The name of the features ``(batch, features)`` of columns, which are inputs ``(batch,)``."""
    return graph.join([_column(column, graph) for column in encoder.columns], 1)


def _column(column: EncodedColumn, graph: Graph) -> str:
    x = graph.add("Unsqueeze", column.name, graph.integers(1))
    if column.kind == "category":
        features, missing = _category(column, graph, x)
    else:
        features, missing = _numbers(column, graph, x), graph.add("IsNaN", x)
    features = [graph.convert(feature) for feature in features]
    if column.indicator:
        features.append(graph.convert(missing))
    return graph.join(features, 1)


def _category(column: EncodedColumn, graph: Graph, x: str) -> tuple[list[str], str]:
    """A feature for every level, which is 1 where the text is that level; one for the others."""
    count = len(column.levels) + column.rare
    numbers = {text: ABSENT for text in MISSING} | {
        level: number for number, level in enumerate(column.levels)
    }
    code = graph.add(
        "LabelEncoder",
        x,
        domain="ai.onnx.ml",
        keys_strings=list(numbers),
        values_int64s=list(numbers.values()),
        default_int64=len(column.levels) if column.rare else UNKNOWN,
    )
    levels = [graph.add("Equal", code, graph.integers(*range(count)))] if count else []
    return levels, graph.add("Equal", code, graph.integers(ABSENT))


def _numbers(column: EncodedColumn, graph: Graph, x: str) -> list[str]:
    if column.kind == "date":
        return [_shifted(graph, x, -column.origin), *_waves(column, graph, x)]
    return [_shifted(graph, x, -column.origin) if column.origin else x]


def _shifted(graph: Graph, x: str, by: float) -> str:
    return graph.add("Add", x, graph.double(by))


def _waves(column: EncodedColumn, graph: Graph, days: str) -> list[str]:
    """Sine and cosine of what recurs, of the part of a turn, so that no digits are lost."""
    waves = []
    for period in column.periods:
        turns = graph.add("Div", days, graph.double(PERIODS[period]))
        angle = graph.add("Mul", _part(graph, turns), graph.double(2 * math.pi))
        # Cosine as a sine: onnxruntime has had that one in float64 for longer.
        waves += [graph.add("Sin", angle), graph.add("Sin", _shifted(graph, angle, math.pi / 2))]
    return waves


def _part(graph: Graph, x: str) -> str:
    return graph.add("Sub", x, graph.add("Floor", x))
