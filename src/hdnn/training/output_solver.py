"""Solving the output layer, given the hidden layers.

Narrow ones are solved in a kernel; wide ones, and all where there are no kernels, by matrix
products. Logistic loss and squared error have Hessians of the features' size, which are factorized.
That of softmax is larger by the square of the number of classes: it is applied to vectors, never
formed, and conjugate gradients solve for the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hdnn.config import TrainingConfig
from hdnn.kernels import native
from hdnn.kernels.native import SolverOptions
from hdnn.models import Model
from hdnn.threads import one_thread
from hdnn.training.objective import loss_name

Array = np.ndarray
MOST_UNKNOWNS = 160
"""The largest output layer that the kernel solves; beyond it a matrix library wins."""
ITERATIONS = 10
"""Of Newton or Adam, at most, in every iteration of the training."""
TOLERANCE = 1e-9
"""Where the Newton solver stops: the largest entry of the gradient."""
LINE_SEARCH = 40  # halvings of a Newton step before giving up
ROUNDING = 1e-14  # of the objective: a sum over samples
INNER = 250  # products with the Hessian for one step


class OutputProblem(NamedTuple):
    """sum_i w_i loss(V z_i, target_i) + alpha_c ||V||^2, to be minimized over V ``(outputs, q)``.

    Args:
        Z: ``(samples, q)``, features with a last column of ones.
        target: ``(samples, 1)`` class numbers or ``(samples, outputs)`` values.
        weight: ``(samples,)``, with sum 1.
        loss: "logistic", "softmax" or "squared".
        alpha_c: weight of ||V||^2.
    """

    Z: Array
    target: Array
    weight: Array
    loss: str
    alpha_c: float

    def evaluate(self, V: Array) -> tuple[float, Array, Array]:
        """The value, its gradient, and what the Hessian is made of (see `DATA_LOSSES`)."""
        logits = product(self.Z, V.T)
        value, R, curvature = DATA_LOSSES[self.loss](logits, self.target, self.weight)
        value += self.alpha_c * float((V * V).sum())
        return value, product(R.T, self.Z) + 2 * self.alpha_c * V, curvature


def solve_output(
    model: Model, out: Tensor, target: Tensor, weight: Tensor, config: TrainingConfig
) -> None:
    """Set the output layer to the minimizer (or a few Adam steps towards it) given y_N.

    It is solved on the CPU, wherever the model is.

    Args:
        model: whose head is set.
        out: y_N, ``(samples, n)``.
        target: class numbers ``(samples,)``, or values ``(samples, outputs)``.
        weight: ``(samples,)``.
        config: the solver, and the weight of the penalty.
    """
    head = model.head
    T = target.cpu().double().reshape(len(out), -1).numpy()
    w = weight.cpu().double().numpy()
    V = torch.cat([head.weight, head.bias[:, None]], 1).detach().cpu().double().numpy()
    loss = loss_name(model.task, head.out_features)
    options = SolverOptions(config.solver, ITERATIONS, TOLERANCE, config.learning_rate)
    solve(OutputProblem(with_ones(out), T, w / w.sum(), loss, config.alpha_c), V, options)
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(V[:, :-1]))
        head.bias.copy_(torch.from_numpy(V[:, -1]))


def with_ones(out: Tensor) -> Array:
    """y_N in float64 with a last column of ones, ``(..., samples, n + 1)``."""
    Z = out.detach().cpu().double().numpy()
    return np.concatenate([Z, np.ones((*Z.shape[:-1], 1))], axis=-1)


def solve(problem: OutputProblem, V: Array, options: SolverOptions) -> int:
    """Minimize from V, in place; returns the number of iterations."""
    if native.obstacle() is None and (V.size <= MOST_UNKNOWNS or options.solver == "adam"):
        Z, target, weight, loss, alpha_c = problem
        return native.output_layer(Z, target, weight, V, loss, alpha_c, options)
    samples, width = problem.Z.shape
    with one_thread(samples * width * (len(V) if problem.loss == "softmax" else width)):
        if options.solver == "adam":
            return adam(problem, V, options)
        return newton(problem, V, options.iterations, options.tolerance)


@np.errstate(all="ignore")  # a training that diverges comes here too, and says so itself
def adam(problem: OutputProblem, V: Array, options: SolverOptions) -> int:
    """A few steps of Adam from zero, as the paper's own code does; arguments as in `solve`."""
    V[:] = 0
    point = torch.from_numpy(V)  # the same memory
    optimizer = torch.optim.Adam([point], lr=options.learning_rate)
    for _ in range(options.iterations):
        point.grad = torch.from_numpy(problem.evaluate(V)[1])
        optimizer.step()
    return options.iterations


