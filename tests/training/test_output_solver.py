"""The output layer: damped Newton and the paper's Adam steps, against other people's solvers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from hdnn.kernels.native import LOSSES, SolverOptions
from hdnn.training import output_solver
from hdnn.training.objective import data_loss, output_penalty
from hdnn.training.output_solver import OutputProblem, newton, solve
from skips import needs_kernels

Array = np.ndarray
TIGHT = 1e-13
every_loss = pytest.mark.parametrize("loss", LOSSES)
classifiers = pytest.mark.parametrize("loss", ["logistic", "softmax"])


def problem_of(
    X: Array, target: Any, loss: str, weight: Array | None = None, alpha_c: float = 1e-3
) -> OutputProblem:
    Z, w = np.hstack([X, np.ones((len(X), 1))]), np.ones(len(X)) if weight is None else weight
    return OutputProblem(Z, np.array(target, float).reshape(len(X), -1), w / w.sum(), loss, alpha_c)


def random(loss: str, weight: Array | None = None, alpha_c: float = 1e-3) -> OutputProblem:
    """A noisy problem with four features; two or three classes, or two targets."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4)) * [1, 3, 0.3, 1]
    scores = X @ rng.normal(size=(4, 3)) + rng.normal(size=(60, 3))
    target = {"logistic": scores[:, 0] > 0, "softmax": scores.argmax(1), "squared": scores[:, :2]}
    return problem_of(X, target[loss], loss, weight, alpha_c)


def start(problem: OutputProblem) -> Array:
    outputs = {"logistic": 1, "softmax": 3, "squared": problem.target.shape[1]}[problem.loss]
    return np.zeros((outputs, problem.Z.shape[1]))


def by_kernel(
    problem: OutputProblem, V: Array, iterations: int = 100, tolerance: float = TIGHT
) -> int:
    """By the kernel, if there is one."""
    return solve(problem, V, SolverOptions("newton", iterations, tolerance))


def minimizer(problem: OutputProblem) -> Array:
    V = start(problem)
    by_kernel(problem, V)
    return V


def objective(problem: OutputProblem, V: torch.Tensor) -> torch.Tensor:
    """f(V) by the functions of the objective, which have tests of their own."""
    Z, target, weight, loss, alpha_c = problem
    labels = (
        torch.from_numpy(target) if loss == "squared" else torch.from_numpy(target[:, 0]).long()
    )
    data = data_loss(torch.from_numpy(Z) @ V.mT, labels, torch.from_numpy(weight), loss)
    return data + alpha_c * output_penalty(V[:, :-1], V[:, -1])


def value_and_gradient(problem: OutputProblem, V: Array) -> tuple[float, Array]:
    at = torch.from_numpy(V.copy()).requires_grad_()
    value = objective(problem, at)
    return float(value.detach()), torch.autograd.grad(value, at)[0].numpy()


# --- the functions under the solvers --------------------------------------------------------------


@every_loss
def test_values_and_gradients(loss: str) -> None:
    problem = random(loss, weight=np.arange(60.0))
    V = np.random.default_rng(1).normal(size=start(problem).shape)
    value, gradient, _ = problem.evaluate(V)
    exact, exact_gradient = value_and_gradient(problem, V)
    assert value == pytest.approx(exact, rel=1e-13)
    np.testing.assert_allclose(gradient, exact_gradient, rtol=1e-11, atol=1e-14)


@classifiers
def test_certain_outputs_neither_overflow_nor_lose_the_loss(loss: str) -> None:
    target, weight = np.array([[0.0], [1.0]]), np.array([0.5, 0.5])
    logits = np.array([[800.0]] * 2 if loss == "logistic" else [[-800.0, 0.0]] * 2)
    value, R, _ = output_solver.DATA_LOSSES[loss](logits, target, weight)
    assert value == 400.0  # the first sample is wrong by 800, the second right for certain
    assert np.isfinite(R).all()


# --- Newton against others ------------------------------------------------------------------------


def sklearn_coefficients(problem: OutputProblem, weight: Array | None = None) -> Array:
    """scikit-learn minimizes ||V||^2 / 2 + C sum_i loss_i: ours times C N, with C = 1/2 alpha_c N.

    It does not penalize an intercept and we do, so the intercept is a feature that is 1.
    """
    samples = len(problem.Z) if weight is None else weight.sum()
    peer = LogisticRegression(
        C=1 / (2 * problem.alpha_c * samples),
        fit_intercept=False,
        solver="newton-cholesky",
        tol=1e-12,
        max_iter=1000,
    )
    peer.fit(problem.Z, problem.target[:, 0].astype(int), sample_weight=weight)
    return peer.coef_


@classifiers
@pytest.mark.parametrize("alpha_c", [1e-4, 1.0])
@pytest.mark.parametrize("weight", [None, np.arange(60.0) % 7], ids=["equal", "weighted"])
def test_coefficients_of_scikit_learn(loss: str, alpha_c: float, weight: Array | None) -> None:
    problem = random(loss, weight, alpha_c)
    V = sklearn_coefficients(problem, weight)
    np.testing.assert_allclose(minimizer(problem), V, atol=1e-6)


def separable() -> OutputProblem:
    X = np.random.default_rng(0).normal(size=(40, 2))
    X[:20] += 5
    return problem_of(X, np.arange(40) < 20, "logistic", alpha_c=1e-4)


def with_columns(loss: str, change: Callable[[Array], Array]) -> OutputProblem:
    problem = random(loss)
    return problem._replace(Z=np.ascontiguousarray(change(problem.Z)))


