"""The reference backend: programs interpreted in plain torch. It is the specification.

Any dtype and device, any batch shape, ensembles, double differentiation, torch.func and
torch.compile: whatever torch can do with a loop over layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hdnn.errors import HdnnError
from hdnn.fields.field import of_layer
from hdnn.fields.maps import matrix_product
from hdnn.program import (
    Flow,
    Program,
    Recurrence,
    Stage,
    Values,
    at_layer,
    signed,
    times,
)

Pieces = list[Tensor]


def run(program: Program, values: Values, x: Tensor, memory: str = "fast") -> Tensor:
    """The state after the last layer.

    Args:
        program, values: what is computed.
        x: y_0, ``(..., n)`` or ``(B, n, *spatial)``.
        memory: "lean" keeps the states between about sqrt(L) segments of layers only, and computes
            a segment again on the way back. Flows, and transforms of torch.func, keep everything.

    Returns:
        y_N, in the shape of x.
    """
    x, restore = program.layout.flatten(x)
    interpreter = _Interpreter(program, values, x.ndim)
    layers = program.layers
    whole = memory == "fast" or not torch.is_grad_enabled() or program.has_flows
    if whole or not _can_checkpoint():
        return restore(interpreter.advance(0, layers, x))
    segment = max(1, math.isqrt(layers))
    for first in range(0, layers, segment):
        part = partial(interpreter.advance, first, min(first + segment, layers))
        x = checkpoint(part, x, use_reentrant=False)
    return restore(x)


def _can_checkpoint() -> bool:
    """Whether torch allows what `checkpoint` does: torch.func does not, around it or inside it."""
    if torch.compiler.is_compiling():
        return True
    try:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            return True
    except RuntimeError:
        return False


def trajectory(program: Program, values: Values, x: Tensor) -> Tensor:
    """``(layers + 1, ...)``: the states y_0 to y_N."""
    x, restore = program.layout.flatten(x)
    interpreter, states = _Interpreter(program, values, x.ndim), [x]
    for layer in range(program.layers):
        states.append(interpreter.advance(layer, layer + 1, states[-1]))
    return torch.stack([restore(state) for state in states])


def inverse(program: Program, values: Values, x: Tensor) -> Tensor:
    """The state before the first layer: x[write] -= A sigma(W x[read] + b), in reverse order.

    Of an invertible program: a stage that writes what it reads cannot be undone like this.
    """
    x, restore = program.layout.flatten(x)
    return restore(_Interpreter(program, values, x.ndim).undo(x))


def rollout(recurrence: Recurrence, x: Tensor, u: Tensor | None) -> tuple[Tensor, Tensor]:
    """All states of a recurrence: ``([E,] B, steps, n)``, x_0 to x_{T-1}, and x_T."""
    recurrence.check(x, u)
    W, A, activation, steps, hold = recurrence
    to_units, to_states = W.mT.unbind(-3), A.mT.unbind(-3)
    one, period, states = torch.ones_like(x[..., :1]), len(to_units), []
    driven = [one] if u is None else [torch.cat([v, one], -1) for v in u.unbind(-2)]
    for t in range(steps):
        states.append(x)
        v = torch.cat([x, driven[t // hold if len(driven) > 1 else 0]], -1)
        s = activation.function(v @ to_units[t % period])
        x = torch.cat([v, s], -1) @ to_states[t % period]
    return torch.stack(states, -2) if states else x.unsqueeze(-2)[..., :0, :], x


def layer_map(program: Program, values: Values, ndim: int) -> Callable[[int, Tensor], Tensor]:
    """The map (layer, state) -> next state, with the weights assembled once.

    Args:
        program, values: what is computed.
        ndim: axes of the canonical states that it will take.

    Returns:
        The map, of canonical states.
    """
    interpreter = _Interpreter(program, values, ndim)
    return lambda layer, x: interpreter.advance(layer, layer + 1, x)


@torch.no_grad()
def jacobians(
    program: Program, values: Values, x: Tensor, depths: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """d y_N / d y_l and y_l at depths l, in one backward sweep.

    The n rows of M_l = M_{l+1} (d y_{l+1} / d y_l) are computed side by side, layer by layer, as
    vector-Jacobian products.

    Args:
        program, values: what is computed.
        x: y_0, ``(..., n)`` or ``(B, n, *spatial)``, whose pixels count as samples.
        depths: l, increasing.

    Returns:
        ``(depths, [E,] samples, n, n)`` and ``(depths, [E,] samples, n)``.
    """
    x, _ = program.layout.flatten(x.detach())
    axis, n = program.layout.axis, program.layout.width
    advance = layer_map(program, values, x.ndim)
    states = [x]
    for layer in range(program.layers):
        states.append(advance(layer, states[-1]))
    shape = [n, *(1,) * x.ndim]
    shape[1 + axis] = n
    rows = torch.eye(n, dtype=x.dtype, device=x.device).reshape(shape).expand(n, *x.shape)
    vjps = {program.layers: rows}
    for layer in reversed(range(depths[0], program.layers)):
        back = torch.func.vjp(partial(advance, layer), states[layer])[1]
        rows = vjps[layer] = torch.func.vmap(lambda g, vjp=back: vjp(g)[0])(rows)
    # (depths, n, [E,] B, n, *spatial): rows to the last but one axis, columns to the last.
    M = torch.stack([vjps[l] for l in depths]).movedim(2 + axis, -1).movedim(1, -2)
    path = torch.stack([states[l] for l in depths]).movedim(1 + axis, -1)
    return M.flatten(axis, -3), path.flatten(axis, -2)


class _BoundStage:
    """A stage with its stacks assembled and taken apart: one entry for every layer."""

    def __init__(self, stage: Stage, program: Program, values: Values, ndim: int) -> None:
        assert values.theta is not None
        assert values.beta is not None
        self.stage, self.layout = stage, program.layout
        # factor h: one number is multiplied into A, once for all samples
        self.steps = values.h if isinstance(values.h, Tensor) else None
        self.scale = stage.factor * (1.0 if isinstance(values.h, Tensor) else values.h)
        axis = program.layout.axis - 1  # of the layers
        K = stage.W.assemble(values.theta)
        self.S, self.A = None, None
        if stage.adjoint:
            assert values.S is not None
            S = values.S[..., slice(*stage.write), slice(*stage.read)]
            A = stage.W.left_multiply(S, K)
            if A is None:
                self.S = S
            else:
                self.A = self._layers(A * self.scale, axis, program.layers)
        self.K = self._layers(K, axis, program.layers)
        b = stage.b.assemble(values.beta).unsqueeze(-2)  # samples come before the width
        b = b.reshape(*b.shape, *(1,) * (ndim - 2 - axis))
        self.b = self._layers(b, axis, program.layers)

    @staticmethod
    def _layers(stack: Tensor, axis: int, layers: int) -> list[Tensor]:
        if stack.shape[axis] == layers:
            return list(stack.unbind(axis))
        return [stack.select(axis, 0)] * layers  # all share one

    def change(self, layer: int, x: Tensor) -> Tensor:
        """A s sigma(W x + b)."""
        stage = self.stage
        s = stage.activation.function(stage.W.multiply(self.K[layer], x) + self.b[layer])
        s = signed(stage.signs, s, self.layout.axis)
        if self.A is not None:
            s = stage.W.multiply(self.A[layer], s)
        elif self.S is not None:
            s = stage.W.adjoint(self.K[layer], s)
            s = self.scale * matrix_product(of_layer(self.S, layer, self.layout), s)
        else:
            s = self.scale * s
        return s if self.steps is None else at_layer(self.steps, layer, x.ndim) * s


class _Interpreter:
    """Runs layers on a state cut at the boundaries of all reads and writes.

    The halves of a split network are then tensors of their own, and no stage copies the other.
    """

    def __init__(self, program: Program, values: Values, ndim: int) -> None:
        program.check(values)
        # Not every product of torch's looks: of the CPU and meta, some give whatever is in memory.
        devices = {t.device for t in (values.theta, values.beta, values.S) if t is not None}
        if len(devices) > 1:
            found = " and ".join(sorted(map(str, devices)))
            raise HdnnError(f"K, b and J must be on one device, got {found}; use net.to(device)")
        self.layout, self.axis, self.h = program.layout, program.layout.axis, values.h
        cuts = {0, program.layout.width}
        for stage in program.stages:
            cuts.update(stage.read + stage.write)
        self.cuts = sorted(cuts)
        self.sizes = [end - start for start, end in pairwise(self.cuts)]
        self.layers = program.layers
        self.steps = [
            step if isinstance(step, Flow) else _BoundStage(step, program, values, ndim)
            for step in program.steps
        ]
        self.velocity, self.times = values.velocity, times(values.h, program.layers)

    def advance(self, first: int, last: int, x: Tensor) -> Tensor:
        """The state after layers first .. last - 1."""
        pieces = self._split(x)
        for layer in range(first, last):
            for step in self.steps:
                self._apply(step, layer, pieces, +1)
        return self._join(pieces)

    def undo(self, x: Tensor) -> Tensor:
        """The state before the first layer."""
        pieces = self._split(x)
        for layer in reversed(range(self.layers)):
            for step in reversed(self.steps):
                self._apply(step, layer, pieces, -1)
        return self._join(pieces)

    def _apply(self, step: _BoundStage | Flow, layer: int, pieces: Pieces, sign: int) -> None:
        if isinstance(step, Flow):
            pieces[:] = self._split(self._flow(step, layer, self._join(pieces), sign))
            return
        stage = step.stage
        write = self._places(stage.write)
        change = step.change(layer, self._join([pieces[k] for k in self._places(stage.read)]))
        if stage.carry:
            old = self._join([pieces[k] for k in write])
            change = old + change if sign > 0 else old - change
        sizes = [self.sizes[k] for k in write]
        parts = [change] if len(sizes) == 1 else change.split(sizes, self.axis)
        for k, part in zip(write, parts, strict=True):
            pieces[k] = part

    def _flow(self, flow: Flow, layer: int, x: Tensor, sign: int) -> Tensor:
        velocity, t = self.velocity, self.times[layer]
        assert velocity is not None
        h = at_layer(self.h, layer, x.ndim)
        return flow.advance(partial(velocity, layer, t), x, sign * h, self.layout)

    def _split(self, x: Tensor) -> Pieces:
        return [x] if len(self.sizes) == 1 else list(x.split(self.sizes, self.axis))

    def _join(self, pieces: Pieces) -> Tensor:
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, self.axis)

    def _places(self, span: tuple[int, int]) -> list[int]:
        return [k for k, start in enumerate(self.cuts[:-1]) if span[0] <= start < span[1]]
