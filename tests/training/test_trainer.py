"""The trainer: what is called when, how it stops, and that it goes on to the same bits."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hdnn.data import Dataset, holdout
from hdnn.errors import FileFormatError, HdnnError
from hdnn.kernels import native
from hdnn.models import Model
from hdnn.training import (
    DivergenceError,
    EpochRecord,
    Trainer,
    TrainingConfig,
    load_state,
    output_solver,
)
from hdnn.training.compiled import CompiledLoop
from skips import needs_kernels
from tasks import Stub, dataset, make, moons, same

LOOPS: dict[str, dict[str, Any]] = {
    "compiled": {"loop": "compiled"},
    "autograd": {"loop": "autograd"},
    "joint": {"method": "joint", "loop": "compiled", "schedule": "exponential", "decay": 0.8},
    "joint, autograd": {"method": "joint", "loop": "autograd", "weight_decay": 0.01},
}
every_loop = pytest.mark.parametrize(
    "loop",
    [
        pytest.param(loop, marks=needs_kernels if options["loop"] == "compiled" else ())
        for loop, options in LOOPS.items()
    ],
)
QUICKEST = "autograd" if native.obstacle() else "compiled"


def config(loop: str = QUICKEST, **options: Any) -> TrainingConfig:
    return TrainingConfig(**({"epochs": 4, "batch_size": 20} | LOOPS[loop] | options))


def fit(model: Model, settings: TrainingConfig, data: Dataset | None = None) -> list[EpochRecord]:
    return Trainer(model, settings).fit(moons() if data is None else data)


def timeless(history: list[EpochRecord]) -> list[EpochRecord]:
    return [replace(record, seconds=0.0) for record in history]


def products() -> Dataset:
    """A regression whose targets are far from standardized."""
    X = moons().X
    return dataset(X, 1e6 + 300 * X[:, 0] * X[:, 1])


# --- what is called, with a stub ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "calls", "solves"),
    [
        # Every iteration is one forward pass and one solve; at last one of each on all data.
        ({}, [20, 20, 10] * 3 + [50], [20, 20, 10] * 3 + [50]),
        # 40 are trained on, 10 are held out: each epoch has a final output layer to validate.
        ({"validation": 0.2}, [20, 20, 40, 10] * 3 + [40], [20, 20, 40] * 3 + [40]),
        ({"method": "joint"}, [20, 20, 10] * 3, []),
    ],
    ids=["coordinate", "validation", "joint"],
)
def test_forward_passes_and_solves_of_three_epochs(
    options: dict[str, Any], calls: list[int], solves: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    solved: list[int] = []
    solve = output_solver.solve

    def counted(problem: output_solver.OutputProblem, *rest: Any) -> int:
        solved.append(len(problem.Z))
        return solve(problem, *rest)

    monkeypatch.setattr(output_solver, "solve", counted)
    model = Model(Stub(), 1)
    fit(model, TrainingConfig(epochs=3, batch_size=20, **options))
    assert model.network.calls == calls
    assert solved == solves


def test_the_final_output_layer_minimizes_over_all_training_data() -> None:
    data, model = moons(), make()
    fit(model, config(), data)
    penalty = model.head.weight.square().sum() + model.head.bias.square().sum()
    logits = model(data.X)[:, 0]
    loss = nn.functional.binary_cross_entropy_with_logits(logits, data.y.double())
    gradients = torch.autograd.grad(loss + 1e-4 * penalty, list(model.head.parameters()))
    assert max(float(g.abs().max()) for g in gradients) < 1e-8


# --- history, callbacks, schedules ----------------------------------------------------------------


@every_loop
def test_history_has_a_record_for_every_epoch(loop: str) -> None:
    calls: list[tuple[int, int]] = []
    callback = [lambda trainer, record: calls.append((record.epoch, len(trainer.history)))]
    trainer = Trainer(make(), config(loop, schedule="cosine", decay=1.0), callback)
    history = trainer.fit(moons())
    assert isinstance(trainer.loop, CompiledLoop) == (LOOPS[loop]["loop"] == "compiled")
    assert history is trainer.history
    assert calls == [(1, 1), (2, 2), (3, 3), (4, 4)]
    rates = [trainer.config.learning_rate_at(k) for k in range(4)]
    assert [record.learning_rate for record in history] == rates
    assert all(record.penalized > record.loss > 0 for record in history)
    assert all(0 <= record.accuracy <= 1 for record in history)
    assert all(a.seconds <= b.seconds for a, b in pairwise(history))
    unmeasured = {"validation_loss", "validation_accuracy"}
    assert history[0].to_dict().keys() == asdict(history[0]).keys() - unmeasured


@every_loop
def test_callback_stops_the_training(loop: str) -> None:
    def stop(trainer: Trainer, record: EpochRecord) -> None:
        trainer.stopped = record.epoch == 2

    stopped, shorter = make(), make()
    history = Trainer(stopped, config(loop), [stop]).fit(moons())
    assert timeless(history) == timeless(fit(shorter, config(loop, epochs=2)))
    assert same(stopped, shorter)  # and its output layer is fitted as at the end


# --- validation and early stopping ----------------------------------------------------------------


def test_held_out_part_is_stratified_and_not_trained_on() -> None:
    X, rare = moons(100).X, (torch.arange(100) < 20).long()
    trainer = Trainer(make(), config(validation=0.25))
    history = trainer.fit(dataset(X, rare))
    assert trainer.loop.data.target.bincount().tolist() == [60, 15]
    # What is held out has no influence on the weights.
    _, held = holdout(100, 0.25, 0, rare)
    moved = X.clone()
    moved[held] += 100.0
    other = make()
    changed = fit(other, trainer.config, dataset(moved, rare))
    assert same(trainer.model, other)
    assert changed[-1].validation_loss != history[-1].validation_loss


def test_early_stopping_returns_the_averaged_weights_that_it_measured() -> None:
    data, model = moons(), make()
    options = {"averaging": 0.9, "learning_rate": 0.5, "validation": 0.2, "early_stopping": 3}
    history = fit(model, config("joint, autograd", epochs=40, **options), data)
    losses = [record.validation_loss for record in history]
    assert len(losses) < 40
    _, held = holdout(50, 0.2, 0, data.y)
    logits = model(data.X[held])[:, 0].detach()
    loss = nn.functional.binary_cross_entropy_with_logits(logits, data.y[held].double())
    assert min(losses) == pytest.approx(float(loss), rel=1e-12)
    assert min(losses) < losses[-1]


@every_loop
def test_validation_is_of_the_model_returned_after_that_epoch(loop: str) -> None:
    data = moons()
    rows, held = holdout(50, 0.2, 0, data.y)
    history = fit(make(), config(loop, validation=0.2), data)
    for record in history:
        model = make()
        fit(model, config(loop, epochs=record.epoch), dataset(data.X[rows], data.y[rows]))
        logits, target = model(data.X[held])[:, 0].detach(), data.y[held]
        loss = nn.functional.binary_cross_entropy_with_logits(logits, target.double())
        assert record.validation_loss == pytest.approx(float(loss), rel=1e-12)
        assert record.validation_accuracy == float(((logits > 0) == target).double().mean())


@every_loop
@pytest.mark.parametrize(
    ("losses", "patience", "epochs", "best"),
    [
        ([5, 3, 4, 3.5, 1, 0], 2, 4, 2),
        ([5, 3, 3, 0, 0], 1, 3, 2),  # as good is not better
        ([5, 4, 3, 2], 1, 4, 4),  # never over
        ([math.nan, 3, 2, 4, 5, 0], 2, 5, 3),
    ],
    ids=str,
)
def test_early_stopping_returns_to_the_best_epoch(
    loop: str,
    losses: list[float],
    patience: int,
    epochs: int,
    best: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the interruption falls between the last epoch and the end."""

    def scripted(self: Trainer, data: Any) -> tuple[float, None]:
        assert self.state is not None
        return losses[self.state["epoch"]], None

    monkeypatch.setattr(Trainer, "_measure", scripted)
    settings = config(loop, epochs=len(losses), validation=0.2, early_stopping=patience)
    copies: dict[int, tuple[Model, Any]] = {}

    def keep(trainer: Trainer, record: EpochRecord) -> None:
        copies[record.epoch] = copy.deepcopy(trainer.model), trainer.state

    whole = Trainer(make(), settings, [keep])
    assert len(whole.fit(moons())) == epochs
    assert same(whole.model.network, copies[best][0].network)
    if settings.method == "joint":
        assert same(whole.model, copies[best][0])
    for epoch, (_, state) in copies.items():
        rest = Trainer(make(99), settings)
        after = rest.fit(moons(), resume=state)
        assert timeless(after) == timeless(whole.history[epoch:]), f"interrupted at {epoch}"
        assert same(rest.model, whole.model), f"interrupted at {epoch}"


