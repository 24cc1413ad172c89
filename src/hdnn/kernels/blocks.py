"""One block of samples: in and out of the scratch, through a stage, through the layers, and back.

A *block* is a set of samples that fits the cache with everything that is computed of it. It is
stored sample-minor in a flat scratch array: feature i of all its samples starts at ``o + i width``,
and ``width``, the number of samples, is rounded up to a multiple of two machine vectors. So every
product is a small matrix times a wide block, and every loop over samples is full vectors. Places in
the scratch are offsets (x, g, d, s, ...), counted in numbers; nothing checks them.

*Activations* of a layer are x[read] and s = sigma(W x[read] + b) of each of its stages, one after
the other: all that going back needs.
"""

from typing import NamedTuple

from hdnn.kernels.activations import activate, apply_derivative, copy, fill
from hdnn.kernels.products import ADD, BIAS, FRESH, gram, product, scale
from hdnn.kernels.rows import RowSource, assemble
from hdnn.kernels.stage_table import AT_A, AT_B, AT_W, CARRY, COLUMNS, GAIN, R0, SCALAR, W0, M, R, W
from hdnn.kernels.vectors import (
    Array,
    Pointer,
    always_inline,
    compiled,
    lanes,
    load,
    pointer_to,
    store,
)

Place = tuple[int, int, int, int, int]
"""A state: its address, and how many numbers apart networks, groups, features and samples are."""

Shape = tuple[int, int, int, int]
"""Of a state: (E, groups, n, samples)."""


class PassContext(NamedTuple):
    """What stays the same while a block goes through the layers of a network."""

    source: RowSource
    rows: Pointer  # the assembled rows of the layers that are loaded
    capacity: int  # how many layers `rows` can hold
    loaded: Pointer  # the first layer loaded, the one after the last, then the slots of `restore`
    buffer: Pointer
    activation: int
    width: int  # samples in the block, rounded up to whole vectors


@always_inline
def unload(loaded: Array, e: int) -> int:
    """No row is loaded: the parameters are new, or those of another network; returns e."""
    loaded[0], loaded[1] = 0, 0
    return e


