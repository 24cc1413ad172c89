"""Memory that does not grow with depth, in plain torch: for widths at which matrix products win.

The forward pass keeps nothing. The backward pass walks back in segments of a few layers: it undoes
a segment exactly where the stages read and write disjoint parts, and else recomputes it from the
nearest of a fixed number of saved states; then it differentiates that segment alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hdnn.backends import reference
from hdnn.backends.compiled_program import (
    CompiledProgram,
    Inputs,
    compile_program,
    is_batched,
)
from hdnn.program import Program

SEGMENT = 4
"""Layers that are differentiated at once."""

SLOTS = 16
"""States saved to restart from: 16 segments cost one more forward pass, 16^2 two, 16^3 three."""


def run(program: Program, x: Tensor) -> Tensor:
    """The state after the last layer."""
    x, restore = program.layout.flatten(x)
    packed = compile_program(program, x.dtype, x.device)
    out: Tensor = _Lean.apply(x, *packed.inputs, packed)
    return restore(out)


class _Lean(torch.autograd.Function):
    """y_N as a function of y_0 and the tensors of a program."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, theta: Tensor, beta: Tensor, steps: Tensor, dense: Tensor,
        packed: CompiledProgram,
    ) -> Tensor:  # fmt: skip
        inputs = Inputs(theta, beta, steps, dense)
        out = reference.run(packed.rebuild(inputs), x)
        ctx.save_for_backward(x, out, *inputs, *packed.mixers)
        ctx.packed = packed
        return out

    @staticmethod
    def backward(ctx: Any, gout: Tensor) -> tuple[Tensor | None, ...]:
        x, out, *tensors = ctx.saved_tensors
        packed, inputs, needed = ctx.packed, Inputs(*tensors[:4]), ctx.needs_input_grad
        if is_batched(gout):
            return (*packed.vjp(x, inputs, gout), None)
        if torch.is_grad_enabled():
            return (*packed.gradients(x, inputs, gout, needed), None)
        return (*_walk_back(packed, inputs, x, out, gout), None)


def _walk_back(
    packed: CompiledProgram, inputs: Inputs, x: Tensor, out: Tensor, gout: Tensor
) -> list[Tensor]:
    """The gradients of <gout, y_N>, segment by segment from the last."""
    layers = packed.program.layers
    starts = list(range(0, layers, SEGMENT))
    totals = Inputs(*(torch.zeros_like(t) for t in inputs))
    states = _Undo(packed, inputs, out) if packed.program.invertible else _Saved(packed, inputs, x)
    for first in reversed(starts):
        last = min(first + SEGMENT, layers)
        start = states.before(first, last)
        part = Inputs(*(t.detach().requires_grad_() for t in inputs.of_layers(first, last)))
        with torch.enable_grad():
            begin = start.detach().requires_grad_()
            end = reference.run(packed.rebuild(part, last - first), begin)
        gout, *found = torch.autograd.grad(end, [begin, *part], gout, materialize_grads=True)
        for total, g in zip(totals.of_layers(first, last), found, strict=True):
            total += g
    return [gout, *totals]


class _Undo:
    """States before a segment, by undoing it exactly."""

    def __init__(self, packed: CompiledProgram, inputs: Inputs, out: Tensor) -> None:
        self.packed, self.inputs, self.state = packed, inputs, out

    def before(self, first: int, last: int) -> Tensor:
        """The state before layer ``first``, given that the last call was for layer ``last``."""
        segment = self.packed.rebuild(self.inputs.of_layers(first, last), last - first)
        self.state = reference.inverse(segment, self.state)
        return self.state


class _Saved:
    """States before a segment, recomputed from the nearest of a fixed number of saved ones."""

    def __init__(self, packed: CompiledProgram, inputs: Inputs, x: Tensor) -> None:
        self.packed, self.inputs, self.saved = packed, inputs, [(0, x)]

    def before(self, first: int, last: int) -> Tensor:
        """The state before layer ``first``; on the way, free slots are spread evenly."""
        while self.saved[-1][0] > first:
            self.saved.pop()
        at, x = self.saved[-1]
        while at < first:
            free = SLOTS - len(self.saved)
            gap = -(-(first - at) // ((free + 1) * SEGMENT)) * SEGMENT if free else first - at
            to = min(first, at + gap)
            x = reference.run(self.packed.rebuild(self.inputs.of_layers(at, to), to - at), x)
            at = to
            if free:
                self.saved.append((at, x))
        return x
