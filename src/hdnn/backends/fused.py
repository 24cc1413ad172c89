"""The fused backend: programs of stages through the compiled kernels, on the CPU.

A block of samples is carried through all layers while it sits in the cache, and the backward pass
computes it there again: nothing is saved but the input state and the parameters.

A call looks up one object, the plan of its program and shape; everything else is read anew.
`locate` is the one place where addresses are taken, of tensors that `obstacle_of_numbers` has
passed in the same call.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from hdnn.backends import reference
from hdnn.backends.selection import obstacle_of_memory, obstacle_of_numbers
from hdnn.errors import HdnnError
from hdnn.fields.layout import unchanged
from hdnn.kernels import native
from hdnn.program import Program, Step, Values

_SHAPES = 64  # plans that are kept for a program

_plans: WeakKeyDictionary[Program, dict[Any, native.Plan]] = WeakKeyDictionary()


def run(program: Program, values: Values, x: Tensor) -> Tensor:
    """The state after the last layer, of numbers that `choose` has left to the kernels."""
    x, restore = program.layout.flatten(x)
    h, theta, beta, S, _ = values
    if torch.is_grad_enabled():
        out: Tensor = _Fused.apply(x, theta, beta, S, h, program)
    else:
        out = forward(program, values, x)
    return out if restore is unchanged else restore(out)


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
    program: Program,
    values: Values,
    x: Tensor,
    gout: Tensor,
    wanted: Sequence[bool] = (True, True, True),
) -> tuple[Any, ...]:
    """The gradients of <gout, y_N> of canonical states: of the state, of theta and of beta.

    Args:
        program, values, x, gout: numbers that `obstacle_of_numbers` passes.
        wanted: which of the three; without those of theta and beta it takes less time.

    Returns:
        Three gradients; None is one that is not wanted.
    """
    x, gout = x.contiguous(), gout.contiguous()
    plan, addresses, kept = locate(program, values, x)
    gx = torch.empty_like(x) if wanted[0] else None
    gtheta = torch.empty_like(kept[0]) if wanted[1] else None
    gbeta = torch.empty_like(kept[1]) if wanted[2] else None
    where = (
        None if gx is None else gx.data_ptr(),
        None if gtheta is None else gtheta.data_ptr(),
        None if gbeta is None else gbeta.data_ptr(),
    )
    states, threads = (x.data_ptr(), gout.data_ptr()), torch.get_num_threads()
    if native.library().hdnn_backward(plan.handle, addresses, *states, *where, threads):
        raise MemoryError(native.NO_MEMORY)
    return gx, gtheta, gbeta


def jacobians(
    program: Program, values: Values, x: Tensor, depths: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """d y_N / d y_l and y_l at depths l: what `reference.jacobians` gives."""
    if max(depths) > program.layers:
        raise HdnnError(f"depth {max(depths)} is beyond the {program.layers} layers of the program")
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
    period = theta.shape[-2]
    key = x.shape, x.dtype, period
    plan = plans.get(key)
    if plan is None:
        if len(plans) >= _SHAPES:
            plans.clear()
        plan = plans[key] = native.Plan(program, x.element_size(), x.shape, period)
    theta, beta = theta.contiguous(), beta.contiguous()
    steps, S = None, None if S is None else S.contiguous()
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
    """y_N as a function of y_0, theta and beta; S and the steps are constant.

    Derivatives of gradients, and many gradients at once, come from the reference.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        theta: Tensor,
        beta: Tensor,
        S: Tensor | None,
        h: Step,
        program: Program,
    ) -> Tensor:
        # Aliases: `.data =` gives a tensor other memory, and the gradient is one of what was
        # computed. They share the counter of changes in place with their tensors.
        steps = h.detach() if isinstance(h, Tensor) else None
        S_alias = None if S is None else S.detach()
        aliases = x.detach(), theta.detach(), beta.detach(), S_alias, steps
        ctx.save_for_backward(*aliases)
        ctx.set_materialize_grads(False)
        ctx.program, ctx.h, ctx.inputs, ctx.aliases = program, h, (x, theta, beta), aliases
        return forward(program, Values(h, theta, beta, S), x)

    @staticmethod
    def backward(ctx: Any, gout: Tensor | None) -> tuple[Tensor | None, ...]:
        x, theta, beta, S, steps = ctx.saved_tensors  # raises if changed in place
        if gout is None:
            return (None,) * 6
        program, needs, aliases = ctx.program, ctx.needs_input_grad[:3], ctx.aliases
        values = Values(ctx.h if steps is None else steps, theta, beta, S)
        again = torch.is_grad_enabled()  # the gradients themselves will be differentiated
        # A gradient may have no memory (zeros, or many at once by vmap), and hooks may unpack other
        # tensors than the aliases, which were judged going forward.
        if all(map(operator.is_, (x, theta, beta, S, steps), aliases)):
            held = x.untyped_storage().nbytes() and beta.untyped_storage().nbytes()
            held = held and (theta.untyped_storage().nbytes() or not theta.numel())
            constants = S is None or S.untyped_storage().nbytes()
            constants = constants and (steps is None or steps.untyped_storage().nbytes())
            if not (held and constants):
                raise HdnnError("the memory of a state, of parameters or of J was freed before use")
            reason = obstacle_of_memory(x.dtype, gout)
        else:
            reason = x.shape != gout.shape or obstacle_of_numbers(program, values, x, gout)
        if not (again or reason):
            return (*backward(program, values, x, gout, needs), None, None, None)
        with torch.inference_mode(False), torch.enable_grad():
            saved = zip(ctx.inputs, (x, theta, beta), needs, strict=True)
            x, theta, beta = inputs = [_with_graph(*each) for each in saved]
            wanted = [t for t, need in zip(inputs, needs, strict=True) if need]
            out = reference.run(program, values._replace(theta=theta, beta=beta), x)
            found = iter(torch.autograd.grad(out, wanted, gout, create_graph=again))
        return (*(next(found) if need else None for need in needs), None, None, None)


def _with_graph(tensor: Tensor, saved: Tensor, need: bool) -> Tensor:
    """Saved numbers, with the graph of the tensor whose numbers they are."""
    if not tensor.requires_grad:  # it never did, or was frozen since
        return nn.Parameter(saved) if need else saved
    return _Alias.apply(tensor, saved)


class _Alias(torch.autograd.Function):
    """Saved numbers, whose gradient goes to the tensor that they belonged to."""

    generate_vmap_rule = True  # of a vmap over gradients

    @staticmethod
    def forward(tensor: Tensor, saved: Tensor) -> Tensor:
        return saved.view_as(saved)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Nothing is saved: the gradient is passed on as it is."""

    @staticmethod
    def backward(ctx: Any, gout: Tensor) -> tuple[Tensor, None]:
        return gout, None
