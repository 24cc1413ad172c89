"""How a program is computed.

`reference` is plain torch and the specification, `fused` is compiled kernels on the CPU; `choose`
says which, and why.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hdnn.backends import fused, reference
from hdnn.backends.selection import BACKENDS, MEMORY, BackendChoice, choose, choose_rollout
from hdnn.program import Program, Recurrence, Values

__all__ = [
    "BACKENDS",
    "MEMORY",
    "BackendChoice",
    "choose",
    "choose_rollout",
    "fused",
    "reference",
    "rollout",
    "run",
    "trajectory",
]


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
    choice = choose(program, values, x, requested)
    if choice.backend == "reference":
        return reference.run(program, values, x, memory)
    if choice.explicit:
        return fused.run_explicit(program, values, x)
    if torch.compiler.is_compiling():
        from hdnn.backends import operator

        return operator.run(program, values, x)
    return fused.run(program, values, x)


def trajectory(program: Program, values: Values, x: Tensor, requested: str = "auto") -> Tensor:
    """The states after all layers, by the backend that `choose` gives.

    Args:
        program, values, x, requested: as of `run`.

    Returns:
        ``(layers + 1, ...)``: y_0 to y_N.

    Raises:
        IncompatibleError: the requested backend cannot serve.

    >>> import hdnn
    >>> net = hdnn.network("H1", features=4, layers=3, T=1.0)
    >>> hdnn.backends.trajectory(net.program, net.values(), torch.zeros(5, 4)).shape
    torch.Size([4, 5, 4])
    """
    if choose(program, values, x, requested).backend == "reference":
        return reference.trajectory(program, values, x)
    return fused.trajectory(program, values, x)


def rollout(
    recurrence: Recurrence, x: Tensor, u: Tensor | None = None, requested: str = "auto"
) -> tuple[Tensor, Tensor]:
    """All states of a recurrence, by the backend that `choose_rollout` gives.

    Args:
        recurrence: what is computed.
        x: x_0, ``([E,] B, n)``.
        u: inputs ``([E,] B, times, d)``, or None where there are none.
        requested: "auto", "reference" or "fused".

    Returns:
        x_0 to x_{T-1}, ``([E,] B, T, n)``, and x_T, ``([E,] B, n)``.

    Raises:
        HdnnError: states or inputs have other shapes than the recurrence's.
        IncompatibleError: the requested backend cannot serve.

    >>> import hdnn
    >>> net = hdnn.network("H1", features=4, layers=3, T=1.0)
    >>> states, last = rollout(hdnn.program.explicit(net.program, net.values()), torch.zeros(5, 4))
    >>> states.shape, last.shape
    (torch.Size([5, 3, 4]), torch.Size([5, 4]))
    """
    if choose_rollout(recurrence, x, u, requested).backend == "reference":
        return reference.rollout(recurrence, x, u)
    if torch.compiler.is_compiling():
        from hdnn.backends import operator

        return operator.rollout(recurrence, x, u)
    return fused.rollout(recurrence, x, u)
