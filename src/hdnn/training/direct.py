"""Coordinate descent without autograd: whole epochs of a program of stages in one compiled call.

For every batch: one forward pass that keeps its tape, the output layer solved on y_N, one backward
pass along the tape, the smoothness penalty, one Adam step. Networks of an ensemble are independent,
so threads share them (see `hdnn.backends.team`).
"""

import functools
import math
from collections.abc import Callable

import numpy as np
from numba import boolean, njit, types

from hdnn.backends.blocks import Walk, record, row_of, stage_backward
from hdnn.backends.rows import Gradients, disassemble, extent, source_of, stack_of
from hdnn.backends.team import Team, first_piece, next_piece
from hdnn.backends.vector.tiles import (
    VECTOR_BYTES,
    Array,
    Pointer,
    compiled,
    lanes,
    pasted,
    pointer,
)
from hdnn.backends.wiring import COLUMNS, M, R
from hdnn.training.solvers import (
    LOGISTIC,
    NEWTON,
    SQUARED,
    adam,
    newton,
    residuals,
    squared_norm,
)

# What `numbers` holds: learning rate, betas, alpha, alpha_c, tolerance and rate of the output
# solver, the largest norm of a gradient (0: any).
RATE, BETA1, BETA2, ALPHA, ALPHA_C, TOLERANCE, OUTPUT_RATE, CLIP = range(8)


def scratch_size(table: Array, width: int, layers: int, batch: int, itemsize: int) -> int:
    """Elements of scratch for one batch: its state, its covector, one hidden block, the tape."""
    pair = 2 * VECTOR_BYTES // itemsize
    samples = -(-batch // pair) * pair
    tape = int((table[:, R] + table[:, M]).sum()) * layers
    return (2 * width + int(table[:, M].max()) + tape) * samples


@compiled
def _enter(X: Array, chosen: Array, buffer: Array, width: int) -> None:
    """The chosen samples -> buffer (n, width); idle lanes repeat the last one."""
    for p in range(width):
        i = chosen[min(p, chosen.size - 1)]
        for f in range(X.shape[1]):
            buffer[f * width + p] = X[i, f]


@compiled
def _smooth(theta: Array, repeats: Array, h: Array, alpha: float, g: Array) -> float:
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
    theta: Array, g: Array, first: Array, second: Array, numbers: Array, shrink: float, t: int
) -> None:
    beta1, beta2 = numbers[BETA1], numbers[BETA2]
    correction = math.sqrt(1.0 - beta2**t)
    rate = numbers[RATE] / (1.0 - beta1**t)
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
def _leave(
    buffer: Array, width: int, n: int, chosen: Array, target: Array, weight: Array, Z: Array,
    T: Array, w: Array,
) -> float:  # fmt: skip
    """Z = (y_N, 1), targets and weights of the chosen samples; these sum to 1, unless to 0."""
    total = 0.0
    for p in range(chosen.size):
        i = chosen[p]
        for f in range(n):
            Z[p, f] = buffer[f * width + p]
        Z[p, n] = 1.0
        T[p] = target[i]
        w[p] = weight[i]
        total += weight[i]
    if total > 0:
        for p in range(chosen.size):
            w[p] /= total
    return total


@compiled
def _pull(residual: Array, V: Array, buffer: Array, g: int, width: int) -> None:
    """g = V' residual, the covector of y_N; idle lanes hold 0."""
    for f in range(V.shape[1] - 1):
        for p in range(width):
            total = 0.0
            if p < residual.shape[0]:
                for o in range(V.shape[0]):
                    total += V[o, f] * residual[p, o]
            buffer[g + f * width + p] = total


@compiled
def _correct(Z: Array, V: Array, T: Array, loss: int) -> int:
    """How many samples are classified correctly."""
    right = 0
    if loss == SQUARED:
        return right
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
        right += best == int(T[p, 0])
    return right


@pasted
def _backward(walk: Walk, g: int, d: int, kept: int, grads: Pointer) -> None:
    """Gradients of all rows along the tape that ends at `kept`, added to `grads`."""
    for layer in range(walk.source.layers - 1, -1, -1):
        row = row_of(walk, layer)
        for k in range((walk.source.stages - 1) * COLUMNS, -1, -COLUMNS):
            kept -= (walk.source.table[k + R] + walk.source.table[k + M]) * walk.width
            stage_backward(walk, k, row, g, d, kept, grads, row, boolean(False))


@compiled
def _member(array: Array, e: int) -> Array:
    """array[e], where the ensemble may share it."""
    return array[e if array.shape[0] > 1 else 0]


