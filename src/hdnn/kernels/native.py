"""The compiled library, through ctypes: addresses and arrays in, arrays out. No torch in here.

The library is built when hdnn is installed and loaded when it is first used. Where there is none
(no compiler was found), `obstacle` says so, and nothing else in this module may be called.
"""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from collections.abc import Sequence
from ctypes import c_char_p, c_double, c_int, c_int64, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

import hdnn.kernels
from hdnn.errors import IncompatibleError
from hdnn.program import Program

if TYPE_CHECKING:
    from hdnn.fields.maps import Matrix

Array = npt.NDArray[Any]

LOSSES = ("logistic", "softmax", "squared")
SOLVERS = ("newton", "adam")

INTERFACE = 5
"""Of the library that this module calls; see hdnn.h."""

_NAMES = ("libhdnn.so", "libhdnn.dll")  # macOS says .so, too, of what is loaded at run time


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class _Stage(ctypes.Structure):
    _fields_ = [
        *_fields(c_int64, "read reads write writes units adjoint carry"),
        ("factor", c_double),
        *_fields(c_void_p, "W b"),
    ]


class _Problem(ctypes.Structure):
    _fields_ = [
        *_fields(c_int64, "itemsize activation networks layers width stages"),
        *_fields(c_int64, "theta beta period samples pixels"),
        ("stage", ctypes.POINTER(_Stage)),
    ]


class Addresses(ctypes.Structure):
    """Where the numbers of a program are: theta, beta, S, h itself, and the steps of layers."""

    _fields_ = [*_fields(c_void_p, "theta beta S"), ("h", c_double), ("steps", c_void_p)]


class Rollout(ctypes.Structure):
    """The sizes of a recurrence, as the library has them; see `hdnn_rollout` in hdnn.h."""

    _fields_ = [
        *_fields(c_int64, "itemsize activation networks samples steps period hold"),
        *_fields(c_int64, "states units inputs"),
    ]


class Solver(ctypes.Structure):
    """How an output layer is solved, as the library has it; `SolverOptions` has the words."""

    _fields_ = [
        *_fields(c_int64, "solver iterations"),
        *_fields(c_double, "alpha_c tolerance learning_rate"),
    ]


class _Training(ctypes.Structure):
    _fields_ = [
        *_fields(c_int64, "coordinate loss outputs inputs batch count shared_data decoupled"),
        *_fields(c_double, "alpha clip weight_decay"),
        ("output", Solver),
        *_fields(
            c_void_p, "X target weight smoothness repeats parameters first second gradients V"
        ),
    ]


_VALUES = ctypes.POINTER(Addresses)
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "hdnn_plan_new": (c_void_p, [ctypes.POINTER(_Problem)]),
    "hdnn_plan_free": (None, [c_void_p]),
    "hdnn_plan_activations": (c_int64, [c_void_p]),
    "hdnn_forward": (c_int, [c_void_p, _VALUES, *(c_void_p,) * 3, c_int64]),
    "hdnn_backward": (c_int, [c_void_p, _VALUES, *(c_void_p,) * 6, c_int64]),
    "hdnn_jacobians": (
        c_int,
        [c_void_p, _VALUES, *(c_void_p,) * 2, c_int64, *(c_void_p,) * 2, c_int64],
    ),
    "hdnn_rollout_forward": (c_int, [ctypes.POINTER(Rollout), *(c_void_p,) * 6, c_int64]),
    "hdnn_rollout_backward": (c_int, [ctypes.POINTER(Rollout), *(c_void_p,) * 10, c_int64]),
    "hdnn_singular_values": (c_int, [c_void_p, c_int64, c_int64, c_void_p, c_void_p]),
    "hdnn_output_layer": (
        c_int64,
        [ctypes.POINTER(Solver), *(c_int64,) * 4, *(c_void_p,) * 4],
    ),
    "hdnn_train": (
        c_int,
        [
            *(c_void_p, ctypes.POINTER(_Training), _VALUES, c_void_p),
            *(c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_int64),
        ],
    ),
    "hdnn_instruction_set": (c_char_p, []),
    "hdnn_instruction_sets": (c_char_p, []),
    "hdnn_interface": (c_int64, []),
}


@functools.cache
def obstacle() -> str | None:
    """Why there are no kernels, with the remedy, or None."""
    try:
        library()
    except IncompatibleError as error:
        return str(error)
    except (OSError, AttributeError) as error:  # the latter: a library of another version
        return (
            f"the compiled kernels are not there ({error}); install a C++ compiler (gcc or clang) "
            "and hdnn again (pip install --force-reinstall --no-deps --no-cache-dir hdnn)"
        )
    return None


