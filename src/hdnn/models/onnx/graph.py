"""An ONNX graph under construction: nodes and constants, each under a name of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor

OPSET = 17
"""The version of the operators: of 2022, so that runtimes of the last years read it."""
IR_VERSION = 8
"""The version of the file format that goes with it."""

DTYPES = {
    torch.float32: onnx.TensorProto.FLOAT,
    torch.float64: onnx.TensorProto.DOUBLE,
    torch.uint8: onnx.TensorProto.UINT8,
}
"""What exported graphs compute in, and uint8, which images come in."""

Dimensions = Sequence[int | str]
"""A shape; a name stands for a size that may be any."""


class Graph:
    """Nodes and constants of a graph, or of the body of a loop in it.

    Args:
        dtype: of the numbers that the graph computes with.
        outer: the graph that this one is a body in; its values can be read from within.
    """

    def __init__(self, dtype: torch.dtype, outer: Graph | None = None) -> None:
        self.dtype, self.outer = dtype, outer
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._count: dict[str, int] = {} if outer is None else outer._count

    def name(self, hint: str) -> str:
        """A name that no other value of the file has."""
        number = self._count.get(hint, 0)
        self._count[hint] = number + 1
        return f"{hint}_{number}" if number else hint

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """The name of the value that an operator makes of others."""
        output = self.name(operator.lower())
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def constant(self, value: Tensor | float, hint: str = "constant") -> str:
        """The name of a constant; numbers get the dtype of the graph."""
        if isinstance(value, float) or value.is_floating_point():
            value = torch.as_tensor(value, dtype=self.dtype)
        name = self.name(hint)
        # An array without axes would get one from `ascontiguousarray`.
        array = np.ascontiguousarray(value.detach().cpu().numpy()).reshape(tuple(value.shape))
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def integers(self, *values: int) -> str:
        """The name of a list of integers: a shape, or positions on an axis."""
        return self.constant(torch.tensor(values, dtype=torch.int64), "integers")

    def split(self, x: str, sizes: Sequence[int], axis: int) -> list[str]:
        """The names of the parts of a value along an axis."""
        if len(sizes) == 1:
            return [x]
        names = [self.name("part") for _ in sizes]
        self.nodes.append(helper.make_node("Split", [x, self.integers(*sizes)], names, axis=axis))
        return names

    def join(self, parts: Sequence[str], axis: int) -> str:
        """The name of parts put together along an axis."""
        return parts[0] if len(parts) == 1 else self.add("Concat", *parts, axis=axis)

    def value(self, name: str, shape: Dimensions | None, dtype: torch.dtype | None = None) -> Any:
        """The declaration of an input or output; a shape of None says nothing about it."""
        return helper.make_tensor_value_info(name, DTYPES[dtype or self.dtype], shape)

    def finish(self, name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> onnx.GraphProto:
        """The graph, with its inputs and outputs declared."""
        return helper.make_graph(self.nodes, name, inputs, outputs, self.constants)
