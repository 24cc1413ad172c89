"""The program: the one form in which every network reaches a backend.

    Stage:   x[write] = c x[write] + A sigma(W x[read] + b)
    Flow:    x = advance(f_j, x, h, layout)

Stages written out as two matrices each are a `Recurrence`, which also takes inputs:

    s = sigma(W [x; u; 1]),      x+ = A [x; u; 1; s]

A program is static: which stages there are, what they read and write, how W and b follow from the
parameters. The numbers are apart, in `Values`, read from the modules at each call, so that nothing
can go stale: `.to`, `load_state_dict`, `functional_call` and parametrizations need no code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from hdnn.errors import HdnnError

if TYPE_CHECKING:  # fields build on this module
    from hdnn.fields.activations import Activation
    from hdnn.fields.layout import Layout
    from hdnn.fields.maps import LinearMap
    from hdnn.fields.patterns import Pattern

Step = float | Tensor
"""A step size: one number, or ``([E,] L)``, one for every layer; on the reference backend also
``([E,] B, L)``, for samples that differ."""

Time = Tensor | float
Function = Callable[..., Tensor]
"""The velocity of a layer, f(x), or f(x, to) between two states (`Field.has_discrete_gradient`)."""
Velocity = Callable[..., Tensor]
"""The right-hand side of a layer's ODE: ``(layer, t, x[, to])``, canonical states."""


@dataclass(frozen=True, eq=False)
class Stage:
    """x[write] = carry x[write] + A s sigma(W x[read] + b), the same in every layer.

    Args:
        read, write: ranges ``(start, stop)`` of the width.
        W: a linear map of theta; of patterned K a block of it.
        b: the biases of its hidden units, from beta.
        activation: sigma.
        adjoint: A = factor h S[write, read] W' (Hamiltonian); else A = factor h, a number.
        factor: the scheme's coefficient.
        carry: 1 (residual) or 0.
        signs: s, +1 or -1 for every hidden unit; None is +1.

    Raises:
        HdnnError: sizes do not fit, so that no backend could compute it.

    >>> import hdnn
    >>> stage = hdnn.network("MS3", features=4, layers=3, T=1.0).program.stages[0]
    >>> stage.read, stage.write, stage.adjoint, stage.carry
    ((2, 4), (0, 2), True, 1)
    """

    read: tuple[int, int]
    write: tuple[int, int]
    W: LinearMap
    b: Pattern
    activation: Activation
    adjoint: bool
    factor: float = 1.0
    carry: int = 1
    signs: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        reads, writes = self.read[1] - self.read[0], self.write[1] - self.write[0]
        units = self.W.units
        if self.W.width != reads or self.b.shape != (units,):
            raise HdnnError(
                f"a stage that reads {reads} features needs W ({units}, {reads}) and b ({units},), "
                f"got W ({units}, {self.W.width}) and b {self.b.shape}"
            )
        if self.signs is not None and len(self.signs) != units:
            raise HdnnError(f"{units} hidden units have as many signs, got {len(self.signs)}")
        if not self.adjoint and units != writes:
            raise HdnnError(
                f"a stage that is not adjoint adds sigma(W x + b) to what it writes: {writes} "
                f"features need as many units, got {units}"
            )

    @property
    def invertible(self) -> bool:
        """Whether it writes nothing that it reads, and so can be undone exactly."""
        apart = self.read[1] <= self.write[0] or self.write[1] <= self.read[0]
        return apart and self.carry == 1


@dataclass(frozen=True, eq=False)
class Flow:
    """x = advance(f, x, h, layout) with the velocity f of a layer: anything that torch computes.

    Args:
        advance: ``(f, x, h, layout) -> x`` on canonical states; a function of a module, so that
            networks can be pickled.
        invertible: whether a step of -h undoes one of h.

    >>> import torch
    >>> from hdnn.program import Flow
    >>> euler = Flow(lambda f, x, h, layout: x + h * f(x))
    >>> float(euler.advance(lambda x: -x, torch.tensor(4.0), 0.5, None))
    2.0
    """

    advance: Callable[[Function, Tensor, Step, Layout], Tensor]
    invertible: bool = False


