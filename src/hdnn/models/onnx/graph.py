"""An ONNX graph under construction: nodes and constants, each under a name of its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, count
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch import Tensor

OPSETS = {"": 17, "ai.onnx.ml": 3}
"""The versions of the operators: of 2022, so that runtimes of the last years read them."""
IR_VERSION = 8
"""The version of the file format that goes with it."""

DTYPES = {
    torch.float32: onnx.TensorProto.FLOAT,
    torch.float64: onnx.TensorProto.DOUBLE,
}
"""What exported graphs compute in."""

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
        self._taken: set[str] = set() if outer is None else outer._taken

    def name(self, hint: str) -> str:
        """A name that no other value of the file has."""
        names = chain((hint,), (f"{hint}_{number}" for number in count(1)))
        free = next(name for name in names if name not in self._taken)
        self._taken.add(free)
        return free

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

    def double(self, value: float | NDArray[np.float64]) -> str:
        """The name of a constant in float64, whatever the graph computes in."""
        name = self.name("double")
        self.constants.append(numpy_helper.from_array(np.asarray(value, np.float64), name))
        return name

    def convert(self, x: str) -> str:
        """The name of a value in the dtype of the graph."""
        return self.add("Cast", x, to=DTYPES[self.dtype])

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

    def value(self, name: str, shape: Dimensions | None, dtype: np.dtype[Any] | None = None) -> Any:
        """The declaration of an input or output; a shape of None says nothing about it."""
        kind = DTYPES[self.dtype] if dtype is None else helper.np_dtype_to_tensor_dtype(dtype)
        return helper.make_tensor_value_info(name, kind, shape)

    @property
    def opsets(self) -> list[onnx.OperatorSetIdProto]:
        """The sets of operators that the nodes are from."""
        used = {"", *(node.domain for node in self.nodes)}
        return [helper.make_opsetid(domain, OPSETS[domain]) for domain in sorted(used)]

    def finish(self, name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> onnx.GraphProto:
        """The graph, with its inputs and outputs declared."""
        return helper.make_graph(self.nodes, name, inputs, outputs, self.constants)
