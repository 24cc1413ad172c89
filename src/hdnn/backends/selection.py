"""Which backend computes a program: by program, width, batch, dtype and device; never by timing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hdnn.backends import operator
from hdnn.errors import IncompatibleError
from hdnn.fields.activations import ACTIVATIONS as CATALOGUE
from hdnn.fields.surroundings import active_transform, sees_operators
from hdnn.program import Adjoint, Program

BACKENDS = ("auto", "reference", "fused")
MEMORY = ("fast", "lean")

ACTIVATIONS = ("tanh", "identity", "relu", "softsign", "sigmoid")
"""The activations that the kernels know, in the order of their codes there."""

FEW = 4  # entries of J in a row, on the average, with which it is still sparse

DTYPES = (torch.float32, torch.float64)
"""The numbers that the kernels know."""

NOTHING = "there is nothing to compute"

CROSSOVERS = ((128, 96, 32), (math.inf, 64, 32))
"""The widest networks at which the kernels win; beyond, a library's products do.

Every row: up to how many samples; the widest where J is sparse, or there is none; the widest where
it is full, as then h J K' takes n^3 operations. Measured on 2 cores with AVX-512, see
docs/performance.md; chosen so that float32 and float64 both win.
"""


FEW_SAMPLES = CROSSOVERS[0][0]


@dataclass(frozen=True)
class BackendChoice:
    """A backend, and why.

    Args:
        backend: "reference", "fused" or "checkpointed".
        reason: in words.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=3, T=1.0)
    >>> y = torch.randn(5, 4)
    >>> net.explain_backend(y).backend in ("fused", "reference")
    True
    """

    backend: str
    reason: str

    def __str__(self) -> str:
        return f"{self.backend}: {self.reason}"


def obstacle(program: Program, x: Tensor) -> str | None:
    """Why the fused kernels cannot serve, or None."""
    if type(x).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return f"it reads memory, and the state is a {type(x).__name__}"
    transform = active_transform()
    if transform is not None:  # early: a tracer should see as little as possible
        return transform
    return obstacle_of_form(program) or _obstacle_of_state(x)


def _obstacle_of_state(x: Tensor) -> str | None:
    if x.device.type != "cpu":
        return f"it runs on the CPU, and the state is on {x.device}"
    if x.dtype not in DTYPES:
        return f"it has kernels for float32 and float64, and the state is {x.dtype}"
    return NOTHING if x.numel() == 0 else None


def obstacle_of_form(program: Program) -> str | None:
    """Why no kernel knows a program, whatever the state, or None."""
    stages = program.stages
    if stages is None:
        return "it needs a program of stages, and this scheme or field lowers to a flow"
    if program.layout.kernel > 1:
        return "its kernels multiply by matrices; a library's convolutions (oneDNN) are faster"
    for stage in stages:
        sigma = stage.activation
        known = sigma.name in ACTIVATIONS and sigma == CATALOGUE[sigma.name]
        if not known or sigma != stages[0].activation:
            return f"it knows one of {', '.join(ACTIVATIONS)}, and this is {sigma.name}"
    if program.layers == 0 or not any(stage.W.pattern.shape[0] for stage in stages):
        return NOTHING
    return None


def choose(
    program: Program, x: Tensor, requested: str, memory: str = "fast", owner: int | None = None
) -> BackendChoice:
    """The backend for a program and a state.

    Args:
        program, x: what is to be computed.
        requested: "auto", "reference" or "fused"; the last is an error where it cannot serve.
        memory: "lean" for memory that does not grow with depth, at any width.
        owner: whose program it is, where torch.compile may see the fused backend as an operator.

    Returns:
        The backend, and why.

    Raises:
        IncompatibleError: what is asked for cannot serve.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=3, T=1.0)
    >>> y = torch.randn(5, 4)
    >>> hdnn.backends.choose(net.program(), y, "reference").backend
    'reference'
    """
    if owner is not None and sees_operators():
        return _for_compiler(program, x, requested, owner)
    transform, place = active_transform(), "cpu" if x.is_cpu else x.device
    # Whoever traces must not see a batch compared with numbers: its size may be a symbol.
    by_size = requested == "auto" and transform is None
    size = _row(program, x) if by_size else x.numel() == 0
    key = ("choice", requested, type(x), x.dtype, place, size, transform)
    choice: BackendChoice | None = program.memo.get(key)
    if choice is None:
        choice = program.memo[key] = _by_speed(program, x, requested)
    if choice.backend == "fused" or memory == "fast" or transform is not None:
        return choice
    if program.stages is None:
        raise IncompatibleError(
            "memory='lean' needs a program of stages, and this scheme or field lowers to a flow; "
            "use memory='fast', or forward Euler or a splitting scheme"
        )
    return BackendChoice("checkpointed", f"memory that does not grow with depth; {choice.reason}")


def _by_speed(program: Program, x: Tensor, requested: str) -> BackendChoice:
    if requested == "reference":
        return BackendChoice("reference", "asked for")
    reason = obstacle(program, x)
    row = -1 if requested == "fused" or reason is not None else _row(program, x)
    return _by_width(program, requested, reason, row)


def _by_width(program: Program, requested: str, reason: str | None, row: int) -> BackendChoice:
    """The choice where the fused kernels can serve, but for a reason."""
    if requested == "fused":
        if reason is not None:
            raise IncompatibleError(
                f"the fused backend cannot serve: {reason}; use backend='auto' or 'reference'"
            )
        return BackendChoice("fused", "asked for")
    if reason is not None:
        return BackendChoice("reference", f"the fused backend cannot serve: {reason}")
    width = max(stage.W.pattern.shape[0] for stage in program.stages or ())
    width = max(width, program.layout.width)
    samples, widest, full = CROSSOVERS[row]
    such = f" (up to {samples} samples)" if samples < math.inf else ""
    if full < width <= widest and _mixes(program):
        widest, such = full, " (full J)"
    if width > widest:
        return BackendChoice(
            "reference", f"width {width} is above {widest}{such}: matrix products win"
        )
    return BackendChoice("fused", f"width {width} is at most {widest}{such}")


def _for_compiler(program: Program, x: Tensor, requested: str, owner: int) -> BackendChoice:
    """The choice that a compiler sees: what depends on the program is a constant to it."""
    if requested == "reference":
        return BackendChoice("reference", "asked for")
    reason = _obstacle_of_state(x) or _why_not_operator(owner)
    if requested == "fused" or reason is not None:
        return _by_width(program, requested, reason, -1)
    return BackendChoice(_backend_of_owner(owner, _row(program, x)), "by width")


def takes_own_tensors(x: Tensor, requested: str, owner: int) -> bool:
    """Whether torch.compile may see a call as the operator over a network's own tensors.

    What a compiler traces it checks in every later call, so this is as little as possible.

    Args:
        x: the state.
        requested: "auto", "reference" or "fused".
        owner: the number of the network.

    Returns:
        Whether it may; else `choose` says what is done.

    >>> takes_own_tensors(torch.zeros(3, 4), "reference", owner=0)
    False
    """
    if requested == "reference" or not sees_operators() or x.ndim != 2:
        return False
    if x.shape[1] != operator.own_width(owner) or _obstacle_of_state(x) is not None:
        return False
    if _why_not_operator(owner) is not None:
        return False
    row = 0 if x.shape[0] <= FEW_SAMPLES else 1
    return requested == "fused" or _backend_of_owner(owner, row) == "fused"


@operator.traced_as_constant
def _why_not_operator(owner: int) -> str | None:
    program = operator.program_of(owner)
    return obstacle_of_form(program) or operator.obstacle(program)


@operator.traced_as_constant
def _backend_of_owner(owner: int, row: int) -> str:
    return _by_width(operator.program_of(owner), "auto", None, row).backend


def _row(program: Program, x: Tensor) -> int:
    """The row of `CROSSOVERS` for a state, where every pixel is a sample; -1 if it is empty."""
    layout, count = program.layout, x.numel()
    if layout.ensemble is not None and x.shape[0] == 1:  # one batch for all
        count *= layout.ensemble
    return -1 if count == 0 else 0 if count <= CROSSOVERS[0][0] * layout.width else 1


def _mixes(program: Program) -> bool:
    """Whether some J K' takes more than a few operations for every entry."""
    mixers = [stage.A.S for stage in program.stages or () if isinstance(stage.A, Adjoint)]
    return any(int((S != 0).sum()) > FEW * math.prod(S.shape[:-1]) for S in mixers)
