"""Variable projection: the gradient is that of the reduced function, and it goes down."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import hdnn
from hdnn.data import split
from hdnn.errors import HdnnError
from hdnn.training import EpochRecord, Snapshot, Trainer, TrainingConfig
from hdnn.training.loops import Batches
from hdnn.training.objective import Objective
from hdnn.training.varpro import CURVATURE, DECREASE, Point, VarProLoop


def make(task: str = "classification", outputs: int = 1, **options: Any) -> hdnn.Model:
    draw = torch.Generator().manual_seed(0)
    net = hdnn.network("H1", features=4, layers=3, T=1.0, generator=draw, **options)
    return hdnn.Model(net, outputs, hdnn.Augmentation(2, 4), task=task)


def problem(kind: str) -> tuple[hdnn.Model, Tensor, Tensor]:
    data = split("double-moons", size=200)
    if kind == "regression":
        return make("regression"), data.X_train, data.X_train.prod(1)
    if kind == "three classes":
        third = data.y_train + (data.X_train[:, 0] > 1.5).long()
        return make(outputs=3), data.X_train, third
    return make(), data.X_train, data.y_train


every_problem = pytest.mark.parametrize("kind", ["two classes", "three classes", "regression"])


def loop_of(kind: str) -> VarProLoop:
    model, X, target = problem(kind)
    target = target[:, None] if kind == "regression" else target
    data = Batches(model.prepare(X), target, torch.rand(len(X)) + 0.5)
    return VarProLoop(model, data, TrainingConfig(method="varpro", alpha=0.1, alpha_c=0.01))


def there(loop: VarProLoop) -> tuple[np.ndarray, np.ndarray]:
    return loop._read(), loop._read_output()


def start_of(loop: VarProLoop) -> Point:
    return loop.evaluate(*there(loop))


@every_problem
def test_the_gradient_is_that_of_the_reduced_function(kind: str) -> None:
    """Differences of phi, whose output layer is solved anew, though backward never sees that."""
    loop = loop_of(kind)
    point = start_of(loop)
    draw = np.random.default_rng(0)
    for _ in range(3):
        direction = draw.standard_normal(point.x.size)
        high, low = (
            loop.evaluate(point.x + sign * 1e-6 * direction, point.V).objective for sign in (1, -1)
        )
        assert (high - low) / 2e-6 == pytest.approx(point.gradient @ direction, rel=1e-5)


@every_problem
def test_the_objective_is_the_one_that_joint_training_has(kind: str) -> None:
    """At the solved output layer, where its gradient by that layer vanishes."""
    loop = loop_of(kind)
    loop._write(start_of(loop))
    data = loop.data
    _, plain, penalty = Objective(loop.model, loop.config)(
        data.states, data.target, data.weight, data.weight.sum()
    )
    assert float((plain + penalty).detach()) == pytest.approx(loop.evaluate(*there(loop)).objective)
    inner = torch.autograd.grad(plain + penalty, list(loop.model.head.parameters()))
    assert max(float(g.abs().max()) for g in inner) < 1e-7


def test_on_a_quadratic_it_is_conjugate_gradients() -> None:
    """L-BFGS with a long memory minimizes a convex quadratic in about as many steps as unknowns."""
    loop = loop_of("two classes")
    draw = np.random.default_rng(0)
    A = draw.standard_normal((6, 6))
    H, g = A @ A.T + np.eye(6), draw.standard_normal(6)

    def quadratic(x: np.ndarray, V: np.ndarray) -> Point:
        return Point(x, V, float(x @ H @ x / 2 - g @ x) + 10.0, H @ x - g, 0.0, 0.0)

    loop.evaluate = quadratic  # type: ignore[method-assign]
    loop.point = quadratic(np.zeros(6), np.zeros(0))
    values = [loop.point.objective]
    for _ in range(25):
        loop._iterate()
        values.append(loop.point.objective)
    np.testing.assert_allclose(loop.point.x, np.linalg.solve(H, g), atol=1e-5)
    assert all(b <= a for a, b in pairwise(values))


@pytest.mark.parametrize("minimum", [1e-3, 0.3, 7.0, 400.0])
def test_a_line_search_ends_where_the_wolfe_conditions_hold(minimum: float) -> None:
    """On a line with a minimum at any distance, and with no numbers at all beyond twice that."""
    loop = loop_of("two classes")

    def line(x: np.ndarray, V: np.ndarray) -> Point:
        t = float(x[0])
        value = 1 + (t - minimum) ** 2 / minimum**2 if t < 2.1 * minimum else np.inf
        return Point(x, V, value, np.array([2 * (t - minimum) / minimum**2]), 0.0, 0.0)

    loop.evaluate = line  # type: ignore[method-assign]
    start = line(np.zeros(1), np.zeros(0))
    found = loop._search(start, np.ones(1))
    assert found is not None
    slope = float(start.gradient[0])
    assert found.objective <= start.objective + DECREASE * float(found.x[0]) * slope
    assert found.gradient[0] >= CURVATURE * slope


@every_problem
def test_no_epoch_raises_the_objective(kind: str) -> None:
    model, X, target = problem(kind)
    trainer = Trainer(model, TrainingConfig(method="varpro", epochs=20, alpha=0.1, alpha_c=0.05))
    history = trainer.fit(X, target)
    assert type(trainer.loop) is VarProLoop
    assert all(b.penalized <= a.penalized + 1e-12 for a, b in pairwise(history))
    assert history[-1].penalized < 0.1 * history[0].penalized


def test_it_is_below_coordinate_descent_of_as_many_passes() -> None:
    """On one batch of all samples and a problem without bad minima: regularized, from one start."""
    found = []
    for method, epochs in (("varpro", 10), ("coordinate", 100)):
        model, X, target = problem("two classes")
        settings = TrainingConfig(
            method=method, epochs=epochs, alpha=0.1, alpha_c=0.05, batch_size=1000
        )
        found.append(Trainer(model, settings).fit(X, target)[-1].penalized)
    assert found[0] < found[1]


def test_it_goes_on_from_any_epoch() -> None:
    """With L-BFGS's memory, bit for bit; also in float32, where torch's default is that too."""

    def timeless(history: list[EpochRecord]) -> list[EpochRecord]:
        return [replace(record, seconds=0.0) for record in history]

    data = split("double-moons", size=200)
    settings = TrainingConfig(method="varpro", epochs=5)
    for dtype in (torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        X, snapshots = data.X_train.to(dtype), list[Snapshot]()
        whole = make(dtype=dtype)
        note = lambda t, _, kept=snapshots: kept.append(t.snapshot)  # noqa: E731
        history = Trainer(whole, settings, [note]).fit(X, data.y_train)
        for snapshot in snapshots:
            again = make(dtype=dtype)
            rest = Trainer(again, settings).fit(X, data.y_train, resume=snapshot)
            assert timeless(rest) == timeless(history[snapshot.epoch :])
            torch.testing.assert_close(again.state_dict(), whole.state_dict(), rtol=0, atol=0)


def test_weights_that_somebody_else_changed_are_a_new_start() -> None:
    loop = loop_of("two classes")
    loop.epoch(torch.arange(100), 0)
    assert loop.steps
    with torch.no_grad():
        loop.hidden[0].mul_(0.5)
    fresh = start_of(loop).objective
    assert loop.epoch(torch.arange(100), 1).penalized == pytest.approx(fresh, rel=1e-9)


def test_a_minimum_is_the_end() -> None:
    """No evaluation is spent on a point that nothing leads down from."""
    loop = loop_of("two classes")
    calls = []

    def bowl(x: np.ndarray, V: np.ndarray) -> Point:
        calls.append(x)
        return Point(x, V, 1 + float(x @ x), 2 * x, 0.0, 0.5)

    loop.evaluate = bowl  # type: ignore[method-assign]
    for number in range(10):
        loop.epoch(torch.arange(100), number)
    assert loop.converged
    assert np.abs(there(loop)[0]).max() < 1e-6
    spent = len(calls)
    assert loop.epoch(torch.arange(100), 10).penalized == pytest.approx(1.0)
    assert len(calls) == spent


def test_what_it_does_not_serve_raises() -> None:
    data = split("double-moons", size=200)
    settings = TrainingConfig(method="varpro", epochs=1)
    with pytest.raises(HdnnError, match="varpro has loop='auto'"):
        Trainer(make(), replace(settings, loop="compiled")).fit(data.X_train, data.y_train)
    images = hdnn.ImageClassifier(hdnn.ImageConfig(size=(4, 4), layers=1))
    with pytest.raises(HdnnError, match="not 'varpro'"):
        Trainer(images, settings).fit(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.arange(2))
