"""Columns of a table as ONNX nodes: numbers, dates and texts to the features of a model.

They are computed in float64, as `hdnn.data.ColumnEncoder` does, and then converted.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from hdnn.data import ColumnEncoder
from hdnn.data.columns import MISSING
from hdnn.data.encoder import PERIODS, EncodedColumn
from hdnn.errors import HdnnError
from hdnn.models.onnx.graph import Graph

UNKNOWN, ABSENT = -1, -2
"""The numbers of a text that is no level of its column, and of a missing one."""


def add_columns(encoder: ColumnEncoder, graph: Graph) -> str:
    """The name of the features ``(batch, features)`` of columns, which are inputs ``(batch,)``.

    Raises:
        HdnnError: a column has more categories than ONNX can tell apart.
    """
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
    """A feature for every level, which is 1 where the text is that level."""
    if column.hashed:
        raise HdnnError(
            f"column {column.name[:60]!r} has so many categories that the rare ones are told apart "
            "by a hash, which ONNX has no operator for; export a file that takes what the encoder "
            "gives (encoded), or train without the column (drop)"
        )
    numbers = {text: ABSENT for text in MISSING} | {
        level: number for number, level in enumerate(column.levels)
    }
    code = graph.add(
        "LabelEncoder",
        x,
        domain="ai.onnx.ml",
        keys_strings=list(numbers),
        values_int64s=list(numbers.values()),
        default_int64=UNKNOWN,
    )
    levels = [graph.add("Equal", code, graph.integers(*range(len(column.levels))))]
    return levels if column.levels else [], graph.add("Equal", code, graph.integers(ABSENT))


def _numbers(column: EncodedColumn, graph: Graph, x: str) -> list[str]:
    if column.kind == "date":
        return [_shifted(graph, x, -column.origin), *_waves(column, graph, x)]
    if len(column.knots) == 2:
        return [_robust(column, graph, x)]
    return [_quantiles(column, graph, x) if column.knots else x]


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


def _robust(column: EncodedColumn, graph: Graph, x: str) -> str:
    middle, spread = column.knots
    scaled = graph.add("Div", _shifted(graph, x, -middle), graph.double(spread))
    third = graph.add("Div", scaled, graph.double(3.0))
    limit = graph.add("Sqrt", _shifted(graph, graph.add("Mul", third, third), 1.0))
    return graph.add("Div", scaled, limit)


def _quantiles(column: EncodedColumn, graph: Graph, x: str) -> str:
    """Straight lines from knot to knot, and a jump where knots are equal."""
    knots = np.array(column.knots)
    scores = [NormalDist().inv_cdf(q) for q in np.linspace(0.001, 0.999, len(knots))]
    widths, rises = np.diff(knots), np.diff(scores)
    lines = widths > 0
    low, high = (graph.double(k[lines]) for k in (knots[:-1], knots[1:]))
    inside = graph.add("Sub", graph.add("Min", graph.add("Max", x, low), high), low)
    parts = [graph.add("Mul", inside, graph.double(rises[lines] / widths[lines]))]
    if not lines.all():
        reached = graph.add("GreaterOrEqual", x, graph.double(knots[:-1][~lines]))
        jumps = graph.double(rises[~lines])
        parts.append(graph.add("Where", reached, jumps, graph.double(0.0)))
    total = graph.add("ReduceSum", graph.join(parts, 1), graph.integers(1))
    # What comparisons make of NaN is not the same everywhere.
    return graph.add("Where", graph.add("IsNaN", x), x, _shifted(graph, total, scores[0]))
