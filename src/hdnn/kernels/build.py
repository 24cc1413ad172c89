"""How kernels are compiled: one set of options, and the numba types of what they take."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit, types

from hdnn.kernels.stage_table import Parameters, StageTable

Kernel = Callable[..., None]

integers = types.Array(types.int64, 1, "C")
table = types.Array(types.int64, 2, "C")
team = integers, types.boolean
"""The last two arguments of every kernel that threads share."""


def flat(number: types.Float) -> types.Array:
    """An array of numbers one after the other."""
    return types.Array(number, 1, "C")


def named(kind: type, *members: types.Type) -> types.Type:
    """The numba type of a NamedTuple with members of these types."""
    return types.BaseTuple.from_types(members, kind)


def parameters(number: types.Float, layout: str = "A") -> types.Type:
    """The type of `Parameters`; "A": with any strides."""
    stack, steps = types.Array(number, 3, layout), types.Array(number, 3, "A")
    return named(Parameters, stack, stack, steps, stack, flat(number))


stages = named(StageTable, table, integers, types.int64, types.int64)


@functools.cache
def kernel(function: Kernel, dtype: str, signature: Callable[[types.Float], Any]) -> Kernel:
    """Compile a function, or take it from numba's cache on disk.

    Args:
        function: what is compiled.
        dtype: "float32" or "float64".
        signature: the types of the arguments, given that of the numbers.

    Returns:
        Its entry point, which does not check the types of its arguments: they must be exactly
        those of the signature, and arrays writable. (Dispatching by types, of which there is one
        choice, takes as long as reading the arguments.)
    """
    _announce(function)
    arguments = tuple(signature(getattr(types, dtype)))
    # Divisions as in numpy: x / 0 is infinite, and raises nothing.
    dispatcher = njit(
        types.void(*arguments), nogil=True, cache=True, fastmath={"contract"}, error_model="numpy"
    )(function)
    entry_point: Kernel = dispatcher.overloads[arguments].entry_point
    return entry_point


def _announce(function: Kernel) -> None:
    """Say on a terminal that something is compiled, which takes seconds."""
    file = Path(function.__code__.co_filename)
    cached = (file.parent / "__pycache__").glob(f"{file.stem}.{function.__name__}-*.nbi")
    if sys.stderr.isatty() and not any(cached):
        name = function.__name__.strip("_")
        sys.stderr.write(f"hdnn: compiling the kernel {name!r}, once for this machine ...\n")


def aligned(length: int, dtype: np.dtype | str) -> np.ndarray:
    """Scratch that starts on a cache line: vectors that straddle two lines cost twice."""
    from hdnn.kernels.vectors import VECTOR_BYTES

    size = np.dtype(dtype).itemsize
    raw = np.empty(length + VECTOR_BYTES // size, dtype)
    skip = -raw.ctypes.data % VECTOR_BYTES // size
    return raw[skip : skip + length]