# --- weights --------------------------------------------------------------------------------------


@every_loop
def test_balanced_classes_are_explicit_weights_are_sample_weights(loop: str) -> None:
    X, y = moons().X, (torch.arange(50) < 10).long()
    explicit = (50 / (2 * 40), 50 / (2 * 10))
    models = [make() for _ in range(4)]
    fit(models[0], config(loop, class_weight="balanced"), dataset(X, y))
    fit(models[1], config(loop, class_weight=explicit), dataset(X, y))
    fit(models[2], config(loop), dataset(X, y, torch.tensor(explicit)[y]))
    fit(models[3], config(loop), dataset(X, y))
    assert same(models[0], models[1])
    assert same(models[0], models[2])
    assert not same(models[0], models[3])


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        ({}, lambda X, y: (X[:3], y), "as many rows, at least one, got 3, 50"),
        ({}, lambda X, y: (X, y, torch.ones(3)), "sample weights"),
        ({}, lambda X, y: (X, y, torch.full((50,), torch.nan)), "nonnegative"),
        ({}, lambda X, y: (X, y + 1), "class numbers are 0 to 1"),
        ({}, lambda X, y: (X[:, :1], y), "features"),
        ({}, lambda X, y: (X, X), "1 outputs, y 2 columns"),
        ({}, lambda X, y: (X, X[:, 0] * math.nan), "targets of a regression are finite"),
        ({"class_weight": "balanced"}, lambda X, y: (X, X[:, 0]), "is for classification"),
        ({"class_weight": (1.0, 2.0, 3.0)}, lambda X, y: (X, y), "3 entries for 2 classes"),
        ({"validation": 0.9}, lambda X, y: (X[:1], y[:1]), "too few rows"),
        ({"shift": 2}, lambda X, y: (X, y), "shift is for images, not for"),
        ({"averaging": 0.9}, lambda X, y: (X, y), "averaging is for method='joint'"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_data_and_settings_that_do_not_fit_raise(
    options: dict[str, Any], change: Callable[..., tuple[Any, ...]], message: str
) -> None:
    data = moons()
    data = dataset(*change(data.X, data.y))
    with pytest.raises(HdnnError, match=message):
        fit(make(task=data.task), config(**options), data)


# --- regression -----------------------------------------------------------------------------------


@every_loop
def test_targets_are_standardized_and_predicted_in_their_own_units(loop: str) -> None:
    data = products()
    scale = data.y.std(correction=0)
    plain = dataset(data.X, (data.y - data.y.mean()) / scale)
    models = [make(task="regression") for _ in range(2)]
    histories = [fit(m, config(loop), d) for m, d in zip(models, (data, plain), strict=True)]
    assert histories[0][-1].accuracy is None
    losses = [[record.loss for record in history] for history in histories]
    np.testing.assert_allclose(*losses, rtol=1e-6)
    expected = models[1](data.X) * scale + data.y.mean()
    torch.testing.assert_close(models[0](data.X), expected, rtol=1e-8, atol=1e-4)


def test_second_fit_begins_where_the_first_ended() -> None:
    data, model = products(), make(task="regression")
    settings = config("joint, autograd", epochs=30, batch_size=50, weight_decay=0.0)
    fit(model, settings, data)
    errors = (model(data.X)[:, 0] - data.y).detach() / data.y.std(correction=0)
    (record,) = fit(model, settings.replace(epochs=1), data)
    assert record.loss == pytest.approx(float(errors.square().mean()) / 2, rel=1e-6)
    assert record.loss < 0.1


def test_state_of_another_model_raises() -> None:
    trainer = Trainer(make(), config())
    trainer.fit(moons())
    with pytest.raises(FileFormatError, match="of another model"):
        load_state(make(layers=5), trainer.state)


# --- interrupted and resumed ----------------------------------------------------------------------


def saved(state: Any) -> Any:
    """Through `torch.save`, as in a run."""
    stream = io.BytesIO()
    torch.save(state, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=True)


def check_resumed(settings: TrainingConfig, data: Dataset, **options: Any) -> None:
    """Interrupted after every epoch, in another model: everything must come from the state."""
    states: list[Any] = []
    whole = Trainer(make(**options), settings, [lambda t, _: states.append(t.state)])
    whole.fit(data)
    for epoch, state in enumerate(states, 1):
        assert state["epoch"] == epoch
        rest = Trainer(make(99, **options), settings)
        after = rest.fit(data, resume=saved(state))
        assert same(rest.model, whole.model), f"interrupted after epoch {epoch}"
        assert timeless(after) == timeless(whole.history[epoch:])


@every_loop
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip": 0.1, "class_weight": "balanced"},
        {"validation": 0.2, "schedule": "cosine", "decay": 1.0},
    ],
    ids=["plain", "clip", "validation"],
)
def test_resumed_at_every_epoch(loop: str, options: dict[str, Any]) -> None:
    check_resumed(config(loop, **options), moons())


