"""Which backend computes a program: by form, shape, dtype and device; never by timing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hdnn.errors import IncompatibleError
from hdnn.fields.activations import ACTIVATIONS
from hdnn.fields.maps import Matrix
from hdnn.kernels import native
from hdnn.program import Program, Values

BACKENDS = ("auto", "reference", "fused")
MEMORY = ("fast", "lean")

WIDEST = 96
"""The widest networks that "auto" leaves to the kernels; beyond, a library's products may win.

With AVX-512 the kernels still win at this width: 1.4 to 8 times, in batches of 10 to 4096. With
AVX2 they win in small batches and draw level in large ones, but for a full J, by which they
multiply every sample: steps of 1000 samples then take up to 1.4 times as long. Measured in
processor time on one thread.
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


def obstacle_of_state(x: Tensor) -> str | None:
    """Why the kernels cannot take such a state, or None."""
    if x.device.type != "cpu":
        return f"it runs on the CPU, and the state is on {x.device}"
    if x.dtype not in (torch.float32, torch.float64):
        return f"it has kernels for float32 and float64, and the state is {x.dtype}"
    return "there is nothing to compute" if x.numel() == 0 else None


def width_of(program: Program) -> int:
    """The width of a program that the kernels know: of its state or of its hidden units."""
    return max(program.layout.width, *(stage.W.units for stage in program.stages))


def choose(program: Program, values: Values, x: Tensor, requested: str) -> BackendChoice:
    """The backend for a program and a state.

    Args:
        program, values, x: what is to be computed.
        requested: "auto", "reference" or "fused"; the last is an error where it cannot serve.

    Returns:
        The backend, and why.

    Raises:
        IncompatibleError: the requested backend cannot serve.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=3, T=1.0)
    >>> y = torch.randn(5, 4)
    >>> hdnn.backends.choose(net.program, net.values(), y, "reference").backend
    'reference'
    """
    S, h = values.S, values.h
    learned = (S is not None and S.requires_grad) or (type(h) is Tensor and h.requires_grad)
    # All that `_choose` looks at, but for the form, which is the program's.
    key = requested, type(x), x.dtype, x.is_cpu, x.numel() == 0, learned
    choice: BackendChoice | None = program.choices.get(key)
    if choice is None:
        choice = program.choices[key] = _choose(program, values, x, requested)
    return choice


def _choose(program: Program, values: Values, x: Tensor, requested: str) -> BackendChoice:
    if requested == "reference":
        return BackendChoice("reference", "requested")
    reason = obstacle_of_form(program) or obstacle_of_values(values) or obstacle_of_state(x)
    if type(x) not in (Tensor, nn.Parameter):
        reason = f"it reads memory, and the state is a {type(x).__name__}"
    if requested == "fused":
        if reason is not None:
            raise IncompatibleError(
                f"the fused backend cannot serve: {reason}; use backend='auto' or 'reference'"
            )
        return BackendChoice("fused", "requested")
    if reason is not None:
        return BackendChoice("reference", f"the fused backend cannot serve: {reason}")
    width = width_of(program)
    if width > WIDEST:
        return BackendChoice("reference", f"width {width} is above {WIDEST}: matrix products win")
    return BackendChoice("fused", f"width {width} is at most {WIDEST}")
