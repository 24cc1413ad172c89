"""The output layer: damped Newton and the paper's Adam steps, against other people's solvers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from hdnn.kernels.native import LOSSES, SolverOptions, obstacle
from hdnn.training import output_solver
from hdnn.training.objective import data_loss, output_penalty
from skips import needs_kernels

Array = np.ndarray
LOGISTIC, SOFTMAX, SQUARED = range(3)
TIGHT = 1e-13


class Problem:
    """Rows of features with a last column of ones, targets and weights that sum to 1."""

    def __init__(
        self,
        X: Array,
        target: Array,
        loss: int,
        *,
        weight: Array | None = None,
        alpha_c: float = 1e-3,
        outputs: int | None = None,
    ) -> None:
        self.Z = np.hstack([X, np.ones((len(X), 1))])
        self.target = np.ascontiguousarray(target, float).reshape(len(X), -1)
        w = np.ones(len(X)) if weight is None else np.asarray(weight, float)
        self.weight, self.loss, self.alpha_c = w / w.sum(), loss, alpha_c
        self.outputs = outputs or (self.target.shape[1] if loss == SQUARED else 1)

    def start(self) -> Array:
        return np.zeros((self.outputs, self.Z.shape[1]))

    @property
    def plain(self) -> output_solver.Problem:
        arrays = self.Z, self.target, self.weight
        return output_solver.Problem(*arrays, LOSSES[self.loss], self.alpha_c)

    def newton(self, V: Array, iterations: int = 100, tolerance: float = TIGHT) -> int:
        """By the kernel, where there is one."""
        if obstacle() is not None:
            return self.by_matrices(V, iterations, tolerance)
        return output_solver.solve(self.plain, V, SolverOptions("newton", iterations, tolerance))

    def by_matrices(self, V: Array, iterations: int = 100, tolerance: float = TIGHT) -> int:
        return output_solver.newton(self.plain, V, iterations, tolerance)

    def solve(self) -> Array:
        V = self.start()
        self.newton(V)
        return V

    def objective(self, V: torch.Tensor) -> torch.Tensor:
        """f(V) by the functions of the objective, which have tests of their own."""
        values = torch.from_numpy(self.Z) @ V.mT
        target = torch.from_numpy(self.target)
        if self.loss != SQUARED:
            target = target[:, 0].long()
        data = data_loss(values, target, torch.from_numpy(self.weight), LOSSES[self.loss])
        return data + self.alpha_c * output_penalty(V[:, :-1], V[:, -1])

    def gradient(self, V: Array) -> Array:
        at = torch.from_numpy(V.copy()).requires_grad_()
        (gradient,) = torch.autograd.grad(self.objective(at), at)
        return gradient.numpy()

    def value(self, V: Array) -> float:
        return float(self.objective(torch.from_numpy(V)))


def random(loss: int, seed: int = 0, samples: int = 60, **options: object) -> Problem:
    """A noisy problem with four features; three classes, or two targets."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(samples, 4)) * [1, 3, 0.3, 1]
    scores = X @ rng.normal(size=(4, 3)) + rng.normal(size=(samples, 3))
    if loss == LOGISTIC:
        return Problem(X, scores[:, 0] > 0, loss, **options)
    if loss == SOFTMAX:
        return Problem(X, scores.argmax(1), loss, outputs=3, **options)
    return Problem(X, scores[:, :2], loss, **options)


ALL = pytest.mark.parametrize("loss", range(3), ids=LOSSES)


# --- the functions under the solvers --------------------------------------------------------------


