"""The fused backend: programs of stages, and recurrences, through the compiled kernels on the CPU.

A block of samples is carried through all layers while it sits in the cache, and the backward pass
computes it there again: nothing is saved but the input state and the parameters, and activations
where they fit into a buffer (`native.keep`). Of a recurrence, whose states are all wanted, these
are saved.

A call looks up one object, the plan of its program and shape; everything else is read anew.
`locate` is the one place where addresses are taken, of tensors that `obstacle_of_numbers` has
passed in the same call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from hdnn.backends import reference
from hdnn.backends.selection import obstacle_of_memory, obstacle_of_numbers
from hdnn.errors import HdnnError
from hdnn.fields.layout import unchanged
from hdnn.kernels import native
from hdnn.program import Program, Recurrence, Step, Values, explicit

if TYPE_CHECKING:
    from hdnn.fields.activations import Activation

_SHAPES = 64  # plans that are kept for a program

_plans: WeakKeyDictionary[Program, dict[Any, native.Plan]] = WeakKeyDictionary()


def run(program: Program, values: Values, x: Tensor) -> Tensor:
    """The state after the last layer, of numbers that `choose` has left to the kernels."""
    x, restore = program.layout.flatten(x)
    if torch.is_grad_enabled():
        h, theta, beta, S, _, _ = values
        out: Tensor = _Fused.apply(x, theta, beta, (S, h, program))
    else:
        out = forward(program, values, x)
    return out if restore is unchanged else restore(out)


def run_explicit(program: Program, values: Values, x: Tensor) -> Tensor:
    """The same by explicit matrices: J, R and steps may be learned, and differ by layer."""
    flat, restore = program.layout.flatten(x)
    rows, back = as_rows(flat, program.layout.axis)
    _, last = rollout(explicit(program, values), rows, None)
    # Zeros of a matrix times infinity: only the operations of the reference keep features apart.
    if bool(last.isnan().any()):
        return reference.run(program, values, x)
    return restore(back(last))


def trajectory(program: Program, values: Values, x: Tensor) -> Tensor:
    """The states after all layers, of numbers that `choose` has left to the kernels."""
    flat, restore = program.layout.flatten(x)
    rows, back = as_rows(flat, program.layout.axis)
    states, last = rollout(explicit(program, values), rows, None)
    if bool(last.isnan().any()):  # as above
        return reference.trajectory(program, values, x)
    after_layers = states[..., :: len(program.stages), :].unbind(-2)
    return torch.stack([restore(back(state)) for state in (*after_layers, last)])


def as_rows(x: Tensor, axis: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Canonical states as ``([E,] B, n)``, where every pixel is a sample, and the way back."""
    if x.ndim == axis + 1:
        return x, unchanged
    last = x.movedim(axis, -1)
    shape = last.shape
    return last.flatten(axis - 1, -2), lambda rows: rows.reshape(shape).movedim(-1, axis)


def rollout(recurrence: Recurrence, x: Tensor, u: Tensor | None) -> tuple[Tensor, Tensor]:
    """All states, and the last, of a recurrence that `choose_rollout` has left to the kernels."""
    W, A, activation, steps, hold = recurrence
    assert activation.code is not None
    form = _Form(activation, steps, hold)
    if torch.is_grad_enabled():
        out: tuple[Tensor, Tensor] = _Rollout.apply(x, u, W, A, form)
        return out
    return rollout_forward(recurrence, x, u)


def rollout_forward(recurrence: Recurrence, x: Tensor, u: Tensor | None) -> tuple[Tensor, Tensor]:
    """All states, and the last, of numbers that `obstacle_of_rollout` passes."""
    sizes, arrays = _located(recurrence, x, u)
    states, last = x.new_empty(*x.shape[:-1], recurrence.steps, x.shape[-1]), x.new_empty(x.shape)
    where = (_address(t) for t in (*arrays, states, last))
    native.check(native.library().hdnn_rollout_forward(sizes, *where, torch.get_num_threads()))
    return states, last


