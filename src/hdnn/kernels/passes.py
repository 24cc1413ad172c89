"""Forward and backward through all layers, one cache-sized block of samples at a time.

A block is carried through all layers while it sits in the cache. The backward pass recomputes its
activations there, segment by segment from the last, so nothing is kept but the input and the
parameters. Calls that are small enough may leave their activations for the way back (`keep`).

What both take:

    shape       (E, groups, n, samples) of a state: images are (E, B, n, pixels), rows (E, 1, n, B)
    states      addresses and strides of states, so that any layout is read and written in place
    parameters  and `stages`: what the rows W, A, b of every layer are filled from
    tiling      how the call is cut up
    workspace   scratch memory of this thread, which it keeps from call to call
    keep        0, or how many numbers of the scratch a block has to itself, see `forward`
    team        with `caller`: how threads share the chunks, see `hdnn.kernels.team`
"""

from typing import NamedTuple

from numba import boolean, int64, types

from hdnn.kernels import build
from hdnn.kernels.activations import fill
from hdnn.kernels.blocks import (
    PassContext,
    Place,
    Restart,
    Shape,
    block_at,
    chunk_range,
    layers_forward,
    number_of,
    read_block,
    record,
    restore,
    row_of,
    stage_backward,
    unload,
    write_block,
)
from hdnn.kernels.rows import Gradients, StridedView, extent, scatter_gradients, source_of
from hdnn.kernels.stage_table import COLUMNS, M, Parameters, R, StageTable
from hdnn.kernels.team import Team, first_piece, next_piece
from hdnn.kernels.tiling import Tiling
from hdnn.kernels.vectors import (
    Array,
    always_inline,
    compiled,
    lanes,
    pointer,
    pointer_to,
    shifted,
)


class Workspace(NamedTuple):
    """Scratch memory of one thread.

    Attributes:
        grads: of the rows that are loaded.
        rows: W, A, b of some layers, see `hdnn.kernels.rows`.
        loaded: which layers these are; behind that, the slots of `restore`.
        scratch: blocks, and their activations.
    """

    grads: Array
    rows: Array
    loaded: Array
    scratch: Array


class Sums(NamedTuple):
    """Where gradients of parameters are added up.

    The first chunk of every network adds to four arrays of the caller, each in one piece and of the
    shape of what it is the gradient of; chunk k > 0 to ``others[k - 1]``, where the four follow
    each other.
    """

    theta: int  # addresses
    beta: int
    steps: int
    dense: int
    others: Array


def forward(
    shape: Shape,
    state: Place,
    out: Place,
    parameters: Parameters,
    stages: StageTable,
    tiling: Tiling,
    workspace: Workspace,
    keep: int,
    team: Team,
    caller: bool,
) -> None:
    """out = program(state).

    With `keep`, the scratch is one for all threads: every block has as many numbers of it to
    itself, and leaves there what `backward` would recompute; behind the blocks, every chunk leaves
    its rows.
    """
    rows, loaded, scratch = workspace.rows, workspace.loaded, workspace.scratch
    n, capacity, layers = shape[2], rows.size // stages.wire.size, stages.layers
    hidden, _ = extent(stages.table)
    of, buffer, row_data = -1, pointer(scratch), pointer(rows)
    chunk = first_piece(team, caller)
    while chunk >= 0:
        e, lowest, highest = chunk_range(shape, tiling.block, tiling.pieces, chunk)
        if keep:
            row_data, of = shifted(buffer, _saved_rows(shape, tiling, keep, chunk, rows.size)), -1
        if e != of:
            of = unload(loaded, e)
        source = source_of(parameters, stages, e)
        for index in range(lowest, highest):
            at = block_at(shape, tiling.block, e, index, 2 * lanes(scratch))
            width, size = at.width, n * at.width
            ctx = PassContext(
                source, row_data, capacity, pointer(loaded), buffer, stages.activation, width
            )
            x = number_of(shape, tiling.block, e, index) * keep
            read_block(state, n, at, buffer, x, boolean(True))
            if keep:
                record(ctx, 0, layers, x, x + 3 * size + hidden * width)
            else:
                layers_forward(ctx, 0, layers, x, x + size)
            write_block(buffer, x, out, n, at)
        chunk = next_piece(team, caller)