@functools.cache
def library() -> Any:
    """The library; OSError where there is none, IncompatibleError by a wrong HDNN_ISA."""
    override = os.environ.get("HDNN_LIBRARY")  # another build, such as one with a sanitizer
    folders = [Path(folder) for folder in hdnn.kernels.__path__]
    paths = (
        [Path(override)] if override else [folder / name for folder in folders for name in _NAMES]
    )
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise OSError(
            "hdnn was installed without a compiler" if not override else f"no file {override}"
        )
    loaded = ctypes.CDLL(str(path))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    if loaded.hdnn_interface() != INTERFACE:
        raise OSError(f"{path} was built from other sources")
    if loaded.hdnn_instruction_set() is None:
        known = loaded.hdnn_instruction_sets().decode().replace(" ", ", ")
        raise IncompatibleError(
            f"HDNN_ISA={os.environ['HDNN_ISA']!r} is not one of {known}, the instruction sets of "
            "the kernels on this processor; correct or unset HDNN_ISA"
        )
    return loaded


def instruction_set() -> str:
    """The variant of the kernels that runs: "baseline", "avx2" or "avx512"."""
    return str(library().hdnn_instruction_set().decode())


def instruction_sets() -> list[str]:
    """The variants that this processor could run, best first."""
    return str(library().hdnn_instruction_sets().decode()).split()


NO_MEMORY = "there is no memory for the kernels"


def check(code: int) -> None:
    """Raise where a kernel found no memory."""
    if code:
        raise MemoryError(NO_MEMORY)


LEAST, MOST, MOST_WIDE = 64 << 10, 8 << 20, 16 << 20
"""Bytes of activations that a forward pass keeps; the last is of 64 features and more.

To compute few of them again takes as long as to find a buffer. What the last cache does not hold
takes longer to write and read than to compute, unless layers are wide.
"""


class Plan:
    """A program on states of one shape and dtype, as the library knows it.

    Args:
        program: stages of patterned matrices.
        itemsize: 4 or 8, bytes of a number.
        shape: of a canonical state, ``([E,] B, n, *spatial)``.
        period: layer j has the parameters of layer j % period; as many as theta has layers.
    """

    def __init__(self, program: Program, itemsize: int, shape: Sequence[int], period: int) -> None:
        layout, stages = program.layout, program.stages
        W = [cast("Matrix", stage.W).pattern for stage in stages]
        b = [stage.b for stage in stages]
        codes = [np.ascontiguousarray(p.code, dtype=np.int64) for p in (*W, *b)]
        rows = (_Stage * len(stages))()
        for k, stage in enumerate(stages):
            (r0, r1), (w0, w1) = stage.read, stage.write
            rows[k] = _Stage(
                *(r0, r1 - r0, w0, w1 - w0, stage.W.units, stage.adjoint, stage.carry),
                stage.factor,
                codes[k].ctypes.data,
                codes[len(stages) + k].ctypes.data,
            )
        pixels = int(np.prod(shape[layout.axis + 1 :])) if layout.channels else 0
        problem = _Problem(
            itemsize,
            stages[0].activation.code,
            layout.ensemble or 1,
            program.layers,
            layout.width,
            len(stages),
            W[0].size,
            b[0].size,
            period,
            shape[layout.axis - 1],
            pixels,
            rows,
        )
        self.handle = library().hdnn_plan_new(problem)
        check(not self.handle)
        weakref.finalize(self, library().hdnn_plan_free, self.handle)
        self.activations: int = library().hdnn_plan_activations(self.handle)
        """Bytes of the activations of all layers."""
        most = MOST_WIDE if layout.width >= 64 else MOST
        self.keeps = LEAST <= self.activations <= most
        """Whether a forward pass keeps them for its backward pass."""


class _Buffer:
    """Memory that grows to what is wanted."""

    def __init__(self) -> None:
        self.bytes, self.address, self._memory = 0, 0, np.empty(0, np.uint8)

    def reserve(self, size: int) -> None:
        if size > self.bytes:
            self._memory = np.empty(size + 64, np.uint8)
            self.address = (self._memory.ctypes.data + 63) & ~63  # the begin of a cache line
            self.bytes = size


# Fresh pages are slow to touch, so buffers are used again. Four serve a few graphs at a time.
_buffers = [_Buffer() for _ in range(4)]


class Activations:
    """Memory for what one forward pass keeps for its backward pass; `keep` makes it.

    Other passes may have it as soon as this object is gone, with its graph or before.
    """

    __slots__ = ("_buffer", "address", "plan")

    def __init__(self, plan: Plan, buffer: _Buffer) -> None:
        self.plan, self._buffer = plan, buffer
        buffer.reserve(plan.activations)
        self.address = buffer.address

    def __del__(self) -> None:
        _buffers.append(self._buffer)


