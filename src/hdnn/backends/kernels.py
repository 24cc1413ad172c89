"""Fused CPU kernels: a program carried through all layers, one cache-sized block at a time.

Every stage of every layer is x[write] = c x[write] + A sigma(W x[read] + b). Arrays only; no torch
and no threads: the caller runs ranges of chunks on as many threads as it likes, and gets the same
bits for any number of them.

    packed   (E, L, P)           all parameters of one layer in a row, as `assemble` fills it
    state    (E, G, n, samples)  any strides: images (E, B, n, pixels); rows as (E, 1, n, B)
    partial  (pieces, E, L, P)   gradients of packed, by chunk; `disassemble` adds them in order
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import boolean, njit, types

from hdnn.backends.blocks import (
    Walk,
    chunk_range,
    layers_forward,
    place,
    place_of,
    read_block,
    record,
    restore,
    row_of,
    stage_backward,
    write_block,
)
from hdnn.backends.rows import M, R, assemble, disassemble
from hdnn.backends.vector.tiles import VECTOR_BYTES, Array, compiled

BUDGET = 512 * 1024  # bytes of scratch a thread, whatever the depth
PARTIAL = 1024 * 1024  # bytes of partial gradients, where two chunks take no more
CHUNKS = 8  # enough to share among threads, few enough that adding partial gradients costs nothing


class Plan(NamedTuple):
    """How one call is cut up: a function of shapes only, never of the number of threads."""

    block: int  # samples that go through the layers together
    segment: int  # layers whose activations are kept at once while going backward
    slots: int  # block states kept to restart from
    pieces: int  # chunks per network; chunks in all: networks * pieces
    scratch: int  # elements of scratch a thread needs
    blocks: int  # blocks per network
    keep: int  # elements that keep all activations of a block, 0 where its scratch does not


def plan(table: Array, shape: tuple[int, ...], layers: int, itemsize: int, pulled: int = 1) -> Plan:
    """Choose blocks, segments and chunks for a state of `shape` (E, groups, n, samples).

    `pulled` is the number of covectors carried backward: 1 for gradients, n for sensitivities.
    """
    networks, groups, n, samples = shape
    lanes = 2 * VECTOR_BYTES // itemsize
    tape = int((table[:, R] + table[:, M]).sum())  # rows kept per layer
    fixed = (1 + pulled) * n + int(table[:, M].max())  # x, covectors, one stage's hidden rows
    deep = max(1, math.isqrt(layers * n // tape))  # segments and saved states smallest together
    # Best first: all activations at once, also with a smaller block; else save states, and go
    # forward twice.
    for vectors, segment in ((4, layers), (2, layers), (4, deep), (2, deep), (1, deep)):
        block = min(vectors, -(-samples // lanes)) * lanes
        slots = -(-layers // segment)
        if (fixed + segment * tape + slots * n) * block * itemsize <= BUDGET:
            break
    else:  # deeper still: fewer saved states than segments, more passes (or n is very large)
        rows = BUDGET // (itemsize * block) - fixed
        segment = max(1, rows // 2 // tape)
        slots = min(-(-layers // segment), max(8, (rows - segment * tape) // n))
    room = PARTIAL // (networks * layers * (tape * n) * itemsize)
    blocks = groups * -(-samples // block)
    pieces = min(blocks, -(-CHUNKS // networks), max(2, room))
    scratch = (fixed + segment * tape + slots * n) * block
    return Plan(block, segment, slots, pieces, scratch, blocks, scratch if slots == 1 else 0)


def aligned(length: int, dtype: np.dtype | str) -> Array:
    """Scratch that starts on a cache line: vectors that straddle two lines cost twice."""
    size = np.dtype(dtype).itemsize
    raw = np.empty(length + VECTOR_BYTES // size, dtype)
    skip = -raw.ctypes.data % VECTOR_BYTES // size
    return raw[skip : skip + length]


def _forward(
    state: Array, out: Array, packed: Array, table: Array, scratch: Array, code: int, block: int,
    pieces: int, keep: int, first: int, last: int,
) -> None:  # fmt: skip
    """out = program(state) for chunks first <= chunk < last.

    With `keep`, every block has as many numbers of the scratch to itself, and leaves there what
    `_backward` would recompute.
    """
    hidden = table[:, M].max()
    for chunk in range(first, last):
        e, begin, end = chunk_range(state.shape, block, pieces, chunk)
        for index in range(begin, end):
            group, start, count, width = place(state, block, index)
            walk = Walk(table, packed, scratch, code, e, width)
            x, size = place_of(state, block, e, index) * keep, state.shape[2] * width
            read_block(state, e, group, start, count, scratch, x, width, boolean(True))
            if keep:
                record(walk, 0, packed.shape[1], x, x + 3 * size + hidden * width)
            else:
                layers_forward(walk, 0, packed.shape[1], x, x + size)
            write_block(scratch, x, width, out, e, group, start, count)


def _backward(
    state: Array, gout: Array, gstate: Array, partial: Array, packed: Array, table: Array,
    scratch: Array, code: int, gains: bool, block: int, segment: int, slots: int, pieces: int,
    keep: int, first: int, last: int,
) -> None:  # fmt: skip
    """Gradients of <gout, program(state)>: gstate and partial, for chunks first <= chunk < last.

    Recomputes the states of each block, unless `_forward` has left them with the same `keep`.
    `gains` asks for the gradients of scalar gains too.
    """
    n, layers, hidden = state.shape[2], packed.shape[1], table[:, M].max()
    tape = (table[:, R] + table[:, M]).sum()
    marks = np.zeros(slots, np.int64)
    for chunk in range(first, last):
        e, begin, end = chunk_range(state.shape, block, pieces, chunk)
        partial[chunk % pieces, e] = 0
        grads = (chunk % pieces * partial.shape[1] + e) * layers * packed.shape[2]
        for index in range(begin, end):
            group, start, count, width = place(state, block, index)
            walk = Walk(table, packed, scratch, code, e, width)
            size, x = n * width, place_of(state, block, e, index) * keep
            g, d, saved, top = x + size, x + 2 * size, x + 2 * size + hidden * width, 0
            if not keep:
                read_block(state, e, group, start, count, scratch, saved, width, boolean(True))
            read_block(gout, e, group, start, count, scratch, g, width, boolean(False))
            for goal in range((layers - 1) // segment, -1, -1):
                stop = min(layers, (goal + 1) * segment)
                if keep:
                    kept = saved + size + layers * tape * width
                else:
                    top = restore(walk, goal, segment, marks, top, x, d, saved, size)
                    kept = record(walk, goal * segment, stop, x, saved + slots * size)
                for layer in range(stop - 1, goal * segment - 1, -1):
                    at = grads + layer * packed.shape[2]
                    for k in range(table.shape[0] - 1, -1, -1):
                        stage = table[k]
                        kept -= (stage[R] + stage[M]) * width
                        row = row_of(walk, layer)
                        stage_backward(walk, stage, row, g, d, kept, partial, at, gains)
            write_block(scratch, g, width, gstate, e, group, start, count)


def _sensitivities(
    state: Array, out: Array, packed: Array, table: Array, scratch: Array, code: int, block: int,
    segment: int, slots: int, pieces: int, first: int, last: int,
) -> None:  # fmt: skip
    """out[e, sample, l, i, j] = d y_N[i] / d y_l[j], l = 0 .. L, for chunks first <= chunk < last.

    One backward sweep that pulls the n rows of the matrix as `_backward` pulls a gradient.
    """
    n, layers, hidden = state.shape[2], packed.shape[1], table[:, M].max()
    marks = np.zeros(slots, np.int64)
    for chunk in range(first, last):
        e, begin, end = chunk_range(state.shape, block, pieces, chunk)
        for index in range(begin, end):
            group, start, count, width = place(state, block, index)
            walk = Walk(table, packed, scratch, code, e, width)
            size, sample = n * width, group * state.shape[3] + start
            x, d, matrix, top = 0, size, size + hidden * width, 0
            saved = matrix + n * size
            read_block(state, e, group, start, count, scratch, saved, width, boolean(True))
            scratch[matrix:saved] = 0
            for i in range(n):
                one = matrix + i * (size + width)
                scratch[one : one + width] = 1
            _export(scratch, matrix, width, out, e, sample, count, layers)
            for goal in range((layers - 1) // segment, -1, -1):
                top = restore(walk, goal, segment, marks, top, x, d, saved, size)
                stop = min(layers, (goal + 1) * segment)
                kept = record(walk, goal * segment, stop, x, saved + slots * size)
                for layer in range(stop - 1, goal * segment - 1, -1):
                    for k in range(table.shape[0] - 1, -1, -1):
                        stage = table[k]
                        kept -= (stage[R] + stage[M]) * width
                        for i in range(n):
                            g, row = matrix + i * size, row_of(walk, layer)
                            stage_backward(walk, stage, row, g, d, kept, scratch, -1, False)
                    _export(scratch, matrix, width, out, e, sample, count, layer)


@compiled
def _export(
    buffer: Array, matrix: int, width: int, out: Array, e: int, start: int, count: int, layer: int
) -> None:
    n = out.shape[4]
    for p in range(count):
        for i in range(n):
            for j in range(n):
                out[e, start + p, layer, i, j] = buffer[matrix + (i * n + j) * width + p]


def _signatures(
    number: types.Float,
) -> dict[str, tuple[Callable[..., None], tuple[types.Type, ...]]]:
    """Python function and argument types of each kernel: fixed, so that each compiles only once."""
    table, wire = types.Array(types.int64, 2, "C"), types.Array(types.int64, 1, "C")
    stack, state = types.Array(number, 3, "A"), types.Array(number, 4, "A")
    flat, packed, partial, matrices = (types.Array(number, d, "C") for d in (1, 3, 4, 5))
    ints = (types.int64,) * 7
    return {
        "assemble": (assemble, (*(stack,) * 4, wire, flat, table, packed)),
        "disassemble": (
            disassemble,
            (partial, packed, stack, wire, flat, table, *(stack,) * 4),
        ),
        "forward": (_forward, (state, state, packed, table, flat, *ints[:6])),
        "backward": (
            _backward,
            (*(state,) * 3, partial, packed, table, flat, types.int64, types.boolean, *ints),
        ),
        "sensitivities": (
            _sensitivities,
            (state, matrices, packed, table, flat, *ints),
        ),
    }


@functools.cache
def kernel(name: str, dtype: str) -> Callable[..., None]:
    """The compiled kernel `name` for float32 or float64, from numba's cache on disk if it is there.

    Names: assemble, disassemble, forward, backward, sensitivities. Arrays must be writable.
    """
    function, arguments = _signatures(getattr(types, dtype))[name]
    signature = types.void(*arguments)
    compile_for: Callable[[Callable[..., None]], Callable[..., None]] = njit(
        signature, nogil=True, cache=True, fastmath={"contract"}
    )
    return compile_for(function)
