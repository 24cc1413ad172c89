"""Variable projection: the gradient is that of the reduced function, and it goes down."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import hdnn
from hdnn.data import split
from hdnn.errors import HdnnError
from hdnn.training import EpochRecord, Snapshot, Trainer, TrainingConfig
from hdnn.training.loops import Batches
from hdnn.training.varpro import VarProLoop


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


@every_problem
def test_the_gradient_is_that_of_the_reduced_function(kind: str) -> None:
    """Differences of phi, whose output layer is solved anew, though backward never sees that."""
    loop = loop_of(kind)
    loop._evaluate()
    for p in loop.hidden:
        direction, gradient = torch.randn_like(p), p.grad.clone()
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                p.add_(direction, alpha=sign * 1e-6)
            values.append(float(loop._evaluate()[0]))
            with torch.no_grad():
                p.add_(direction, alpha=-sign * 1e-6)
        slope = (values[0] - values[1]) / 2e-6
        assert slope == pytest.approx(float((gradient * direction).sum()), rel=1e-5)


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
    """With L-BFGS's memory, bit for bit; also in float32."""

    def timeless(history: list[EpochRecord]) -> list[EpochRecord]:
        return [replace(record, seconds=0.0) for record in history]

    data = split("double-moons", size=200)
    settings = TrainingConfig(method="varpro", epochs=5)
    for dtype in (torch.float64, torch.float32):
        X, snapshots = data.X_train.to(dtype), list[Snapshot]()
        whole = make(dtype=dtype)
        note = lambda t, _, kept=snapshots: kept.append(t.snapshot)  # noqa: E731
        history = Trainer(whole, settings, [note]).fit(X, data.y_train)
        for snapshot in snapshots:
            again = make(dtype=dtype)
            rest = Trainer(again, settings).fit(X, data.y_train, resume=snapshot)
            assert timeless(rest) == timeless(history[snapshot.epoch :])
            torch.testing.assert_close(again.state_dict(), whole.state_dict(), rtol=0, atol=0)


def test_a_line_search_that_leaves_the_numbers_goes_back() -> None:
    loop = loop_of("two classes")
    loop.epoch(torch.arange(100), 0)
    kept = [p.detach().clone() for p in loop.hidden]

    def diverges(closure: Any) -> None:
        closure()
        with torch.no_grad():
            loop.hidden[0].fill_(float("nan"))

    loop.optimizer.step = diverges  # type: ignore[method-assign]
    loop.epoch(torch.arange(100), 1)
    assert all(torch.equal(p, k) for p, k in zip(loop.hidden, kept, strict=True))
    assert loop.state() == {}


def test_what_it_does_not_serve_raises() -> None:
    data = split("double-moons", size=200)
    settings = TrainingConfig(method="varpro", epochs=1)
    with pytest.raises(HdnnError, match="varpro has loop='auto'"):
        Trainer(make(), replace(settings, loop="compiled")).fit(data.X_train, data.y_train)
    images = hdnn.ImageClassifier(hdnn.ImageConfig(size=(4, 4), layers=1))
    with pytest.raises(HdnnError, match="not 'varpro'"):
        Trainer(images, settings).fit(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.arange(2))
