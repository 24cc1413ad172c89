"""The reference backend: programs interpreted in plain torch. It is the specification.

Any dtype and device, any batch shape, ensembles, double differentiation, torch.func and
torch.compile: whatever torch can do with a loop over layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hdnn.errors import HdnnError
from hdnn.fields.weights import Block
from hdnn.program import Flow, Program, Stage, at_layer

Pieces = list[Tensor]


def run(program: Program, x: Tensor) -> Tensor:
    """The state after the last layer."""
    return assembled(program)(x)


def assembled(program: Program) -> Callable[[Tensor], Tensor]:
    """The map y_0 -> y_N, with the weights assembled once.

    Args:
        program: what is computed.

    Returns:
        The map, for states as `run` takes them.
    """
    interpreter = _Interpreter(program)

    def advance(x: Tensor) -> Tensor:
        x, restore = program.layout.flatten(x)
        pieces = interpreter.split(x)
        for layer in range(program.layers):
            interpreter.forward(layer, pieces)
        return restore(interpreter.join(pieces))

    return advance


def trajectory(program: Program, x: Tensor) -> Tensor:
    """``(layers + 1, ...)``: the states y_0 to y_N."""
    x, restore = program.layout.flatten(x)
    interpreter = _Interpreter(program)
    pieces = interpreter.split(x)
    states = [restore(x)]
    for layer in range(program.layers):
        interpreter.forward(layer, pieces)
        states.append(restore(interpreter.join(pieces)))
    return torch.stack(states)


def inverse(program: Program, x: Tensor) -> Tensor:
    """The state before the first layer: x[write] -= A sigma(W x[read] + b), in reverse order."""
    if not program.invertible:
        raise HdnnError("this program has steps that read what they write, so it has no inverse")
    x, restore = program.layout.flatten(x)
    interpreter = _Interpreter(program)
    pieces = interpreter.split(x)
    for layer in reversed(range(program.layers)):
        interpreter.backward(layer, pieces)
    return restore(interpreter.join(pieces))


def layer_map(program: Program) -> Callable[[int, Tensor], Tensor]:
    """The map (layer, state) -> next state on canonical states, with the weights assembled once."""
    interpreter = _Interpreter(program)

    def advance(layer: int, x: Tensor) -> Tensor:
        pieces = interpreter.split(x)
        interpreter.forward(layer, pieces)
        return interpreter.join(pieces)

    return advance


def sensitivities(program: Program, x: Tensor) -> Tensor:
    """``(layers + 1, [E,] samples, n, n)``: d y_N / d y_l for every l, one backward sweep.

    The n rows of M_l = M_{l+1} (d y_{l+1} / d y_l) are computed side by side, layer by layer, as
    vector-Jacobian products.
    """
    x, _ = program.layout.flatten(x.detach())
    axis, n = program.layout.axis, program.layout.width
    advance = layer_map(program)
    with torch.no_grad():
        states = [x]
        for layer in range(program.layers):
            states.append(advance(layer, states[-1]))
        rows = torch.eye(n, dtype=x.dtype, device=x.device)
        shape = [n, *(1,) * x.ndim]
        shape[axis] = n
        vjps = [rows.reshape(shape).expand(n, *x.shape)]
        for layer in reversed(range(program.layers)):
            back = torch.func.vjp(lambda y, j=layer: advance(j, y), states[layer])[1]
            vjps.append(torch.func.vmap(lambda g, vjp=back: vjp(g)[0])(vjps[-1]))
    # (n, [E,] B, n) or (n, [E,] B, n, S): rows first, then columns on the axis of the width.
    stacked = torch.stack(vjps[::-1]).movedim(axis, -1).movedim(1, -2)
    lead = 1 if program.layout.ensemble is None else 2
    return stacked.flatten(lead, -3)


@dataclass
class _Ready:
    """A stage with its stacks taken apart: one entry for every layer. A is a matrix or a factor."""

    stage: Stage
    W: tuple[Tensor, ...]
    b: tuple[Tensor, ...]
    matrices: tuple[Tensor, ...] | None
    factor: float | Tensor
    read: list[int]
    write: list[int]


class _Interpreter:
    """Runs layers on a state cut at the boundaries of all reads and writes.

    The halves of a split network are then tensors of their own, and no stage copies the other.
    """

    def __init__(self, program: Program) -> None:
        self.layout = program.layout
        cuts = {0, program.layout.width}
        for step in program.steps:
            if isinstance(step, Stage):
                cuts.update(step.read + step.write)
        self.cuts = sorted(cuts)
        self.assembled: dict[int, Tensor] = {}
        self.steps = [
            step if isinstance(step, Flow) else self._ready(step) for step in program.steps
        ]

    def split(self, x: Tensor) -> Pieces:
        sizes = [b - a for a, b in zip(self.cuts, self.cuts[1:], strict=False)]
        return list(x.split(sizes, self.layout.axis))

    def join(self, pieces: Pieces) -> Tensor:
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, self.layout.axis)

    def _ready(self, stage: Stage) -> _Ready:
        W, b = self._tensor(stage.W), self._tensor(stage.b)
        A = stage.gain(W, self.layout)
        lead = 0 if self.layout.ensemble is None else 1
        dense = isinstance(A, Tensor) and A.ndim >= lead + 3
        return _Ready(
            stage,
            W.unbind(lead),
            b.unbind(lead),
            A.unbind(lead) if isinstance(A, Tensor) and dense else None,
            1.0 if dense else A,
            self._places(stage.read),
            self._places(stage.write),
        )

    def _tensor(self, block: Block) -> Tensor:
        """A block of a stack that is assembled once for all stages."""
        key = id(block.stack)
        if key not in self.assembled:
            self.assembled[key] = block.stack.tensor()
        return block.tensor(self.assembled[key])

    def _places(self, span: tuple[int, int]) -> list[int]:
        return [k for k, start in enumerate(self.cuts[:-1]) if span[0] <= start < span[1]]

    def _change(self, step: _Ready, layer: int, pieces: Pieces, old: Tensor, sign: int) -> Tensor:
        """carry old + sign A sigma(W x + b)."""
        x = self.join([pieces[k] for k in step.read])
        s = step.stage.activation.function(self.layout.affine(step.W[layer], step.b[layer], x))
        if step.matrices is None:
            a = at_layer(step.factor, layer, x.ndim)
            return old + sign * a * s if step.stage.carry else a * s
        A = step.matrices[layer]
        if not step.stage.carry:
            return self.layout.linear(A, s)
        return self.layout.add_linear(old, A if sign > 0 else -A, s)

    def _apply(self, step: _Ready, layer: int, pieces: Pieces, sign: int) -> None:
        new = self._change(step, layer, pieces, self.join([pieces[k] for k in step.write]), sign)
        sizes = [self.cuts[k + 1] - self.cuts[k] for k in step.write]
        parts = [new] if len(sizes) == 1 else new.split(sizes, self.layout.axis)
        for k, part in zip(step.write, parts, strict=True):
            pieces[k] = part

    def forward(self, layer: int, pieces: Pieces) -> None:
        for step in self.steps:
            if isinstance(step, Flow):
                pieces[:] = self.split(step.advance(layer, self.join(pieces)))
            else:
                self._apply(step, layer, pieces, +1)

    def backward(self, layer: int, pieces: Pieces) -> None:
        for step in reversed(self.steps):
            if isinstance(step, Flow):
                assert step.inverse is not None
                pieces[:] = self.split(step.inverse(layer, self.join(pieces)))
            else:
                self._apply(step, layer, pieces, -1)
