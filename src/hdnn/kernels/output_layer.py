"""The output layer, solved given the hidden layers: compiled functions on arrays, in float64.

With Z = (y_N, 1) the rows of features and V = (W, mu) the weights, minimize

    f(V) = sum_i w_i loss(V z_i, target_i) + alpha_c ||V||_F^2,      sum_i w_i = 1

which is strictly convex for alpha_c > 0. Losses: logistic (one output), softmax, squared error.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
from numba import types

from hdnn.kernels import build
from hdnn.kernels.vectors import Array, callable_from_python, compiled

LOGISTIC, SOFTMAX, SQUARED = range(3)
NEWTON, ADAM = range(2)
LINE_SEARCH = 40  # halvings of a Newton step before giving up


@callable_from_python
def residuals(Z: Array, V: Array, target: Array, weight: Array, loss: int, R: Array) -> float:
    """R[i] = w_i dloss_i/dlogits; returns sum_i w_i loss_i."""
    total = 0.0
    outputs = V.shape[0]
    for i in range(Z.shape[0]):
        for o in range(outputs):
            z = 0.0
            for k in range(V.shape[1]):
                z += V[o, k] * Z[i, k]
            R[i, o] = z
        total += weight[i] * sample_loss(R[i], target[i], loss)
        for o in range(outputs):
            R[i, o] *= weight[i]
    return total


@callable_from_python
def sample_loss(z: Array, target: Array, loss: int) -> float:
    """The loss of one sample; z becomes its gradient."""
    if loss == LOGISTIC:
        sign = 2.0 * target[0] - 1.0
        e = math.exp(-abs(z[0]))
        margin = sign * z[0]
        value = math.log1p(e) + (0.0 if margin > 0 else -margin)
        p = 1.0 / (1.0 + e) if z[0] > 0 else e / (1.0 + e)
        z[0] = p - target[0]
        return value
    if loss == SOFTMAX:
        label = int(target[0])
        top = z[0]
        for o in range(1, z.size):
            top = max(top, z[o])
        total, own = 0.0, z[label]
        for o in range(z.size):
            z[o] = math.exp(z[o] - top)
            total += z[o]
        for o in range(z.size):
            z[o] /= total
        z[label] -= 1.0
        return math.log(total) + top - own
    value = 0.0
    for o in range(z.size):
        z[o] -= target[o]
        value += 0.5 * z[o] * z[o]
    return value


@compiled
def _gradient(Z: Array, R: Array, V: Array, alpha_c: float, G: Array) -> float:
    """G = R' Z + 2 alpha_c V; returns its largest entry."""
    largest = 0.0
    for o in range(V.shape[0]):
        for k in range(V.shape[1]):
            G[o, k] = 2.0 * alpha_c * V[o, k]
    for i in range(Z.shape[0]):
        for o in range(V.shape[0]):
            for k in range(V.shape[1]):
                G[o, k] += R[i, o] * Z[i, k]
    for o in range(V.shape[0]):
        for k in range(V.shape[1]):
            largest = max(largest, abs(G[o, k]))
    return largest


@compiled
def _hessian(
    Z: Array, R: Array, target: Array, weight: Array, loss: int, ridge: float, H: Array, p: Array
) -> None:
    """The lower triangle of the Hessian of f, (O q, O q) with q columns of Z."""
    outputs, q = R.shape[1], Z.shape[1]
    H[:] = 0.0
    for i in range(Z.shape[0]):
        w = weight[i]
        if w == 0.0:
            continue
        for o in range(outputs):
            p[o] = R[i, o] / w
        if loss == LOGISTIC:
            p[0] += target[i, 0]
        elif loss == SOFTMAX:
            p[int(target[i, 0])] += 1.0
        for o in range(outputs):
            for u in range(o + 1):
                curvature = w
                if loss != SQUARED:
                    curvature = w * p[o] * ((1.0 if o == u else 0.0) - p[u])
                elif o != u:
                    continue
                for a in range(q):
                    scaled = curvature * Z[i, a]
                    row = H[o * q + a]
                    for c in range(q if u < o else a + 1):
                        row[u * q + c] += scaled * Z[i, c]
    for a in range(H.shape[0]):
        H[a, a] += ridge


@compiled
def _solve(H: Array, x: Array) -> bool:
    """x = H^{-1} x by Cholesky, in place; False where H is not positive definite."""
    n = x.size
    for j in range(n):
        for i in range(j, n):
            total = H[i, j]
            for k in range(j):
                total -= H[i, k] * H[j, k]
            if i == j:
                if not total > 0.0:
                    return False
                H[j, j] = math.sqrt(total)
            else:
                H[i, j] = total / H[j, j]
    for i in range(n):
        for k in range(i):
            x[i] -= H[i, k] * x[k]
        x[i] /= H[i, i]
    for i in range(n - 1, -1, -1):
        for k in range(i + 1, n):
            x[i] -= H[k, i] * x[k]
        x[i] /= H[i, i]
    return True