def backward(
    shape: Shape,
    state: Place,
    gout: Place,
    gstate: Place,
    sums: Sums,
    parameters: Parameters,
    stages: StageTable,
    tiling: Tiling,
    workspace: Workspace,
    keep: int,
    gains: bool,
    team: Team,
    caller: bool,
) -> None:
    """Gradients of <gout, program(state)>: of the state in `gstate`, of the parameters in `sums`.

    Recomputes the states of each block, unless `forward` has left them with the same `keep`.
    `gains` asks for the gradients of the steps too.

    In the scratch a block has, in this order: its state x, the gradient g of the state, room d for
    one hidden layer, saved states to restart from, activations of a segment.
    """
    rows, loaded, scratch = workspace.rows, workspace.loaded, workspace.scratch
    n, capacity, layers = shape[2], rows.size // stages.wire.size, stages.layers
    hidden, per_layer = extent(stages.table)
    of, buffer, row_data, grads = -1, pointer(scratch), pointer(rows), pointer(workspace.grads)
    segment = tiling.segment
    fill(grads, 0, workspace.grads.size, 0)
    chunk = first_piece(team, caller)
    while chunk >= 0:
        e, lowest, highest = chunk_range(shape, tiling.block, tiling.pieces, chunk)
        if keep:
            row_data = shifted(buffer, _saved_rows(shape, tiling, keep, chunk, rows.size))
            loaded[0], loaded[1] = 0, layers
        elif e != of:
            of = unload(loaded, e)
        source = source_of(parameters, stages, e)
        out = _gradients(sums, chunk % tiling.pieces, parameters, layers, e, gains)
        for index in range(lowest, highest):
            at = block_at(shape, tiling.block, e, index, 2 * lanes(scratch))
            width, size = at.width, n * at.width
            ctx = PassContext(
                source, row_data, capacity, pointer(loaded), buffer, stages.activation, width
            )
            x = number_of(shape, tiling.block, e, index) * keep
            g, d, saved, top = x + size, x + 2 * size, x + 2 * size + hidden * width, 0
            restart = Restart(segment, tiling.slots, saved, size)
            if not keep:
                read_block(state, n, at, buffer, saved, boolean(True))
            read_block(gout, n, at, buffer, g, boolean(False))
            for goal in range((layers - 1) // segment, -1, -1):
                low, high = goal * segment, min(layers, (goal + 1) * segment)
                if keep:
                    acts = saved + size + layers * per_layer * width
                else:
                    top = restore(ctx, restart, goal, top, x, d)
                    acts = record(ctx, low, high, x, saved + tiling.slots * size)
                for layer in range(high - 1, low - 1, -1):
                    row = row_of(ctx, layer)
                    for k in range((source.stages - 1) * COLUMNS, -1, -COLUMNS):
                        acts -= (source.table[k + R] + source.table[k + M]) * width
                        stage_backward(ctx, k, row, g, d, acts, grads, row, gains)
                if capacity < layers:  # then the rows loaded are those of this segment
                    scatter_gradients(source, low, high, row_data, grads, out, gains)
            write_block(buffer, g, gstate, n, at)
        if capacity >= layers:
            scatter_gradients(source, int64(0), layers, row_data, grads, out, gains)
        chunk = next_piece(team, caller)


@always_inline
def _saved_rows(shape: Shape, tiling: Tiling, keep: int, chunk: int, size: int) -> int:
    """Where a chunk leaves its rows, behind the blocks of all networks."""
    return number_of(shape, tiling.block, shape[0], 0) * keep + chunk * size


@compiled
def _gradients(
    sums: Sums, piece: int, parameters: Parameters, layers: int, e: int, gains: bool
) -> Gradients:
    """Where a chunk adds the gradients of network e, cleared."""
    theta, beta, dense = parameters.theta, parameters.beta, parameters.dense
    networks, rows = theta.shape[0], parameters.steps.shape[0] if gains else 0
    to_beta = theta.size
    to_steps = to_beta + beta.size
    to_dense = to_steps + networks * rows * layers
    steps = _part(sums.steps, sums.others, piece, to_steps, e, rows, layers)
    return Gradients(
        _part(sums.theta, sums.others, piece, 0, e, theta.shape[1], theta.shape[2]),
        _part(sums.beta, sums.others, piece, to_beta, e, beta.shape[1], beta.shape[2]),
        StridedView(steps.data, steps.start, 1, layers),
        _part(sums.dense, sums.others, piece, to_dense, e, dense.shape[1], dense.shape[2]),
    )


@compiled
def _part(
    address: int, others: Array, piece: int, at: int, e: int, rows: int, columns: int
) -> StridedView:
    """The part of network e, (rows, columns): at an address, or for piece > 0 in `others`."""
    data, start, size = pointer_to(address, others), e * rows * columns, rows * columns
    if piece > 0:
        data, start = pointer(others), start + (piece - 1) * others.shape[1] + at
    for k in range(start, start + size):
        data[k] = 0
    return StridedView(data, start, columns if rows > 1 else 0, 1)


_shape = types.UniTuple(types.int64, 4)
_place = types.UniTuple(types.int64, 5)
_tiling = build.named(Tiling, *(types.int64,) * 4)


def workspace_type(number: types.Float) -> types.Type:
    """The numba type of `Workspace`."""
    flat = build.flat(number)
    return build.named(Workspace, flat, flat, build.integers, flat)


def common_types(number: types.Float) -> tuple[types.Type, ...]:
    """Of parameters, stages, tiling and workspace."""
    return build.parameters(number), build.stages, _tiling, workspace_type(number)


def forward_types(number: types.Float) -> tuple[types.Type, ...]:
    """Of the arguments of `forward`."""
    return (_shape, _place, _place, *common_types(number), types.int64, *build.team)


def backward_types(number: types.Float) -> tuple[types.Type, ...]:
    """Of the arguments of `backward`."""
    sums = build.named(Sums, *(types.int64,) * 4, types.Array(number, 2, "C"))
    common = common_types(number)
    return (_shape, *(_place,) * 3, sums, *common, types.int64, types.boolean, *build.team)


def forward_kernel(dtype: str) -> build.Kernel:
    """`forward`, compiled for float32 or float64."""
    return build.kernel(forward, dtype, forward_types)


def backward_kernel(dtype: str) -> build.Kernel:
    """`backward`, compiled for float32 or float64."""
    return build.kernel(backward, dtype, backward_types)