def keep(plan: Plan) -> Activations | None:
    """Memory for the activations of a plan, or None: they are to be computed again."""
    if not plan.keeps:
        return None
    try:
        buffer = _buffers.pop()
    except IndexError:  # as many graphs are waiting for their backward passes as there are buffers
        return None
    return Activations(plan, buffer)


def singular_values(M: Array) -> tuple[Array, Array]:
    """Largest and smallest singular value of every matrix, in float64.

    Args:
        M: ``(..., n, n)``.

    Returns:
        Two arrays ``(...)``; NaN where a matrix is not finite.
    """
    shape, n = M.shape[:-2], M.shape[-1]
    flat = np.ascontiguousarray(M, np.float64).reshape(-1, n, n)
    largest, smallest = np.empty((2, len(flat)))
    data = (flat.ctypes.data, n, len(flat), largest.ctypes.data, smallest.ctypes.data)
    check(library().hdnn_singular_values(*data))
    return largest.reshape(shape), smallest.reshape(shape)


class SolverOptions(NamedTuple):
    """How an output layer is solved: by "newton" to a tolerance, or by "adam" at a rate."""

    solver: str = "newton"
    iterations: int = 50
    tolerance: float = 1e-9
    learning_rate: float = 0.0

    def with_penalty(self, alpha_c: float) -> Solver:
        """The same with the weight of ||V||^2, as the library takes it."""
        code = SOLVERS.index(self.solver)
        return Solver(code, self.iterations, alpha_c, self.tolerance, self.learning_rate)


def output_layer(
    Z: Array,
    target: Array,
    weight: Array,
    V: Array,
    loss: str,
    alpha_c: float,
    options: SolverOptions,
) -> int:
    """Minimize sum_i w_i loss(V z_i, target_i) + alpha_c ||V||^2 from V, in place.

    Args:
        Z: ``(samples, q)`` in float64, the last column of them 1.
        target: ``(samples, 1)`` class numbers or ``(samples, outputs)`` values, in float64.
        weight: ``(samples,)`` in float64, with sum 1.
        V: ``(outputs, q)`` in float64, contiguous.
        loss: "logistic", "softmax" or "squared".
        alpha_c: weight of ||V||^2.
        options: the solver.

    Returns:
        How many iterations it took.
    """
    Z, target, weight = (np.ascontiguousarray(a, np.float64) for a in (Z, target, weight))
    sizes = (LOSSES.index(loss), *Z.shape, len(V))
    arrays = (a.ctypes.data for a in (Z, target, weight, V))
    iterations = int(library().hdnn_output_layer(options.with_penalty(alpha_c), *sizes, *arrays))
    check(iterations < 0)
    return iterations


class Training:
    """Many steps of Adam in one call; see `hdnn_train` in hdnn.h for the arrays.

    Args:
        plan: of the program; its number of samples does not matter.
        arrays: X, target, weight, smoothness, repeats, parameters, first, second, gradients and V,
            by name; they are kept, and the last five are changed in place.
        settings: the other members of `hdnn_training`, by name.
    """

    def __init__(self, plan: Plan, arrays: dict[str, Array], settings: dict[str, Any]) -> None:
        self.plan, self.arrays = plan, arrays
        for name, array in arrays.items():
            assert array.flags.c_contiguous, name
        self.networks = len(arrays["parameters"])
        where = {name: array.ctypes.data for name, array in arrays.items()}
        self._training = _Training(**settings, **where)

    def run(
        self,
        values: Addresses,
        order: Array,
        first: int,
        rates: Array,
        updates: Array,
        threads: int,
    ) -> Array:
        """Train on the batches first, first + 1, ... of an epoch, one for every learning rate.

        Args:
            values: S and the steps of the program; the parameters are in the arrays.
            order: ``(E or 1, samples)``, in which the samples are gone through.
            first: number of the first batch.
            rates: learning rates.
            updates: ``(E,)``, steps of Adam so far; counted up.
            threads: at most so many.

        Returns:
            ``(E, batches, 3)``: plain and penalized loss of every batch before its step, and how
            many samples it classifies correctly.
        """
        losses = np.full((self.networks, len(rates), 3), np.nan)
        rates = np.ascontiguousarray(rates, np.float64)
        check(
            library().hdnn_train(
                self.plan.handle,
                self._training,
                values,
                order.ctypes.data,
                first,
                len(rates),
                rates.ctypes.data,
                updates.ctypes.data,
                losses.ctypes.data,
                threads,
            )
        )
        return losses
