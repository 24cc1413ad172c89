"""One block of samples: in and out of the scratch, through a stage, through the layers.

A *block* is a set of samples, stored sample-minor in a flat scratch array: row i (one feature)
starts at ``o + i width``, and ``width`` is a multiple of two vectors.
"""

from typing import NamedTuple

from hdnn.backends.rows import AT_A, AT_B, AT_W, CARRY, GAIN, R0, SCALAR, W0, M, R, W
from hdnn.backends.vector.elementwise import activate, apply_slope, copy
from hdnn.backends.vector.products import ADD, BIAS, FRESH, gram, product, scale
from hdnn.backends.vector.tiles import VECTOR_BYTES, Array, compiled, load, pasted, store


class Walk(NamedTuple):
    """What stays the same while a block goes through the layers of network e."""

    table: Array
    packed: Array
    buffer: Array
    code: int
    e: int
    width: int  # samples in the block, rounded up to whole vectors


@pasted
def chunk_range(
    shape: tuple[int, ...], block: int, pieces: int, chunk: int
) -> tuple[int, int, int]:
    """Network of a chunk, and its first and last block."""
    blocks, piece = shape[1] * -(-shape[3] // block), chunk % pieces
    return chunk // pieces, piece * blocks // pieces, (piece + 1) * blocks // pieces


@pasted
def place(state: Array, block: int, index: int) -> tuple[int, int, int, int]:
    """Group of a block, its first sample, its samples, and these rounded up to whole vectors."""
    samples, lanes = state.shape[3], 2 * VECTOR_BYTES // state.itemsize
    runs = -(-samples // block)
    start = index % runs * block
    count = min(block, samples - start)
    return index // runs, start, count, -(-count // lanes) * lanes


@pasted
def place_of(state: Array, block: int, e: int, index: int) -> int:
    """The number of a block among those of all networks."""
    return e * state.shape[1] * -(-state.shape[3] // block) + index


@compiled
def read_block(
    state: Array, e: int, group: int, first: int, count: int, buffer: Array, o: int, width: int,
    pad: bool,
) -> None:  # fmt: skip
    """Block of `count` samples -> buffer (n, width).

    Idle lanes repeat the last sample if `pad` (and it is finite), else hold 0: with a real state
    and a zero gradient they add nothing, not even a NaN that no sample had.
    """
    lanes = VECTOR_BYTES // state.itemsize
    whole = count // lanes * lanes if state.strides[3] == state.itemsize else 0
    origin = e * state.strides[0] + group * state.strides[1]
    for f in range(state.shape[2]):
        at = o + f * width
        start = (origin + f * state.strides[2]) // state.itemsize + first
        for p in range(0, whole, lanes):
            store(buffer, at + p, 0, load(state, start + p, 0, 1, 1))
        for p in range(whole, count):
            buffer[at + p] = state[e, group, f, first + p]
        for p in range(count, width):
            last = buffer[at + count - 1]
            buffer[at + p] = last if pad and last - last == 0 else 0


@compiled
def write_block(
    buffer: Array, o: int, width: int, state: Array, e: int, group: int, first: int, count: int
) -> None:
    """Buffer (n, width) -> the `count` samples of a block."""
    lanes = VECTOR_BYTES // state.itemsize
    whole = count // lanes * lanes if state.strides[3] == state.itemsize else 0
    origin = e * state.strides[0] + group * state.strides[1]
    for f in range(state.shape[2]):
        at = o + f * width
        start = (origin + f * state.strides[2]) // state.itemsize + first
        for p in range(0, whole, lanes):
            store(state, start + p, 0, load(buffer, at + p, 0, 1, 1))
        for p in range(whole, count):
            state[e, group, f, first + p] = buffer[at + p]


# --- Stages and layers of one block ---------------------------------------------------------------


@pasted
def row_of(walk: Walk, layer: int) -> int:
    """Where the parameters of a layer start in packed, taken as flat."""
    return (walk.e * walk.packed.shape[1] + layer) * walk.packed.shape[2]


@pasted
def stage_forward(walk: Walk, stage: Array, row: int, x: int, s: int) -> None:
    """s = sigma(W x[read] + b); x[write] = c x[write] + A s."""
    packed, buffer, width = walk.packed, walk.buffer, walk.width
    r, w, m, at_a = stage[R], stage[W], stage[M], row + stage[AT_A]
    x_read, x_write = x + stage[R0] * width, x + stage[W0] * width
    start = ADD if stage[CARRY] else FRESH
    product(
        packed, row + stage[AT_W], r, 1, m, r, buffer, x_read, s, width, BIAS, row + stage[AT_B]
    )
    activate(buffer, s, m * width, walk.code)
    if stage[GAIN] == SCALAR:
        scale(packed, at_a, buffer, s, x_write, w * width, start)
    else:
        product(packed, at_a, m, 1, w, m, buffer, s, x_write, width, start, 0)


@pasted
def stage_backward(
    walk: Walk, stage: Array, row: int, g: int, d: int, kept: int, grads: Array, at: int,
    gains: bool,
) -> None:  # fmt: skip
    """d = sigma' * A' g[write]; g[write] = c g[write]; g[read] += W' d.

    And unless at < 0: dA += g[write] s', db += sum of d, dW += d x[read]', in the row of `grads` at
    `at`; x[read] and then s are on the tape at `kept`.
    """
    packed, buffer, width = walk.packed, walk.buffer, walk.width
    r, w, m = stage[R], stage[W], stage[M]
    at_w, at_a, s = row + stage[AT_W], row + stage[AT_A], kept + r * width
    g_read, g_write = g + stage[R0] * width, g + stage[W0] * width
    if stage[GAIN] == SCALAR:
        if gains and at >= 0:  # row by row: shorter sums are rounded less
            for i in range(0, w * width, width):
                gram(buffer, g_write + i, 1, s + i, 1, width, grads, at + stage[AT_A])
        scale(packed, at_a, buffer, g_write, d, w * width, FRESH)
    else:
        if at >= 0:
            gram(buffer, g_write, w, s, m, width, grads, at + stage[AT_A])
        product(packed, at_a, 1, m, m, w, buffer, g_write, d, width, FRESH, 0)
    apply_slope(buffer, s, d, m, width, walk.code, grads, at + stage[AT_B] if at >= 0 else -1)
    if at >= 0:
        gram(buffer, d, m, kept, r, width, grads, at + stage[AT_W])
    if not stage[CARRY]:
        buffer[g_write : g_write + w * width] = 0
    product(packed, at_w, 1, r, r, m, buffer, d, g_read, width, ADD, 0)


@pasted
def layers_forward(walk: Walk, first: int, last: int, x: int, s: int) -> None:
    """The state at x through layers first <= layer < last; s is room for one hidden block."""
    for layer in range(first, last):
        for k in range(walk.table.shape[0]):
            stage_forward(walk, walk.table[k], row_of(walk, layer), x, s)


@pasted
def record(walk: Walk, first: int, last: int, x: int, tape: int) -> int:
    """As `layers_forward`, keeping x[read] and s of every stage; returns the end of the tape."""
    for layer in range(first, last):
        for k in range(walk.table.shape[0]):
            stage = walk.table[k]
            rows = stage[R] * walk.width
            copy(walk.buffer, x + stage[R0] * walk.width, tape, rows)
            stage_forward(walk, stage, row_of(walk, layer), x, tape + rows)
            tape += rows + stage[M] * walk.width
    return tape


@pasted
def restore(
    walk: Walk, goal: int, segment: int, marks: Array, top: int, x: int, s: int, saved: int,
    size: int,
) -> int:  # fmt: skip
    """Bring the state at the start of segment `goal` into x, from the nearest saved state before.

    marks[: top + 1] are the segments whose starting states are saved, `size` numbers each. On the
    way, free slots are spread evenly over the segments still to be visited: so depth costs one more
    forward pass while slots suffice, then two, ..., and never memory.
    """
    while marks[top] > goal:
        top -= 1
    at = marks[top]
    copy(walk.buffer, saved + top * size, x, size)
    while at < goal:
        free = marks.size - 1 - top
        target = min(goal, at + (goal - at + 1 + free) // (free + 1)) if free else goal
        layers_forward(walk, at * segment, target * segment, x, s)
        at = target
        if free:
            top += 1
            marks[top] = at
            copy(walk.buffer, x, saved + top * size, size)
    return top
