"""The fused backend: programs of stages through the compiled kernels, on the CPU.

A block of samples is carried through all layers while it sits in the cache, and the backward pass
computes it there again: nothing is saved but the input state and the parameters.

A call looks up one object, the plan of its program and shape; everything else is read anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from hdnn.backends import reference
from hdnn.kernels import native
from hdnn.program import Program, Values

_SHAPES = 64  # plans that are kept for a program

_plans: WeakKeyDictionary[Program, dict[Any, native.Plan]] = WeakKeyDictionary()


def run(program: Program, values: Values, x: Tensor) -> Tensor | None:
    """The state after the last layer; None inside a transform of torch.func (vmap, grad, ...)."""
    assert values.theta is not None
    assert values.beta is not None
    if not _has_memory(x, values.theta, values.beta):
        return None
    x, restore = program.layout.flatten(x)
    numbers = Numbers(program, values)
    # Inference mode, unlike no_grad, rules out tangents of forward mode, too: no Function is
    # needed, which takes 2 of 14 us of a small prediction.
    if torch.is_inference_mode_enabled():
        return restore(forward(numbers, x))
    return restore(_apply(x, values.theta, values.beta, numbers))


def vjp(program: Program, values: Values, x: Tensor, gout: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of <gout, y_N>: of the state, of theta and of beta; no graph."""
    flat, restore = program.layout.flatten(x)
    gout, _ = program.layout.flatten(gout)
    gx, gtheta, gbeta = backward(Numbers(program, values), flat, gout)
    gx = restore(gx)
    # One batch for all networks of an ensemble gets a gradient from each.
    return gx if gx.shape == x.shape else gx.sum(0, keepdim=True), gtheta, gbeta


def forward(numbers: Numbers, x: Tensor) -> Tensor:
    """y_N of canonical states."""
    x = x.contiguous()
    out, plan = torch.empty_like(x), plan_of(numbers.program, x, numbers.theta)
    where = (plan.handle, numbers.addresses, x.data_ptr(), out.data_ptr())
    native.check(native.library().hdnn_forward(*where, torch.get_num_threads()))
    return out


def backward(
    numbers: Numbers, x: Tensor, gout: Tensor, wanted: Sequence[bool] = (True, True, True)
) -> tuple[Any, ...]:
    """The gradients of <gout, y_N> of canonical states: of the state, of theta and of beta.

    Those that are not wanted are None, and without those of theta and beta it takes less time.
    """
    x, gout, owners = x.contiguous(), gout.contiguous(), (x, numbers.theta, numbers.beta)
    needs = zip(owners, wanted, strict=True)
    grads = [torch.empty_like(t) if need else None for t, need in needs]
    plan, where = plan_of(numbers.program, x, numbers.theta), (x.data_ptr(), gout.data_ptr())
    addresses = (None if grad is None else grad.data_ptr() for grad in grads)
    call = (*where, *addresses, torch.get_num_threads())
    native.check(native.library().hdnn_backward(plan.handle, numbers.addresses, *call))
    return tuple(grads)


