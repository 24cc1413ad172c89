"""Coordinate descent without autograd: whole epochs of a program of stages in one compiled call.

For every batch: one forward pass that keeps its tape, the output layer solved on y_N, one backward
pass along the tape, the smoothness penalty, one Adam step. Networks of an ensemble are independent,
so threads share them (see `hdnn.kernels.team`).
"""

import math
from typing import NamedTuple

import numpy as np
from numba import boolean, int64, types

from hdnn.kernels import build
from hdnn.kernels.blocks import PassContext, record, row_of, stage_backward
from hdnn.kernels.output_layer import (
    LOGISTIC,
    NEWTON,
    SQUARED,
    adam,
    newton,
    residuals,
    squared_norm,
)
from hdnn.kernels.rows import Gradients, extent, scatter_gradients, source_of, view_of
from hdnn.kernels.stage_table import COLUMNS, M, Parameters, R, StageTable
from hdnn.kernels.team import Team, first_piece, next_piece
from hdnn.kernels.vectors import (
    VECTOR_BYTES,
    Array,
    Pointer,
    always_inline,
    compiled,
    lanes,
    pointer,
)


class Data(NamedTuple):
    """The training data; an axis E that all networks share has size 1.

    Attributes:
        states: y_0, ``(E or 1, samples, n)``.
        target: ``(E or 1, samples, 1)`` class numbers, or ``(E or 1, samples, outputs)`` values.
        weight: ``(E or 1, samples)``.
        order: ``(E or 1, samples)``, in which they are gone through.
    """

    states: Array
    target: Array
    weight: Array
    order: Array


class Trained(NamedTuple):
    """What an epoch changes: parameters, their moments ``(2, E, L, .)``, output layers (W, mu)."""

    theta: Array
    beta: Array
    moments_theta: Array
    moments_beta: Array
    V: Array


class Fixed(NamedTuple):
    """What it does not.

    Attributes:
        steps, mixing: as in `Parameters`.
        h: ``(E or 1, L)``, the steps as the smoothness penalty weighs them.
        repeats, bias_repeats: how often every parameter stands in the assembled K (in b).
    """

    steps: Array
    mixing: Array
    h: Array
    repeats: Array
    bias_repeats: Array


class Options(NamedTuple):
    """How it is trained; `clip` is the largest norm of a gradient, 0 for any."""

    loss: int
    solver: int
    solver_iterations: int
    batch: int
    learning_rate: float
    beta1: float
    beta2: float
    alpha: float
    alpha_c: float
    tolerance: float
    solver_rate: float
    clip: float


class Record(NamedTuple):
    """What is told of an epoch.

    Attributes:
        losses: ``(E, batches, 3)``: the plain and the penalized loss of a batch before its step,
            and the number of samples that it classifies correctly.
        norms: ``(E, batches, L)``: of the gradient, layer by layer; empty if not wanted.
        watched: numbers of the batches before which the weights are copied, increasing.
        theta, beta: ``(E, watched, L, .)``: these weights.
    """

    losses: Array
    norms: Array
    watched: Array
    theta: Array
    beta: Array


