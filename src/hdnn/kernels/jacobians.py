"""d y_N / d y_l at many depths l: one backward sweep that carries the n rows of the matrix.

The rows of M_l = d y_N / d y_l follow the same recursion as a gradient: M_N = I, and a layer turns
the rows of M_{l+1} into those of M_l as a backward pass turns a gradient. So this kernel is
`hdnn.kernels.passes.backward` with n covectors instead of one and without gradients of parameters.

It serves two purposes, with the same sweep. With room for all matrices it writes them out. Without,
it reduces them where they are made, to their largest and smallest singular values and to the norm
of their mean over the samples: a few numbers a sample and depth leave the cache, so that a training
can be watched while it runs.

    shape .. workspace, team, caller   as in `passes`
    depths      (D,), the depths l, increasing
    states      (E, D, samples, n): y_l; empty if not wanted
    matrices    (E, samples, D, n, n): d y_N / d y_l; empty if they are to be reduced
    extremes    largest and smallest (E, D, samples), of_mean (E, D); empty if not
"""

from typing import NamedTuple

import numpy as np
from numba import boolean, types

from hdnn.kernels import build
from hdnn.kernels.activations import fill
from hdnn.kernels.blocks import (
    PassContext,
    Place,
    Restart,
    SampleBlock,
    Shape,
    block_at,
    chunk_range,
    read_block,
    record,
    restore,
    row_of,
    stage_backward,
    unload,
)
from hdnn.kernels.passes import Workspace, common_types
from hdnn.kernels.rows import extent, source_of
from hdnn.kernels.stage_table import COLUMNS, M, Parameters, R, StageTable
from hdnn.kernels.svd import jacobi
from hdnn.kernels.team import Team, first_piece, next_piece
from hdnn.kernels.tiling import Tiling
from hdnn.kernels.vectors import Array, Pointer, compiled, lanes, pointer

TOGETHER = 256  # matrices whose singular values are found together, in the cache


class Extremes(NamedTuple):
    """What matrices are reduced to."""

    largest: Array
    smallest: Array
    of_mean: Array


class Rows(NamedTuple):
    """Where row i of the matrices of all samples of a block is: at matrix + i // together * size.

    A few samples have several rows side by side in the lanes, which would else be idle.
    """

    matrix: int
    size: int  # numbers of a block
    width: int  # lanes of a block
    samples: int
    together: int  # rows that stand side by side


@compiled
def _entry(rows: Rows, i: int, j: int) -> int:
    """Where the entries (i, j) of the matrices of all samples are."""
    row = rows.matrix + i // rows.together * rows.size
    return row + j * rows.width + i % rows.together * rows.samples


@compiled
def _begin(buffer: Pointer, rows: Rows, n: int) -> None:
    """The identity, for every sample (and in idle lanes, where a row has them to itself)."""
    fill(buffer, rows.matrix, n * rows.size, 0)
    ones = rows.samples if rows.together > 1 else rows.width
    for i in range(n):
        fill(buffer, _entry(rows, i, i), ones, 1)


@compiled
def _repeat(buffer: Pointer, x: int, n: int, width: int, count: int) -> None:
    """Repeat the samples of a block in its idle lanes, where further rows of theirs will stand."""
    for f in range(n):
        for p in range(count, width):
            buffer[x + f * width + p] = buffer[x + f * width + p - count]


@compiled
def _layer_backward(ctx: PassContext, rows: Rows, layer: int, parts: int, d: int, acts: int) -> int:
    """All rows through a layer, backward; returns where its activations begin."""
    row = row_of(ctx, layer)
    for k in range((ctx.source.stages - 1) * COLUMNS, -1, -COLUMNS):
        acts -= (ctx.source.table[k + R] + ctx.source.table[k + M]) * ctx.width
        for i in range(parts):
            g = rows.matrix + i * rows.size
            stage_backward(ctx, k, row, g, d, acts, ctx.buffer, -1, boolean(False))
    return acts


@compiled
def _segment_forward(
    ctx: PassContext,
    low: int,
    high: int,
    x: int,
    acts: int,
    depths: Array,
    states: Array,
    block: SampleBlock,
    start: int,
) -> int:
    """`record` layers low .. high - 1, and write out the states that are asked for on the way."""
    n, at = states.shape[3], 0
    for layer in range(low, high + 1):
        while at < depths.size and depths[at] < layer:
            at += 1
        last = layer == high
        wanted = states.size > 0 and at < depths.size and depths[at] == layer
        if wanted and (not last or layer == ctx.source.layers):
            for p in range(block.samples):
                for f in range(n):
                    states[block.e, at, start + p, f] = ctx.buffer[x + f * block.width + p]
        if not last:
            acts = record(ctx, layer, layer + 1, x, acts)
    return acts


@compiled
def _export(buffer: Pointer, rows: Rows, out: Array, e: int, start: int, at: int) -> None:
    n = out.shape[4]
    for i in range(n):
        for j in range(n):
            entry = _entry(rows, i, j)
            for p in range(rows.samples):
                out[e, start + p, at, i, j] = buffer[entry + p]


