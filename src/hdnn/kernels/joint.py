"""Joint descent without autograd: many steps of one optimizer on all weights in one compiled call.

All weights stand in one flat array, and so do their gradients and moments: theta and beta of the
Hamiltonian layers, then W and mu of the output layer, then P and nu of the input projection (see
`Weights`). A batch is cut into *chunks*, whole vectors of samples, by its size only; every chunk
has a flat array of gradients to itself, and they are added up in the order of the chunks, so that
any number of threads gives the same bits. Threads share the chunks of a batch; the caller alone
moves the weights, between two batches (see `hdnn.kernels.barrier`).
"""

import math
from typing import NamedTuple

import numpy as np
from numba import boolean, int64, types

from hdnn.kernels import build
from hdnn.kernels.barrier import Progress, done, finish, next_shared, publish, take, wait
from hdnn.kernels.blocks import PassContext, record, row_of, stage_backward
from hdnn.kernels.epoch import smoothness
from hdnn.kernels.output_layer import LOGISTIC, SQUARED, sample_loss
from hdnn.kernels.products import BIAS, FRESH, gram, product
from hdnn.kernels.rows import Gradients, RowSource, extent, scatter_gradients, source_of, view_of
from hdnn.kernels.stage_table import COLUMNS, M, Parameters, R, StageTable
from hdnn.kernels.team import Team, enter, leave
from hdnn.kernels.vectors import (
    VECTOR_BYTES,
    Array,
    Pointer,
    always_inline,
    cached_part,
    compiled,
    lanes,
    pointer,
)

MOST_CHUNKS = 8
BLOCK_VECTORS = 4  # pairs of vectors in a block: then its activations stay in the cache


class Samples(NamedTuple):
    """The training data, in the order in which they are gone through.

    Attributes:
        inputs: ``(samples, F)``: what the projection takes, or y_0 where there is none.
        target: ``(samples, 1)`` class numbers, or ``(samples, outputs)`` values.
        weight: ``(samples,)``.
        order: ``(samples,)``.
        totals: ``(batches,)``, the sum of the weights of every batch.
        rates: ``(batches,)``, the learning rate of every step.
    """

    inputs: Array
    target: Array
    weight: Array
    order: Array
    totals: Array
    rates: Array


class Weights(NamedTuple):
    """Where the parts of the weights begin in the flat array, and their shapes.

    Attributes:
        layers, theta, beta: rows and columns of theta ``(layers, theta)`` and beta.
        width: n, of the network.
        outputs: of the output layer W ``(outputs, n)``, mu ``(outputs,)``.
        features: F, of the input projection P ``(n, F)``, nu ``(n,)``; 0 where there is none.
    """

    layers: int
    theta: int
    beta: int
    width: int
    outputs: int
    features: int


class Constants(NamedTuple):
    """What no step changes: as in `Parameters` and `hdnn.kernels.epoch.Fixed`.

    Attributes:
        steps, mixing: of the stages.
        h: ``(L,)``, the steps as the smoothness penalty weighs them.
        repeats, bias_repeats: how often every parameter stands in the assembled K (in b).
    """

    steps: Array
    mixing: Array
    h: Array
    repeats: Array
    bias_repeats: Array


class Options(NamedTuple):
    """How it is trained; `clip` is the largest norm of a gradient, 0 for any.

    With `decoupled`, weight decay is that of AdamW, else that of Adam.
    """

    loss: int
    batch: int
    decoupled: int
    beta1: float
    beta2: float
    weight_decay: float
    alpha: float
    alpha_c: float
    clip: float


