"""One walk along the depth of a network, compiled: states, and singular values of d y_N / d y_l.

As the kernel of `sensitivities`, but the matrices are reduced where they are made: nothing but two
numbers a sample and depth leaves the cache, so that a training can be watched while it runs.
"""

import functools
from collections.abc import Callable

import numpy as np
from numba import boolean, njit, types

from hdnn.analysis.singular import jacobi
from hdnn.backends.blocks import Walk, record, row_of, stage_backward
from hdnn.backends.rows import extent, source_of
from hdnn.backends.team import Team, first_piece, next_piece
from hdnn.backends.vector.tiles import VECTOR_BYTES, Array, compiled, pointer
from hdnn.backends.wiring import COLUMNS, M, R

BLOCK = 32  # samples that go through the layers together
TOGETHER = 256  # matrices whose singular values are found together, in the cache


def scratch_size(table: Array, n: int, layers: int, samples: int, itemsize: int) -> int:
    """Elements of scratch: a block's state, hidden rows, n covectors of n rows, the tape."""
    width = block_width(samples, itemsize)
    tape = int((table[:, R] + table[:, M]).sum()) * layers
    return (n + int(table[:, M].max()) + n * n + tape) * width


def block_width(samples: int, itemsize: int) -> int:
    """Samples of a block, rounded up to whole vectors."""
    lanes = 2 * VECTOR_BYTES // itemsize
    return -(-min(samples, BLOCK) // lanes) * lanes


@compiled
def _down(
    walk: Walk, x: Array, depths: Array, tape: int, states: Array, first: int, count: int
) -> int:
    """Carry a block to the end, keeping its tape; states[at, sample] at every depth asked for.

    Samples are repeated until the lanes are full.
    """
    n, width, at = x.shape[1], walk.width, 0
    for f in range(n):
        for p in range(width):
            walk.buffer[f * width + p] = x[first + p % count, f]
    for layer in range(walk.source.layers + 1):
        if at < depths.size and depths[at] == layer:
            for p in range(count):
                for f in range(n):
                    states[at, first + p, f] = walk.buffer[f * width + p]
            at += 1
        if layer < walk.source.layers:
            tape = record(walk, layer, layer + 1, 0, tape)
    return tape


@compiled
def _pull(walk: Walk, layer: int, matrix: int, size: int, parts: int, kept: int) -> int:
    """The rows of the matrix through a layer, backward; returns where its tape begins."""
    row = row_of(walk, layer)
    for k in range((walk.source.stages - 1) * COLUMNS, -1, -COLUMNS):
        kept -= (walk.source.table[k + R] + walk.source.table[k + M]) * walk.width
        for i in range(parts):
            g = matrix + i * size
            stage_backward(walk, k, row, g, size, kept, walk.buffer, -1, boolean(False))
    return kept


@compiled
def _reduce(
    A: Array, top: int, slots: int, start: int, count: int, largest: Array, smallest: Array
) -> None:
    """Singular values of the matrices of depths top, top - 1, ..., one slot of A each."""
    filled = A[:, :, : slots * count].copy() if slots * count < A.shape[2] else A
    work, found = np.empty((4, slots * count)), np.empty((2, slots * count))
    jacobi(filled, work, found[0], found[1])
    for slot in range(slots):
        for p in range(count):
            largest[top - slot, start + p] = found[0, slot * count + p]
            smallest[top - slot, start + p] = found[1, slot * count + p]


@compiled
def _row(matrix: int, i: int, j: int, together: int, count: int, width: int, size: int) -> int:
    """Where entries (i, j) of the matrices are, `together` rows side by side in the lanes."""
    return matrix + i // together * size + j * width + i % together * count


def _walk(
    X: Array, theta: Array, beta: Array, steps: Array, dense: Array, wire: Array, mixing: Array,
    table: Array, depths: Array, scratch: Array, code: int, layers: int, width: int,
    states: Array, largest: Array, smallest: Array, of_mean: Array, team: Team, caller: bool,
) -> None:  # fmt: skip
    """y_l and the extreme singular values of d y_N / d y_l by sample, of the networks taken.

    states[e, at, sample], largest and smallest[e, at, sample], of_mean[e, at] for l = depths[at].
    """
    samples, n = X.shape[1], X.shape[2]
    rows, held = np.empty(layers * wire.size, theta.dtype), np.zeros(2, np.int64)
    size, hidden = n * width, extent(table)[0] * width
    e = first_piece(team, caller)
    while e >= 0:
        held[1] = 0
        source = source_of(theta, beta, steps, dense, mixing, wire, table, layers, e)
        walk = Walk(source, pointer(rows), layers, pointer(held), pointer(scratch), code, width)
        mean = np.zeros((n, n, depths.size))
        for start in range(0, samples, width):
            count = min(width, samples - start)
            matrix, room = size + hidden, max(1, TOGETHER // count)
            # Row i of the matrices of all samples; a few samples have several rows side by side.
            together = n if n * count <= width else 1
            parts = n // together
            A = np.empty((n, n, room * count))
            x = X[e if X.shape[0] > 1 else 0]
            kept = _down(walk, x, depths, matrix + n * size, states[e], start, count)
            scratch[matrix : matrix + n * size] = 0
            for i in range(n):
                one = _row(matrix, i, i, together, count, width, size)
                scratch[one : one + (count if together > 1 else width)] = 1
            at, slots = depths.size - 1, 0
            for layer in range(layers, -1, -1):
                if layer < layers:
                    kept = _pull(walk, layer, matrix, size, parts, kept)
                if at >= 0 and depths[at] == layer:
                    for i in range(n):
                        for j in range(n):
                            entries = _row(matrix, i, j, together, count, width, size)
                            for p in range(count):
                                value = scratch[entries + p]
                                A[i, j, slots * count + p] = value
                                mean[i, j, at] += value / samples
                    slots += 1
                    at -= 1
                if slots == room or (layer == 0 and slots > 0):
                    _reduce(A, at + slots, slots, start, count, largest[e], smallest[e])
                    slots = 0
        jacobi(mean, np.empty((4, depths.size)), of_mean[e], np.empty(depths.size))
        e = next_piece(team, caller)


@functools.cache
def kernel(dtype: str) -> Callable[..., None]:
    """`_walk` compiled for float32 or float64, from numba's cache on disk if it is there."""
    number = getattr(types, dtype)
    stack, flat = types.Array(number, 3, "A"), types.Array(number, 1, "C")
    wide = [types.Array(types.float64, d, "C") for d in (2, 3)]
    ints = [types.Array(types.int64, d, "C") for d in (1, 2)]
    signature = types.void(
        types.Array(number, 3, "C"), *(stack,) * 4, ints[0], flat, ints[1], ints[0], flat,
        *(types.int64,) * 3, types.Array(number, 4, "C"), wide[1], wide[1], wide[0],
        ints[0], types.boolean,
    )  # fmt: skip
    compile_for: Callable[[Callable[..., None]], Callable[..., None]] = njit(
        signature, nogil=True, cache=True, fastmath={"contract"}
    )
    return compile_for(_walk)
