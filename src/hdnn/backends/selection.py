"""Which backend computes a program: by form, shape, dtype and device; never by timing.

`choose` is the only judge. The form of a program is judged once, when the program is made
(`Program.obstacle`); the numbers are judged at every call, since nothing keeps a program's tensors
from being replaced, moved, resized or wrapped between two calls.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import _C, Tensor, nn
from torch.autograd import forward_ad

from hdnn.errors import IncompatibleError
from hdnn.kernels import native
from hdnn.program import Program, Recurrence, Values

BACKENDS = ("auto", "reference", "fused")
MEMORY = ("fast", "lean")

WIDEST = {"avx512": 512, "avx2": 128, "baseline": 64}
"""The widest networks that "auto" leaves to the kernels, by instruction set.

Beyond, a library's products may win. Measured (benchmarks/crossovers.json) beside an MKL that used
AVX2, so those of the baseline may be too small.
"""
WIDEST_PLAIN = 256
"""The same where no stage has an adjoint (MS1, MS2, ResNet): the reference has less to do, too."""
WIDEST_EXPLICIT = 96
"""The same for explicit matrices."""
WIDEST_ROLLOUT = 256
"""The most states or units of recurrences that "auto" leaves to the kernels."""

EXPLICIT = "signs, or J, R or steps that are learned or differ by layer, are explicit matrices"
"""What the kernels of stages cannot take, and those of recurrences can."""

TRANSFORMS = "transforms of torch.func and forward mode take torch's operations only"
"""The one obstacle that is no error where kernels are requested: derivatives of every kind exist,
and these are always the reference's."""


@dataclass(frozen=True)
class BackendChoice:
    """A backend, and why.

    Args:
        backend: "reference" or "fused".
        reason: in words.
        explicit: whether the kernels get the stages as matrices (`hdnn.program.explicit`), which
            serves where J, R or steps are learned or differ from layer to layer.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=3, T=1.0)
    >>> net.explain_backend(torch.randn(5, 4)).backend in ("fused", "reference")
    True
    """

    backend: str
    reason: str
    explicit: bool = False

    def __str__(self) -> str:
        return f"{self.backend}: {self.reason}"

    @property
    def in_stages(self) -> bool:
        """Whether the kernels of stages serve, which also train and give Jacobians."""
        return self.backend == "fused" and not self.explicit


def choose(program: Program, values: Values, x: Tensor, requested: str) -> BackendChoice:
    """The backend for a program and a state.

    Args:
        program, values, x: what is to be computed.
        requested: "auto", "reference" or "fused"; the last is an error where it cannot serve.

    Returns:
        The backend, and why.

    Raises:
        HdnnError: parameters, J or steps have other shapes than the program's.
        IncompatibleError: the requested backend cannot serve.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=3, T=1.0)
    >>> y = torch.randn(5, 4)
    >>> hdnn.backends.choose(net.program, net.values(), y, "reference").backend
    'reference'
    """
    if requested == "reference":
        return _REQUESTED["reference"]
    reason = program.obstacle or _library() or obstacle_of_numbers(program, values, x)
    explicit = reason is EXPLICIT and not torch.compiler.is_compiling()
    reason = None if explicit else reason
    most = WIDEST_EXPLICIT if explicit or reason else _widest(program)
    return _decide(requested, reason, program.widest, most, explicit)


def choose_rollout(
    recurrence: Recurrence, x: Tensor, u: Tensor | None, requested: str
) -> BackendChoice:
    """The backend for a recurrence.

    Args:
        recurrence, x, u: what is to be computed.
        requested: "auto", "reference" or "fused"; the last is an error where it cannot serve.

    Returns:
        The backend, and why.

    Raises:
        HdnnError: states or inputs have other shapes than the recurrence's.
        IncompatibleError: the requested backend cannot serve.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=3, T=1.0)
    >>> recurrence = hdnn.program.explicit(net.program, net.values())
    >>> choose_rollout(recurrence, torch.zeros(5, 4), None, "reference").backend
    'reference'
    """
    if requested == "reference":
        return _REQUESTED["reference"]
    reason = _library() or obstacle_of_rollout(recurrence, x, u)
    return _decide(requested, reason, max(recurrence.sizes), WIDEST_ROLLOUT)


@functools.cache
def widest(has_adjoint: bool) -> int:
    """The widest network for the kernels, with the instruction set that the library has chosen.

    Args:
        has_adjoint: whether stages multiply by W', too.

    Returns:
        The width.
    """
    own = WIDEST.get(native.instruction_set(), min(WIDEST.values()))
    return own if has_adjoint else min(own, WIDEST_PLAIN)


def _widest(program: Program) -> int:
    if torch.compiler.is_compiling():
        from hdnn.backends.operator import widest_of_library

        return widest_of_library(program.has_adjoint)
    return widest(program.has_adjoint)


def _library() -> str | None:
    if torch.compiler.is_compiling():
        from hdnn.backends.operator import obstacle_of_library  # it imports torch's compiler

        return obstacle_of_library()
    return native.obstacle()


