"""Programs whose W, A and b are assembled once, for calls between which no parameter changes.

Nothing here can be differentiated, and nothing notices that a parameter has changed: whoever keeps
what `assemble` returns does (`hdnn.models.frozen`).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from hdnn.backends import reference
from hdnn.backends.selection import choose
from hdnn.program import Program


def assemble(program: Program, requested: str, memory: str) -> Callable[[Tensor], Tensor]:
    """The map y_0 -> y_N of a program of stages, its parameters as they are now.

    Args:
        program: all of whose steps are stages.
        requested, memory: as in `hdnn.backends.run`.

    Returns:
        What `hdnn.backends.run` computes, without its graph.
    """
    kept: list[Callable[[Tensor], Tensor]] = []

    def run(x: Tensor) -> Tensor:
        if choose(program, x, requested, memory).backend == "fused":
            return _fused(program, x)
        if not kept:
            kept.append(reference.assembled(program))
        return kept[0](x)

    return run


def _fused(program: Program, x: Tensor) -> Tensor:
    from hdnn.backends.compiled_program import compile_program
    from hdnn.backends.fused import Call  # loads numba

    x, restore = program.layout.flatten(x)
    return restore(Call(compile_program(program, x.dtype, x.device), x).forward(False))
