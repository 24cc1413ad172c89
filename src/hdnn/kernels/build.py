"""How kernels are compiled: one set of options, and the numba types of what they take."""

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from numba import types

from hdnn.kernels import background
from hdnn.kernels.cache import cached
from hdnn.kernels.stage_table import Parameters, StageTable
from hdnn.progress import announce

Kernel = Callable[..., None]

SECONDS = {
    "forward": 6,
    "backward": 10,
    "epoch": 15,
    "joint_steps": 15,
    "jacobians": 10,
    "newton": 3,
    "predict": 5,
    "predict_images": 5,
    "adam": 1,
}
"""How long kernels compile on a machine of 2020, alone."""

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
    arguments = tuple(signature(getattr(types, dtype)))
    name = function.__name__
    if background.is_busy(name, dtype):
        with announce(_step(name)):
            background.wait(name, dtype)
    # Divisions as in numpy: x / 0 is infinite, and raises nothing.
    dispatcher = compile_now(function, types.void(*arguments), dtype, error_model="numpy")
    entry_point: Kernel = dispatcher.overloads[arguments].entry_point
    return entry_point


def compile_now(
    function: Callable[..., Any], signature: Any, dtype: str = "float64", **options: Any
) -> Any:
    """Compile a function for one signature, which is announced, or take it from the cache.

    Args:
        function: what is compiled.
        signature: of numba.
        dtype: of the numbers.
        options: of numba, beside those that all kernels have.

    Returns:
        numba's dispatcher, which takes nothing else.
    """
    dispatcher: Any = cached(nogil=True, fastmath={"contract"}, **options)(function)
    with ExitStack() as step:

        def missing() -> None:
            step.enter_context(announce(_step(function.__name__)))
            step.enter_context(_uncollected())
            background.begin_beside(function.__name__, dtype)

        dispatcher._cache.missing = missing
        dispatcher.compile(signature)
    dispatcher.disable_compile()
    return dispatcher


def _step(name: str) -> str:
    return f"compiling {name!r}, once for this machine, about {SECONDS.get(name, 5)} s"


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without looking for garbage: a tenth of the time of compiling, and it makes little."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def aligned(length: int, dtype: np.dtype | str) -> np.ndarray:
    """Scratch that starts on a cache line: vectors that straddle two lines cost twice."""
    from hdnn.kernels.vectors import VECTOR_BYTES

    size = np.dtype(dtype).itemsize
    raw = np.empty(length + VECTOR_BYTES // size, dtype)
    skip = -raw.ctypes.data % VECTOR_BYTES // size
    return raw[skip : skip + length]