@always_inline
def chunk_range(shape: Shape, block: int, pieces: int, chunk: int) -> tuple[int, int, int]:
    """Network of a chunk, and its first and last block."""
    blocks, piece = shape[1] * -(-shape[3] // block), chunk % pieces
    return chunk // pieces, piece * blocks // pieces, (piece + 1) * blocks // pieces


class SampleBlock(NamedTuple):
    """Where a block is: its network, its group, its first sample and how many there are."""

    e: int
    group: int
    first: int
    samples: int
    width: int  # the samples rounded up to whole vectors


@always_inline
def block_at(shape: Shape, block: int, e: int, index: int, pair: int) -> SampleBlock:
    """SampleBlock `index` of network e; `pair` is the number of samples in two vectors."""
    runs = -(-shape[3] // block)
    start = index % runs * block
    count = min(block, shape[3] - start)
    return SampleBlock(e, index // runs, start, count, -(-count // pair) * pair)


@always_inline
def number_of(shape: Shape, block: int, e: int, index: int) -> int:
    """The number of a block among those of all networks."""
    return e * shape[1] * -(-shape[3] // block) + index


@compiled
def read_block(
    state: Place, n: int, block: SampleBlock, buffer: Pointer, o: int, pad: bool
) -> None:
    """The samples of a block -> buffer (n, width).

    Idle lanes repeat the last sample if `pad` (and it is finite), else hold 0: with a real state
    and a zero gradient they add nothing, not even a NaN that no sample had.
    """
    data, vector = pointer_to(state[0], buffer), lanes(buffer)
    whole = block.samples // vector * vector if state[4] == 1 else 0
    for f in range(n):
        at = o + f * block.width
        start = block.e * state[1] + block.group * state[2] + f * state[3] + block.first * state[4]
        for p in range(0, whole, vector):
            store(buffer, at + p, 0, load(data, start + p, 0, 1, 1))
        for p in range(whole, block.samples):
            buffer[at + p] = data[start + p * state[4]]
        for p in range(block.samples, block.width):
            last = buffer[at + block.samples - 1]
            buffer[at + p] = last if pad and last - last == 0 else 0


@compiled
def write_block(buffer: Pointer, o: int, state: Place, n: int, block: SampleBlock) -> None:
    """Buffer (n, width) -> the samples of a block."""
    data, vector = pointer_to(state[0], buffer), lanes(buffer)
    whole = block.samples // vector * vector if state[4] == 1 else 0
    for f in range(n):
        at = o + f * block.width
        start = block.e * state[1] + block.group * state[2] + f * state[3] + block.first * state[4]
        for p in range(0, whole, vector):
            store(data, start + p, 0, load(buffer, at + p, 0, 1, 1))
        for p in range(whole, block.samples):
            data[start + p * state[4]] = buffer[at + p]


# --- Stages and layers of one block ---------------------------------------------------------------


@always_inline
def row_of(ctx: PassContext, layer: int) -> int:
    """Where the row of a layer starts; it is loaded first, with its neighbors, if need be."""
    if layer < ctx.loaded[0] or layer >= ctx.loaded[1]:
        load_rows(ctx.source, ctx.rows, ctx.capacity, ctx.loaded, layer)
    return (layer - ctx.loaded[0]) * ctx.source.size


@compiled
def load_rows(source: RowSource, rows: Pointer, capacity: int, loaded: Pointer, layer: int) -> None:
    """Fill the rows of the run of layers that this one belongs to."""
    loaded[0] = layer // capacity * capacity
    loaded[1] = min(loaded[0] + capacity, source.layers)
    assemble(source, loaded[0], loaded[1], rows)


@always_inline
def stage_forward(ctx: PassContext, k: int, row: int, x: int, s: int) -> None:
    """s = sigma(W x[read] + b); x[write] = c x[write] + A s, for the stage whose table is at k."""
    table, rows, buffer, width = ctx.source.table, ctx.rows, ctx.buffer, ctx.width
    r, w, m, at_a = table[k + R], table[k + W], table[k + M], row + table[k + AT_A]
    x_read, x_write = x + table[k + R0] * width, x + table[k + W0] * width
    start = ADD if table[k + CARRY] else FRESH
    product(
        rows,
        row + table[k + AT_W],
        r,
        1,
        m,
        r,
        buffer,
        x_read,
        s,
        width,
        BIAS,
        row + table[k + AT_B],
    )
    activate(buffer, s, m * width, ctx.activation)
    if table[k + GAIN] == SCALAR:
        scale(rows, at_a, buffer, s, x_write, w * width, start)
    else:
        product(rows, at_a, m, 1, w, m, buffer, s, x_write, width, start, 0)


@always_inline
def stage_backward(
    ctx: PassContext,
    k: int,
    row: int,
    g: int,
    d: int,
    acts: int,
    grads: Pointer,
    at: int,
    gains: bool,
) -> None:
    """d = sigma' * A' g[write]; g[write] = c g[write]; g[read] += W' d.

    And unless at < 0: dA += g[write] s', db += sum of d, dW += d x[read]', in the row of `grads` at
    `at`; the activations of the stage are at `acts`.
    """
    table, rows, buffer, width = ctx.source.table, ctx.rows, ctx.buffer, ctx.width
    r, w, m = table[k + R], table[k + W], table[k + M]
    at_w, at_a, s = row + table[k + AT_W], row + table[k + AT_A], acts + r * width
    g_read, g_write = g + table[k + R0] * width, g + table[k + W0] * width
    if table[k + GAIN] == SCALAR:
        if gains and at >= 0:  # row by row: shorter sums are rounded less
            for i in range(0, w * width, width):
                gram(buffer, g_write + i, 1, s + i, 1, width, grads, at + table[k + AT_A])
        scale(rows, at_a, buffer, g_write, d, w * width, FRESH)
    else:
        if at >= 0:
            gram(buffer, g_write, w, s, m, width, grads, at + table[k + AT_A])
        product(rows, at_a, 1, m, m, w, buffer, g_write, d, width, FRESH, 0)
    apply_derivative(
        buffer, s, d, m, width, ctx.activation, grads, at + table[k + AT_B] if at >= 0 else -1
    )
    if at >= 0:
        gram(buffer, d, m, acts, r, width, grads, at + table[k + AT_W])
    if not table[k + CARRY]:
        fill(buffer, g_write, w * width, 0)
    product(rows, at_w, 1, r, r, m, buffer, d, g_read, width, ADD, 0)


@always_inline
def layers_forward(ctx: PassContext, first: int, last: int, x: int, s: int) -> None:
    """The state at x through layers first <= layer < last; s is room for one hidden block."""
    for layer in range(first, last):
        row = row_of(ctx, layer)
        for k in range(0, ctx.source.stages * COLUMNS, COLUMNS):
            stage_forward(ctx, k, row, x, s)


@always_inline
def record(ctx: PassContext, first: int, last: int, x: int, acts: int) -> int:
    """As `layers_forward`, keeping the activations from `acts` on; returns where they end."""
    for layer in range(first, last):
        row = row_of(ctx, layer)
        for k in range(0, ctx.source.stages * COLUMNS, COLUMNS):
            read = ctx.source.table[k + R] * ctx.width
            copy(ctx.buffer, x + ctx.source.table[k + R0] * ctx.width, acts, read)
            stage_forward(ctx, k, row, x, acts + read)
            acts += read + ctx.source.table[k + M] * ctx.width
    return acts


class Restart(NamedTuple):
    """States of a block that going back can restart from.

    Attributes:
        segment: layers whose activations are kept at once.
        slots: how many states can be saved.
        saved: where the first is; it holds the state before the first layer.
        size: numbers of a state.
    """

    segment: int
    slots: int
    saved: int
    size: int


@always_inline
def restore(ctx: PassContext, restart: Restart, goal: int, top: int, x: int, s: int) -> int:
    """Bring the state at the start of segment `goal` into x, from the nearest saved state before.

    Behind the layers loaded, ctx.loaded has the segments whose starting states are saved (the
    first `top` + 1; returns the new `top`). On the way, free slots are spread evenly over the
    segments still to be visited: so depth costs one more forward pass while slots suffice, then
    two, ..., and never memory. s is room for one hidden block.
    """
    segment, slots, saved, size = restart
    if top == 0:
        ctx.loaded[2] = 0
    while ctx.loaded[2 + top] > goal:
        top -= 1
    at = ctx.loaded[2 + top]
    copy(ctx.buffer, saved + top * size, x, size)
    while at < goal:
        free = slots - 1 - top
        target = min(goal, at + (goal - at + 1 + free) // (free + 1)) if free else goal
        layers_forward(ctx, at * segment, target * segment, x, s)
        at = target
        if free:
            top += 1
            ctx.loaded[2 + top] = at
            copy(ctx.buffer, x, saved + top * size, size)
    return top