def _epoch(
    X: Array, target: Array, weight: Array, order: Array, theta: Array, beta: Array,
    moments_theta: Array, moments_beta: Array, V: Array, steps: Array, h: Array, wire: Array,
    mixing: Array, table: Array, repeats: Array, bias_repeats: Array, numbers: Array,
    losses: Array, slopes: Array, looks: Array, shots_theta: Array, shots_beta: Array,
    scratch: Array, code: int, loss: int, solver: int, iterations: int, batch: int, taken: int,
    team: Team, caller: bool,
) -> None:  # fmt: skip
    """One epoch, after `taken` steps, of the networks that this thread takes.

    A network stops for the rest of the epoch where its loss is not finite. Before the steps of
    batches looks[0] < looks[1] < ... its weights are copied to shots_theta[e, 0], [e, 1], ...

    losses[e, i] is the plain and the penalised loss of batch i before its step, and the number of
    samples that it classifies correctly; slopes[e, i], unless empty, the norms of the gradient,
    layer by layer.
    """
    n, depth, size = X.shape[2], h.shape[1], wire.size
    pair = 2 * lanes(scratch)
    nothing = np.empty((1, 1, 0), theta.dtype)
    rows, grads, held = (
        np.empty(depth * size, theta.dtype),
        np.zeros(depth * size, theta.dtype),
        np.zeros(2, np.int64),
    )
    all_theta, all_beta = np.empty_like(theta[:1]), np.empty_like(beta[:1])
    g_theta, g_beta = all_theta[0], all_beta[0]
    all_z, all_t = np.empty((batch, n + 1)), np.empty((batch, target.shape[2]))
    all_w, all_r = np.empty(batch), np.empty((batch, V.shape[1]))
    e = first_piece(team, caller)
    while e >= 0:
        source = source_of(theta, beta, steps, nothing, mixing, wire, table, depth, e)
        seen = 0
        for i in range(losses.shape[1]):
            if seen < looks.size and looks[seen] == i:
                shots_theta[e, seen], shots_beta[e, seen] = theta[e], beta[e]
                seen += 1
            chosen = _member(order, e)[i * batch : (i + 1) * batch]
            count = chosen.size
            width = -(-count // pair) * pair
            _enter(_member(X, e), chosen, scratch, width)
            held[1] = 0  # the parameters have moved
            walk = Walk(source, pointer(rows), depth, pointer(held), pointer(scratch), code, width)
            g, d = n * width, 2 * n * width
            kept = record(walk, 0, depth, 0, d + extent(table)[0] * width)
            Z, T, w, residual = all_z[:count], all_t[:count], all_w[:count], all_r[:count]
            total = _leave(
                scratch, width, n, chosen, _member(target, e), _member(weight, e), Z, T, w
            )
            if total == 0:  # a batch of which nothing counts
                losses[e, i, :2] = 0
                losses[e, i, 2] = _correct(Z, V[e], T, loss)
                continue
            if solver == NEWTON:
                newton(Z, T, w, V[e], loss, numbers[ALPHA_C], iterations, numbers[TOLERANCE])
            else:
                adam(Z, T, w, V[e], loss, numbers[ALPHA_C], iterations, numbers[OUTPUT_RATE],
                     numbers[BETA1], numbers[BETA2])  # fmt: skip
            plain = residuals(Z, V[e], T, w, loss, residual)
            losses[e, i, 2] = _correct(Z, V[e], T, loss)
            _pull(residual, V[e], scratch, g, width)
            _backward(walk, g, d, kept, pointer(grads))
            g_theta[:] = 0
            g_beta[:] = 0
            found = Gradients(
                stack_of(all_theta, 0), stack_of(all_beta, 0), source.steps, source.dense
            )
            disassemble(source, 0, depth, pointer(rows), pointer(grads), found, boolean(False))
            own_h = _member(h, e)
            smooth = _smooth(theta[e], repeats, own_h, numbers[ALPHA], g_theta)
            smooth += _smooth(beta[e], bias_repeats, own_h, numbers[ALPHA], g_beta)
            if slopes.shape[2] > 0:
                _row_norms(g_theta, g_beta, slopes[e, i])
            losses[e, i, 0] = plain
            losses[e, i, 1] = plain + smooth + numbers[ALPHA_C] * squared_norm(V[e])
            if not math.isfinite(losses[e, i, 1]):
                break
            shrink = 1.0
            if numbers[CLIP] > 0:
                shrink = min(1.0, numbers[CLIP] / (_norm(g_theta, g_beta) + 1e-6))
            t = taken + i + 1
            _adam_step(theta[e], g_theta, moments_theta[0, e], moments_theta[1, e], numbers,
                       shrink, t)  # fmt: skip
            _adam_step(beta[e], g_beta, moments_beta[0, e], moments_beta[1, e], numbers,
                       shrink, t)  # fmt: skip
        for k in range(seen, looks.size):
            shots_theta[e, k], shots_beta[e, k] = theta[e], beta[e]
        e = next_piece(team, caller)


@functools.cache
def epoch_kernel(dtype: str) -> Callable[..., None]:
    """`_epoch` compiled for float32 or float64, from numba's cache on disk if it is there."""
    number = getattr(types, dtype)
    stack, moments = types.Array(number, 3, "C"), types.Array(number, 4, "C")
    wide = [types.Array(types.float64, d, "C") for d in (1, 2, 3)]
    ints = [types.Array(types.int64, d, "C") for d in (1, 2)]
    flat = types.Array(number, 1, "C")
    signature = types.void(
        stack, wide[2], wide[1], ints[1], stack, stack, moments, moments, wide[2],
        types.Array(number, 3, "A"), wide[1], ints[0], flat, ints[1], wide[0], wide[0], wide[0],
        wide[2], wide[2], ints[0], moments, moments, flat, *(types.int64,) * 6,
        ints[0], types.boolean,
    )  # fmt: skip
    compile_for: Callable[[Callable[..., None]], Callable[..., None]] = njit(
        signature, nogil=True, cache=True, fastmath={"contract"}
    )
    return compile_for(_epoch)