def duplicate(Z: Array) -> Array:
    return Z[:, [0, 0, 2, 3, 4]]


MASK, SECOND = np.array([1, 0, 0, 1, 1]), np.array([0, 1, 0, 0, 0])
DEGENERATE: dict[str, Callable[[], OutputProblem]] = {
    "separable": separable,
    "duplicate columns": lambda: with_columns("softmax", duplicate),
    "constant columns": lambda: with_columns("logistic", lambda Z: Z * MASK + 3 * SECOND),
    "badly scaled": lambda: with_columns("logistic", lambda Z: Z * [1e4, 1, 1e-4, 1, 1]),
    "fewer samples than features": lambda: problem_of(
        np.random.default_rng(0).normal(size=(5, 9)), [0, 1, 2, 1, 0], "softmax", alpha_c=1e-4
    ),
}


@pytest.mark.parametrize("label", [*DEGENERATE, *LOSSES])
def test_kernel_and_matrices_find_the_same_minimum(label: str) -> None:
    problem = DEGENERATE[label]() if label in DEGENERATE else random(label)
    V, kernel = start(problem), minimizer(problem)
    assert newton(problem, V, 100, 1e-10) < 30
    assert np.abs(value_and_gradient(problem, V)[1]).max() <= 2e-10
    assert np.abs(value_and_gradient(problem, kernel)[1]).max() < 1e-9
    np.testing.assert_allclose(V, kernel, atol=1e-6)
    if label in DEGENERATE:
        np.testing.assert_allclose(V, sklearn_coefficients(problem), atol=1e-6)


@pytest.mark.parametrize("weight", [None, np.arange(60.0)], ids=["equal", "weighted"])
def test_squared_error_solves_the_normal_equations_in_one_iteration(weight: Array | None) -> None:
    problem = random("squared", weight)
    V = start(problem)
    assert by_kernel(problem, V, tolerance=1e-9) == 1
    Z, w = problem.Z, problem.weight[:, None]
    normal = Z.T @ (w * Z) + 2 * problem.alpha_c * np.eye(5)
    np.testing.assert_allclose(V.T, np.linalg.solve(normal, Z.T @ (w * problem.target)), rtol=1e-10)


@every_loss
def test_singular_problems_without_a_penalty(loss: str) -> None:
    """alpha_c = 0 and equal columns: many minimizers, and any of them will do."""
    problem = with_columns(loss, duplicate)._replace(alpha_c=0.0)
    assert np.abs(value_and_gradient(problem, minimizer(problem))[1]).max() < 1e-8


@classifiers
def test_newton_goes_down_and_ends_quadratically(loss: str) -> None:
    problem = random(loss)
    V = 10 * np.random.default_rng(2).normal(size=start(problem).shape)
    steps = [value_and_gradient(problem, V)]
    while by_kernel(problem, V, 1, 1e-12):
        steps.append(value_and_gradient(problem, V))
    assert (np.diff([value for value, _ in steps]) <= 1e-15).all()
    norms = [np.abs(gradient).max() for _, gradient in steps]
    assert norms[-1] <= 1e-12
    # Once below 1e-3, every gradient is the square of the one before, to a constant and rounding.
    late = [(a, b) for a, b in pairwise(norms) if a < 1e-3]
    assert late
    assert all(b <= 200 * a**2 + 1e-14 for a, b in late)


@classifiers
def test_newton_returns_from_where_curvatures_underflow(loss: str) -> None:
    problem = random(loss)
    V = 1e3 * np.random.default_rng(3).normal(size=start(problem).shape)
    by_kernel(problem, V, 200)
    np.testing.assert_allclose(V, minimizer(problem), atol=1e-9)


def test_nan_and_huge_features_end_the_solvers() -> None:
    """Squares overflow from 1e154 on; the solvers must end, within their iterations."""
    cases = [
        (solver, loss, size)
        for size in (np.nan, np.inf, 1e160, 1e300)
        for loss in LOSSES
        for solver in (by_kernel, newton)
    ]
    iterations: list[int] = []

    def work() -> None:
        for solver, loss, size in cases:
            problem = random(loss)
            with np.errstate(all="ignore"):
                problem.Z[:, :-1] *= size
                iterations.append(solver(problem, start(problem), 10, TIGHT))

    thread = threading.Thread(target=work, daemon=True)  # hangs alone, if it does
    thread.start()
    thread.join(20)
    assert len(iterations) == len(cases), f"{cases[len(iterations)]} never ends"
    assert max(iterations) <= 10


# --- Adam -----------------------------------------------------------------------------------------


@every_loss
@pytest.mark.parametrize("adam", [pytest.param(solve, marks=needs_kernels), output_solver.adam])
def test_adam_is_the_adam_of_torch_from_zero(loss: str, adam: Callable[..., int]) -> None:
    problem = random(loss, weight=np.arange(60.0) + 1)
    V = np.full(start(problem).shape, np.nan)  # what was there does not matter
    assert adam(problem, V, SolverOptions("adam", 10, TIGHT, 0.05)) == 10
    twin = torch.zeros(V.shape, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([twin], lr=0.05, betas=(0.9, 0.999))
    for _ in range(10):
        optimizer.zero_grad()
        objective(problem, twin).backward()
        optimizer.step()
    np.testing.assert_allclose(V, twin.detach().numpy(), rtol=1e-12, atol=1e-15)