def rollout_backward(
    recurrence: Recurrence,
    u: Tensor | None,
    states: Tensor,
    gouts: Sequence[Tensor | None],
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """The gradients of x_0, u, W and A, from those of all states and of the last.

    Args:
        recurrence, u, states: numbers that `obstacle_of_rollout` passes, and the states they gave.
        gouts: two gradients; None is 0.
        wanted: which of the four; the last two go together.
    """
    sizes, (W, A, x, u) = _located(recurrence, states[..., 0, :], u)
    gouts = [None if g is None else g.contiguous() for g in gouts]
    weights = wanted[2] or wanted[3]
    found = tuple(
        torch.empty_like(t) if t is not None and want else None
        for t, want in zip((x, u, W, A), (*wanted[:2], weights, weights), strict=True)
    )
    where = (_address(t) for t in (W, A, u, states.contiguous(), *gouts, *found))
    native.check(native.library().hdnn_rollout_backward(sizes, *where, torch.get_num_threads()))
    return found


def _located(
    recurrence: Recurrence, x: Tensor, u: Tensor | None
) -> tuple[native.Rollout, tuple[Tensor, Tensor, Tensor, Tensor | None]]:
    """The sizes of a recurrence as the library has them, and its numbers without gaps."""
    W, A, activation, steps, hold = recurrence
    n, m, d = recurrence.sizes
    networks = W.shape[0] if W.ndim > 3 else 1
    sizes = (W.shape[-3], hold, n, m, d)
    rollout = native.Rollout(
        x.element_size(), activation.code, networks, x.shape[-2], steps, *sizes
    )
    given = None if u is None else u.contiguous()
    return rollout, (W.contiguous(), A.contiguous(), x.contiguous(), given)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def forward(program: Program, values: Values, x: Tensor) -> Tensor:
    """y_N of canonical states, of numbers that `obstacle_of_numbers` passes."""
    return _forward(locate(program, values, x), False)[0]


def _forward(located: Located, keep: bool) -> tuple[Tensor, native.Activations | None]:
    plan, addresses, (x, *_) = located
    out = torch.empty_like(x)
    kept = native.keep(plan) if keep else None
    where = (x.data_ptr(), out.data_ptr(), None if kept is None else kept.address)
    if native.library().hdnn_forward(plan.handle, addresses, *where, torch.get_num_threads()):
        raise MemoryError(native.NO_MEMORY)
    return out, kept


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
    return _backward(locate(program, values, x), gout, wanted, None)


def _backward(
    located: Located, gout: Tensor, wanted: Sequence[bool], kept: native.Activations | None
) -> tuple[Any, ...]:
    plan, addresses, (x, theta, beta, *_) = located
    gout = gout.contiguous()
    gx = torch.empty_like(x) if wanted[0] else None
    gtheta = torch.empty_like(theta) if wanted[1] else None
    gbeta = torch.empty_like(beta) if wanted[2] else None
    where = (
        kept.address if kept is not None and kept.plan is plan else None,
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
    layout = program.layout
    E, n, D = layout.ensemble or 1, layout.width, len(depths)
    samples = x.numel() // (E * n)  # of an image, every pixel is one
    matrices, states = x.new_empty(E, samples, D, n, n), x.new_empty(E, D, samples, n)
    places = torch.tensor(depths, dtype=torch.int64, device="cpu")
    plan, addresses, (x, *_) = locate(program, values, x)
    where = (x.data_ptr(), places.data_ptr(), D, states.data_ptr(), matrices.data_ptr())
    if native.library().hdnn_jacobians(plan.handle, addresses, *where, torch.get_num_threads()):
        raise MemoryError(native.NO_MEMORY)
    matrices, states = matrices.movedim(2, 0), states.movedim(1, 0)
    return (matrices, states) if layout.lead else (matrices.squeeze(1), states.squeeze(1))


class Located(NamedTuple):
    """A plan, and where its numbers are.

    Args:
        plan: of a program and the shape of a state.
        addresses: of theta, beta, S and the steps; they hold as long as the tensors exist.
        tensors: the state, theta, beta, S and the steps without gaps, which `addresses` is about.
    """

    plan: native.Plan
    addresses: native.Addresses
    tensors: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]


def locate(program: Program, values: Values, x: Tensor) -> Located:
    """The plan of a program and a state, and where its numbers are.

    Args:
        program, values: numbers that `obstacle_of_numbers` passes.
        x: a canonical state.

    Returns:
        The plan, the addresses, and the tensors that they are addresses of.
    """
    h, theta, beta, S, _, _ = values
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
    steps = h if isinstance(h, Tensor) else None
    x, theta, beta = x.contiguous(), theta.contiguous(), beta.contiguous()
    S = None if S is None else S.contiguous()
    if steps is not None:  # those of all networks and layers
        lead = program.layout.lead
        steps = steps.detach().double().expand(*lead, program.layers).contiguous()
    addresses = native.Addresses(
        theta.data_ptr(),
        beta.data_ptr(),
        None if S is None else S.data_ptr(),
        0.0 if isinstance(h, Tensor) else h,
        None if steps is None else steps.data_ptr(),
    )
    return Located(plan, addresses, (x, theta, beta, S, steps))


def _addresses(
    x: Tensor, theta: Tensor, beta: Tensor, S: Tensor | None, steps: Tensor | None
) -> tuple[int | None, ...]:
    constants = None if S is None else S.data_ptr(), None if steps is None else steps.data_ptr()
    return x.data_ptr(), theta.data_ptr(), beta.data_ptr(), *constants


def _has_memory(tensor: Tensor) -> bool:
    return bool(tensor.untyped_storage().nbytes()) or not tensor.numel()


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
        constants: tuple[Tensor | None, Step, Program],
    ) -> Tensor:
        S, h, program = constants
        # Aliases: `.data =` gives a tensor other memory, and the gradient is one of what was
        # computed. They share the counter of changes in place with their tensors.
        steps = h.detach() if isinstance(h, Tensor) else None
        S = None if S is None else S.detach()
        aliases = x.detach(), theta.detach(), beta.detach(), S, steps
        ctx.save_for_backward(*aliases)
        ctx.set_materialize_grads(False)
        values = Values(h if steps is None else steps, *aliases[1:4])
        located = locate(program, values, aliases[0])
        # Not with a copy of the state, which may be large.
        again = located if located.tensors[0] is aliases[0] else None
        ctx.inputs, ctx.aliases, ctx.constants = (x, theta, beta), aliases, (program, h)
        ctx.located = again, _addresses(*aliases)
        out, ctx.kept = _forward(located, True in ctx.needs_input_grad)
        return out

    @staticmethod
    def backward(ctx: Any, gout: Tensor | None) -> tuple[Tensor | None, ...]:
        x, theta, beta, S, steps = saved = ctx.saved_tensors  # raises if changed in place
        if gout is None:
            return (None,) * 4
        (program, h), (located, addresses) = ctx.constants, ctx.located
        kept, ctx.kept = ctx.kept, None  # once: a later pass through the same graph computes them
        needs = ctx.needs_input_grad[:3]
        values = Values(h if steps is None else steps, theta, beta, S)
        again = torch.is_grad_enabled()  # the gradients themselves will be differentiated
        # A gradient may have no memory (zeros, or many at once by vmap), and hooks may unpack other
        # tensors than the aliases, which were judged going forward.
        if not all(map(operator.is_, saved, ctx.aliases)):
            located = kept = None
            reason = x.shape != gout.shape or obstacle_of_numbers(program, values, x, gout)
        else:
            reason = obstacle_of_memory(x.dtype, gout)
            if addresses != _addresses(*saved):  # their memory was freed or moved
                located = kept = None
                if not all(t is None or _has_memory(t) for t in saved):
                    raise HdnnError(
                        "the memory of a state, of parameters or of J was freed before use"
                    )
        if not (again or reason):
            located = located or locate(program, values, x)
            return (*_backward(located, gout, needs, kept), None)

        def again_by_torch(x: Tensor, theta: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
            return (reference.run(program, values._replace(theta=theta, beta=beta), x),)

        found = _differentiate(again_by_torch, ctx.inputs, saved[:3], needs, (gout,), again)
        return (*found, None)


def _differentiate(
    function: Callable[..., tuple[Tensor, ...]],
    inputs: Sequence[Tensor | None],
    saved: Sequence[Tensor | None],
    needs: Sequence[bool],
    gouts: Sequence[Tensor | None],
    again: bool,
) -> list[Tensor | None]:
    """The gradients of a function of saved numbers, by torch; with graphs of their own if again."""
    with torch.inference_mode(False), torch.enable_grad():
        tensors = [
            None if t is None or s is None else _with_graph(t, s, need)
            for t, s, need in zip(inputs, saved, needs, strict=True)
        ]
        outputs = zip(function(*tensors), gouts, strict=True)
        given = [(out, g) for out, g in outputs if g is not None and out.requires_grad]
        wanted = [t for t, need in zip(tensors, needs, strict=True) if need and t is not None]
        found = iter(
            torch.autograd.grad(
                [out for out, _ in given],
                wanted,
                [g for _, g in given],
                create_graph=again,
                allow_unused=len(given) < len(gouts),
            )
        )
    return [next(found) if need else None for need in needs]


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


class _Form(NamedTuple):
    """What a recurrence has beside its matrices."""

    activation: Activation
    steps: int
    hold: int


class _Rollout(torch.autograd.Function):
    """All states of a recurrence, and the last, as functions of x_0, the inputs, W and A."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, u: Tensor | None, W: Tensor, A: Tensor, form: _Form
    ) -> tuple[Tensor, Tensor]:
        states, last = rollout_forward(Recurrence(W, A, *form), x, u)
        aliases = tuple(None if t is None else t.detach() for t in (x, u, W, A, states))
        ctx.save_for_backward(*aliases)
        ctx.set_materialize_grads(False)
        ctx.form, ctx.inputs, ctx.aliases = form, (x, u, W, A), aliases
        return states, last

    @staticmethod
    def backward(ctx: Any, *gouts: Tensor | None) -> tuple[Tensor | None, ...]:
        _, u, W, A, states = saved = ctx.saved_tensors
        if all(g is None for g in gouts):
            return (None,) * 5
        form, needs, again = ctx.form, ctx.needs_input_grad[:4], torch.is_grad_enabled()
        # Hooks may unpack other tensors: then, as for derivatives of gradients, torch computes.
        same = all(map(operator.is_, saved, ctx.aliases))
        if not (again or not same or obstacle_of_memory(states.dtype, u, W, A, states, *gouts)):
            return (*rollout_backward(Recurrence(W, A, *form), u, states, gouts, needs), None)

        def again_by_torch(x: Tensor, u: Tensor | None, W: Tensor, A: Tensor) -> tuple[Tensor, ...]:
            return reference.rollout(Recurrence(W, A, *form), x, u)

        found = _differentiate(again_by_torch, ctx.inputs, saved[:4], needs, gouts, again)
        return (*found, None)