class Shared(NamedTuple):
    """What all threads of a call write to.

    Attributes:
        values, first, second: ``(size,)``: the weights and their moments.
        gradients: ``(chunks, size)``; after a step, line 0 has the gradient of the objective.
        tallies: ``(chunks, 2)``: loss of a chunk, and how many samples it classifies correctly.
        losses: ``(batches, 3)``: the plain and the penalized loss of a batch before its step, and
            the number of samples that it classifies correctly.
        state: ``(2,)``: the next batch of the epoch; how many steps were taken in all.
        progress: see `hdnn.kernels.barrier`.
    """

    values: Array
    first: Array
    second: Array
    gradients: Array
    tallies: Array
    losses: Array
    state: Array
    progress: Progress


class Room(NamedTuple):
    """Room of one thread: assembled rows and their gradients, one block of samples."""

    rows: Array
    grads: Array
    loaded: Array
    scratch: Array
    logits: Array


def weights_size(weights: Weights) -> int:
    """How many weights there are."""
    head = weights.outputs * (weights.width + 1)
    projection = weights.width * (weights.features + 1) if weights.features else 0
    return weights.layers * (weights.theta + weights.beta) + head + projection


def chunk_count(batch: int, itemsize: int) -> int:
    """Into how many chunks a batch is cut: an even number, which two threads share well."""
    vectors = -(-batch // (2 * VECTOR_BYTES // itemsize))
    chunks = max(1, min(MOST_CHUNKS, vectors // 2))
    return chunks - chunks % 2 if chunks > 1 else 1


def block_size(batch: int, itemsize: int) -> int:
    """How many samples go through the layers together, at most."""
    pair = 2 * VECTOR_BYTES // itemsize
    return min(BLOCK_VECTORS, -(-batch // pair)) * pair


def scratch_size(table: Array, layers: int, weights: Weights, block: int) -> int:
    """Numbers of scratch for a block: see `_block`."""
    tape = int((table[:, R] + table[:, M]).sum()) * layers
    fixed = weights.features + weights.outputs + 2 * weights.width + int(table[:, M].max())
    return (fixed + tape) * block


@compiled
def _head_at(weights: Weights) -> int:
    """Where W begins."""
    return weights.layers * (weights.theta + weights.beta)


@compiled
def _read_in(X: Array, chosen: Array, buffer: Pointer, o: int, width: int) -> None:
    """The chosen samples -> buffer (F, width) at o; idle lanes repeat the last one."""
    for p in range(width):
        line = X[chosen[min(p, chosen.size - 1)]]
        for f in range(line.size):
            buffer[o + f * width + p] = line[f]


@compiled
def _residuals(
    samples: Samples, chosen: Array, scale: float, loss: int, room: Room, o: int, width: int
) -> tuple[float, int]:
    """Logits (outputs, width) at o become w_i scale dloss_i/dlogits; idle lanes 0.

    Returns the sum of w_i scale loss_i, and how many samples are classified correctly.
    """
    buffer, z = room.scratch, room.logits
    total, correct = 0.0, 0
    for p in range(chosen.size):
        i, best = chosen[p], 0
        for k in range(z.size):
            z[k] = buffer[o + k * width + p]
            if z[k] > z[best]:
                best = k
        if loss == LOGISTIC:
            best = 1 if z[0] > 0 else 0
        if loss != SQUARED:
            correct += best == int(samples.target[i, 0])
        w = samples.weight[i] * scale
        total += w * sample_loss(z, samples.target[i], loss)
        for k in range(z.size):
            buffer[o + k * width + p] = w * z[k]
    for k in range(z.size):
        for p in range(chosen.size, width):
            buffer[o + k * width + p] = 0
    return total, correct


@compiled
def _add_rows(buffer: Pointer, o: int, rows: int, width: int, sums: Array, to: int) -> None:
    """sums[to + i] += sum over samples of row i."""
    for i in range(rows):
        total = 0.0
        for p in range(width):
            total += buffer[o + i * width + p]
        sums[to + i] += total


@always_inline
def _backward(context: PassContext, g: int, d: int, kept: int, grads: Pointer) -> None:
    """Gradients of all rows, added to `grads`; activations end at `kept`."""
    for layer in range(context.source.layers - 1, -1, -1):
        row = row_of(context, layer)
        for k in range((context.source.stages - 1) * COLUMNS, -1, -COLUMNS):
            kept -= (context.source.table[k + R] + context.source.table[k + M]) * context.width
            stage_backward(context, k, row, g, d, kept, grads, row, boolean(False))


@compiled
def _source(values: Array, weights: Weights, constants: Constants, stages: StageTable) -> RowSource:
    """What the rows are filled from."""
    theta, beta = _stacks(values, weights)
    nothing = np.empty((1, 1, 0), values.dtype)
    parameters = Parameters(theta, beta, constants.steps, nothing, constants.mixing)
    return source_of(parameters, stages, 0)


@compiled
def _stacks(values: Array, weights: Weights) -> tuple[Array, Array]:
    """Theta and beta, as (1, L, .), of a flat array."""
    middle = weights.layers * weights.theta
    theta = values[:middle].reshape(1, weights.layers, weights.theta)
    beta = values[middle : _head_at(weights)].reshape(1, weights.layers, weights.beta)
    return theta, beta


@compiled
def _block(
    samples: Samples,
    chosen: Array,
    scale: float,
    values: Array,
    weights: Weights,
    source: RowSource,
    hidden: int,
    activation: int,
    loss: int,
    room: Room,
    out: Array,
) -> tuple[float, int]:
    """Forward and backward of the chosen samples; gradients are added to `out` and `room.grads`.

    Those of W, mu, P and nu to `out`, those of theta and beta to the rows `room.grads`. Returns
    the loss, and how many samples are classified correctly. In the scratch the samples have, in
    this order: inputs of the projection, logits, state, its gradient, room for one hidden layer,
    activations.
    """
    n, outputs, features = weights.width, weights.outputs, weights.features
    pair = 2 * lanes(room.scratch)
    width = -(-chosen.size // pair) * pair
    buffer, given = pointer(room.scratch), pointer(values)
    inputs, logits = int64(0), features * width  # a literal 0 would compile `product` once more
    x = logits + outputs * width
    g = x + n * width
    d = g + n * width
    W = _head_at(weights)
    mu, P = W + outputs * n, W + outputs * (n + 1)
    nu = P + n * features
    if features:
        _read_in(samples.inputs, chosen, buffer, inputs, width)
        product(given, P, features, 1, n, features, buffer, inputs, x, width, BIAS, nu)
    else:
        _read_in(samples.inputs, chosen, buffer, x, width)
    context = PassContext(
        source,
        pointer(room.rows),
        source.layers,
        pointer(room.loaded),
        buffer,
        activation,
        width,
    )
    kept = record(context, 0, source.layers, x, d + hidden * width)
    product(given, W, n, 1, outputs, n, buffer, x, logits, width, BIAS, mu)
    found = _residuals(samples, chosen, scale, loss, room, logits, width)
    gram(buffer, logits, outputs, x, n, width, pointer(out), W)
    _add_rows(buffer, logits, outputs, width, out, mu)
    product(given, W, 1, n, n, outputs, buffer, logits, g, width, FRESH, 0)
    _backward(context, g, d, kept, pointer(room.grads))
    if features:
        gram(buffer, g, n, inputs, features, width, pointer(out), P)
        _add_rows(buffer, g, n, width, out, nu)
    return found


@always_inline
def _chunk(
    samples: Samples,
    first: int,
    last: int,
    scale: float,
    shared: Shared,
    weights: Weights,
    constants: Constants,
    stages: StageTable,
    loss: int,
    room: Room,
    chunk: int,
) -> None:
    """Loss and gradients of the samples first <= place < last of the order, as a chunk."""
    out, tally = shared.gradients[chunk], shared.tallies[chunk]
    out[:] = 0
    tally[:] = 0
    source = _source(shared.values, weights, constants, stages)
    size, hidden = BLOCK_VECTORS * 2 * lanes(room.scratch), extent(stages.table)[0]
    for start in range(first, last, size):
        chosen = samples.order[start : min(start + size, last)]
        value, correct = _block(
            samples,
            chosen,
            scale,
            shared.values,
            weights,
            source,
            hidden,
            stages.activation,
            loss,
            room,
            out,
        )
        tally[0] += value
        tally[1] += correct
    theta, beta = _stacks(out, weights)
    found = Gradients(view_of(theta, 0), view_of(beta, 0), source.steps, source.dense)
    rows, grads = pointer(room.rows), pointer(room.grads)
    scatter_gradients(source, int64(0), source.layers, rows, grads, found, boolean(False))


@compiled
def _objective(shared: Shared, weights: Weights, constants: Constants, options: Options) -> float:
    """The penalties; line 0 of the gradients becomes that of loss and penalties together."""
    g, values = shared.gradients[0], shared.values
    for chunk in range(1, shared.gradients.shape[0]):
        other = shared.gradients[chunk]
        for k in range(g.size):
            g[k] += other[k]
    penalty = 0.0
    if options.alpha > 0:
        (theta, beta), (g_theta, g_beta) = _stacks(values, weights), _stacks(g, weights)
        h, alpha = constants.h, options.alpha
        penalty += smoothness(theta[0], constants.repeats, h, alpha, g_theta[0])
        penalty += smoothness(beta[0], constants.bias_repeats, h, alpha, g_beta[0])
    if options.alpha_c > 0:
        W = _head_at(weights)
        for k in range(W, W + weights.outputs * (weights.width + 1)):
            penalty += options.alpha_c * values[k] * values[k]
            g[k] += 2.0 * options.alpha_c * values[k]
    return penalty


@compiled
def _shrink(g: Array, clip: float) -> float:
    """The factor that brings the norm of a gradient down to `clip`."""
    if clip <= 0:
        return 1.0
    total = 0.0
    for k in range(g.size):
        total += g[k] * g[k]
    return min(1.0, clip / (math.sqrt(total) + 1e-6))


@compiled
def _adam_step(shared: Shared, options: Options, shrink: float, learning_rate: float) -> None:
    """One step of Adam or AdamW with line 0 of the gradients, times `shrink`.

    All factors are numbers of the array's type: else numba computes in float64, half as fast.
    """
    values, first, second, g = shared.values, shared.first, shared.second, shared.gradients[0]
    number, t = values.dtype.type, shared.state[1]
    correction = number(1.0 / math.sqrt(1.0 - options.beta2**t))
    rate = number(learning_rate / (1.0 - options.beta1**t))
    keep = number(1.0 - learning_rate * options.weight_decay if options.decoupled else 1.0)
    decay = number(0.0 if options.decoupled else options.weight_decay)
    a, b, c = number(1.0 - options.beta1), number(options.beta2), number(1.0 - options.beta2)
    factor, tiny = number(shrink), number(1e-8)
    for k in range(values.size):
        d = factor * g[k] + decay * values[k]
        m = first[k] + a * (d - first[k])
        v = b * second[k] + c * d * d
        first[k], second[k] = m, v
        values[k] = keep * values[k] - rate * m / (np.sqrt(v) * correction + tiny)


@cached_part
def advance(
    samples: Samples, shared: Shared, weights: Weights, constants: Constants, options: Options
) -> bool:
    """What comes after the chunks of a batch: its loss and its step; False if that is not finite.

    A batch of which nothing counts is no step.
    """
    i = shared.state[0]
    told, plain, correct = shared.losses[i], 0.0, 0.0
    for chunk in range(shared.tallies.shape[0]):
        plain += shared.tallies[chunk, 0]
        correct += shared.tallies[chunk, 1]
    told[2] = correct
    shared.state[0] = i + 1
    if not samples.totals[i] > 0:
        told[0], told[1] = 0.0, 0.0
        return True
    penalty = _objective(shared, weights, constants, options)
    told[0], told[1] = plain, plain + penalty
    if not math.isfinite(told[1]):
        return False
    shared.state[1] += 1
    shrink = _shrink(shared.gradients[0], options.clip)
    _adam_step(shared, options, shrink, samples.rates[i])
    return True


@always_inline
def _work(
    samples: Samples,
    shared: Shared,
    weights: Weights,
    constants: Constants,
    stages: StageTable,
    options: Options,
    room: Room,
    chunk: int,
    fresh: bool,
) -> None:
    """One chunk of the batch that is next; `fresh`: this thread has not seen these weights yet."""
    if fresh:
        room.loaded[0], room.loaded[1] = 0, 0
    i, chunks = shared.state[0], shared.gradients.shape[0]
    begin = i * options.batch
    count = min(options.batch, samples.order.size - begin)
    pair = 2 * lanes(room.scratch)
    vectors = -(-count // pair)
    first = min(count, chunk * vectors // chunks * pair)
    last = min(count, (chunk + 1) * vectors // chunks * pair)
    total = samples.totals[i]
    scale = 1.0 / total if total > 0 else 0.0
    _chunk(
        samples,
        begin + first,
        begin + last,
        scale,
        shared,
        weights,
        constants,
        stages,
        options.loss,
        room,
        chunk,
    )


def joint_steps(
    samples: Samples,
    shared: Shared,
    weights: Weights,
    constants: Constants,
    stages: StageTable,
    options: Options,
    room: Room,
    count: int,
    team: Team,
    caller: bool,
) -> None:
    """So many steps from batch `shared.state[0]` on; in place, fewer where a loss is not finite.

    For every batch: its chunks, forward and backward, by all threads; then, by the caller, the
    sum of their gradients, the penalties, and one step of Adam or AdamW. How many steps one call
    does changes no number, so an epoch may be cut into calls as short as an interrupt may wait.
    """
    chunks, progress, of = shared.gradients.shape[0], shared.progress, -1
    if not enter(team, caller):
        return
    if caller:
        for _ in range(count):
            publish(progress, chunks)
            fresh, piece = True, take(progress)
            while piece >= 0:
                chunk = piece % chunks
                _work(samples, shared, weights, constants, stages, options, room, chunk, fresh)
                fresh = False
                done(progress)
                piece = take(progress)
            if not wait(progress):
                break
            if not advance(samples, shared, weights, constants, options):
                break
        finish(progress)
    else:
        piece = next_shared(progress)
        while piece >= 0:
            step, chunk = piece // chunks, piece % chunks
            fresh = step != of
            of = step
            _work(samples, shared, weights, constants, stages, options, room, chunk, fresh)
            done(progress)
            piece = next_shared(progress)
    leave(team, caller)


def joint_types(number: types.Float) -> tuple[types.Type, ...]:
    """Of the arguments of `joint_steps`."""
    flat, lines = build.flat(number), types.Array(number, 2, "C")
    vector, matrix = (types.Array(types.float64, d, "C") for d in (1, 2))
    integer, integers = types.int64, build.integers
    return (
        build.named(Samples, lines, matrix, vector, integers, vector, vector),
        build.named(Shared, flat, flat, flat, lines, matrix, matrix, integers, integers),
        build.named(Weights, *(integer,) * 6),
        build.named(Constants, types.Array(number, 3, "A"), flat, vector, vector, vector),
        build.stages,
        build.named(Options, *(integer,) * 3, *(types.float64,) * 6),
        build.named(Room, flat, flat, integers, flat, vector),
        integer,
        *build.team,
    )


def joint_kernel(dtype: str) -> build.Kernel:
    """`joint_steps`, compiled for float32 or float64."""
    return build.kernel(joint_steps, dtype, joint_types)


def advance_types(number: types.Float) -> tuple[types.Type, ...]:
    """Of the arguments of `advance`."""
    samples, shared, weights, constants, _, options, *_ = joint_types(number)
    return samples, shared, weights, constants, options
