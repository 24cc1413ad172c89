"""The trainer: what is called when, what is kept, how it stops, and that it can go on."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hdnn
from hdnn.data import holdout, split
from hdnn.errors import HdnnError
from hdnn.kernels import native
from hdnn.models import Augmentation, Model
from hdnn.training import (
    DivergenceError,
    Ensemble,
    EpochRecord,
    Snapshot,
    Trainer,
    TrainingConfig,
    compiled,
    loops,
)
from hdnn.training.compiled import CompiledLoop
from hdnn.training.ensemble import EnsembleLoop
from hdnn.training.loops import CoordinateLoop, JointLoop, solve_output
from skips import needs_kernels

LOOPS: dict[str, dict[str, Any]] = {
    "compiled": {"loop": "compiled"},
    "autograd": {"loop": "autograd"},
    "joint": {"method": "joint", "loop": "compiled", "schedule": "exponential", "decay": 0.8},
    "joint, autograd": {"method": "joint", "loop": "autograd", "weight_decay": 0.01},
}
KINDS = {
    "compiled": CompiledLoop,
    "autograd": CoordinateLoop,
    "joint": CompiledLoop,
    "joint, autograd": JointLoop,
}
every_loop = pytest.mark.parametrize(
    "loop",
    [
        pytest.param(loop, marks=needs_kernels if KINDS[loop] is CompiledLoop else ())
        for loop in LOOPS
    ],
)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def moons(size: int = 50) -> tuple[Tensor, Tensor]:
    data = split("double-moons", size=2 * size)
    return data.X_train, data.y_train


def make(seed: int = 0, outputs: int = 1, **options: Any) -> Model:
    given = {"features": 4, "layers": 3, "T": 1.0, "generator": seeded(seed)} | options
    return Model(hdnn.network("H1", **given), outputs, Augmentation(2, 4))


QUICKEST = "autograd" if native.obstacle() else "compiled"


def config(loop: str = QUICKEST, **options: Any) -> TrainingConfig:
    return TrainingConfig(**({"epochs": 4, "batch_size": 20} | LOOPS[loop] | options))


def same(a: nn.Module, b: nn.Module) -> bool:
    one, other = a.state_dict(), b.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def timeless(history: list[EpochRecord]) -> list[EpochRecord]:
    return [replace(entry, seconds=0.0) for entry in history]


# --- what is called, with a stub ------------------------------------------------------------------


class Stub(nn.Module):
    """y -> gain y; notes how many samples every call has."""

    features = 2
    layers = 1
    field = scheme = None

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.0))
        self.calls: list[int] = []

    def forward(self, y: Tensor) -> Tensor:
        self.calls.append(len(y))
        return self.gain * y


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Samples and largest number of iterations of every call of the Newton solver."""
    calls: list[tuple[int, int]] = []
    solve = loops.solve

    def noted(Z: Any, target: Any, weight: Any, V: Any, loss: str, alpha_c: float, how: Any) -> int:
        calls.append((len(Z), how.iterations))
        return solve(Z, target, weight, V, loss, alpha_c, how)

    monkeypatch.setattr(loops, "solve", noted)
    return calls


def test_coordinate_descent_calls(solved: list[tuple[int, int]]) -> None:
    model = Model(Stub(), 1)
    Trainer(model, TrainingConfig(epochs=3, batch_size=20)).fit(*moons())
    # Every iteration is one forward pass and one solve; at last one of each on all data.
    assert model.network.calls == [20, 20, 10] * 3 + [50]
    assert solved == [(20, 10), (20, 10), (10, 10)] * 3 + [(50, 10)]


def test_watching_costs_a_final_output_layer_and_a_forward_pass_an_epoch(
    solved: list[tuple[int, int]],
) -> None:
    model = Model(Stub(), 1)
    Trainer(model, TrainingConfig(epochs=2, batch_size=20, validation=0.2)).fit(*moons())
    # 40 are trained on, 10 are watched
    assert model.network.calls == [20, 20, 40, 10] * 2 + [40]
    assert solved == [(20, 10), (20, 10), (40, 10)] * 2 + [(40, 10)]


