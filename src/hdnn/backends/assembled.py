"""Programs whose W, A and b are assembled once, for calls between which no parameter changes.

Nothing here can be differentiated, and nothing notices that a parameter has changed: whoever keeps
an `AssembledProgram` does (`hdnn.models.frozen`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hdnn.backends import reference
from hdnn.backends.selection import choose
from hdnn.program import Program, Stage

Function = Callable[[Tensor], Tensor]

UNARY = {"tanh": "tanh", "relu": "relu", "sigmoid": "sigmoid", "identity": "none"}
"""The activations that oneDNN computes with a convolution, by its names."""

FEWEST_CHANNELS = 8
"""Of an image with fewer, torch's own convolution is faster than oneDNN's."""


def assemble(program: Program, requested: str, memory: str) -> Function:
    """The map y_0 -> y_N of a program of stages, its parameters as they are now.

    Args:
        program: all of whose steps are stages.
        requested, memory: as in `hdnn.backends.run`.

    Returns:
        What `hdnn.backends.run` computes, without its graph.
    """
    if program.layout.kernel > 1 and requested != "fused":
        known = all(stage.activation.name in UNARY for stage in program.stages or ())
        packed = requested == "auto" and known and has_onednn(program.dtype)
        return reference.assembled(program, _convolutional_stage if packed else None)
    kept: list[Function] = []

    def run(x: Tensor) -> Tensor:
        if choose(program, x, requested, memory).backend == "fused":
            return _fused(program, x)
        if not kept:
            kept.append(reference.assembled(program))
        return kept[0](x)

    return run


def _fused(program: Program, x: Tensor) -> Tensor:
    from hdnn.backends import fused  # loads numba

    x, restore = program.layout.flatten(x)
    compiled = fused.compile_program(program, x.dtype, x.device)
    return restore(fused.Call(compiled, x).forward(False))


# --- convolutions ---------------------------------------------------------------------------------


def has_onednn(dtype: torch.dtype | None) -> bool:
    """Whether oneDNN computes convolutions of a dtype together with what follows them.

    Args:
        dtype: of the weights.

    Returns:
        Whether torch has its operators for that.
    """
    if dtype is not torch.float32 or not torch.backends.mkldnn.enabled:
        return False
    library: Any = torch.ops.mkldnn
    names = "_convolution_pointwise", "_convolution_pointwise_", "_reorder_convolution_weight"
    return torch.backends.mkldnn.is_available() and all(hasattr(library, name) for name in names)


def convolution(
    W: Tensor,
    b: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    unary: str,
    channels_last: bool,
) -> Function:
    """x -> sigma(W * x + b) of images, as one call of oneDNN where that is faster.

    Args:
        W: ``(out, in, k, k)``.
        b: ``(out,)``, or None.
        stride, padding: of the convolution.
        unary: "none" or "relu".
        channels_last: whether the channels of a pixel are side by side.

    Returns:
        The function.
    """
    if channels_last and W.shape[1] >= FEWEST_CHANNELS and has_onednn(W.dtype):
        return _onednn(W, b, stride, padding, unary)

    def plain(x: Tensor) -> Tensor:
        y = F.conv2d(x, W, b, stride, padding)
        return y.relu_() if unary == "relu" else y

    return plain


def _onednn(
    W: Tensor, b: Tensor | None, stride: Sequence[int], padding: Sequence[int], unary: str
) -> Function:
    """x -> sigma(W * x + b) by oneDNN."""
    packed, ones = _packed(W, stride, padding), (1, 1)
    # torch's own choice is a slower algorithm where there is a single small image.
    operator: Any = torch.ops.mkldnn._convolution_pointwise.default

    def run(x: Tensor) -> Tensor:
        y: Tensor = operator(x, packed, b, padding, stride, ones, 1, unary, (), "")
        return y

    return run


def _adds_onednn(W: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """(y, x) -> y + W * x by oneDNN, in the memory of y."""
    ones, padding = (1, 1), (W.shape[-1] // 2,) * 2
    packed = _packed(W, ones, padding)
    operator: Any = torch.ops.mkldnn._convolution_pointwise_.binary

    def run(y: Tensor, x: Tensor) -> Tensor:
        operator(y, x, packed, None, padding, ones, ones, 1, "add", 1.0, None, (), None)
        return y

    return run


def _packed(W: Tensor, stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    """A kernel in the order in which oneDNN reads it; the size of images does not matter."""
    size = (1, W.shape[1], 32, 32)
    packed: Tensor = torch.ops.mkldnn._reorder_convolution_weight(
        W.detach().contiguous(), padding, stride, (1, 1), 1, size
    )
    return packed


def _convolutional_stage(
    stage: Stage, W: Tensor, b: Tensor, A: Tensor | float
) -> Callable[[Tensor, Tensor], Tensor]:
    """(x, y) -> carry y + A sigma(W x + b) of a layer, in the memory of y: two calls of oneDNN."""
    stride, padding = (1, 1), (W.shape[-1] // 2,) * 2
    hidden = _onednn(W, b, stride, padding, UNARY[stage.activation.name])
    if isinstance(A, Tensor) and A.ndim:
        if stage.carry:
            add = _adds_onednn(A)
            return lambda x, y: add(y, hidden(x))
        apply = _onednn(A, None, stride, padding, "none")
        return lambda x, y: apply(hidden(x))
    if stage.carry:
        return lambda x, y: y.add_(hidden(x).mul_(A))
    return lambda x, y: hidden(x).mul_(A)