@compiled
def _collect(
    buffer: Pointer, rows: Rows, A: Array, slot: int, mean: Array, at: int, samples: int
) -> None:
    """The matrices of one depth into a slot of A, and into their mean over all samples."""
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            entry = _entry(rows, i, j)
            for p in range(rows.samples):
                value = buffer[entry + p]
                A[i, j, slot * rows.samples + p] = value
                mean[i, j, at] += value / samples


@compiled
def _reduce(
    A: Array, top: int, slots: int, start: int, count: int, e: int, extremes: Extremes
) -> None:
    """Singular values of the matrices of depths top, top - 1, ..., one slot of A each."""
    filled = A[:, :, : slots * count].copy() if slots * count < A.shape[2] else A
    work, values = np.empty((4, slots * count)), np.empty((2, slots * count))
    jacobi(filled, work, values[0], values[1])
    for slot in range(slots):
        for p in range(count):
            extremes.largest[e, top - slot, start + p] = values[0, slot * count + p]
            extremes.smallest[e, top - slot, start + p] = values[1, slot * count + p]


def jacobians(
    shape: Shape,
    state: Place,
    depths: Array,
    states: Array,
    matrices: Array,
    extremes: Extremes,
    parameters: Parameters,
    stages: StageTable,
    tiling: Tiling,
    workspace: Workspace,
    team: Team,
    caller: bool,
) -> None:
    """y_l and d y_N / d y_l of every sample, or what the latter are reduced to; see above.

    Where matrices are reduced, a network is one chunk, as it has one mean. In the scratch a block
    has, in this order: its state x, room d for one hidden layer, the matrices, saved states to
    restart from, activations of a segment.
    """
    rows, loaded, scratch = workspace.rows, workspace.loaded, workspace.scratch
    n, capacity, layers = shape[2], rows.size // stages.wire.size, stages.layers
    hidden, _ = extent(stages.table)
    of, buffer, segment, samples = -1, pointer(scratch), tiling.segment, shape[1] * shape[3]
    mean = np.zeros((n, n, depths.size))
    chunk = first_piece(team, caller)
    while chunk >= 0:
        e, lowest, highest = chunk_range(shape, tiling.block, tiling.pieces, chunk)
        if e != of:
            of = unload(loaded, e)
        source = source_of(parameters, stages, e)
        mean[:] = 0
        for index in range(lowest, highest):
            block = block_at(shape, tiling.block, e, index, 2 * lanes(scratch))
            width, size, count = block.width, n * block.width, block.samples
            ctx = PassContext(
                source, pointer(rows), capacity, pointer(loaded), buffer, stages.activation, width
            )
            x, d, matrix, top = 0, size, size + hidden * width, 0
            saved, start = matrix + n * size, block.group * shape[3] + block.first
            restart = Restart(segment, tiling.slots, saved, size)
            read_block(state, n, block, buffer, saved, boolean(True))
            together = n if n * count <= width else 1
            if together > 1:
                _repeat(buffer, saved, n, width, count)
            lines = Rows(matrix, size, width, count, together)
            _begin(buffer, lines, n)
            space = max(1, TOGETHER // count)
            A = np.empty((n, n, space * count if matrices.size == 0 else 0))
            at, slots = depths.size - 1, 0
            for goal in range((layers - 1) // segment, -1, -1):
                low, high = goal * segment, min(layers, (goal + 1) * segment)
                top = restore(ctx, restart, goal, top, x, d)
                acts = _segment_forward(
                    ctx, low, high, x, saved + tiling.slots * size, depths, states, block, start
                )
                for layer in range(high, low - 1, -1):
                    if layer < high:
                        acts = _layer_backward(ctx, lines, layer, n // together, d, acts)
                    elif layer < layers:  # the matrix of this depth was seen in the segment behind
                        continue
                    if at >= 0 and depths[at] == layer:
                        if matrices.size > 0:
                            _export(buffer, lines, matrices, e, start, at)
                        else:
                            _collect(buffer, lines, A, slots, mean, at, samples)
                            slots += 1
                        at -= 1
                    if slots == space or (layer == 0 and slots > 0):
                        _reduce(A, at + slots, slots, start, count, e, extremes)
                        slots = 0
        if matrices.size == 0:
            work, least = np.empty((4, depths.size)), np.empty(depths.size)
            jacobi(mean, work, extremes.of_mean[e], least)
        chunk = next_piece(team, caller)


def jacobians_types(number: types.Float) -> tuple[types.Type, ...]:
    """Of the arguments of `jacobians`."""
    shape, place = types.UniTuple(types.int64, 4), types.UniTuple(types.int64, 5)
    wide = [types.Array(types.float64, d, "C") for d in (2, 3)]
    extremes = build.named(Extremes, wide[1], wide[1], wide[0])
    states, matrices = types.Array(number, 4, "C"), types.Array(number, 5, "C")
    outputs = build.integers, states, matrices, extremes
    return (shape, place, *outputs, *common_types(number), *build.team)


def jacobians_kernel(dtype: str) -> build.Kernel:
    """`jacobians`, compiled for float32 or float64."""
    return build.kernel(jacobians, dtype, jacobians_types)
