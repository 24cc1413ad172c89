"""The fused backend as an operator of torch, so that torch.compile keeps it.

A compiler sees ``hdnn::fused`` as one node with tensors as inputs; its form (which stages, what
they read and write) it finds again by the number of its owner, the network. Eager mode goes past
it, through `torch.autograd.Function`, which costs less.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from hdnn.program import Adjoint, Program

if TYPE_CHECKING:
    from hdnn.backends.activation_pool import Lease
    from hdnn.backends.compiled_program import CompiledProgram


F = TypeVar("F", bound=Callable[..., Any])


def traced_as_constant(function: F) -> F:
    """Let torch.compile call a function while it traces, and keep the result.

    This is all that `torch.compiler.assume_constant_result` does; calling that imports the
    compiler, a second that every command would wait for.

    Args:
        function: of numbers and strings.

    Returns:
        The function.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


class Owner(Protocol):
    """Whatever has a program: a network."""

    def program(self) -> Program:
        """What it computes."""
        ...


_numbers = itertools.count()
_owners: weakref.WeakValueDictionary[int, Owner] = weakref.WeakValueDictionary()


def register(owner: Owner) -> int:
    """The number by which the operator finds the program of an owner, while that lives."""
    number = next(_numbers)
    _owners[number] = owner
    return number


def program_of(owner: int) -> Program:
    """The program of an owner as it is now."""
    return _owners[owner].program()


def obstacle(program: Program) -> str | None:
    """Why the operator cannot serve a program of stages, or None."""
    first, *_ = stages = program.stages or ()
    for stage in stages:
        step = stage.A.step if isinstance(stage.A, Adjoint) else stage.A
        if not isinstance(step, float):
            return "torch.compile sees steps or gains that are tensors in plain torch only"
        if isinstance(stage.A, Adjoint) and (stage.A.S.ndim > 2 or stage.A.S.requires_grad):
            return "torch.compile sees J(t) and a learned J in plain torch only"
        own = stage.W.stack.theta is first.W.stack.theta
        if not own or stage.b.stack.theta is not first.b.stack.theta:
            return "torch.compile sees several stacks of weights in plain torch only"
    return None


def run(program: Program, x: Tensor, owner: int) -> Tensor:
    """The state after the last layer, as a compiler sees it."""
    x, restore = program.layout.flatten(x)
    stages = program.stages or ()
    theta, beta = stages[0].W.stack.theta, stages[0].b.stack.theta
    mixers = [stage.A.S for stage in stages if isinstance(stage.A, Adjoint)]
    return restore(call(x, theta, beta, mixers, owner))


def call(x: Tensor, theta: Tensor, beta: Tensor, mixers: list[Tensor], owner: int) -> Tensor:
    """The operator on a canonical state: with gradients, or the shorter one without.

    Args:
        x: ``([E,] B, n)``, or with pixels.
        theta, beta, mixers: the tensors of the program.
        owner: the number of its network.

    Returns:
        The state after the last layer.
    """
    operators: Any = torch.ops.hdnn
    out: Tensor
    if torch.is_grad_enabled():
        out, _ = operators.fused(x, theta, beta, mixers, owner, True)
    else:
        out = operators.fused_inference(x, theta, beta, mixers, owner)
    return out


@traced_as_constant
def own_width(owner: int) -> int:
    """The width of a network over features whose operator takes parameters and J as they are.

    0 for any other. A compiler then need not trace how the program is made, and later check in
    every call that all which it has seen is still the same.

    Args:
        owner: the number of the network.

    Returns:
        n, or 0.
    """
    net: Any = _owners[owner]
    program, weights = net.program(), getattr(net.field, "weights", None)
    layout, stages = program.layout, program.stages or ()
    if weights is None or layout.channels or layout.ensemble is not None or not stages:
        return 0
    J = getattr(getattr(net.field, "interconnection", None), "J", None)
    own = all(
        stage.W.stack.theta is weights.theta
        and stage.b.stack.theta is weights.beta
        and (not isinstance(stage.A, Adjoint) or stage.A.S is J)
        for stage in stages
    )
    return layout.width if own and obstacle(program) is None else 0


@traced_as_constant
def mixer_count(owner: int) -> int:
    """How many gains of a network are made of J.

    Args:
        owner: the number of the network.

    Returns:
        How many mixers its operator takes.
    """
    return sum(isinstance(stage.A, Adjoint) for stage in program_of(owner).stages or ())


# --- activations that the way back finds again ----------------------------------------------------