def test_joint_descent_never_solves(solved: list[tuple[int, int]]) -> None:
    model = Model(Stub(), 1)
    trainer = Trainer(model, TrainingConfig(method="joint", epochs=3, batch_size=20))
    trainer.fit(*moons())
    assert model.network.calls == [20, 20, 10] * 3
    assert solved == []
    taken = {int(entry["step"]) for entry in trainer.loop.optimizer.state.values()}
    assert taken == {9}


def test_the_final_output_layer_minimizes_over_all_training_data() -> None:
    X, target = moons()
    model = make()
    Trainer(model, config()).fit(X, target)
    values = model(X)[:, 0]
    penalty = model.head.weight.square().sum() + model.head.bias.square().sum()
    loss = nn.functional.binary_cross_entropy_with_logits(values, target.double())
    found = torch.autograd.grad(loss + 1e-4 * penalty, list(model.head.parameters()))
    assert max(float(g.abs().max()) for g in found) < 1e-8


@every_loop
def test_no_epochs_change_nothing(loop: str) -> None:
    model, before = make(), make()
    trainer = Trainer(model, config(loop, epochs=0))
    assert trainer.fit(*moons()) == []
    assert same(model, before)
    assert trainer.snapshot is not None
    assert trainer.snapshot.epoch == 0


# --- history, callbacks, schedules ----------------------------------------------------------------


@every_loop
def test_the_history_has_an_entry_for_every_epoch(loop: str) -> None:
    trainer = Trainer(make(), config(loop, schedule="cosine"))
    history = trainer.fit(*moons())
    assert type(trainer.loop) is KINDS[loop]
    assert history is trainer.history
    assert [entry.epoch for entry in history] == [1, 2, 3, 4]
    assert [entry.learning_rate for entry in history] == [
        trainer.config.learning_rate_at(k) for k in range(4)
    ]
    assert all(entry.penalized > entry.loss > 0 for entry in history)
    assert all(0 <= entry.accuracy <= 1 for entry in history)
    assert all(a.seconds <= b.seconds for a, b in pairwise(history))
    assert {entry.validation_loss for entry in history} == {None}
    assert history[0].to_dict().keys() == asdict(history[0]).keys() - {
        "validation_loss",
        "validation_accuracy",
        "layers",
    }


def test_callbacks_get_every_entry_in_order() -> None:
    seen: list[tuple[str, int]] = []
    trainer = Trainer(
        make(),
        config(),
        [
            lambda t, e: seen.append(("first", e.epoch)),
            lambda t, e: seen.append(("second", len(t.history))),
        ],
    )
    trainer.fit(*moons())
    assert seen == [(name, k) for k in range(1, 5) for name in ("first", "second")]


@every_loop
def test_a_callback_can_stop_the_training(loop: str) -> None:
    def stop(trainer: Trainer, entry: EpochRecord) -> None:
        trainer.stopped = entry.epoch == 2

    stopped, shorter = make(), make()
    history = Trainer(stopped, config(loop), [stop]).fit(*moons())
    expected = Trainer(shorter, config(loop, epochs=2)).fit(*moons())
    assert timeless(history) == timeless(expected)
    assert same(stopped, shorter)  # and its output layer is fitted as at the end


@every_loop
def test_training_reduces_the_loss(loop: str) -> None:
    history = Trainer(make(), config(loop, epochs=30, learning_rate=0.02)).fit(*moons())
    assert history[-1].penalized < 0.7 * history[0].penalized


# --- validation and early stopping ----------------------------------------------------------------


def test_the_held_out_part_is_stratified_and_not_trained_on() -> None:
    X, _ = moons(100)
    rare = (torch.arange(100) < 20).long()
    trainer = Trainer(make(), config(validation=0.25))
    history = trainer.fit(X, rare)
    assert rare.sum() == 20
    assert trainer.loop.data.target.bincount().tolist() == [60, 15]
    assert all(entry.validation_loss > 0 for entry in history)
    # What is held out has no influence on the weights.
    _, held = holdout(100, 0.25, 0, rare)
    moved = X.clone()
    moved[held] += 100.0
    other = Trainer(make(), trainer.config)
    other.fit(moved, rare)
    assert same(trainer.model, other.model)
    assert other.history[-1].validation_loss != history[-1].validation_loss


