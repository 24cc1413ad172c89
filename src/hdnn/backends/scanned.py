"""A program as one loop operator of torch: a graph of it holds one layer, whatever the depth.

It serves `torch.export`. In eager mode the operator costs more than the layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hdnn.errors import HdnnError
from hdnn.fields.layout import Layout
from hdnn.program import Program, Stage


def run(program: Program, x: Tensor) -> Tensor:
    """The state after the last layer.

    Args:
        program: of stages.
        x: y_0.

    Raises:
        HdnnError: a layer is a function, which may differ from layer to layer.
    """
    from torch._higher_order_ops.scan import scan  # a prototype of torch

    if program.stages is None:
        raise HdnnError("a loop operator needs layers of stages, and these are functions")
    x, restore = program.layout.flatten(x)
    stages, layout = program.stages, program.layout
    arrays = [_arrays(stage, layout) for stage in stages]
    counts = [len(stacks) for stacks in arrays]

    def layer(x: Tensor, entries: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        rest = entries
        for stage, count in zip(stages, counts, strict=True):
            x, rest = _advance(stage, layout, rest[:count], x), rest[count:]
        return _plain(x), []

    last, _ = scan(layer, _plain(x), [stack for stacks in arrays for stack in stacks])
    return restore(last)


def _plain(x: Tensor) -> Tensor:
    """A copy; what enters an iteration must lie in memory as what leaves it."""
    return x.clone(memory_format=torch.contiguous_format)


def _arrays(stage: Stage, layout: Layout) -> list[Tensor]:
    """W, b and A (where it is no number) of a stage, with the layers first."""
    lead = 0 if layout.ensemble is None else 1
    W, b = stage.W.tensor(), stage.b.tensor()
    found = (W, b, stage.gain(W, layout))
    return [stack.movedim(lead, 0) for stack in found if isinstance(stack, Tensor)]


def _advance(stage: Stage, layout: Layout, arrays: list[Tensor], x: Tensor) -> Tensor:
    """x[write] = carry x[write] + A sigma(W x[read] + b) of one layer."""
    axis, (start, stop) = layout.axis, stage.write
    W, b, *gain = arrays
    read = x.narrow(axis, stage.read[0], stage.read[1] - stage.read[0])
    s = stage.activation.function(layout.affine(W, b, read))
    new = _times(gain[0] if gain else stage.A, s, layout)  # type: ignore[arg-type]
    if stage.carry:
        new = x.narrow(axis, start, stop - start) + new
    rest = x.shape[axis] - stop
    parts = [x.narrow(axis, 0, start), new, x.narrow(axis, stop, rest)]
    return new if start == rest == 0 else torch.cat(parts, axis)


def _times(A: float | Tensor, s: Tensor, layout: Layout) -> Tensor:
    """A s, where A is a number, one for every member of an ensemble, or a matrix."""
    lead = 0 if layout.ensemble is None else 1
    if not isinstance(A, Tensor):
        return A * s
    if A.ndim < lead + 2:
        return A.reshape(A.shape + (1,) * (s.ndim - A.ndim)) * s
    return layout.linear(A, s)
