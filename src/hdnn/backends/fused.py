"""The fused backend: programs of stages through the compiled kernels, on the CPU.

A block of samples is carried through all layers while it sits in the cache, and the backward pass
computes it there again: nothing is saved but the input state and the parameters.

A call looks up one object, the plan of its program and shape; everything else is read anew.
`locate` is the one place where addresses are taken, of tensors that `obstacle_of_numbers` has
passed in the same call.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from hdnn.backends import reference
from hdnn.backends.selection import obstacle_of_numbers
from hdnn.kernels import native
from hdnn.program import Program, Step, Values

_SHAPES = 64  # plans that are kept for a program

_plans: WeakKeyDictionary[Program, dict[Any, native.Plan]] = WeakKeyDictionary()


def run(program: Program, values: Values, x: Tensor) -> Tensor:
    """The state after the last layer, of numbers that `choose` has left to the kernels."""
    x, restore = program.layout.flatten(x)
    h, theta, beta, S, _ = values
    # Inference mode, unlike no_grad, rules out tangents of forward mode, too: no Function is
    # needed, which takes 2 of 14 us of a small prediction.
    if torch.is_inference_mode_enabled():
        return restore(forward(program, values, x))
    return restore(_Fused.apply(x, theta, beta, S, h, program))


def forward(program: Program, values: Values, x: Tensor) -> Tensor:
    """y_N of canonical states, of numbers that `obstacle_of_numbers` passes."""
    x = x.contiguous()
    out = torch.empty_like(x)
    plan, addresses, _keep = locate(program, values, x)
    where = (plan.handle, addresses, x.data_ptr(), out.data_ptr())
    if native.library().hdnn_forward(*where, torch.get_num_threads()):
        raise MemoryError(native.NO_MEMORY)
    return out


def backward(
    program: Program, values: Values, x: Tensor, gout: Tensor, weights: bool = True
) -> tuple[Any, Any, Any]:
    """The gradients of <gout, y_N> of canonical states: of the state, of theta and of beta.

    Args:
        program, values, x, gout: numbers that `obstacle_of_numbers` passes.
        weights: False saves the work for the gradients of theta and beta, which are then None.
    """
    x, gout = x.contiguous(), gout.contiguous()
    plan, addresses, (theta, beta, _, _) = locate(program, values, x)
    gx, gtheta, gbeta = torch.empty_like(x), None, None
    if weights:
        gtheta, gbeta = torch.empty_like(theta), torch.empty_like(beta)
    into = (None if t is None else t.data_ptr() for t in (gx, gtheta, gbeta))
    where = (x.data_ptr(), gout.data_ptr(), *into)
    if native.library().hdnn_backward(plan.handle, addresses, *where, torch.get_num_threads()):
        raise MemoryError(native.NO_MEMORY)
    return gx, gtheta, gbeta


def jacobians(
    program: Program, values: Values, x: Tensor, depths: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """d y_N / d y_l and y_l at depths l: what `reference.jacobians` gives."""
    x, _ = program.layout.flatten(x.detach())
    layout, x = program.layout, x.contiguous()
    E, n, D = layout.ensemble or 1, layout.width, len(depths)
    samples = x.numel() // (E * n)  # of an image, every pixel is one
    matrices, states = x.new_empty(E, samples, D, n, n), x.new_empty(E, D, samples, n)
    places = torch.tensor(depths, dtype=torch.int64, device="cpu")
    where = (x.data_ptr(), places.data_ptr(), D, states.data_ptr(), matrices.data_ptr())
    plan, addresses, _keep = locate(program, values, x)
    if native.library().hdnn_jacobians(plan.handle, addresses, *where, torch.get_num_threads()):
        raise MemoryError(native.NO_MEMORY)
    matrices, states = matrices.movedim(2, 0), states.movedim(1, 0)
    return (matrices, states) if layout.lead else (matrices.squeeze(1), states.squeeze(1))


def locate(
    program: Program, values: Values, x: Tensor
) -> tuple[native.Plan, native.Addresses, tuple[Any, ...]]:
    """The plan of a program and a state, and where its numbers are.

    Args:
        program, values: numbers that `obstacle_of_numbers` passes.
        x: a canonical state.

    Returns:
        The plan, the addresses, and the tensors that they are addresses of: theta and beta, S and
        the steps. They hold as long as these exist.
    """
    h, theta, beta, S, _ = values
    assert theta is not None
    assert beta is not None
    plans = _plans.get(program)
    if plans is None:
        plans = _plans[program] = {}
    key = x.shape, x.dtype, theta.shape[-2]
    plan = plans.get(key)
    if plan is None:
        if len(plans) >= _SHAPES:
            plans.clear()
        plan = plans[key] = native.Plan(program, x.element_size(), x.shape, theta.shape[-2])
    theta, beta, S = theta.contiguous(), beta.contiguous(), None if S is None else S.contiguous()
    steps = None
    if isinstance(h, Tensor):  # those of all networks and layers
        lead = program.layout.lead
        steps = h.detach().double().expand(*lead, program.layers).contiguous()
    addresses = native.Addresses(
        theta.data_ptr(),
        beta.data_ptr(),
        None if S is None else S.data_ptr(),
        0.0 if isinstance(h, Tensor) else h,
        None if steps is None else steps.data_ptr(),
    )
    return plan, addresses, (theta, beta, S, steps)


class _Fused(torch.autograd.Function):
    """y_N as a function of y_0, theta, beta, S and the steps, of which S and steps are constant.

    What the kernels do not compute, derivatives of gradients, many gradients at once and forward
    mode, comes from the reference.
    """

    @staticmethod
    def forward(
        x: Tensor, theta: Tensor, beta: Tensor, S: Tensor | None, h: Step, program: Program
    ) -> Tensor:
        return forward(program, Values(h, theta, beta, S), x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, theta, beta, S, h, ctx.program = inputs
        ctx.h, steps = (None, h) if isinstance(h, Tensor) else (h, None)
        ctx.save_for_backward(x, theta, beta, S, steps)
        ctx.save_for_forward(x, theta, beta, S, steps)

    @staticmethod
    def backward(ctx: Any, gout: Tensor) -> tuple[Tensor | None, ...]:
        x, theta, beta, S, steps = ctx.saved_tensors  # raises if changed in place
        program, values = ctx.program, Values(steps if ctx.h is None else ctx.h, theta, beta, S)
        plain = partial(_plain, program, values)
        if torch.is_grad_enabled():  # the gradients themselves will be differentiated
            # Views: theta may depend on x, and that way is not ours.
            inputs = [t.view_as(t) for t in (x, theta, beta)]
            needs = ctx.needs_input_grad[:3]
            wanted = [t for t, need in zip(inputs, needs, strict=True) if need]
            found = iter(torch.autograd.grad(plain(*inputs), wanted, gout, create_graph=True))
            return (*(next(found) if need else None for need in needs), None, None, None)
        # What was fit going forward may have been replaced since, and the gradient may have no
        # memory (zeros, or many gradients at once by vmap).
        if x.shape != gout.shape or obstacle_of_numbers(program, values, x, gout):
            return (*torch.func.vjp(plain, x, theta, beta)[1](gout), None, None, None)
        weights = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        return (*backward(program, values, x, gout, weights), None, None, None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        # Forward mode by differentiating a gradient, which is linear in v, with respect to v.
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            # A view of what requires gradients: the tangent may be differentiated in turn.
            inputs: list[Any] = [
                t if t is None else t.view_as(t) if t.requires_grad else t.detach().requires_grad_()
                for t in ctx.saved_tensors
            ]
            x, theta, beta, S, steps = inputs
            values = Values(steps if ctx.h is None else ctx.h, theta, beta, S)
            out = reference.run(ctx.program, values, x)
            v = torch.zeros_like(out, requires_grad=True)
            known = [(t, d) for t, d in zip(inputs, tangents, strict=False) if d is not None]
            primals, directions = zip(*known, strict=True)
            grads = torch.autograd.grad(out, primals, v, create_graph=True)
            (change,) = torch.autograd.grad(grads, v, directions, create_graph=again)
        return change

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, None]:
        # No transform has wrapped these numbers, or `choose` had left them to the reference.
        return _Fused.apply(*inputs), None


def _plain(program: Program, values: Values, x: Tensor, theta: Tensor, beta: Tensor) -> Tensor:
    """The same in plain torch, which can be differentiated again."""
    return reference.run(program, values._replace(theta=theta, beta=beta), x)
