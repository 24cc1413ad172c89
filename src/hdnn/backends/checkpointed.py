"""Memory that does not grow with depth, in plain torch: for widths at which matrix products win.

The forward pass keeps nothing. The backward pass goes back in segments of a few layers: it undoes
a segment where the stages read and write disjoint parts, and else recomputes it from the nearest of
a fixed number of saved states; then it differentiates that segment alone.

Undoing is exact but for rounding, which growing states amplify: y_N may hold no digit of y_0 any
more. So undoing must end at the y_0 that was given, which is kept anyway. Where it does
not, up to `tolerance`, its gradients are dropped, and a second backward pass recomputes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hdnn.backends import reference
from hdnn.backends.compiled_program import CompiledProgram, Inputs, compile_program, is_batched
from hdnn.fields.surroundings import without_autocast
from hdnn.program import Program

SEGMENT = 4
"""Layers that are differentiated at once."""

SLOTS = 16
"""States saved to restart from: 16 segments cost one more forward pass, 16^2 two, 16^3 three."""


def tolerance(dtype: torch.dtype) -> float:
    """How far an undone y_0 may be from the given one, as a part of the sample's largest entry.

    Gradients then are as far from the reference, up to a factor of about 3 in whatever was tried.
    """
    eps = torch.finfo(dtype).eps
    return min(256 * eps, eps**0.5)


def run(program: Program, x: Tensor) -> Tensor:
    """The state after the last layer."""
    x, restore = program.layout.flatten(x)
    compiled = compile_program(program, x.dtype, x.device)
    out: Tensor = _Checkpointed.apply(x, *compiled.inputs, compiled)
    return restore(out)


class _Checkpointed(torch.autograd.Function):
    """y_N as a function of y_0 and the tensors of a program."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        theta: Tensor,
        beta: Tensor,
        steps: Tensor,
        dense: Tensor,
        compiled: CompiledProgram,
    ) -> Tensor:
        inputs = Inputs(theta, beta, steps, dense)
        out = reference.run(compiled.rebuild(inputs), x)
        ctx.save_for_backward(x, out, *inputs, *compiled.mixers)
        ctx.compiled = compiled
        return out

    @staticmethod
    def backward(ctx: Any, gout: Tensor) -> tuple[Tensor | None, ...]:
        x, out, *tensors = ctx.saved_tensors
        compiled, inputs, needed = ctx.compiled, Inputs(*tensors[:4]), ctx.needs_input_grad
        with without_autocast(x.device.type):
            if is_batched(gout):
                return (*compiled.vjp(x, inputs, gout), None)
            if torch.is_grad_enabled():
                return (*compiled.gradients(x, inputs, gout, needed), None)
            return (*_gradients(compiled, inputs, x, out, gout), None)


def _gradients(
    compiled: CompiledProgram, inputs: Inputs, x: Tensor, out: Tensor, gout: Tensor
) -> list[Tensor]:
    """The gradients of <gout, y_N>, by undoing where that is accurate."""
    if compiled.program.invertible:
        undo = _Undo(compiled, inputs, out)
        grads = _backward_by_segments(compiled, inputs, undo, gout)
        if undo.ends_at(x):
            return grads
        del undo, grads
    return _backward_by_segments(compiled, inputs, _Saved(compiled, inputs, x), gout)


def _backward_by_segments(
    compiled: CompiledProgram, inputs: Inputs, states: _Undo | _Saved, gout: Tensor
) -> list[Tensor]:
    """The gradients of <gout, y_N>, segment by segment from the last."""
    layers = compiled.program.layers
    starts = list(range(0, layers, SEGMENT))
    totals = Inputs(*(torch.zeros_like(t) for t in inputs))
    for first in reversed(starts):
        last = min(first + SEGMENT, layers)
        start = states.before(first, last)
        part = Inputs(*(t.detach().requires_grad_() for t in inputs.of_layers(first, last)))
        with torch.enable_grad():
            begin = start.detach().requires_grad_()
            end = reference.run(compiled.rebuild(part, last - first), begin)
        gout, *grads = torch.autograd.grad(end, [begin, *part], gout, materialize_grads=True)
        for total, g in zip(totals.of_layers(first, last), grads, strict=True):
            total += g
    return [gout, *totals]


class _Undo:
    """States before a segment, by undoing it."""

    def __init__(self, compiled: CompiledProgram, inputs: Inputs, out: Tensor) -> None:
        self.compiled, self.inputs, self.state = compiled, inputs, out

    def before(self, first: int, last: int) -> Tensor:
        """The state before layer ``first``, given that the last call was for layer ``last``."""
        segment = self.compiled.rebuild(self.inputs.of_layers(first, last), last - first)
        self.state = reference.inverse(segment, self.state)
        return self.state

    def ends_at(self, x: Tensor) -> bool:
        """Whether what has been undone up to the first layer is the state x, sample by sample."""
        if x.is_meta or not x.numel():
            return True
        lead = 1 if self.compiled.program.layout.ensemble is None else 2
        miss, size = (t.abs().flatten(lead).amax(-1) for t in (self.state - x, x))
        # A sample of zeros has no size of its own; activations have 1.
        return bool((miss <= tolerance(x.dtype) * size.masked_fill(size == 0, 1.0)).all())


class _Saved:
    """States before a segment, recomputed from the nearest of a fixed number of saved ones."""

    def __init__(self, compiled: CompiledProgram, inputs: Inputs, x: Tensor) -> None:
        self.compiled, self.inputs, self.saved = compiled, inputs, [(0, x)]

    def before(self, first: int, last: int) -> Tensor:
        """The state before layer ``first``; on the way, free slots are spread evenly."""
        while self.saved[-1][0] > first:
            self.saved.pop()
        at, x = self.saved[-1]
        while at < first:
            free = SLOTS - len(self.saved)
            gap = -(-(first - at) // ((free + 1) * SEGMENT)) * SEGMENT if free else first - at
            to = min(first, at + gap)
            x = reference.run(self.compiled.rebuild(self.inputs.of_layers(at, to), to - at), x)
            at = to
            if free:
                self.saved.append((at, x))
        return x