@ALL
def test_values_and_gradients(loss: int) -> None:
    problem = random(loss, weight=np.arange(60.0))
    V = np.random.default_rng(1).normal(size=problem.start().shape)
    value, gradient, _ = problem.plain.evaluate(V)
    assert value == pytest.approx(problem.value(V), rel=1e-13)
    np.testing.assert_allclose(gradient, problem.gradient(V), rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("loss", [LOGISTIC, SOFTMAX], ids=["logistic", "softmax"])
def test_certain_outputs_neither_overflow_nor_lose_the_loss(loss: int) -> None:
    target, weight = np.array([[0.0], [1.0]]), np.array([0.5, 0.5])
    logits = np.array([[800.0]] * 2 if loss == LOGISTIC else [[-800.0, 0.0]] * 2)
    value, R, _ = output_solver.DATA_LOSSES[LOSSES[loss]](logits, target, weight)
    assert value == 400.0  # the first sample is wrong by 800, the second right for certain
    assert np.isfinite(R).all()


# --- Newton against others ------------------------------------------------------------------------


def _sklearn(problem: Problem, weight: Array | None = None) -> Array:
    """scikit-learn minimizes ||V||^2 / 2 + C sum_i loss_i: ours times C N, with C = 1/2 alpha_c N.

    It does not penalize an intercept and we do, so the intercept is a feature that is 1.
    """
    samples = len(problem.Z) if weight is None else weight.sum()
    reference = LogisticRegression(
        C=1 / (2 * problem.alpha_c * samples),
        fit_intercept=False,
        solver="newton-cholesky",
        tol=1e-12,
        max_iter=1000,
    )
    reference.fit(problem.Z, problem.target[:, 0].astype(int), sample_weight=weight)
    return reference.coef_


@pytest.mark.parametrize("loss", [LOGISTIC, SOFTMAX], ids=["logistic", "softmax"])
@pytest.mark.parametrize("alpha_c", [1e-4, 1.0])
@pytest.mark.parametrize("weight", [None, np.arange(60.0) % 7], ids=["equal", "weighted"])
def test_coefficients_of_scikit_learn(loss: int, alpha_c: float, weight: Array | None) -> None:
    problem = random(loss, alpha_c=alpha_c, weight=weight)
    np.testing.assert_allclose(problem.solve(), _sklearn(problem, weight), atol=1e-6)


def _separable() -> Problem:
    X = np.random.default_rng(0).normal(size=(40, 2))
    X[:20] += 5
    return Problem(X, np.arange(40) < 20, LOGISTIC, alpha_c=1e-4)


def _duplicate_columns() -> Problem:
    problem = random(SOFTMAX)
    problem.Z[:, 1] = problem.Z[:, 0]
    return problem


def _constant_columns() -> Problem:
    problem = random(LOGISTIC)
    problem.Z[:, 1], problem.Z[:, 2] = 3.0, 0.0
    return problem


def _wide() -> Problem:
    """Fewer samples than features."""
    rng = np.random.default_rng(0)
    return Problem(rng.normal(size=(5, 9)), [0, 1, 2, 1, 0], SOFTMAX, outputs=3, alpha_c=1e-4)


def _badly_scaled() -> Problem:
    problem = random(LOGISTIC)
    problem.Z[:, 0] *= 1e4
    problem.Z[:, 2] *= 1e-4
    return problem


@pytest.mark.parametrize("weight", [None, np.arange(60.0)], ids=["equal", "weighted"])
def test_squared_error_solves_the_normal_equations_in_one_iteration(weight: Array | None) -> None:
    problem = random(SQUARED, weight=weight)
    V = problem.start()
    assert problem.newton(V, tolerance=1e-9) == 1
    Z, w = problem.Z, problem.weight[:, None]
    normal = Z.T @ (w * Z) + 2 * problem.alpha_c * np.eye(5)
    np.testing.assert_allclose(V.T, np.linalg.solve(normal, Z.T @ (w * problem.target)), rtol=1e-10)


DEGENERATE: dict[str, Callable[[], Problem]] = {
    "separable": _separable,
    "duplicate columns": _duplicate_columns,
    "constant columns": _constant_columns,
    "wide": _wide,
    "badly scaled": _badly_scaled,
}
PLAIN: dict[str, Callable[[], Problem]] = {
    **{name: lambda loss=loss: random(loss) for loss, name in enumerate(LOSSES)},
    "one sample": lambda: Problem(np.array([[2.0, -1.0]]), [1.0], LOGISTIC),
    "all labels equal": lambda: Problem(np.eye(4), np.ones(4), SOFTMAX, outputs=3),
}


@pytest.mark.parametrize("label", {**DEGENERATE, **PLAIN})
def test_kernel_and_matrices_find_the_same_minimum(label: str) -> None:
    problem = {**DEGENERATE, **PLAIN}[label]()
    V, kernel = problem.start(), problem.solve()
    assert problem.by_matrices(V, 100, 1e-10) < 30
    assert np.abs(problem.gradient(V)).max() <= 2e-10
    assert np.abs(problem.gradient(kernel)).max() < 1e-9
    np.testing.assert_allclose(V, kernel, atol=1e-6)
    if label in DEGENERATE:
        np.testing.assert_allclose(V, _sklearn(problem), atol=1e-6)


# --- degenerate data ------------------------------------------------------------------------------


@ALL
def test_singular_problems_without_a_penalty(loss: int) -> None:
    """alpha_c = 0 and equal columns: many minimizers, and any of them will do."""
    problem = random(loss, alpha_c=0.0)
    problem.Z[:, 1] = problem.Z[:, 0]
    V = problem.solve()
    assert np.isfinite(V).all()
    assert np.abs(problem.gradient(V)).max() < 1e-8


@pytest.mark.parametrize("loss", [LOGISTIC, SOFTMAX], ids=["logistic", "softmax"])
def test_newton_returns_from_where_curvatures_underflow(loss: int) -> None:
    problem = random(loss)
    V = 1e3 * np.random.default_rng(3).normal(size=problem.start().shape)
    problem.newton(V, 200)
    np.testing.assert_allclose(V, problem.solve(), atol=1e-9)


def test_nan_and_huge_features_end_the_solvers() -> None:
    """Squares overflow from 1e154 on; the solvers must end, within their iterations."""
    cases = [
        (solver, loss, size)
        for size in (np.nan, np.inf, 1e160, 1e300)
        for loss in range(3)
        for solver in (Problem.newton, Problem.by_matrices)
    ]
    iterations: list[int] = []

    def work() -> None:
        for solver, loss, size in cases:
            problem = random(loss)
            with np.errstate(all="ignore"):
                problem.Z[:, :-1] *= size
                iterations.append(solver(problem, problem.start(), 10))

    thread = threading.Thread(target=work, daemon=True)  # hangs alone, if it does
    thread.start()
    thread.join(20)
    assert len(iterations) == len(cases), f"{cases[len(iterations)]} never ends"
    assert max(iterations) <= 10


# --- how Newton goes ------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [LOGISTIC, SOFTMAX], ids=["logistic", "softmax"])
def test_newton_goes_down_and_ends_quadratically(loss: int) -> None:
    problem = random(loss)
    V = 10 * np.random.default_rng(2).normal(size=problem.start().shape)
    values, norms = [problem.value(V)], [np.abs(problem.gradient(V)).max()]
    for _ in range(40):
        if problem.newton(V, 1, 1e-12) == 0:
            break
        values.append(problem.value(V))
        norms.append(np.abs(problem.gradient(V)).max())
    assert (np.diff(values) <= 1e-15).all()
    assert norms[-1] <= 1e-12
    # Once below 1e-3, every gradient is the square of the one before, to a constant and rounding.
    late = [(a, b) for a, b in pairwise(norms) if a < 1e-3]
    assert late
    assert all(b <= 200 * a**2 + 1e-14 for a, b in late)


# --- Adam -----------------------------------------------------------------------------------------


@ALL
@pytest.mark.parametrize(
    "solver", [pytest.param(output_solver.solve, marks=needs_kernels), output_solver.adam]
)
def test_adam_is_the_adam_of_torch_from_zero(loss: int, solver: Callable[..., int]) -> None:
    problem, steps = random(loss, weight=np.arange(60.0) + 1), 10
    V = np.full(problem.start().shape, np.nan)  # what was there does not matter
    options = SolverOptions("adam", steps, TIGHT, 0.05, 0.9, 0.999)
    assert solver(problem.plain, V, options) == steps
    twin = torch.zeros(V.shape, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([twin], lr=0.05, betas=(0.9, 0.999))
    for _ in range(steps):
        optimizer.zero_grad()
        problem.objective(twin).backward()
        optimizer.step()
    np.testing.assert_allclose(V, twin.detach().numpy(), rtol=1e-12, atol=1e-15)
