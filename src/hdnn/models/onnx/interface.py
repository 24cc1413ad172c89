"""What an exported file takes and gives, with an example that it is checked on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hdnn.models.model import Model
from hdnn.networks import HamiltonianNetwork

if TYPE_CHECKING:  # of the application
    from hdnn.data import ColumnEncoder
    from hdnn.data.columns import Values
    from hdnn.data.encoder import EncodedColumn

SAMPLES = 5
"""How many samples an export is checked on."""
PIXELS = (6, 5)
"""Height and width of the states that a network over channels is checked on."""

Shape = tuple[int | str, ...]
"""A shape; a name stands for a size that may be any."""


@dataclass(frozen=True)
class Interface:
    """The inputs and the output of what is exported, and an example.

    Args:
        inputs: names and shapes.
        output: name and shape.
        feeds: the example as the file takes it; arrays of objects hold texts.
        example: the same as hdnn takes it.
        encoder: makes the second of the first, where the file takes the columns of a table.
    """

    inputs: Mapping[str, Shape]
    output: tuple[str, Shape]
    feeds: Mapping[str, Values]
    example: Tensor
    encoder: ColumnEncoder | None = None

    def first_sample(self) -> Interface:
        """The same with an example of one sample."""
        axis = self.output[1].index("batch")
        feeds = {
            name: array.take([0], shape.index("batch"))
            for (name, array), shape in zip(self.feeds.items(), self.inputs.values(), strict=True)
        }
        return replace(self, feeds=feeds, example=self.example.narrow(axis, 0, 1))


def interface_of(
    thing: HamiltonianNetwork | Model, dtype: torch.dtype, encoded: bool = False
) -> Interface:
    """The interface of a network or model.

    Args:
        thing: what is exported.
        dtype: of its numbers.
        encoded: whether a model takes its features rather than the columns of a table.
    """
    draw = torch.Generator().manual_seed(0)
    if isinstance(thing, HamiltonianNetwork):
        return _of_network(thing, dtype, draw)
    outputs = thing.head.out_features
    if thing.task == "regression":
        output: tuple[str, Shape] = "prediction", ("batch", outputs)
    else:
        output = "probabilities", ("batch", max(2, outputs))
    sizes = (SAMPLES, *thing.stem.shape)
    if thing.stem.takes_images:
        images = torch.randint(256, sizes, generator=draw, dtype=torch.uint8)
        return _single("images", ("batch", *thing.stem.shape), output, images)
    columns = torch.randn(sizes, generator=draw, dtype=dtype)
    if thing.scaler is not None:
        columns = columns * thing.scaler.scale + thing.scaler.mean
        columns.view(-1)[:: len(thing.scaler.mean) + 1] = torch.nan
    if thing.columns is None or encoded:
        return _single("columns", ("batch", *thing.stem.shape), output, columns)
    from hdnn.data import ColumnEncoder  # of the application

    return _of_columns(ColumnEncoder.from_list(thing.columns), columns, output)


def _single(name: str, shape: Shape, output: tuple[str, Shape], example: Tensor) -> Interface:
    return Interface({name: shape}, output, {name: example.numpy()}, example)


def _of_network(net: HamiltonianNetwork, dtype: torch.dtype, draw: torch.Generator) -> Interface:
    layout = net.field.layout
    lead = () if layout.ensemble is None else (layout.ensemble,)
    space = ("height", "width") if layout.channels else ()
    shape = (*lead, "batch", layout.width, *space)
    sizes = (*lead, SAMPLES, layout.width, *(PIXELS if layout.channels else ()))
    state = torch.randn(sizes, generator=draw, dtype=dtype)
    return _single("state", shape, ("final_state", shape), state)


# --- the columns of a table, as people have them --------------------------------------------------


def _of_columns(encoder: ColumnEncoder, features: Tensor, output: tuple[str, Shape]) -> Interface:
    """One input for every column; the example is like the features that the model has seen."""
    values, at = {}, 0
    for column in encoder.columns:
        values[column.name] = _example(column, features[:, at].double().numpy())
        at += len(column.feature_names)
    example = torch.from_numpy(encoder.transform(values)).to(features.dtype)
    feeds = {column.name: _feed(column, values[column.name]) for column in encoder.columns}
    shapes: dict[str, Shape] = {name: ("batch",) for name in feeds}
    return Interface(shapes, output, feeds, example, encoder)


def _example(column: EncodedColumn, numbers: NDArray[np.float64]) -> Values:
    """Values of a column, among them missing ones and, of categories, an unknown one."""
    rows = len(numbers)
    if column.kind == "category":
        texts = [*column.levels[: rows - 2], "a text that no table holds", None]
        return np.array([texts[row % len(texts)] for row in range(rows)], object)
    if column.kind == "date":
        seconds = np.where(np.isnan(numbers), 0, 86_400 * numbers).astype("m8[s]")
        dates = np.datetime64(0, "us") + int(column.origin * 86_400e6) + seconds
        dates[np.isnan(numbers)] = np.datetime64("NaT")
        return dates
    return numbers + column.origin


def _feed(column: EncodedColumn, values: Values) -> Values:
    if column.kind == "category":
        return np.array(["" if text is None else text for text in values], object)
    if column.kind != "date":
        return values
    from hdnn.data.encoder import as_days  # of the application

    return as_days(values)