class _Held(np.ndarray):
    """The memory of a token: it holds a lease for as long as any tensor over it is alive."""

    lease: Lease | None


_leases: weakref.WeakValueDictionary[int, Lease] = weakref.WeakValueDictionary()


def _token(lease: Lease | None) -> Tensor:
    """A tensor that stands for a lease in the graph."""
    memory = np.zeros(1, np.int64).view(_Held)
    memory.lease = lease
    token = torch.from_numpy(memory)
    if lease is not None:
        _leases[token.data_ptr()] = lease
    return token


# --- the operator ---------------------------------------------------------------------------------

_library = torch.library.Library("hdnn", "DEF")
_library.define(
    "fused(Tensor x, Tensor theta, Tensor beta, Tensor[] mixers, int owner, bool keep)"
    " -> (Tensor, Tensor)"
)
_library.define(
    "fused_inference(Tensor x, Tensor theta, Tensor beta, Tensor[] mixers, int owner) -> Tensor"
)
_library.define(
    "fused_backward(Tensor gout, Tensor x, Tensor theta, Tensor beta, Tensor[] mixers, int owner,"
    " Tensor token) -> (Tensor, Tensor, Tensor)"
)


def _compiled(
    owner: int, x: Tensor, theta: Tensor, beta: Tensor, mixers: Sequence[Tensor]
) -> CompiledProgram:
    """The owner's program over the tensors that are given, which mostly are the owner's own."""
    from hdnn.backends.compiled_program import Inputs, compile_program

    compiled = compile_program(program_of(owner), x.dtype, x.device)
    own = *compiled.inputs[:2], *compiled.mixers
    for a, b in zip((theta, beta, *mixers), own, strict=True):
        if a.data_ptr() != b.data_ptr() or a.stride() != b.stride():
            inputs = Inputs(theta, beta, *compiled.inputs[2:])
            return replace(compiled, inputs=inputs, mixers=tuple(mixers), _views=[])
    return compiled


def _forward(
    x: Tensor, theta: Tensor, beta: Tensor, mixers: Sequence[Tensor], owner: int, keep: bool
) -> tuple[Tensor, Tensor]:
    from hdnn.backends.fused import Call

    call = Call(_compiled(owner, x, theta, beta, mixers), x)
    out = call.forward(keep)
    return out, _token(call.lease)


def _infer(x: Tensor, theta: Tensor, beta: Tensor, mixers: Sequence[Tensor], owner: int) -> Tensor:
    from hdnn.backends.fused import Call

    return Call(_compiled(owner, x, theta, beta, mixers), x).forward(False)


def _backward(
    gout: Tensor,
    x: Tensor,
    theta: Tensor,
    beta: Tensor,
    mixers: Sequence[Tensor],
    owner: int,
    token: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    from hdnn.backends.fused import Call

    call = Call(_compiled(owner, x, theta, beta, mixers), x)
    call.lease = _leases.get(token.data_ptr())
    gx, grads = call.backward(gout, [True, True])
    return (gx, *grads)  # type: ignore[return-value] # all are wanted, so none is None


def _fake_forward(x: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(1, dtype=torch.int64)


def _fake_infer(x: Tensor, *_: object) -> Tensor:
    return torch.empty_like(x)


def _fake_backward(
    gout: Tensor, x: Tensor, theta: Tensor, beta: Tensor, *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    whole = torch.contiguous_format
    gtheta, gbeta = (torch.empty_like(t, memory_format=whole) for t in (theta, beta))
    return torch.empty_like(x), gtheta, gbeta


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, theta, beta, mixers, ctx.owner, _ = inputs
    ctx.save_for_backward(x, theta, beta, output[1], *mixers)


def _differentiate(ctx: Any, gout: Tensor, _: object) -> tuple[Any, ...]:
    x, theta, beta, token, *mixers = ctx.saved_tensors
    operator = torch.ops.hdnn.fused_backward
    grads = operator(gout, x, theta, beta, mixers, ctx.owner, token)
    return (*grads, [None] * len(mixers), None, None)


_library.impl("fused", _forward, "CPU")
_library.impl("fused_inference", _infer, "CPU")
_library.impl("fused_backward", _backward, "CPU")
torch.library.register_fake("hdnn::fused", _fake_forward, lib=_library)
torch.library.register_fake("hdnn::fused_inference", _fake_infer, lib=_library)
torch.library.register_fake("hdnn::fused_backward", _fake_backward, lib=_library)
torch.library.register_autograd("hdnn::fused", _differentiate, setup_context=_save, lib=_library)
