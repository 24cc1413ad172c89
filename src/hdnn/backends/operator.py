"""The fused backend as torch.compile sees it: one operator, with its gradient as another.

A compiler cannot look into a kernel. It needs to know the shape of what comes out (`register_fake`)
and how to differentiate (`register_autograd`). A program is no tensor: the graph refers to it by
a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from hdnn.backends import fused
from hdnn.backends.selection import obstacle_of_numbers, obstacle_of_rollout, widest
from hdnn.errors import HdnnError
from hdnn.fields.activations import ACTIVATIONS
from hdnn.kernels import native
from hdnn.program import Program, Recurrence, Values

_programs: WeakValueDictionary[int, Program] = WeakValueDictionary()  # by `id`


def run(program: Program, values: Values, x: Tensor) -> Tensor:
    """The state after the last layer, as one operator of a traced graph."""
    x, restore = program.layout.flatten(x)
    h, theta, beta, S, *_ = values
    steps = h if isinstance(h, Tensor) else None
    step = 0.0 if isinstance(h, Tensor) else h
    assert theta is not None
    assert beta is not None
    return restore(_forward(x, theta, beta, S, steps, step, _number(program)))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def obstacle_of_library() -> str | None:
    """`native.obstacle` for a compiler, which would look into it."""
    return native.obstacle()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def widest_of_library(has_adjoint: bool) -> int:
    """`widest`, likewise."""
    return widest(has_adjoint)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _number(program: Program) -> int:
    _programs[id(program)] = program
    return id(program)


def _checked(numbers: Sequence[Any], *states: Tensor) -> tuple[Program, Values]:
    """The program and its values, at the time when the graph runs."""
    theta, beta, S, steps, h, number = numbers
    program = _programs.get(number)
    if program is None:
        raise HdnnError("the network of this compiled graph is gone; compile the new one")
    values = Values(h if steps is None else steps, theta, beta, S)
    reason = obstacle_of_numbers(program, values, *states)
    if reason is not None:
        raise HdnnError(f"the compiled graph calls a kernel that cannot serve: {reason}")
    return program, values


@torch.library.custom_op("hdnn::forward", mutates_args=())
def _forward(
    x: Tensor,
    theta: Tensor,
    beta: Tensor,
    S: Tensor | None,
    steps: Tensor | None,
    h: float,
    program: int,
) -> Tensor:
    known, values = _checked((theta, beta, S, steps, h, program), x)
    return fused.forward(known, values, x)


@torch.library.custom_op("hdnn::backward", mutates_args=())
def _backward(
    gout: Tensor,
    x: Tensor,
    theta: Tensor,
    beta: Tensor,
    S: Tensor | None,
    steps: Tensor | None,
    h: float,
    program: int,
) -> tuple[Tensor, Tensor, Tensor]:
    known, values = _checked((theta, beta, S, steps, h, program), x, gout)
    gx, gtheta, gbeta = fused.backward(known, values, x, gout)
    return gx, gtheta, gbeta


@_forward.register_fake
def _(x: Tensor, *_: object) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@_backward.register_fake
def _(gout: Tensor, x: Tensor, theta: Tensor, beta: Tensor, *_: object) -> tuple[Tensor, ...]:
    like = torch.contiguous_format
    return tuple(torch.empty_like(t, memory_format=like) for t in (x, theta, beta))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, theta, beta, S, steps, ctx.h, ctx.program = inputs
    ctx.save_for_backward(x, theta, beta, S, steps)


def _differentiate(ctx: Any, gout: Tensor) -> tuple[Any, ...]:
    return (*_backward(gout, *ctx.saved_tensors, ctx.h, ctx.program), *(None,) * 4)


_forward.register_autograd(_differentiate, setup_context=_save)


def rollout(recurrence: Recurrence, x: Tensor, u: Tensor | None) -> tuple[Tensor, Tensor]:
    """All states of a recurrence, and the last, as one operator of a traced graph."""
    W, A, activation, steps, hold = recurrence
    assert activation.code is not None
    return _rollout(x, u, W, A, activation.code, steps, hold)


_BY_CODE = {each.code: each for each in ACTIVATIONS.values()}


def _recurrence(
    x: Tensor, u: Tensor | None, W: Tensor, A: Tensor, code: int, steps: int, hold: int
) -> Recurrence:
    """The recurrence, at the time when the graph runs."""
    recurrence = Recurrence(W, A, _BY_CODE[code], steps, hold)
    reason = obstacle_of_rollout(recurrence, x, u)
    if reason is not None:
        raise HdnnError(f"the compiled graph calls a kernel that cannot serve: {reason}")
    return recurrence


@torch.library.custom_op("hdnn::rollout", mutates_args=())
def _rollout(
    x: Tensor, u: Tensor | None, W: Tensor, A: Tensor, code: int, steps: int, hold: int
) -> tuple[Tensor, Tensor]:
    return fused.rollout_forward(_recurrence(x, u, W, A, code, steps, hold), x, u)


@torch.library.custom_op("hdnn::rollout_backward", mutates_args=())
def _rollout_backward(
    gstates: Tensor,
    glast: Tensor,
    x: Tensor,
    u: Tensor | None,
    W: Tensor,
    A: Tensor,
    states: Tensor,
    code: int,
    steps: int,
    hold: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    recurrence = _recurrence(x, u, W, A, code, steps, hold)
    gouts, wanted = (gstates, glast), (True, u is not None, True, True)
    found = fused.rollout_backward(recurrence, u, states, gouts, wanted)
    none = x.new_empty(0)  # an operator's results are tensors
    return tuple(none if g is None else g for g in found)  # type: ignore[return-value]


@_rollout.register_fake
def _(
    x: Tensor, u: Tensor | None, W: Tensor, A: Tensor, code: int, steps: int, hold: int
) -> tuple[Tensor, Tensor]:
    last = torch.empty_like(x, memory_format=torch.contiguous_format)
    return x.new_empty(*x.shape[:-1], steps, x.shape[-1]), last


@_rollout_backward.register_fake
def _(
    gstates: Tensor, glast: Tensor, x: Tensor, u: Tensor | None, W: Tensor, A: Tensor, *_: object
) -> tuple[Tensor, ...]:
    like = torch.contiguous_format
    given = (x, x.new_empty(0) if u is None else u, W, A)
    return tuple(torch.empty_like(t, memory_format=like) for t in given)


def _save_rollout(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, u, W, A, *ctx.form = inputs
    ctx.save_for_backward(x, u, W, A, output[0])


def _differentiate_rollout(ctx: Any, gstates: Tensor, glast: Tensor) -> tuple[Any, ...]:
    x, u, W, A, states = ctx.saved_tensors
    gx, gu, *rest = _rollout_backward(gstates, glast, x, u, W, A, states, *ctx.form)
    return gx, None if u is None else gu, *rest, None, None, None


_rollout.register_autograd(_differentiate_rollout, setup_context=_save_rollout)
