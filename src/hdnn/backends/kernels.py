"""Fused CPU kernels: a program carried through all layers, one cache-sized block at a time.

Every stage of every layer is x[write] = c x[write] + A sigma(W x[read] + b). Arrays only; no torch
and no threads: the caller runs a kernel on as many threads as it likes, which share its chunks (see
`hdnn.backends.team`), and gets the same bits for any number of them.

    theta .. table   the parameters, see `hdnn.backends.rows.Source`
    shape    (E, G, n, samples) of a state: images are (E, B, n, pixels), rows (E, 1, n, B)
    state    the place of one, with any strides
    rows     room for the rows of some layers
    marks    which layers these are, and room for the places to restart from
    scratch  room for blocks
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import boolean, njit, types

from hdnn.backends.blocks import (
    Place,
    Shape,
    Walk,
    begin,
    block_at,
    chunk_range,
    layers_forward,
    number_of,
    read_block,
    record,
    restore,
    row_of,
    stage_backward,
    write_block,
)
from hdnn.backends.rows import Gradients, Stack, disassemble, extent, source_of
from hdnn.backends.team import Team, first_piece, next_piece
from hdnn.backends.vector.elementwise import fill
from hdnn.backends.vector.tiles import (
    VECTOR_BYTES,
    Array,
    Pointer,
    compiled,
    lanes,
    pasted,
    pointer,
    pointer_to,
    shifted,
)
from hdnn.backends.wiring import AT_B, COLUMNS, M, R

BUDGET = 512 * 1024  # bytes of scratch a thread, whatever the depth
WINDOW = 64 * 1024  # bytes of rows up to which a thread holds those of all layers at once
PARTIAL = 512 * 1024  # bytes of partial gradients, where those of one chunk take no more
CHUNKS = 16  # enough to share among threads, few enough that adding partial gradients costs nothing


Sums = tuple[int, int, int, int]
"""Addresses of the gradients of theta, beta, steps and dense of all networks, each in one piece."""


class Plan(NamedTuple):
    """How one call is cut up: a function of shapes only, never of the number of threads."""

    block: int  # samples that go through the layers together
    segment: int  # layers whose activations are kept at once while going backward
    slots: int  # block states kept to restart from
    window: int  # layers whose rows are held at once: all, or a segment
    pieces: int  # chunks per network; chunks in all: networks * pieces
    scratch: int  # elements of scratch a thread needs
    blocks: int  # blocks per network
    keep: int  # elements that keep all activations of a block, 0 where its scratch does not


def plan(
    table: Array, shape: tuple[int, ...], layers: int, itemsize: int, pulled: int = 1,
    filling: float = 1.0,
) -> Plan:  # fmt: skip
    """Choose blocks, segments and chunks for a state of `shape` (E, groups, n, samples).

    `pulled` is the number of covectors carried backward: 1 for gradients, n for sensitivities;
    `filling` what it takes to fill an entry of a row: the more, the less often it is done.
    """
    networks, groups, n, samples = shape
    lanes = 2 * VECTOR_BYTES // itemsize
    tape = int((table[:, R] + table[:, M]).sum())  # rows kept per layer
    fixed = (1 + pulled) * n + int(table[:, M].max())  # x, covectors, one stage's hidden rows
    deep = max(1, math.isqrt(layers * n // tape))  # segments and saved states smallest together
    # Best first: all activations at once, also with a smaller block; else save states, and go
    # forward twice.
    for vectors, segment in ((4, layers), (2, layers), (3, deep), (2, deep), (1, deep)):
        block = min(vectors, -(-samples // lanes)) * lanes
        slots = -(-layers // segment)
        if (fixed + segment * tape + slots * n) * block * itemsize <= BUDGET:
            break
    else:  # deeper still: fewer saved states than segments, more passes (or n is very large)
        rows = BUDGET // (itemsize * block) - fixed
        segment = max(1, rows // 2 // tape)
        slots = min(-(-layers // segment), max(8, (rows - segment * tape) // n))
    size = int((table[:, AT_B] + table[:, M]).max())
    window = layers if layers * size * itemsize <= WINDOW * filling else segment
    parameters = int((table[:, M] * (table[:, R] + 1)).sum()) * layers * networks * itemsize
    blocks = groups * -(-samples // block)
    pieces = min(blocks, -(-CHUNKS // networks), 1 + max(1, PARTIAL // parameters))
    scratch = (fixed + segment * tape + slots * n) * block
    keep = scratch if slots == 1 else 0
    return Plan(block, segment, slots, window, pieces, scratch, blocks, keep)


def aligned(length: int, dtype: np.dtype | str) -> Array:
    """Scratch that starts on a cache line: vectors that straddle two lines cost twice."""
    size = np.dtype(dtype).itemsize
    raw = np.empty(length + VECTOR_BYTES // size, dtype)
    skip = -raw.ctypes.data % VECTOR_BYTES // size
    return raw[skip : skip + length]


def _forward(
    shape: Shape, state: Place, out: Place, theta: Array, beta: Array, steps: Array, dense: Array,
    mixing: Array, wire: Array, table: Array, code: int, layers: int, block: int, segment: int,
    slots: int, pieces: int, rows: Array, marks: Array, scratch: Array, keep: int, team: Team,
    caller: bool,
) -> None:  # fmt: skip
    """out = program(state), for the chunks that this thread takes.

    With `keep`, every block has as many numbers of the scratch to itself, and leaves there what
    `_backward` would recompute; behind them, every chunk leaves its rows.
    """
    n, room, (hidden, _) = shape[2], rows.size // wire.size, extent(table)
    of, buffer, held = -1, pointer(scratch), pointer(rows)
    chunk = first_piece(team, caller)
    while chunk >= 0:
        e, lowest, highest = chunk_range(shape, block, pieces, chunk)
        if keep:
            held, of = shifted(buffer, _on_tape(shape, block, keep, chunk, rows.size)), -1
        if e != of:
            of = begin(marks, e)
        source = source_of(theta, beta, steps, dense, mixing, wire, table, layers, e)
        for index in range(lowest, highest):
            at = block_at(shape, block, e, index, 2 * lanes(scratch))
            width, size = at.width, n * at.width
            walk = Walk(source, held, room, pointer(marks), buffer, code, width)
            x = number_of(shape, block, e, index) * keep
            read_block(state, n, at, buffer, x, boolean(True))
            if keep:
                record(walk, 0, layers, x, x + 3 * size + hidden * width)
            else:
                layers_forward(walk, 0, layers, x, x + size)
            write_block(buffer, x, out, n, at)
        chunk = next_piece(team, caller)


def _backward(
    shape: Shape, state: Place, gout: Place, gstate: Place, sums: Sums, others: Array,
    grads: Array, theta: Array, beta: Array, steps: Array, dense: Array, mixing: Array, wire: Array,
    table: Array, code: int, layers: int, block: int, segment: int, slots: int, pieces: int,
    rows: Array, marks: Array, scratch: Array, keep: int, gains: bool, team: Team, caller: bool,
) -> None:  # fmt: skip
    """Gradients of <gout, program(state)>, for the chunks that this thread takes.

    Of the state in `gstate`; of the parameters in `sums` (the first chunk of every network) and
    `others[k - 1]` (its chunk k). Recomputes the states of each block, unless `_forward` has left
    them with the same `keep`. `gains` asks for the gradients of `steps` too; `grads` is room for
    those of the rows.
    """
    n, room, (hidden, tape) = shape[2], rows.size // wire.size, extent(table)
    of, buffer, held = -1, pointer(scratch), pointer(rows)
    fill(pointer(grads), 0, grads.size, 0)
    chunk = first_piece(team, caller)
    while chunk >= 0:
        e, lowest, highest = chunk_range(shape, block, pieces, chunk)
        if keep:
            held = shifted(buffer, _on_tape(shape, block, keep, chunk, rows.size))
            marks[0], marks[1] = 0, layers
        elif e != of:
            of = begin(marks, e)
        source = source_of(theta, beta, steps, dense, mixing, wire, table, layers, e)
        to = chunk % pieces
        out = _gradients(sums, others, to, theta, beta, steps, dense, layers, e, gains)
        for index in range(lowest, highest):
            at = block_at(shape, block, e, index, 2 * lanes(scratch))
            width, size = at.width, n * at.width
            walk = Walk(source, held, room, pointer(marks), buffer, code, width)
            x = number_of(shape, block, e, index) * keep
            g, d, saved, top = x + size, x + 2 * size, x + 2 * size + hidden * width, 0
            if not keep:
                read_block(state, n, at, buffer, saved, boolean(True))
            read_block(gout, n, at, buffer, g, boolean(False))
            for goal in range((layers - 1) // segment, -1, -1):
                low, high = goal * segment, min(layers, (goal + 1) * segment)
                if keep:
                    kept = saved + size + layers * tape * width
                else:
                    top = restore(walk, goal, segment, slots, top, x, d, saved, size)
                    kept = record(walk, low, high, x, saved + slots * size)
                for layer in range(high - 1, low - 1, -1):
                    row = row_of(walk, layer)
                    for k in range((source.stages - 1) * COLUMNS, -1, -COLUMNS):
                        kept -= (source.table[k + R] + source.table[k + M]) * width
                        stage_backward(walk, k, row, g, d, kept, pointer(grads), row, gains)
                if room < layers:  # then the rows held are those of this segment
                    disassemble(source, low, high, held, pointer(grads), out, gains)
            write_block(buffer, g, gstate, n, at)
        if room >= layers:
            disassemble(source, 0, layers, held, pointer(grads), out, gains)
        chunk = next_piece(team, caller)


@pasted
def _on_tape(shape: Shape, block: int, keep: int, chunk: int, size: int) -> int:
    """Where the rows of a chunk begin, behind the blocks of all networks."""
    return number_of(shape, block, shape[0], 0) * keep + chunk * size


@compiled
def _gradients(
    sums: Sums, others: Array, piece: int, theta: Array, beta: Array, steps: Array, dense: Array,
    layers: int, e: int, gains: bool,
) -> Gradients:  # fmt: skip
    """Where a chunk adds those of network e: in `sums` or its part of `others`, cleared."""
    networks, rows = theta.shape[0], steps.shape[0] if gains else 0
    to_beta = theta.size
    to_steps = to_beta + beta.size
    to_dense = to_steps + networks * rows * layers
    of_steps = _part(sums[2], others, piece, to_steps, e, rows, layers)
    return Gradients(
        _part(sums[0], others, piece, 0, e, theta.shape[1], theta.shape[2]),
        _part(sums[1], others, piece, to_beta, e, beta.shape[1], beta.shape[2]),
        Stack(of_steps.data, of_steps.start, 1, layers),
        _part(sums[3], others, piece, to_dense, e, dense.shape[1], dense.shape[2]),
    )


@compiled
def _part(
    address: int, others: Array, piece: int, at: int, e: int, rows: int, columns: int
) -> Stack:  # fmt: skip
    data, start, size = pointer_to(address, others), e * rows * columns, rows * columns
    if piece > 0:
        data, start = pointer(others), start + (piece - 1) * others.shape[1] + at
    for k in range(start, start + size):
        data[k] = 0
    return Stack(data, start, columns if rows > 1 else 0, 1)


def _sensitivities(
    shape: Shape, state: Place, out: Array, theta: Array, beta: Array, steps: Array, dense: Array,
    mixing: Array, wire: Array, table: Array, code: int, layers: int, block: int, segment: int,
    slots: int, pieces: int, rows: Array, marks: Array, scratch: Array, team: Team, caller: bool,
) -> None:  # fmt: skip
    """out[e, sample, l, i, j] = d y_N[i] / d y_l[j], l = 0 .. L, for the chunks taken.

    One backward sweep that pulls the n rows of the matrix as `_backward` pulls a gradient.
    """
    n, room, (hidden, _) = shape[2], rows.size // wire.size, extent(table)
    of, buffer = -1, pointer(scratch)
    chunk = first_piece(team, caller)
    while chunk >= 0:
        e, lowest, highest = chunk_range(shape, block, pieces, chunk)
        if e != of:
            of = begin(marks, e)
        source = source_of(theta, beta, steps, dense, mixing, wire, table, layers, e)
        for index in range(lowest, highest):
            at = block_at(shape, block, e, index, 2 * lanes(scratch))
            width, size = at.width, n * at.width
            walk = Walk(source, pointer(rows), room, pointer(marks), buffer, code, width)
            sample, count = at.group * shape[3] + at.first, at.samples
            x, d, matrix, top = 0, size, size + hidden * width, 0
            saved = matrix + n * size
            read_block(state, n, at, buffer, saved, boolean(True))
            fill(buffer, matrix, n * size, 0)
            for i in range(n):
                fill(buffer, matrix + i * (size + width), width, 1)
            _export(buffer, matrix, width, out, e, sample, count, layers)
            for goal in range((layers - 1) // segment, -1, -1):
                top = restore(walk, goal, segment, slots, top, x, d, saved, size)
                low, high = goal * segment, min(layers, (goal + 1) * segment)
                kept = record(walk, low, high, x, saved + slots * size)
                for layer in range(high - 1, low - 1, -1):
                    row = row_of(walk, layer)
                    for k in range((source.stages - 1) * COLUMNS, -1, -COLUMNS):
                        kept -= (source.table[k + R] + source.table[k + M]) * width
                        for i in range(n):
                            g = matrix + i * size
                            stage_backward(walk, k, row, g, d, kept, buffer, -1, boolean(False))
                    _export(buffer, matrix, width, out, e, sample, count, layer)
        chunk = next_piece(team, caller)


@compiled
def _export(
    buffer: Pointer, matrix: int, width: int, out: Array, e: int, start: int, count: int,
    layer: int,
) -> None:  # fmt: skip
    n = out.shape[4]
    for p in range(count):
        for i in range(n):
            for j in range(n):
                out[e, start + p, layer, i, j] = buffer[matrix + (i * n + j) * width + p]


def _signatures(
    number: types.Float,
) -> dict[str, tuple[Callable[..., None], tuple[types.Type, ...]]]:
    """Python function and argument types of each kernel: fixed, so that each compiles only once."""
    stack = types.Array(number, 3, "A")
    shape = sums = types.UniTuple(types.int64, 4)
    place = types.UniTuple(types.int64, 5)
    flat, others, matrices = (types.Array(number, d, "C") for d in (1, 2, 5))
    wire, table = (types.Array(types.int64, d, "C") for d in (1, 2))
    # theta .. table, code .. pieces, rows .. scratch
    room = (*(stack,) * 4, flat, wire, table, *(types.int64,) * 6, flat, wire, flat)
    team = (types.Array(types.int64, 1, "C"), types.boolean)
    return {
        "forward": (_forward, (shape, place, place, *room, types.int64, *team)),
        "backward": (
            _backward,
            (shape, *(place,) * 3, sums, others, flat, *room, types.int64, types.boolean, *team),
        ),
        "sensitivities": (_sensitivities, (shape, place, matrices, *room, *team)),
    }


@functools.cache
def kernel(name: str, dtype: str) -> Callable[..., None]:
    """The compiled kernel `name` for float32 or float64, from numba's cache on disk if it is there.

    Names: forward, backward, sensitivities. Arrays must be writable, and of the types that
    `_signatures` says: these are not checked.
    """
    function, arguments = _signatures(getattr(types, dtype))[name]
    signature = types.void(*arguments)
    # A kernel never raises (numpy's errors: x / 0 is infinite): threads wait for each other in it.
    dispatcher = njit(
        signature, nogil=True, cache=True, fastmath={"contract"}, error_model="numpy"
    )(function)
    # Dispatching by types, of which there is one choice, takes as long as reading the arguments.
    found: Callable[..., None] = dispatcher.overloads[arguments].entry_point
    return found