def test_a_regression_is_held_out_without_classes() -> None:
    X, _ = moons()
    model = Model(
        hdnn.network("H1", features=4, layers=2, T=1.0), 1, Augmentation(2, 4), task="regression"
    )
    trainer = Trainer(model, config(validation=0.2))
    history = trainer.fit(X, X[:, 0] * X[:, 1])
    assert len(trainer.loop.data) == 40
    assert history[-1].accuracy is None
    assert history[-1].validation_accuracy is None
    assert history[-1].validation_loss is not None


@every_loop
def test_validation_is_of_the_model_that_would_be_returned_after_the_epoch(loop: str) -> None:
    X, target = moons(100)
    trainer = Trainer(make(), config(loop))
    history = trainer.fit(X[:50], target[:50], validation=(X[50:], target[50:]))
    assert len(trainer.loop.data) == 50
    for entry in history:
        model = make()
        Trainer(model, config(loop, epochs=entry.epoch)).fit(X[:50], target[:50])
        values = model(X[50:])[:, 0].detach()
        loss = nn.functional.binary_cross_entropy_with_logits(values, target[50:].double())
        assert entry.validation_loss == pytest.approx(float(loss), rel=1e-12)
        assert entry.validation_accuracy == float(((values > 0) == target[50:]).double().mean())


def _scripted(monkeypatch: pytest.MonkeyPatch, losses: list[float]) -> None:
    monkeypatch.setattr(
        Trainer, "_watch", lambda self, data: (losses[len(self.history)], 0.5), raising=True
    )