def jacobians(
    program: Program, values: Values, x: Tensor, depths: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """d y_N / d y_l and y_l at depths l: what `reference.jacobians` gives."""
    x, _ = program.layout.flatten(x.detach())
    layout, numbers, x = program.layout, Numbers(program, values), x.contiguous()
    E, n, D = layout.ensemble or 1, layout.width, len(depths)
    samples = x.numel() // (E * n)  # of an image, every pixel is one
    matrices, states = x.new_empty(E, samples, D, n, n), x.new_empty(E, D, samples, n)
    places = torch.tensor(depths, dtype=torch.int64, device="cpu")
    where = (x.data_ptr(), places.data_ptr(), D, states.data_ptr(), matrices.data_ptr())
    plan, threads = plan_of(program, x, numbers.theta), torch.get_num_threads()
    native.check(native.library().hdnn_jacobians(plan.handle, numbers.addresses, *where, threads))
    matrices, states = matrices.movedim(2, 0), states.movedim(1, 0)
    return (matrices, states) if layout.lead else (matrices.squeeze(1), states.squeeze(1))


class Numbers:
    """The numbers of a program in one piece each, and where they are as long as this exists.

    Args:
        program, values: what is computed.
    """

    __slots__ = ("S", "addresses", "beta", "program", "steps", "theta", "values")

    def __init__(self, program: Program, values: Values) -> None:
        self.program, self.values = program, values
        h, theta, beta, S, _ = values
        assert theta is not None
        assert beta is not None
        self.theta, self.beta = theta.contiguous(), beta.contiguous()
        self.S = None if S is None else S.contiguous()
        self.steps = None
        if isinstance(h, Tensor):  # those of all networks and layers
            lead = program.layout.lead
            self.steps = h.detach().double().expand(*lead, program.layers).contiguous()
        self.addresses = native.Addresses(
            self.theta.data_ptr(),
            self.beta.data_ptr(),
            None if self.S is None else self.S.data_ptr(),
            0.0 if isinstance(h, Tensor) else h,
            None if self.steps is None else self.steps.data_ptr(),
        )


def plan_of(program: Program, x: Tensor, theta: Tensor) -> native.Plan:
    """The plan of a program and a shape, made once.

    Args:
        program: stages of patterned matrices.
        x: a canonical state.
        theta: the parameters of K.
    """
    plans, period = _plans.setdefault(program, {}), theta.shape[-2]
    key = x.shape, x.dtype, period
    plan = plans.get(key)
    if plan is None:
        if len(plans) >= _SHAPES:
            plans.clear()
        plan = plans[key] = native.Plan(program, x.element_size(), x.shape, period)
    return plan


class _Fused(torch.autograd.Function):
    """y_N as a function of y_0, theta and beta.

    What the kernels do not compute, derivatives of gradients, many gradients at once and forward
    mode, comes from the reference.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, theta: Tensor, beta: Tensor, numbers: Numbers) -> Tensor:
        ctx.numbers, (h, _, _, S, _) = numbers, numbers.values
        ctx.save_for_backward(x, theta, beta, S, h if isinstance(h, Tensor) else None)
        ctx.save_for_forward(x, theta, beta)
        return forward(numbers, x)

    @staticmethod
    def backward(ctx: Any, gout: Tensor) -> tuple[Tensor | None, ...]:
        numbers, (*inputs, _, _) = ctx.numbers, ctx.saved_tensors  # raises if changed in place
        if torch.is_grad_enabled():  # the gradients themselves will be differentiated
            # Views: theta may depend on x, and that way is not ours.
            inputs = [t.view_as(t) for t in inputs]
            wanted = [t for t, need in zip(inputs, ctx.needs_input_grad, strict=False) if need]
            out = _plain(numbers, *inputs)
            grads = iter(torch.autograd.grad(out, wanted, gout, create_graph=True))
            return (*(next(grads) if need else None for need in ctx.needs_input_grad[:3]), None)
        if not _has_memory(gout):  # many at once, by vmap
            return (*torch.func.vjp(partial(_plain, numbers), *inputs)[1](gout), None)
        return (*backward(numbers, inputs[0], gout, ctx.needs_input_grad[:3]), None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        # Forward mode by differentiating a gradient, which is linear in v, with respect to v.
        with torch.enable_grad():
            inputs = [t.detach().requires_grad_() for t in ctx.saved_tensors]
            out = _plain(ctx.numbers, *inputs)
            v = torch.zeros_like(out, requires_grad=True)
            grads = torch.autograd.grad(out, inputs, v, create_graph=True)
            known = [(g, t) for g, t in zip(grads, tangents, strict=False) if t is not None]
            (change,) = torch.autograd.grad([g for g, _ in known], v, [t for _, t in known])
        return change


def _plain(numbers: Numbers, x: Tensor, theta: Tensor, beta: Tensor) -> Tensor:
    """The same in plain torch, which can be differentiated again."""
    return reference.run(numbers.program, numbers.values._replace(theta=theta, beta=beta), x)


# `Function.apply` itself would look for transforms of torch.func, as `run` has done.
_apply = super(torch.autograd.Function, _Fused).apply


def _has_memory(*tensors: Tensor) -> bool:
    """Whether tensors are numbers in memory, not stand-ins inside a transform of torch.func."""
    try:
        for tensor in tensors:
            tensor.data_ptr()
    except RuntimeError:
        return False
    return True