class Values(NamedTuple):
    """The numbers that a program computes with, as they are now.

    Args:
        h: the step, a number or ``([E,] L)``.
        theta, beta: parameters of K and b, ``([E,] L or 1, .)``; None where a field has none.
        S: J - R: ``(n, n)``, ``(L, n, n)`` or ``(E, L or 1, n, n)``; None where no stage needs it.
        velocity: of the field, where the program has flows.
        per_sample: whether h is ``([E,] B, L)``, steps of their own for samples.

    >>> import hdnn
    >>> values = hdnn.network("H1", features=4, layers=3, T=1.5).values()
    >>> values.h, values.theta.shape, values.S.shape
    (0.5, torch.Size([3, 16]), torch.Size([4, 4]))
    """

    h: Step
    theta: Tensor | None = None
    beta: Tensor | None = None
    S: Tensor | None = None
    velocity: Velocity | None = None
    per_sample: bool = False


@dataclass(frozen=True, eq=False)
class Program:
    """What a network computes, layer by layer.

    Args:
        layers: L.
        steps: the stages and flows of a layer, in order.
        layout: the layout of the state.
        sizes: how many numbers of theta and of beta a layer has.

    >>> import hdnn
    >>> program = hdnn.network("MS3", features=4, layers=3, T=1.0).program
    >>> program.layers, len(program.steps), program.invertible
    (3, 2, True)
    """

    layers: int
    steps: tuple[Stage | Flow, ...]
    layout: Layout
    sizes: tuple[int, int]

    stages: tuple[Stage, ...] = field(init=False, repr=False)
    """The steps that are stages."""
    has_flows: bool = field(init=False, repr=False)
    """Whether some step is a flow, which only the reference backend computes."""
    widest: int = field(init=False, repr=False)
    """The width of the state, or of the hidden units where there are more."""
    has_adjoint: bool = field(init=False, repr=False)
    """Whether some stage multiplies by W', too."""
    has_signs: bool = field(init=False, repr=False)
    """Whether some hidden units count negatively, which explicit matrices hold."""
    obstacle: str | None = field(init=False, repr=False)
    """Why no kernel knows this form, whatever the numbers, or None."""
    _shapes: dict[str, tuple[tuple[int, ...], ...]] = field(init=False, repr=False)

    def __post_init__(self) -> None:  # not cached properties, whose locks torch.compile cannot read
        stages = tuple(step for step in self.steps if isinstance(step, Stage))
        object.__setattr__(self, "stages", stages)
        object.__setattr__(self, "has_flows", len(stages) < len(self.steps))
        widest = max(self.layout.width, *(stage.W.units for stage in stages), 0)
        object.__setattr__(self, "widest", widest)
        object.__setattr__(self, "has_adjoint", any(s.adjoint for s in stages))
        object.__setattr__(self, "has_signs", any(s.signs is not None for s in stages))
        object.__setattr__(self, "obstacle", self._obstacle())
        lead, layers = self.layout.lead, self.layers
        shapes = [((*lead, layers, size), (*lead, 1, size)) for size in self.sizes]
        object.__setattr__(self, "_shapes", dict(zip("Kb", shapes, strict=True)))

    def _obstacle(self) -> str | None:
        if self.has_flows:
            return "it needs a program of stages, and this scheme or field lowers to a flow"
        for stage in self.stages:
            sigma, first = stage.activation, self.stages[0].activation
            if not stage.W.compiled:
                return f"its kernels multiply by patterned matrices, and K is a {stage.W.name}"
            if sigma.code is None:
                return f"its kernels do not know the activation {sigma.name}"
            if sigma.code != first.code:
                return f"it needs one activation in all stages, got {first.name} and {sigma.name}"
        if self.layers == 0 or not any(stage.W.units for stage in self.stages):
            return "there is nothing to compute"
        return None

    def check(self, values: Values) -> None:
        """Raise for numbers of other shapes than the program's.

        Args:
            values: the numbers.

        Raises:
            HdnnError: which have another shape, and the one that they should have.
        """
        h, theta, beta, S, _, per_sample = values
        layers, n = self.layers, self.layout.width
        for name, tensor, size in (("K", theta, self.sizes[0]), ("b", beta, self.sizes[1])):
            if tensor is None and not size:
                continue
            if not isinstance(tensor, Tensor):
                raise HdnnError(f"the parameters of {name} must be a tensor, got {tensor!r:.40}")
            # One entry for all layers, or one for each.
            if tensor.shape not in self._shapes[name]:
                own, shared = self._shapes[name]
                raise HdnnError(
                    f"the parameters of {name} must have shape {own}, or {shared} if all layers "
                    f"share them, got {tuple(tensor.shape)}; build a network of that size instead"
                )
        if isinstance(h, Tensor):
            lead = self.layout.lead
            several = per_sample and h.ndim == len(lead) + 2
            shape = (*h.shape[:-2], h.shape[-1]) if several else tuple(h.shape)
            if shape not in ((layers,), (*lead, layers)):
                raise HdnnError(f"steps must have shape {(layers,)}, got {tuple(h.shape)}")
        if S is not None and not isinstance(S, Tensor):
            raise HdnnError(f"J must be a tensor, got a {type(S).__name__}")
        if S is None or S.shape == (n, n):
            return
        lead = self.layout.lead
        if S.shape[-2:] != (n, n) or S.shape[:-2] not in ((layers,), (*lead, layers), (*lead, 1)):
            raise HdnnError(
                f"J must be {(n, n)}, or have such a matrix for each of {layers} layers, got "
                f"{tuple(S.shape)}"
            )

    @property
    def invertible(self) -> bool:
        """Whether every step can be undone."""
        return all(step.invertible for step in self.steps)