@every_loop
@pytest.mark.parametrize(
    ("losses", "patience", "epochs", "best"),
    [
        ([5, 3, 4, 3.5, 1, 0], 2, 4, 2),
        ([5, 3, 4, 2, 3, 3, 3, 0], 3, 7, 4),
        ([5, 3, 3, 0, 0], 1, 3, 2),  # as good is not better
        ([1, 2, 0], 1, 2, 1),
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
    _scripted(monkeypatch, losses)
    kept: dict[int, Model] = {}
    settings = config(loop, epochs=len(losses), validation=0.2, early_stopping=patience)
    trainer = Trainer(
        make(), settings, [lambda t, e: kept.update({e.epoch: copy.deepcopy(t.model)})]
    )
    history = trainer.fit(*moons())
    assert len(history) == epochs
    assert same(trainer.model.network, kept[best].network)
    if loop == "joint":
        assert same(trainer.model, kept[best])


def test_without_patience_the_last_epoch_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    _scripted(monkeypatch, [1, 2, 3, 4])
    model, plain = make(), make()
    Trainer(model, config(validation=0.2)).fit(*moons())
    X, target = moons()
    kept, _ = holdout(50, 0.2, 0, target)
    Trainer(plain, config()).fit(X[kept], target[kept])
    assert same(model, plain)


# --- weights --------------------------------------------------------------------------------------


@every_loop
def test_balanced_classes_are_explicit_weights_are_sample_weights(loop: str) -> None:
    X, _ = moons()
    target = (torch.arange(50) < 10).long()
    explicit = (50 / (2 * 40), 50 / (2 * 10))
    models = [make() for _ in range(3)]
    Trainer(models[0], config(loop, class_weight="balanced")).fit(X, target)
    Trainer(models[1], config(loop, class_weight=explicit)).fit(X, target)
    weight = torch.tensor(explicit)[target]
    Trainer(models[2], config(loop)).fit(X, target, sample_weight=weight)
    assert same(models[0], models[1])
    assert same(models[0], models[2])
    plain = make()
    Trainer(plain, config(loop)).fit(X, target)
    assert not same(models[0], plain)


def test_class_weights_multiply_sample_weights_and_balance_what_they_weigh() -> None:
    X, target = moons()
    weight = torch.rand(50)
    mass = torch.bincount(target, weights=weight)
    factors = weight.sum() / (2 * mass)
    models = [make(), make()]
    Trainer(models[0], config(class_weight="balanced")).fit(X, target, sample_weight=weight)
    Trainer(models[1], config()).fit(X, target, sample_weight=weight * factors[target])
    for name, value in models[0].state_dict().items():
        torch.testing.assert_close(models[1].state_dict()[name], value, rtol=1e-9, atol=1e-9)


def test_a_class_without_samples_can_be_balanced() -> None:
    X, target = moons()
    model = make(outputs=4)
    history = Trainer(model, config(class_weight="balanced")).fit(X, target)
    assert math.isfinite(history[-1].loss)


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({}, lambda X, y: (X[:3], y), "as many rows, got 3, 50"),
        ({}, lambda X, y: (X[:0], y[:0]), "as many rows, got 0, 0"),
        ({}, lambda X, y: (X, y, torch.ones(3)), "sample weights"),
        ({}, lambda X, y: (X, y, -torch.ones(50)), "nonnegative"),
        ({}, lambda X, y: (X, y, torch.zeros(50)), "not all zero"),
        ({}, lambda X, y: (X, y, torch.full((50,), torch.nan)), "nonnegative"),
        ({}, lambda X, y: (X, y, torch.full((50,), torch.inf)), "sample weights"),
        ({}, lambda X, y: (X, y + 1), "class"),
        ({}, lambda X, y: (X, y - 1), "class"),
        ({}, lambda X, y: (X[:, :1], y), "features"),
        ({}, lambda X, y: (X.float(), y), "float32.*float64"),
        ({"class_weight": (1.0, 2.0, 3.0)}, lambda X, y: (X, y), "3 entries for 2 classes"),
        ({"validation": 0.9}, lambda X, y: (X[:1], y[:1]), "too few rows"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
@every_loop
def test_data_that_does_not_fit_is_refused(
    loop: str, options: dict[str, Any], arguments: Callable[..., tuple[Any, ...]], message: str
) -> None:
    with pytest.raises(HdnnError, match=message):
        Trainer(make(), config(loop, **options)).fit(*arguments(*moons()))


@every_loop
def test_labels_beyond_the_outputs_are_refused(loop: str) -> None:
    """An index out of range must not reach the kernels, which do not check it."""
    X, target = moons()
    for wrong in (target + 2, target - 1):
        with pytest.raises(HdnnError, match="class"):
            Trainer(make(outputs=3), config(loop)).fit(X, wrong)


def test_class_weights_are_for_classes() -> None:
    X, _ = moons()
    model = Model(hdnn.network("H1", features=2, layers=2, T=1.0), 1, task="regression")
    with pytest.raises(HdnnError, match="class_weight is for classification"):
        Trainer(model, config(class_weight="balanced")).fit(X, X[:, 0])


# --- interrupted and resumed ----------------------------------------------------------------------


def _until(epoch: int) -> Callable[[Trainer, EpochRecord], None]:
    def interrupt(trainer: Trainer, entry: EpochRecord) -> None:
        if entry.epoch == epoch:
            raise KeyboardInterrupt

    return interrupt


def _interrupted(
    settings: TrainingConfig, epoch: int, **options: Any
) -> tuple[Any, list[EpochRecord]]:
    trainer = Trainer(make(**options), settings, [_until(epoch)])
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(*moons())
    return trainer.snapshot, trainer.history


def _check_resumed(settings: TrainingConfig, whole: Trainer, epoch: int, **options: Any) -> None:
    snapshot, before = _interrupted(settings, epoch, **options)
    assert snapshot.epoch == epoch
    kept = {name: value.clone() for name, value in snapshot.tensors.items()}
    # Another initialization: everything must come from the snapshot.
    rest = Trainer(make(**(options | {"seed": 99})), settings)
    after = rest.fit(*moons(), resume=snapshot)
    assert same(rest.model, whole.model)
    assert timeless(before + after) == timeless(whole.history)
    assert all(entry.seconds >= snapshot.seconds for entry in after)
    assert all(torch.equal(snapshot.tensors[name], value) for name, value in kept.items())


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clip": {"clip": 0.1, "class_weight": "balanced"},
    "validation": {"validation": 0.2},
    "cosine": {"schedule": "cosine"},
}


@every_loop
@pytest.mark.parametrize("variant", VARIANTS)
def test_interrupted_at_every_epoch_and_resumed(loop: str, variant: str) -> None:
    settings = config(loop, **VARIANTS[variant])
    whole = Trainer(make(), settings)
    whole.fit(*moons())
    for epoch in range(1, 5):
        _check_resumed(settings, whole, epoch)


@every_loop
def test_single_precision_and_shared_weights_are_resumed_too(loop: str) -> None:
    settings, options = config(loop), {"dtype": torch.float32, "time_invariant": True}
    X, target = moons()
    whole, half, rest = (Trainer(make(seed, **options), settings) for seed in (0, 0, 99))
    whole.fit(X.float(), target)
    half.callbacks.append(_until(2))
    with pytest.raises(KeyboardInterrupt):
        half.fit(X.float(), target)
    rest.fit(X.float(), target, resume=half.snapshot)
    assert same(rest.model, whole.model)


@pytest.mark.parametrize("optimizer", ["SGD", "RMSprop", "AdamW"])
def test_other_optimizers_are_resumed_too(optimizer: str) -> None:
    settings = config("autograd", optimizer=optimizer)
    whole = Trainer(make(), settings)
    whole.fit(*moons())
    for epoch in (1, 3):
        _check_resumed(settings, whole, epoch)


@every_loop
@pytest.mark.parametrize(
    "losses", [[5, 3, 4, 3.5, 1, 0], [5, 4, 3, 2, 1, 0]], ids=["patience ends", "it does not"]
)
def test_early_stopping_is_resumed_at_every_epoch(
    loop: str, losses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the interruption falls between the last epoch and the end."""
    done = {"before": 0}
    monkeypatch.setattr(
        Trainer, "_watch", lambda self, data: (losses[done["before"] + len(self.history)], None)
    )
    settings = config(loop, epochs=len(losses), validation=0.2, early_stopping=2)
    whole = Trainer(make(), settings)
    whole.fit(*moons())
    for epoch in range(1, len(whole.history) + 1):
        done["before"] = 0
        snapshot, before = _interrupted(settings, epoch)
        done["before"] = epoch
        rest = Trainer(make(99), settings)
        after = rest.fit(*moons(), resume=snapshot)
        assert timeless(before + after) == timeless(whole.history), f"interrupted at {epoch}"
        assert same(rest.model, whole.model), f"interrupted at {epoch}"


@every_loop
def test_interrupted_within_an_epoch(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot is that of the last whole epoch, or of the beginning."""
    settings = config(loop)
    whole = Trainer(make(), settings)
    whole.fit(*moons())
    for epoch in range(4):
        broken = Trainer(make(), settings)
        with monkeypatch.context() as patch:
            run = KINDS[loop].epoch

            def spoil(self: Any, order: Tensor, number: int, run: Any = run, k: int = epoch) -> Any:
                found = run(self, order, number)
                if number == k:
                    raise KeyboardInterrupt
                return found

            patch.setattr(KINDS[loop], "epoch", spoil)
            with pytest.raises(KeyboardInterrupt):
                broken.fit(*moons())
        assert broken.snapshot is not None
        assert broken.snapshot.epoch == epoch
        rest = Trainer(make(99), settings)
        rest.fit(*moons(), resume=broken.snapshot)
        assert same(rest.model, whole.model)


@every_loop
def test_a_snapshot_is_tensors_that_nobody_else_writes_to(loop: str) -> None:
    kept: list[tuple[Snapshot, dict[str, Tensor]]] = []

    def keep(trainer: Trainer, entry: EpochRecord) -> None:
        assert trainer.snapshot is not None
        assert trainer.snapshot.epoch == entry.epoch
        copies = {name: value.clone() for name, value in trainer.snapshot.tensors.items()}
        kept.append((trainer.snapshot, copies))

    Trainer(make(), config(loop, validation=0.2, early_stopping=4), [keep]).fit(*moons())
    for snapshot, copies in kept:
        assert all(torch.equal(snapshot.tensors[name], value) for name, value in copies.items())
        assert all(isinstance(value, Tensor) for value in snapshot.tensors.values())


# --- divergence -----------------------------------------------------------------------------------


@every_loop
def test_a_step_that_is_too_large_is_named_with_its_layer(loop: str) -> None:
    X, target = moons()
    model = make(dtype=torch.float32, T=1e39)
    before = copy.deepcopy(model)
    trainer = Trainer(model, config(loop))
    message = r"not finite in epoch 1: with step h = 3.33e\+38, layer 1 of 3 is the first"
    with pytest.raises(DivergenceError, match=message) as caught:
        trainer.fit(X.float(), target)
    assert "smaller T or step" in str(caught.value)
    assert isinstance(caught.value, HdnnError)
    assert trainer.history == []
    assert trainer.snapshot is not None
    assert trainer.snapshot.epoch == 0
    for name, value in before.state_dict().items():
        assert torch.equal(trainer.snapshot.tensors[f"model.{name}"], value)


@every_loop
def test_a_learning_rate_that_is_too_large_is_named(loop: str) -> None:
    trainer = Trainer(make(), config(loop, learning_rate=1e200))
    with pytest.raises(DivergenceError, match=r"learning rate \(now 1e\+200\).*clip=1.0"):
        trainer.fit(*moons())


@every_loop
def test_data_that_is_no_number_is_layer_0(loop: str) -> None:
    X, target = moons()
    X[3, 0] = torch.nan
    with pytest.raises(DivergenceError, match="layer 0 of 3 is the first whose state is not"):
        Trainer(make(), config(loop)).fit(X, target)


@every_loop
def test_the_snapshot_of_a_divergence_is_the_last_good_one(loop: str) -> None:
    good: dict[str, Tensor] = {}

    def spoil(trainer: Trainer, entry: EpochRecord) -> None:
        if entry.epoch == 2:
            good.update({k: v.clone() for k, v in trainer.model.state_dict().items()})
            with torch.no_grad():
                trainer.model.network.field.weights.beta[1] = torch.inf
                trainer.model.network.field.weights.theta[1] = torch.inf

    trainer = Trainer(make(), config(loop), [spoil])
    with pytest.raises(DivergenceError, match=r"in epoch 3.*layer 2 of 3 is the first"):
        trainer.fit(*moons())
    assert [entry.epoch for entry in trainer.history] == [1, 2]
    assert trainer.snapshot is not None
    assert trainer.snapshot.epoch == 2
    for name, value in good.items():
        assert torch.equal(trainer.snapshot.tensors[f"model.{name}"], value)


def test_where_the_states_are_finite_the_largest_is_named() -> None:
    X, _ = moons()
    model = Model(hdnn.network("H1", features=2, layers=3, T=1.0), 1, task="regression")
    target = torch.full((50,), 1e200)
    with pytest.raises(DivergenceError, match=r"layer \d of 3 has the largest state"):
        Trainer(model, config()).fit(X, target)


# --- reproducibility ------------------------------------------------------------------------------


@every_loop
def test_the_same_seed_gives_the_same_bits(loop: str) -> None:
    models = [make() for _ in range(3)]
    histories = [
        Trainer(model, config(loop, seed=seed, validation=0.2)).fit(*moons())
        for model, seed in zip(models, (5, 5, 6), strict=True)
    ]
    assert same(models[0], models[1])
    assert timeless(histories[0]) == timeless(histories[1])
    assert not same(models[0], models[2])


@every_loop
def test_the_global_generators_are_left_alone(loop: str) -> None:
    X, target = moons()
    model = make()
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    Trainer(model, config(loop, validation=0.2)).fit(X, target)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)
    torch.manual_seed(77)
    other = make()
    Trainer(other, config(loop, validation=0.2)).fit(X, target)
    assert same(model, other)


@every_loop
def test_neither_threads_nor_the_default_dtype_matter(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, target = moons()
    models = [make(dtype=torch.float32) for _ in range(2)]
    Trainer(models[0], config(loop)).fit(X.float(), target)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    torch.set_default_dtype(torch.float32)
    Trainer(models[1], config(loop)).fit(X.float(), target)
    assert same(models[0], models[1])


# --- ensembles ------------------------------------------------------------------------------------


def ensemble(seeds: list[int], may_diverge: bool = False) -> Ensemble:
    generators = [seeded(seed) for seed in seeds]
    given = {"features": 4, "layers": 3, "T": 1.0, "ensemble": len(seeds)}
    return Ensemble(hdnn.network("H1", **given, generator=generators), seeds, may_diverge)


@needs_kernels
def test_an_ensemble_is_trained_as_its_members_are() -> None:
    X, y = moons()
    seeds, states = [3, 4, 5], Augmentation(2, 4)(X).expand(3, -1, -1)
    together = ensemble(seeds)
    told: list[int] = []
    trainer = Trainer(together, config(), [lambda _, entry: told.append(entry.epoch)])
    history = trainer.fit(states, y.expand(3, -1))
    assert told == [entry.epoch for entry in history] == [1, 2, 3, 4]
    losses = []
    for e, seed in enumerate(seeds):
        alone = make(seed)
        losses.append([entry.loss for entry in Trainer(alone, config(seed=seed)).fit(X, y)])
        assert torch.equal(together.network.K[e], alone.network.K)
        assert torch.equal(together.network.b[e], alone.network.b)
        V = torch.cat([alone.head.weight, alone.head.bias[:, None]], 1).double()
        torch.testing.assert_close(together.V[e], V, rtol=1e-6, atol=1e-6)
    assert [entry.loss for entry in history] == np.mean(losses, 0).tolist()


ENSEMBLE_LOOPS = pytest.mark.parametrize(
    "loop", [pytest.param("compiled", marks=needs_kernels), "autograd"]
)


@pytest.mark.parametrize(
    "options",
    [{}, {"clip": 1e-2}, {"solver": "adam"}, {"alpha": 1.0}, {"schedule": "cosine"}],
    ids=str,
)
def test_autograd_trains_an_ensemble_as_it_does_its_members(options: dict[str, Any]) -> None:
    X, y = moons()
    seeds, states = [3, 4, 5], Augmentation(2, 4)(X).expand(3, -1, -1)
    together = ensemble(seeds)
    trainer = Trainer(together, replace(config("autograd"), **options))
    history = trainer.fit(states, y.expand(3, -1))
    assert isinstance(trainer.loop, EnsembleLoop)
    told = []
    for e, seed in enumerate(seeds):
        alone, own = make(seed), replace(config("autograd", seed=seed), **options)
        told.append([(r.loss, r.penalized, r.accuracy) for r in Trainer(alone, own).fit(X, y)])
        torch.testing.assert_close(together.network.K[e], alone.network.K, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(together.network.b[e], alone.network.b, rtol=1e-9, atol=1e-9)
    means = [(r.loss, r.penalized, r.accuracy) for r in history]
    np.testing.assert_allclose(means, np.mean(told, 0), rtol=1e-9)


@ENSEMBLE_LOOPS
def test_an_ensemble_goes_on_bit_for_bit(loop: str) -> None:
    X, y = moons()
    data = Augmentation(2, 4)(X).expand(2, -1, -1), y.expand(2, -1)
    whole, resumed = ensemble([1, 2]), ensemble([1, 2])
    kept: list[Snapshot | None] = []
    callback = [lambda trainer, _: kept.append(trainer.snapshot)]
    Trainer(whole, config(loop), callback).fit(*data)
    Trainer(resumed, config(loop)).fit(*data, resume=kept[1])
    assert same(whole, resumed)


@ENSEMBLE_LOOPS
def test_a_member_that_diverged_keeps_its_weights_until_the_next_epoch(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However an epoch is cut into calls of the kernel; one sample of one batch is no number."""
    X, y = moons()
    states = Augmentation(2, 4)(X).repeat(2, 1, 1)
    states[1, 7] = torch.nan
    ends = []
    for seconds in (0.0, 10.0):
        monkeypatch.setattr(compiled, "SLICE", seconds)
        pair = ensemble([0, 1], may_diverge=True)
        history = Trainer(pair, config(loop)).fit(states, y.expand(2, -1))
        assert all(math.isnan(record.loss) for record in history)
        assert bool(torch.isfinite(pair.network.K).all())
        ends.append(pair)
    assert same(*ends)
    other = ensemble([0, 1], may_diverge=True)
    Trainer(other, config("autograd")).fit(states, y.expand(2, -1))
    torch.testing.assert_close(other.network.K, pair.network.K, rtol=1e-9, atol=1e-9)


@ENSEMBLE_LOOPS
def test_a_member_may_diverge_where_the_ensemble_says_so(loop: str) -> None:
    X, y = moons()
    states = Augmentation(2, 4)(X).repeat(2, 1, 1)
    states[1] = torch.nan
    with pytest.raises(DivergenceError, match="a network with 3 layers diverged in epoch 1"):
        Trainer(ensemble([0, 1]), config(loop)).fit(states, y.expand(2, -1))
    pair = ensemble([0, 1], may_diverge=True)
    history = Trainer(pair, config(loop)).fit(states, y.expand(2, -1))
    assert len(history) == 4
    alone = make(0)
    Trainer(alone, config(loop, seed=0)).fit(X, y)
    torch.testing.assert_close(pair.network.K[0], alone.network.K, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "joint"}, "method='coordinate'"),
        ({"validation": 0.2}, "without sample or class weights"),
        ({"class_weight": "balanced"}, "without sample or class weights"),
    ],
)
def test_what_an_ensemble_cannot_be_trained_with(options: dict[str, Any], message: str) -> None:
    X, y = moons()
    states = Augmentation(2, 4)(X).expand(2, -1, -1)
    with pytest.raises(HdnnError, match=message):
        Trainer(ensemble([0, 1]), TrainingConfig(epochs=1, **options)).fit(states, y.expand(2, -1))
    with pytest.raises(HdnnError, match="of 2 networks is trained on X"):
        Trainer(ensemble([0, 1]), config()).fit(X, y)
    with pytest.raises(HdnnError, match="one seed a network"):
        Ensemble(hdnn.network("H1", features=4, layers=3, T=1.0), [0])


# --- the published orientation --------------------------------------------------------------------


def _swiss_roll_accuracies(solver: str, seeds: int = 8) -> list[float]:
    """Test accuracies of 4-layer H1 networks on the Swiss roll, as in appendix B.1."""
    data, settings = split("swiss-roll"), TrainingConfig(solver=solver)
    widen = Augmentation(2, 4)
    network = hdnn.network(
        "H1",
        features=4,
        layers=4,
        T=0.4,
        ensemble=seeds,
        dtype=torch.float32,
        generator=[seeded(e) for e in range(seeds)],
    )
    states, weight = widen(data.X_train.float()), torch.ones(len(data.X_train))
    ensemble = Ensemble(network, [1000 + e for e in range(seeds)])
    Trainer(ensemble, settings).fit(states.expand(seeds, -1, -1), data.y_train.expand(seeds, -1))
    with torch.no_grad():
        out = network(torch.stack([states] * seeds))
        tested = network(torch.stack([widen(data.X_test.float())] * seeds))
    found = []
    for e in range(seeds):
        member = Model(hdnn.network("H1", features=4, layers=4, T=0.4, dtype=torch.float32), 1)
        solve_output(member, out[e], data.y_train, weight, settings)
        predicted = member.head(tested[e])[:, 0].detach() > 0
        found.append(float((predicted == data.y_test).double().mean()))
    return found


def test_newton_beats_ten_adam_steps_on_the_swiss_roll() -> None:
    """About 97 % against 81 % in the prototype (four layers, eight seeds).

    Over 32 seeds the gap is 17 +- 1.6 points at T = 0.4, 12 +- 1.4 at 1.2, 11 +- 2.0 at 2.4 and
    12 +- 1.5 at 4 (standard errors). Of these the test takes the T at which eight seeds decide most
    clearly; at 1.2 the same eight happen to show 6 points.
    """
    newton, adam = (np.mean(_swiss_roll_accuracies(solver)) for solver in ("newton", "adam"))
    assert newton > adam + 0.05
    assert newton > 0.9
