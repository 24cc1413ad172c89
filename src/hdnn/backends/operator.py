"""The fused backend as torch.compile sees it: one operator, with its gradient as another.

A compiler cannot look into a kernel. It needs to know the shape of what comes out (`register_fake`)
and how to differentiate (`register_autograd`). A program is no tensor: the graph refers to it by
its place in a list.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hdnn.backends import fused
from hdnn.backends.selection import (
    WIDEST,
    obstacle_of_form,
    obstacle_of_state,
    obstacle_of_values,
    width_of,
)
from hdnn.program import Program, Values

_programs: list[Program] = []  # what compiled graphs refer to, so for good


def run(program: Program, values: Values, x: Tensor) -> Tensor:
    """The state after the last layer, as one operator of a traced graph."""
    x, restore = program.layout.flatten(x)
    h, theta, beta, S, _ = values
    steps = h if isinstance(h, Tensor) else None
    step = 0.0 if isinstance(h, Tensor) else h
    assert theta is not None
    assert beta is not None
    return restore(_forward(x, theta, beta, S, steps, step, _place(program)))


def serves(program: Program, values: Values, x: Tensor, requested: str) -> bool:
    """Whether a traced call may be this operator: `choose`, without a look at any number."""
    if requested == "reference" or torch.compiler.is_exporting():
        return False
    known = _has_kernels(program, requested)
    return known and obstacle_of_values(values) is None and obstacle_of_state(x) is None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _has_kernels(program: Program, requested: str) -> bool:
    if obstacle_of_form(program) is not None:
        return False
    return requested == "fused" or width_of(program) <= WIDEST


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _place(program: Program) -> int:
    if program not in _programs:
        _programs.append(program)
    return _programs.index(program)


def _numbers(
    theta: Tensor, beta: Tensor, S: Tensor | None, steps: Tensor | None, h: float, program: int
) -> fused.Numbers:
    return fused.Numbers(_programs[program], Values(h if steps is None else steps, theta, beta, S))


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
    return fused.forward(_numbers(theta, beta, S, steps, h, program), x)


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
    numbers = _numbers(theta, beta, S, steps, h, program)
    gx, gtheta, gbeta = fused.backward(numbers, x, gout)
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