@every_loop
def test_float32_shared_weights_and_regressions_resume(loop: str) -> None:
    check_resumed(config(loop), moons(), dtype=torch.float32, time_invariant=True)
    check_resumed(config(loop), products(), task="regression")


# --- divergence -----------------------------------------------------------------------------------


@every_loop
def test_divergence_keeps_the_last_good_state(loop: str) -> None:
    good: dict[str, Tensor] = {}

    def spoil(trainer: Trainer, record: EpochRecord) -> None:
        if record.epoch == 2:
            good.update({k: v.clone() for k, v in trainer.model.state_dict().items()})
            with torch.no_grad():
                trainer.model.network.field.weights.beta[1] = torch.inf
                trainer.model.network.field.weights.theta[1] = torch.inf

    trainer = Trainer(make(), config(loop), [spoil])
    with pytest.raises(DivergenceError, match="the loss is not finite in epoch 3"):
        trainer.fit(moons())
    assert [record.epoch for record in trainer.history] == [1, 2]
    assert trainer.state is not None
    torch.testing.assert_close(trainer.state["model"], good, rtol=0, atol=0)


# --- reproducibility ------------------------------------------------------------------------------


@every_loop
def test_same_seed_gives_the_same_bits(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the global generators, the number of threads and the default dtype are."""
    models, histories = [make(dtype=torch.float32) for _ in range(3)], []
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    data = moons()
    for model, seed in zip(models, (5, 5, 6), strict=True):
        histories.append(fit(model, config(loop, seed=seed, validation=0.2), data))
        assert torch.equal(torch.get_rng_state(), before)
        assert np.array_equal(np.random.get_state()[1], numpy_before)
        torch.manual_seed(77)
        before = torch.get_rng_state()
        monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
        torch.set_default_dtype(torch.float32)
    assert same(models[0], models[1])
    assert timeless(histories[0]) == timeless(histories[1])
    assert not same(models[0], models[2])
