"""Which backend computes a program: by form, shape, dtype and device; never by timing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.jit import is_tracing  # type: ignore[attr-defined]

from hdnn.errors import IncompatibleError
from hdnn.fields.activations import ACTIVATIONS
from hdnn.fields.maps import Matrix
from hdnn.kernels import native
from hdnn.program import Program, Values

BACKENDS = ("auto", "reference", "fused")
MEMORY = ("fast", "lean")

_KINDS = 256  # of states whose choice is remembered
FEW = 4  # entries of J in a row, on the average, with which it is still sparse
FEW_SAMPLES = 128
WIDEST = {"few": (96, 32), "many": (64, 32)}
"""The widest networks at which the kernels win; beyond, a library's products do.

For up to `FEW_SAMPLES` samples and for more: the widest where J is sparse, or there is none; the
widest where it is full, as then h J K' takes n^3 operations. Measured on 2 cores with AVX-512, see
docs/performance.md; chosen so that float32 and float64 both win.
"""


@dataclass(frozen=True)
class BackendChoice:
    """A backend, and why.

    Args:
        backend: "reference" or "fused".
        reason: in words.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=3, T=1.0)
    >>> net.explain_backend(torch.randn(5, 4)).backend in ("fused", "reference")
    True
    """

    backend: str
    reason: str

    def __str__(self) -> str:
        return f"{self.backend}: {self.reason}"


def obstacle_of_form(program: Program) -> str | None:
    """Why no kernel knows a program, whatever the numbers, or None."""
    if program.has_flows:
        return "it needs a program of stages, and this scheme or field lowers to a flow"
    stages = program.stages
    if not all(isinstance(stage.W, Matrix) for stage in stages):
        kinds = {stage.W.name for stage in stages}
        return f"its kernels multiply by patterned matrices, and K is a {', '.join(sorted(kinds))}"
    for stage in stages:
        sigma = stage.activation
        known = sigma.name in native.ACTIVATIONS and sigma == ACTIVATIONS[sigma.name]
        if not known or sigma != stages[0].activation:
            return f"it knows one of {', '.join(native.ACTIVATIONS)}, and this is {sigma.name}"
    if program.layers == 0 or not any(stage.W.units for stage in stages):
        return "there is nothing to compute"
    return native.obstacle()


def obstacle_of_values(values: Values) -> str | None:
    """Why the kernels cannot take such numbers, or None."""
    S, h = values.S, values.h
    if S is not None and (S.requires_grad or S.ndim > 2):
        return "it needs one constant J, and this one is learned or differs from layer to layer"
    if isinstance(h, Tensor) and h.requires_grad:
        return "it needs fixed steps, and these are learned"
    return None


def _obstacle_of_state(x: Tensor) -> str | None:
    if type(x) not in (Tensor, nn.Parameter):
        return f"it reads memory, and the state is a {type(x).__name__}"
    if x.device.type != "cpu":
        return f"it runs on the CPU, and the state is on {x.device}"
    if x.dtype not in (torch.float32, torch.float64):
        return f"it has kernels for float32 and float64, and the state is {x.dtype}"
    if is_tracing():
        return "torch.jit.trace records only plain torch"
    return "there is nothing to compute" if x.numel() == 0 else None


def choose(program: Program, values: Values, x: Tensor, requested: str) -> BackendChoice:
    """The backend for a program and a state.

    Args:
        program, values, x: what is to be computed.
        requested: "auto", "reference" or "fused"; the last is an error where it cannot serve.

    Returns:
        The backend, and why.

    Raises:
        IncompatibleError: what is asked for cannot serve.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=3, T=1.0)
    >>> y = torch.randn(5, 4)
    >>> hdnn.backends.choose(net.program, net.values(), y, "reference").backend
    'reference'
    """
    S, h = values.S, values.h
    learned = (S is not None and S.requires_grad) or (type(h) is Tensor and h.requires_grad)
    key = requested, type(x), x.shape, x.dtype, x.is_cpu, learned, is_tracing()
    choice: BackendChoice | None = program.choices.get(key)
    if choice is None:
        if len(program.choices) >= _KINDS:
            program.choices.clear()
        choice = program.choices[key] = _choose(program, values, x, requested)
    return choice


def _choose(program: Program, values: Values, x: Tensor, requested: str) -> BackendChoice:
    if requested == "reference":
        return BackendChoice("reference", "asked for")
    reason = obstacle_of_form(program) or obstacle_of_values(values) or _obstacle_of_state(x)
    if requested == "fused":
        if reason is not None:
            raise IncompatibleError(
                f"the fused backend cannot serve: {reason}; use backend='auto' or 'reference'"
            )
        return BackendChoice("fused", "asked for")
    if reason is not None:
        return BackendChoice("reference", f"the fused backend cannot serve: {reason}")
    return _by_width(program, values, x)


def _by_width(program: Program, values: Values, x: Tensor) -> BackendChoice:
    layout = program.layout
    width = max(layout.width, *(stage.W.units for stage in program.stages))
    shared = layout.ensemble is not None and x.shape[0] == 1  # one batch for all
    samples = x.numel() // layout.width * (layout.ensemble or 1 if shared else 1)
    few = samples <= FEW_SAMPLES
    sparse, full = WIDEST["few" if few else "many"]
    widest, such = sparse, f" (up to {FEW_SAMPLES} samples)" if few else ""
    if full < width <= sparse and _mixes(values.S):
        widest, such = full, " (full J)"
    if width > widest:
        return BackendChoice(
            "reference", f"width {width} is above {widest}{such}: matrix products win"
        )
    return BackendChoice("fused", f"width {width} is at most {widest}{such}")


def _mixes(S: Tensor | None) -> bool:
    """Whether S K' takes more than a few operations for every entry."""
    return S is not None and int((S != 0).sum()) > FEW * math.prod(S.shape[:-1])
