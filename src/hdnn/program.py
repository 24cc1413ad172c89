"""The program: the one form in which every network reaches a backend.

    Stage:   x[write] = c x[write] + A sigma(W x[read] + b)
    Flow:    x = Phi(layer, x)

A program is a tuple of stages and flows, the same in every layer; its arrays carry the layer axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hdnn.fields.activations import Activation
from hdnn.fields.layout import Layout
from hdnn.fields.weights import Block

Step = float | Tensor
"""A step size: one number, or ``([E,] L)``, one for every layer."""


@dataclass(frozen=True)
class Adjoint:
    """The gain A = step S W' of a Hamiltonian stage, left unassembled.

    Args:
        step: h times the coefficient of the scheme.
        S: J - R or a block of it, ``(w, r)`` or ``(L, w, r)``.

    >>> import hdnn
    >>> stage = hdnn.network("H1", features=4, layers=3, T=0.3).program().stages[0]
    >>> round(stage.A.step, 3), stage.A.S.shape
    (0.1, torch.Size([4, 4]))
    """

    step: Step
    S: Tensor


Gain = float | Tensor | Adjoint
"""A: a number, ``([E,] L)`` (a number a layer), ``([E,] L, w, m)`` (dense), or `Adjoint`."""


@dataclass(frozen=True)
class Stage:
    """x[write] = carry x[write] + A sigma(W x[read] + b), for every layer.

    Args:
        read, write: ranges ``(start, stop)`` of the width.
        W: ``([E,] L, m, r)``, or kernels ``(L, m, r, k, k)``: a block of a stack.
        b: ``([E,] L, m)``: a block of a stack.
        A: see `Gain`.
        activation: sigma.
        carry: 1 (residual) or 0.

    >>> import hdnn
    >>> stage = hdnn.network("MS3", features=4, layers=3, T=1.0).program().stages[0]
    >>> stage.read, stage.write, stage.carry
    ((2, 4), (0, 2), 1)
    """

    read: tuple[int, int]
    write: tuple[int, int]
    W: Block
    b: Block
    A: Gain
    activation: Activation
    carry: int = 1

    @property
    def disjoint(self) -> bool:
        """Whether it writes nothing that it reads, and so can be undone exactly."""
        apart = self.read[1] <= self.write[0] or self.write[1] <= self.read[0]
        return apart and self.carry == 1

    def gain(self, W: Tensor, layout: Layout) -> Step | Tensor:
        """A as a number, ``([E,] L)`` or ``([E,] L, w, m)``, of convolutions a kernel of those.

        Args:
            W: of all layers, ``([E,] L, m, r)``, as assembled.
            layout: of the state.

        Returns:
            A, with h and sign in it.
        """
        if not isinstance(self.A, Adjoint):
            return self.A
        scaled = self.A.S * self.A.step if isinstance(self.A.step, float) else self.A.S
        A = layout.mixed(scaled, layout.adjoint(W))
        if isinstance(self.A.step, float):
            return A
        return A * self.A.step[(..., *(None,) * (A.ndim - self.A.step.ndim))]


@dataclass(frozen=True)
class Flow:
    """x = advance(layer, x) on canonical states: anything that torch can compute.

    Args:
        advance: ``(layer, x) -> x``.
        inverse: undoes it, or None.

    >>> import torch
    >>> from hdnn.program import Flow
    >>> decay = Flow(lambda layer, x: 0.5 * x, inverse=lambda layer, x: 2 * x)
    >>> float(decay.advance(0, torch.tensor(4.0)))
    2.0
    """

    advance: Callable[[int, Tensor], Tensor]
    inverse: Callable[[int, Tensor], Tensor] | None = None


@dataclass(frozen=True)
class Program:
    """What a network computes, layer by layer.

    Args:
        layers: L.
        steps: the stages and flows of a layer, in order.
        layout: the layout of the state.
        stages: the steps, if all are stages, else None.
        memo: where a backend may keep what it derives from the program's form.

    >>> import hdnn
    >>> program = hdnn.network("MS3", features=4, layers=3, T=1.0).program()
    >>> program.layers, len(program.steps)
    (3, 2)
    """

    layers: int
    steps: tuple[Stage | Flow, ...]
    layout: Layout
    memo: dict[object, Any] = field(default_factory=dict, compare=False, repr=False)

    stages: tuple[Stage, ...] | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        stages = tuple(step for step in self.steps if isinstance(step, Stage))
        object.__setattr__(self, "stages", stages if len(stages) == len(self.steps) else None)

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of its stages, or None where it has others."""
        return self.stages[0].W.stack.theta.dtype if self.stages else None

    @property
    def invertible(self) -> bool:
        """Whether every step can be undone."""
        return all(
            step.disjoint if isinstance(step, Stage) else step.inverse is not None
            for step in self.steps
        )


def at_layer(step: Step, layer: int, ndim: int = 0) -> Step:
    """The step size of a layer, shaped to multiply a canonical state with ``ndim`` axes.

    Args:
        step: one number, or ``([E,] L)``.
        layer: its number.
        ndim: axes of the state; 0 where there is no ensemble.

    Returns:
        A number, or a tensor that broadcasts over states.

    >>> import torch
    >>> from hdnn.program import at_layer
    >>> at_layer(0.1, 2), float(at_layer(torch.tensor([0.25, 0.5, 1.0]), 2))
    (0.1, 1.0)
    """
    if not isinstance(step, Tensor):
        return step
    h = step[..., layer]
    return h if h.ndim == 0 else h.reshape(-1, *(1,) * (ndim - 1))


def times(step: Step, layers: int) -> list[float] | tuple[Tensor, ...]:
    """The time at which every layer begins.

    Args:
        step: one number, or ``([E,] L)``.
        layers: L.

    Returns:
        L times, the first of them 0.

    >>> from hdnn.program import times
    >>> times(0.5, 3)
    [0.0, 0.5, 1.0]
    """
    if not isinstance(step, Tensor):
        return [layer * step for layer in range(layers)]
    return (torch.cumsum(step, -1) - step).unbind(-1)