@np.errstate(all="ignore")
def newton(problem: OutputProblem, V: Array, iterations: int, tolerance: float) -> int:
    """Damped Newton from the given V, in place; returns the number of iterations.

    Args:
        problem: what is minimized.
        V: ``(outputs, q)``.
        iterations, tolerance: at most so many; stop where no entry of the gradient is larger.
    """
    value, G, curvature = problem.evaluate(V)
    for iteration in range(iterations):
        if not np.abs(G).max() > tolerance:
            return iteration
        step = _step(problem, curvature, G)
        descent, length = float((step * G).sum()), 1.0
        # A line search could not measure such a decrease, and would halve the step at random.
        if 0 <= descent <= ROUNDING * abs(value):
            V -= step
            return iteration + 1
        for _ in range(LINE_SEARCH):
            trial = V - length * step
            new, G, curvature = problem.evaluate(trial)
            # Armijo's condition, with room for the rounding of the objective.
            if new <= value - 1e-4 * length * descent + 1e-15 * abs(value):
                break
            length /= 2
        else:  # the decrease is below rounding
            return iteration
        V[:], value = trial, new
    return iterations


# Each gives sum_i w_i loss_i, R[i] = w_i dloss_i/dlogits, and what its Hessian is made of: the
# curvature of every sample, or for softmax the probabilities.


def _logistic(values: Array, target: Array, weight: Array) -> tuple[float, Array, Array]:
    sign = 2 * target[:, 0] - 1
    margin = sign * values[:, 0]
    e = np.exp(-np.abs(margin))
    wrong = margin < 0
    p = np.where(wrong, 1.0, e) / (1 + e)  # of the other class
    losses = np.log1p(e) - margin * wrong
    residuals = weight * p
    return float(weight @ losses), -(sign * residuals)[:, None], residuals * (1 - p)


def _softmax(values: Array, target: Array, weight: Array) -> tuple[float, Array, Array]:
    rows, label = np.arange(len(values)), target[:, 0].astype(np.int64)
    shifted = values - values.max(1, keepdims=True)
    P = np.exp(shifted)
    total = P.sum(1, keepdims=True)
    P /= total
    R = P.copy()
    R[rows, label] -= 1
    losses = np.log(total[:, 0]) - shifted[rows, label]
    return float(weight @ losses), R * weight[:, None], P


def _squared(values: Array, target: Array, weight: Array) -> tuple[float, Array, Array]:
    R = values - target
    return float(weight @ (R * R).sum(1)) / 2, R * weight[:, None], weight


DATA_LOSSES = {"logistic": _logistic, "softmax": _softmax, "squared": _squared}


def product(A: Array, B: Array) -> Array:
    """A B by torch: `one_thread` does not reach the threads of numpy's own library."""
    return torch.mm(torch.from_numpy(A), torch.from_numpy(B)).numpy()


def _step(problem: OutputProblem, curvature: Array, G: Array) -> Array:
    """The Newton step S of H S = G."""
    Z, ridge = problem.Z, 2 * problem.alpha_c
    if problem.loss != "softmax":
        return _factorized(product(Z.T, Z * curvature[:, None]), ridge, G)
    P, weighted = curvature, curvature * problem.weight[:, None]

    def hessian(D: Array) -> Array:
        U = product(Z, D.T)
        U -= (P * U).sum(1, keepdims=True)
        U *= weighted
        return product(U.T, Z) + ridge * D

    return _conjugate_gradients(hessian, G)


def _factorized(H: Array, ridge: float, G: Array) -> Array:
    """S of S (H + ridge I) = G; a larger ridge where that is singular."""
    own = H.diagonal().copy()
    while math.isfinite(ridge):
        np.fill_diagonal(H, own + ridge)
        factor, failed = torch.linalg.cholesky_ex(torch.from_numpy(H))
        if not failed:
            step = torch.cholesky_solve(torch.from_numpy(G.T), factor)
            return np.ascontiguousarray(step.numpy().T)
        ridge = max(10 * ridge, 1e-10)  # far out, curvatures underflow
    return G  # features whose squares overflow


def _conjugate_gradients(hessian: Callable[[Array], Array], G: Array) -> Array:
    """S of H S = G, the more exact the nearer the minimum: Newton stays faster than linear."""
    from scipy.sparse.linalg import LinearOperator, cg

    H = LinearOperator((G.size, G.size), lambda d: hessian(d.reshape(G.shape)).ravel(), dtype=float)
    accuracy = min(0.1, math.sqrt(np.linalg.norm(G)))
    S = cg(H, G.ravel(), rtol=accuracy, maxiter=INNER)[0].reshape(G.shape)
    return S if S.any() else G