def scratch_size(table: Array, width: int, layers: int, batch: int, itemsize: int) -> int:
    """Numbers of scratch for one batch: its state, its covector, a hidden layer, activations."""
    pair = 2 * VECTOR_BYTES // itemsize
    samples = -(-batch // pair) * pair
    tape = int((table[:, R] + table[:, M]).sum()) * layers
    return (2 * width + int(table[:, M].max()) + tape) * samples


@compiled
def _read_in(X: Array, chosen: Array, buffer: Array, width: int) -> None:
    """The chosen samples -> buffer (n, width); idle lanes repeat the last one."""
    for p in range(width):
        i = chosen[min(p, chosen.size - 1)]
        for f in range(X.shape[1]):
            buffer[f * width + p] = X[i, f]


@compiled
def smoothness(theta: Array, repeats: Array, h: Array, alpha: float, g: Array) -> float:
    """alpha/2 sum_jk h_j repeats_k (theta_jk - theta_{j-1,k})^2; its gradient is added to g."""
    total = 0.0
    for j in range(1, theta.shape[0]):
        c = alpha * h[j]
        for k in range(theta.shape[1]):
            difference = theta[j, k] - theta[j - 1, k]
            pull = c * repeats[k] * difference
            total += 0.5 * pull * difference
            g[j, k] += pull
            g[j - 1, k] -= pull
    return total


@compiled
def _adam_step(
    theta: Array, g: Array, first: Array, second: Array, options: Options, shrink: float, t: int
) -> None:
    """One step of Adam, the t-th, with the gradient times `shrink`."""
    beta1, beta2 = options.beta1, options.beta2
    correction = math.sqrt(1.0 - beta2**t)
    rate = options.learning_rate / (1.0 - beta1**t)
    for j in range(theta.shape[0]):
        for k in range(theta.shape[1]):
            d = shrink * g[j, k]
            first[j, k] += (1.0 - beta1) * (d - first[j, k])
            second[j, k] = beta2 * second[j, k] + (1.0 - beta2) * d * d
            theta[j, k] -= rate * first[j, k] / (math.sqrt(second[j, k]) / correction + 1e-8)


@compiled
def _norm(a: Array, b: Array) -> float:
    total = 0.0
    for g in (a, b):
        for j in range(g.shape[0]):
            for k in range(g.shape[1]):
                total += g[j, k] * g[j, k]
    return math.sqrt(total)


@compiled
def _row_norms(a: Array, b: Array, out: Array) -> None:
    for j in range(a.shape[0]):
        total = 0.0
        for g in (a, b):
            for k in range(g.shape[1]):
                total += float(g[j, k]) * float(g[j, k])
        out[j] = math.sqrt(total)


@compiled
def _copy(source: Array, target: Array) -> None:
    """A loop: numba's own assignment of arrays compiles for seconds, see `output_layer`."""
    for j in range(source.shape[0]):
        for k in range(source.shape[1]):
            target[j, k] = source[j, k]


class Batch(NamedTuple):
    """What the output layer is solved on: Z = (y_N, 1), targets, weights, room for residuals."""

    Z: Array
    target: Array
    weight: Array
    residual: Array


@compiled
def _read_out(
    buffer: Array, width: int, chosen: Array, target: Array, weight: Array, batch: Batch
) -> float:
    """Z = (y_N, 1), targets and weights of the chosen samples; these sum to 1, unless to 0."""
    Z, T, w, total = batch.Z, batch.target, batch.weight, 0.0
    n = Z.shape[1] - 1
    for p in range(chosen.size):
        i = chosen[p]
        for f in range(n):
            Z[p, f] = buffer[f * width + p]
        Z[p, n] = 1.0
        for o in range(T.shape[1]):
            T[p, o] = target[i, o]
        w[p] = weight[i]
        total += weight[i]
    if total > 0:
        for p in range(chosen.size):
            w[p] /= total
    return total


@compiled
def _covector(residual: Array, V: Array, buffer: Array, g: int, width: int) -> None:
    """g = V' residual, the covector of y_N; idle lanes hold 0."""
    for f in range(V.shape[1] - 1):
        for p in range(width):
            total = 0.0
            if p < residual.shape[0]:
                for o in range(V.shape[0]):
                    total += V[o, f] * residual[p, o]
            buffer[g + f * width + p] = total


@compiled
def _count_correct(Z: Array, V: Array, T: Array, loss: int) -> int:
    """How many samples are classified correctly."""
    correct = 0
    if loss == SQUARED:
        return correct
    for p in range(Z.shape[0]):
        best, highest = 0, -np.inf
        for o in range(V.shape[0]):
            z = 0.0
            for k in range(V.shape[1]):
                z += V[o, k] * Z[p, k]
            if z > highest:
                best, highest = o, z
        if loss == LOGISTIC:
            best = 1 if highest > 0 else 0
        correct += best == int(T[p, 0])
    return correct


@always_inline
def _backward(walk: PassContext, g: int, d: int, kept: int, grads: Pointer) -> None:
    """Gradients of all rows, added to `grads`; activations end at `kept`."""
    for layer in range(walk.source.layers - 1, -1, -1):
        row = row_of(walk, layer)
        for k in range((walk.source.stages - 1) * COLUMNS, -1, -COLUMNS):
            kept -= (walk.source.table[k + R] + walk.source.table[k + M]) * walk.width
            stage_backward(walk, k, row, g, d, kept, grads, row, boolean(False))


@compiled
def _member(array: Array, e: int) -> Array:
    """array[e], where the ensemble may share it."""
    return array[e if array.shape[0] > 1 else 0]


def epoch(
    data: Data,
    trained: Trained,
    fixed: Fixed,
    stages: StageTable,
    options: Options,
    told: Record,
    scratch: Array,
    taken: int,
    team: Team,
    caller: bool,
) -> None:
    """One epoch, after `taken` steps, of the networks that this thread takes.

    For every batch: forward, keeping the activations; the output layer solved on y_N; backward; the
    smoothness penalty; one step of Adam. A network stops for the rest of the epoch where its loss
    is not finite. In the scratch a batch has, in this order: its state, the gradient of the state,
    room for one hidden layer, activations of all layers.
    """
    theta, beta, V = trained.theta, trained.beta, trained.V
    n, depth, size = data.states.shape[2], stages.layers, stages.wire.size
    pair = 2 * lanes(scratch)
    nothing = np.empty((1, 1, 0), theta.dtype)
    parameters = Parameters(theta, beta, fixed.steps, nothing, fixed.mixing)
    rows, grads, loaded = (
        np.empty(depth * size, theta.dtype),
        np.zeros(depth * size, theta.dtype),
        np.zeros(2, np.int64),
    )
    all_theta, all_beta = np.empty_like(theta[:1]), np.empty_like(beta[:1])
    g_theta, g_beta = all_theta[0], all_beta[0]
    whole = Batch(
        np.empty((options.batch, n + 1)),
        np.empty((options.batch, data.target.shape[2])),
        np.empty(options.batch),
        np.empty((options.batch, V.shape[1])),
    )
    e = first_piece(team, caller)
    while e >= 0:
        source = source_of(parameters, stages, e)
        copied = 0
        for i in range(told.losses.shape[1]):
            if copied < told.watched.size and told.watched[copied] == i:
                _copy(theta[e], told.theta[e, copied])
                _copy(beta[e], told.beta[e, copied])
                copied += 1
            chosen = _member(data.order, e)[i * options.batch : (i + 1) * options.batch]
            count = chosen.size
            width = -(-count // pair) * pair
            _read_in(_member(data.states, e), chosen, scratch, width)
            loaded[1] = 0  # the parameters have moved
            walk = PassContext(
                source,
                pointer(rows),
                depth,
                pointer(loaded),
                pointer(scratch),
                stages.activation,
                width,
            )
            g, d = n * width, 2 * n * width
            kept = record(walk, 0, depth, 0, d + extent(stages.table)[0] * width)
            batch = Batch(
                whole.Z[:count], whole.target[:count], whole.weight[:count], whole.residual[:count]
            )
            target, weight = _member(data.target, e), _member(data.weight, e)
            total = _read_out(scratch, width, chosen, target, weight, batch)
            if total == 0:  # a batch of which nothing counts
                told.losses[e, i, :2] = 0
                told.losses[e, i, 2] = _count_correct(batch.Z, V[e], batch.target, options.loss)
                continue
            _solve(batch, V[e], options)
            plain = residuals(
                batch.Z, V[e], batch.target, batch.weight, options.loss, batch.residual
            )
            told.losses[e, i, 2] = _count_correct(batch.Z, V[e], batch.target, options.loss)
            _covector(batch.residual, V[e], scratch, g, width)
            _backward(walk, g, d, kept, pointer(grads))
            g_theta[:] = 0
            g_beta[:] = 0
            found = Gradients(
                view_of(all_theta, 0), view_of(all_beta, 0), source.steps, source.dense
            )
            scatter_gradients(
                source, int64(0), depth, pointer(rows), pointer(grads), found, boolean(False)
            )
            h = _member(fixed.h, e)
            smooth = smoothness(theta[e], fixed.repeats, h, options.alpha, g_theta)
            smooth += smoothness(beta[e], fixed.bias_repeats, h, options.alpha, g_beta)
            if told.norms.shape[2] > 0:
                _row_norms(g_theta, g_beta, told.norms[e, i])
            told.losses[e, i, 0] = plain
            told.losses[e, i, 1] = plain + smooth + options.alpha_c * squared_norm(V[e])
            if not math.isfinite(told.losses[e, i, 1]):
                break
            shrink = 1.0
            if options.clip > 0:
                shrink = min(1.0, options.clip / (_norm(g_theta, g_beta) + 1e-6))
            t = taken + i + 1
            moments = trained.moments_theta
            _adam_step(theta[e], g_theta, moments[0, e], moments[1, e], options, shrink, t)
            moments = trained.moments_beta
            _adam_step(beta[e], g_beta, moments[0, e], moments[1, e], options, shrink, t)
        for k in range(copied, told.watched.size):
            _copy(theta[e], told.theta[e, k])
            _copy(beta[e], told.beta[e, k])
        e = next_piece(team, caller)


@compiled
def _solve(batch: Batch, V: Array, options: Options) -> None:
    """The output layer on a batch, from the given V, in place."""
    Z, target, weight = batch.Z, batch.target, batch.weight
    if options.solver == NEWTON:
        newton(
            Z,
            target,
            weight,
            V,
            options.loss,
            options.alpha_c,
            options.solver_iterations,
            options.tolerance,
        )
    else:
        adam(
            Z,
            target,
            weight,
            V,
            options.loss,
            options.alpha_c,
            options.solver_iterations,
            options.solver_rate,
            options.beta1,
            options.beta2,
        )


def epoch_types(number: types.Float) -> tuple[types.Type, ...]:
    """Of the arguments of `epoch`."""
    stack, moments = types.Array(number, 3, "C"), types.Array(number, 4, "C")
    vector, matrix, cube = (types.Array(types.float64, d, "C") for d in (1, 2, 3))
    flat, integer = build.flat(number), types.int64
    return (
        build.named(Data, stack, cube, matrix, build.table),
        build.named(Trained, stack, stack, moments, moments, cube),
        build.named(Fixed, types.Array(number, 3, "A"), flat, matrix, vector, vector),
        build.stages,
        build.named(Options, *(integer,) * 4, *(types.float64,) * 8),
        build.named(Record, cube, cube, build.integers, moments, moments),
        flat,
        integer,
        *build.team,
    )


def epoch_kernel(dtype: str) -> build.Kernel:
    """`epoch`, compiled for float32 or float64."""
    return build.kernel(epoch, dtype, epoch_types)