class Recurrence(NamedTuple):
    """Stages as explicit matrices, over many steps, driven by inputs or not.

        s = sigma(W [x; u; 1]),      x+ = A [x; u; 1; s]

    This form has values only. What differs between networks (J, R, steps, signs, a rotation of the
    state) is in W and A, so that gradients of all of it are torch's, and one kernel serves all.

    Args:
        W: ``([E,] P, m, n + d + 1)``; step t has the matrices of step t % P.
        A: ``([E,] P, n, n + d + 1 + m)``.
        activation: sigma.
        steps: how many.
        hold: for how many steps an input holds.

    >>> import torch
    >>> from hdnn.backends import rollout
    >>> from hdnn.fields import ACTIVATIONS
    >>> W, A = torch.zeros(1, 0, 3), torch.tensor([[[0.5, 1.0, 0.0]]])  # x+ = x / 2 + u
    >>> leaky = Recurrence(W, A, ACTIVATIONS["tanh"], steps=3)
    >>> rollout(leaky, torch.zeros(1, 1), torch.ones(1, 3, 1))  # x_0 to x_2, and x_3
    (tensor([[[0.0000],
             [1.0000],
             [1.5000]]]), tensor([[1.7500]]))
    """

    W: Tensor
    A: Tensor
    activation: Activation
    steps: int
    hold: int = 1

    @property
    def sizes(self) -> tuple[int, int, int]:
        """n states, m units, d inputs."""
        n, m = self.A.shape[-2], self.W.shape[-2]
        return n, m, self.W.shape[-1] - n - 1

    def check(self, x: Tensor, u: Tensor | None) -> None:
        """Raise for states or inputs of other shapes.

        Args:
            x: x_0, ``([E,] B, n)``.
            u: ``([E,] B, times, d)``, or None where d = 0.

        Raises:
            HdnnError: which shape it should have.
        """
        n, m, d = self.sizes
        lead, period = self.W.shape[:-3], self.W.shape[-3]
        if d < 0 or self.A.shape != (*lead, period, n, n + d + 1 + m) or period < 1:
            raise HdnnError(
                f"W {tuple(self.W.shape)} and A {tuple(self.A.shape)} are no recurrence: they need "
                "([E,] P, m, n + d + 1) and ([E,] P, n, n + d + 1 + m)"
            )
        if x.ndim != len(lead) + 2 or x.shape[:-2] != lead or x.shape[-1] != n:
            raise HdnnError(f"states must have shape {(*lead, 'batch', n)}, got {tuple(x.shape)}")
        times = -(-self.steps // self.hold)
        if (d or u is not None) and (u is None or u.shape != (*x.shape[:-1], times, d)):
            found = None if u is None else tuple(u.shape)
            raise HdnnError(f"inputs must have shape {(*x.shape[:-1], times, d)}, got {found}")


def explicit(
    program: Program, values: Values, B: Tensor | None = None, times: int = 1
) -> Recurrence:
    """The stages of a program as matrices; stage k of layer j is step j K + k of K L.

    Args:
        program: of stages with patterned matrices.
        values: its numbers.
        B: ``([E,] 1, parameters of b, d)``: inputs u move the biases by B u.
        times: how often all layers follow each other, each time with another input.

    Returns:
        The recurrence, differentiable with respect to all numbers.

    >>> import hdnn
    >>> net = hdnn.network("MS3", features=4, layers=3, T=1.0)
    >>> recurrence = explicit(net.program, net.values())
    >>> recurrence.steps, recurrence.W.shape, recurrence.A.shape  # two stages a layer
    (6, torch.Size([6, 2, 5]), torch.Size([6, 4, 7]))
    """
    theta, beta, h = values.theta, values.beta, values.h
    assert theta is not None
    assert beta is not None
    n, lead, stages = program.layout.width, program.layout.lead, program.stages
    most = max(stage.W.units for stage in stages)
    d = 0 if B is None else B.shape[-1]
    pairs = []
    for stage in stages:
        (r0, r1), (w0, w1), m = stage.read, stage.write, stage.W.units
        K, b = stage.W.assemble(theta), stage.b.assemble(beta).unsqueeze(-1)
        drive = [] if B is None else [stage.b.assemble(B.mT).mT.expand(*K.shape[:-1], d)]
        W = torch.cat([F.pad(K, (r0, n - r1)), *drive, b.expand(*K.shape[:-1], 1)], -1)
        a = h[..., None, None] if isinstance(h, Tensor) else h
        if stage.adjoint:
            assert values.S is not None
            added = stage.W.left_multiply(values.S[..., w0:w1, r0:r1], K)
            assert added is not None
        else:
            added = torch.eye(m, dtype=K.dtype, device=K.device).expand(*K.shape[:-2], m, m)
        added = signed(stage.signs, added, added.ndim - 1)
        added = F.pad(stage.factor * a * added, (0, most - m, w0, n - w1))
        carried = torch.eye(n, n + d + 1, dtype=K.dtype, device=K.device)
        if not stage.carry:
            carried[w0:w1] = 0
        A = torch.cat([carried.expand(*added.shape[:-1], n + d + 1), added], -1)
        pairs.append((F.pad(W, (0, 0, 0, most - m)), A))
    # One entry for all layers, where that is so of everything, else one for each.
    period = max(M.shape[-3] for pair in pairs for M in pair)
    W, A = (
        torch.stack([M.expand(*lead, period, *M.shape[-2:]) for M in matrices], -3).flatten(-4, -3)
        for matrices in zip(*pairs, strict=True)
    )
    hold = program.layers * len(stages)
    return Recurrence(W, A, stages[0].activation, times * hold, hold)


def signed(signs: tuple[int, ...] | None, s: Tensor, axis: int) -> Tensor:
    """Hidden units times their signs.

    Args:
        signs: +1 or -1 for every unit; None is +1.
        s: ``([E,] B, units, *spatial)``.
        axis: that of the units.

    Returns:
        In the shape of s.

    >>> import torch
    >>> from hdnn.program import signed
    >>> signed((1, -1), torch.ones(1, 2), 1)
    tensor([[ 1., -1.]])
    """
    if signs is None:
        return s
    return s * s.new_tensor(signs).reshape(-1, *(1,) * (s.ndim - axis - 1))


def at_layer(step: Step, layer: int, ndim: int = 0) -> Step:
    """The step size of a layer, shaped to multiply a canonical state with ``ndim`` axes.

    Args:
        step: one number, ``([E,] L)`` or ``([E,] B, L)``.
        layer: its number.
        ndim: axes of the state; 0 where there is neither an ensemble nor a step for every sample.

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
    return h if h.ndim == 0 else h.reshape(*h.shape, *(1,) * (ndim - h.ndim))


def times(step: Step, layers: int) -> list[float] | tuple[Tensor, ...]:
    """The time at which every layer begins.

    Args:
        step: one number, ``([E,] L)`` or ``([E,] B, L)``.
        layers: L.

    Returns:
        L times, the first of them 0.

    >>> from hdnn.program import times
    >>> times(0.5, 3)
    [0.0, 0.5, 1.0]
    """
    if not isinstance(step, Tensor):
        return [layer * step for layer in range(layers)]  # exact: no sum of roundings
    return (torch.cumsum(step, -1) - step).unbind(-1)