def _decide(
    requested: str, reason: str | None, width: int, widest: int, explicit: bool = False
) -> BackendChoice:
    if requested == "fused" and reason is not TRANSFORMS:
        if reason is not None:
            raise IncompatibleError(
                f"the fused backend cannot serve: {reason}; use backend='auto' or 'reference'"
            )
        return (
            BackendChoice("fused", f"requested; {EXPLICIT}", True)
            if explicit
            else _REQUESTED["fused"]
        )
    if reason is not None:
        return BackendChoice("reference", f"the fused backend cannot serve: {reason}")
    if width > widest:
        return BackendChoice("reference", f"width {width} is above {widest}: matrix products win")
    return _FUSED[widest, explicit][width]


# Made once, as every call returns one.
_REQUESTED = {name: BackendChoice(name, "requested") for name in BACKENDS[1:]}
_FUSED = {
    (widest, explicit): [
        BackendChoice("fused", f"width {n} is at most {widest}{why}", explicit)
        for n in range(widest + 1)
    ]
    for widest, explicit, why in (
        *((most, False, "") for most in {*WIDEST.values(), WIDEST_PLAIN, WIDEST_ROLLOUT}),
        (WIDEST_EXPLICIT, True, f"; {EXPLICIT}"),
    )
}


def obstacle_of_numbers(program: Program, values: Values, *states: Tensor) -> str | None:
    """Why the kernels cannot take such numbers, or None.

    They read memory: every tensor has to be plain numbers of one dtype in the memory of the CPU,
    not a stand-in (inside vmap or grad of torch.func, an expanded zero, a meta tensor), not a view
    whose sign or conjugation is still to be applied, and no subclass with a meaning of its own.

    Args:
        program: of stages.
        values: parameters, J and steps.
        states: a state, and possibly the gradient of one, in the same shape.

    Returns:
        The reason in words, or None.

    Raises:
        HdnnError: parameters, J or steps have other shapes than the program's.
    """
    h, theta, beta, S, _, _ = values
    program.check(values)
    assert theta is not None
    assert beta is not None
    dtype = states[0].dtype
    if dtype is not torch.float32 and dtype is not torch.float64:
        return f"it has kernels for float32 and float64, and the state is {dtype}"
    steps = h if isinstance(h, Tensor) else None
    reason = obstacle_of_memory(dtype, *states, theta, beta, S, steps)
    if reason or not states[0].numel():
        return reason or "there is nothing to compute"
    learned = (S is not None and S.requires_grad) or (steps is not None and steps.requires_grad)
    several = (S is not None and S.ndim > 2) or theta.shape[-2] != beta.shape[-2]
    return EXPLICIT if learned or several or program.has_signs else None


def obstacle_of_rollout(recurrence: Recurrence, x: Tensor, u: Tensor | None) -> str | None:
    """Why the kernels cannot take a recurrence, or None.

    Args:
        recurrence, x, u: what is to be computed.

    Returns:
        The reason in words, or None.

    Raises:
        HdnnError: states or inputs have other shapes than the recurrence's.
    """
    recurrence.check(x, u)
    if recurrence.activation.code is None:
        return f"its kernels do not know the activation {recurrence.activation.name}"
    if x.dtype is not torch.float32 and x.dtype is not torch.float64:
        return f"it has kernels for float32 and float64, and the state is {x.dtype}"
    if not x.numel() or not recurrence.steps:
        return "there is nothing to compute"
    return obstacle_of_memory(x.dtype, x, u, recurrence.W, recurrence.A)


def obstacle_of_memory(dtype: torch.dtype, *tensors: Tensor | None) -> str | None:
    """Why the addresses of tensors may not be read as numbers of a dtype, or None.

    Args:
        dtype: of all of them.
        tensors: any; None is passed over.

    Returns:
        The reason in words, or None.
    """
    traced = torch.compiler.is_compiling()
    if traced and torch.compiler.is_exporting():
        return "what is exported runs without hdnn"
    # Tensors may be wrapped, recorded or made up in these, or derivatives asked for that only
    # torch's operations have. torch has no public names for the questions; its own Function asks
    # the first one.
    if not traced:
        if _C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
            return TRANSFORMS
        if _C._len_torch_dispatch_stack() or _C._is_tracing():
            return (
                "a dispatch mode or a tracer (fake tensors, make_fx) takes torch's operations only"
            )
    recorded, itemsize = torch.is_grad_enabled(), dtype.itemsize
    for tensor in tensors:  # about 0.4 us for each, at every call
        if tensor is None:
            continue
        if tensor.dtype is not dtype:
            return f"all numbers must have one dtype, and here are {dtype} and {tensor.dtype}"
        if not tensor.is_cpu:
            return f"it runs on the CPU, and a tensor is on {tensor.device}"
        if traced:
            continue  # a compiler shows no memory, and passes plain tensors later
        kind = type(tensor)
        if kind is not Tensor and kind is not nn.Parameter:
            return f"it reads memory, and a tensor is a {kind.__name__}"
        try:
            address = tensor.data_ptr()
        except RuntimeError:  # sparse, or a wrapper that outlived its transform
            return f"it reads memory, and a tensor has none (its layout is {tensor.layout})"
        # Of freed memory an address is the mere offset of a view, far below true ones, as a rule.
        held = address > 2**40 or (address and tensor.untyped_storage().nbytes())
        if tensor.is_neg() or (not held and tensor.numel()):
            return "it reads memory, and a tensor is a view without numbers of its own"
        if address % itemsize:  # from torch.frombuffer
            return f"it reads memory, and numbers of {dtype} lie at an odd address"
        if recorded and tensor.is_inference():
            return "it records gradients, and a tensor was made in inference mode"
    return None