@callable_from_python
def squared_norm(V: Array) -> float:
    """||V||_F^2."""
    total = 0.0
    for o in range(V.shape[0]):
        for k in range(V.shape[1]):
            total += V[o, k] * V[o, k]
    return total


@compiled
def _copy(G: Array, x: Array) -> None:
    """x = the entries of G, row by row.

    Loops, here and elsewhere: numba's own assignment of an array to an array compiles for a second,
    since its error message formats shapes.
    """
    for o in range(G.shape[0]):
        for k in range(G.shape[1]):
            x[o * G.shape[1] + k] = G[o, k]


@callable_from_python
def newton(
    Z: Array,
    target: Array,
    weight: Array,
    V: Array,
    loss: int,
    alpha_c: float,
    iterations: int,
    tolerance: float,
) -> int:
    """Damped Newton from the given V, in place; returns the number of iterations."""
    outputs, q = V.shape
    R, G = np.empty((Z.shape[0], outputs)), np.empty((outputs, q))
    H, p, tried = np.empty((outputs * q, outputs * q)), np.empty(outputs), np.empty((outputs, q))
    step = np.empty(outputs * q)
    value = residuals(Z, V, target, weight, loss, R) + alpha_c * squared_norm(V)
    for iteration in range(iterations):
        if not _gradient(Z, R, V, alpha_c, G) > tolerance:
            return iteration
        # Far out, softmax curvatures underflow: then a little of the identity keeps it solvable.
        ridge = 2.0 * alpha_c
        _copy(G, step)
        _hessian(Z, R, target, weight, loss, ridge, H, p)
        while not _solve(H, step):
            ridge = max(10.0 * ridge, 1e-10)
            if not ridge < 1e30:  # numbers too large to square, or none at all
                return iteration
            _copy(G, step)
            _hessian(Z, R, target, weight, loss, ridge, H, p)
        slope = 0.0
        for o in range(outputs):
            for k in range(q):
                slope += step[o * q + k] * G[o, k]
        length, accepted = 1.0, False
        for _ in range(LINE_SEARCH):
            for o in range(outputs):
                for k in range(q):
                    tried[o, k] = V[o, k] - length * step[o * q + k]
            new = residuals(Z, tried, target, weight, loss, R) + alpha_c * squared_norm(tried)
            # The last steps decrease f by less than its rounding.
            if new <= value - 1e-4 * length * slope + 1e-15 * abs(value):
                accepted = True
                break
            length *= 0.5
        if not accepted:  # the decrease is below rounding
            residuals(Z, V, target, weight, loss, R)
            return iteration
        for o in range(outputs):
            for k in range(q):
                V[o, k] = tried[o, k]
        value = new
    return iterations


@callable_from_python
def adam(
    Z: Array,
    target: Array,
    weight: Array,
    V: Array,
    loss: int,
    alpha_c: float,
    iterations: int,
    rate: float,
    beta1: float,
    beta2: float,
) -> int:
    """A few Adam steps from zero, as the paper's own code does."""
    V[:] = 0.0
    R, G = np.empty((Z.shape[0], V.shape[0])), np.empty_like(V)
    first, second = np.zeros_like(V), np.zeros_like(V)
    for t in range(1, iterations + 1):
        residuals(Z, V, target, weight, loss, R)
        _gradient(Z, R, V, alpha_c, G)
        for o in range(V.shape[0]):
            for k in range(V.shape[1]):
                g = G[o, k]
                first[o, k] = beta1 * first[o, k] + (1.0 - beta1) * g
                second[o, k] = beta2 * second[o, k] + (1.0 - beta2) * g * g
                m = first[o, k] / (1.0 - beta1**t)
                v = second[o, k] / (1.0 - beta2**t)
                V[o, k] -= rate * m / (math.sqrt(v) + 1e-8)
    return iterations


SOLVERS: dict[str, tuple[Callable[..., int], int]] = {
    "newton": (newton.py_func, 1),
    "adam": (adam.py_func, 3),
}
"""The solvers, and how many numbers each takes after those that all take."""


@functools.cache
def kernel(name: str) -> Callable[..., int]:
    """`newton` or `adam` for calls from Python, from numba's cache on disk if it is there."""
    vector, matrix = (types.Array(types.float64, d, "C") for d in (1, 2))
    data = (matrix, matrix, vector, matrix, types.int64, types.float64, types.int64)
    function, numbers = SOLVERS[name]
    signature = types.int64(*data, *(types.float64,) * numbers)
    return build.compile_now(function, signature)
