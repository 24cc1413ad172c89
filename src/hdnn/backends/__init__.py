"""How a program is computed.

`reference` is plain torch and the specification, `fused` is compiled kernels on the CPU; `choose`
says which, and why.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hdnn.backends import fused, reference
from hdnn.backends.selection import BACKENDS, MEMORY, BackendChoice, choose
from hdnn.program import Program, Values

__all__ = ["BACKENDS", "MEMORY", "BackendChoice", "choose", "fused", "reference", "run"]


def run(
    program: Program, values: Values, x: Tensor, requested: str = "auto", memory: str = "fast"
) -> Tensor:
    """The state after the last layer, by the backend that `choose` gives.

    Args:
        program, values: what is computed.
        x: y_0, ``(..., n)`` or ``(B, n, *spatial)``.
        requested: "auto", "reference" or "fused".
        memory: "fast" or "lean".

    Returns:
        y_N, in the shape of x.

    Raises:
        IncompatibleError: the requested backend cannot serve.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=3, T=1.0)
    >>> y = torch.randn(5, 4)
    >>> out = hdnn.backends.run(net.program, net.values(), y, "reference")
    >>> torch.allclose(out, net(y), atol=1e-5)
    True
    """
    if choose(program, values, x, requested).backend == "reference":
        return reference.run(program, values, x, memory)
    if torch.compiler.is_compiling():
        from hdnn.backends import operator

        return operator.run(program, values, x)
    return fused.run(program, values, x)
