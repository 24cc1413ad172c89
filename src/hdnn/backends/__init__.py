"""How a program is computed.

`reference` is plain torch and the specification; `fused` is compiled kernels on the CPU;
`checkpointed` is plain torch with memory that does not grow with depth.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from hdnn.backends import operator, reference
from hdnn.backends.selection import BACKENDS, MEMORY, BackendChoice, choose, takes_own_tensors
from hdnn.program import Program

__all__ = [
    "BACKENDS",
    "MEMORY",
    "BackendChoice",
    "choose",
    "operator",
    "reference",
    "run",
    "takes_own_tensors",
]


def run(
    program: Program,
    x: Tensor,
    requested: str = "auto",
    memory: str = "fast",
    owner: int | None = None,
) -> Tensor:
    """The state after the last layer, by the backend that `choose` gives.

    Args:
        program: what is computed.
        x: y_0, ``(..., n)`` or ``(B, n, *spatial)``.
        requested: "auto", "reference" or "fused".
        memory: "fast" or "lean".
        owner: the number of whose program it is (see `operator`), for torch.compile.

    Returns:
        y_N, in the shape of x.

    Raises:
        IncompatibleError: the backend or the memory asked for cannot serve.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=3, T=1.0)
    >>> y = torch.randn(5, 4)
    >>> torch.allclose(hdnn.backends.run(net.program(), y, "reference"), net(y), atol=1e-5)
    True
    """
    backend = choose(program, x, requested, memory, owner).backend
    if backend == "reference":
        return reference.run(program, x)
    if owner is not None and backend == "fused" and torch.compiler.is_compiling():
        return operator.run(program, x, owner)
    return _runner(backend)(program, x)


@functools.cache
def _runner(backend: str) -> Callable[[Program, Tensor], Tensor]:
    if backend == "checkpointed":
        from hdnn.backends import checkpointed

        return checkpointed.run
    from hdnn.backends import fused  # loads numba

    return fused.run
