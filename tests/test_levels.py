"""Multilevel training: one objective on every level, and a training that can be cut anywhere."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from typer.testing import CliRunner

import hdnn
from hdnn.cli import app
from hdnn.data import split
from hdnn.errors import FileFormatError, HdnnError
from hdnn.training import (
    Ensemble,
    EpochRecord,
    Snapshot,
    Trainer,
    TrainingConfig,
)
from hdnn.training.levels import INTERPOLATION, Levels
from hdnn.training.objective import smoothness
from hdnn.training.recorder import Recorder
from hdnn.training.run_config import RunConfig
from hdnn.training.runs import Run
from hdnn.training.settings import DataConfig, ModelConfig

LOOPS: dict[str, dict[str, Any]] = {
    "compiled": {"loop": "compiled"},
    "autograd": {"loop": "autograd"},
    "joint": {"method": "joint", "loop": "compiled"},
    "joint, autograd": {"method": "joint", "loop": "autograd"},
    "averaged": {"method": "joint", "averaging": 0.9},
    "SGD": {"optimizer": "SGD"},
    "varpro": {"method": "varpro"},
    "early stopping": {"validation": 0.2, "early_stopping": 2},
}
every_loop = pytest.mark.parametrize("loop", LOOPS)


def moons(size: int = 50) -> tuple[Tensor, Tensor]:
    data = split("double-moons", size=2 * size)
    return data.X_train, data.y_train


def make(layers: int = 8, name: str = "H1", **options: Any) -> hdnn.Model:
    draw = torch.Generator().manual_seed(0)
    net = hdnn.network(name, features=4, layers=layers, T=1.0, generator=draw, **options)
    return hdnn.Model(net, 1, hdnn.Augmentation(2, 4))


def config(loop: str = "compiled", **options: Any) -> TrainingConfig:
    given = {"epochs": 6, "batch_size": 20, "levels": (2, 4, 8), "learning_rate": 0.02}
    return TrainingConfig(**(given | LOOPS[loop] | options))


def timeless(history: list[EpochRecord]) -> list[EpochRecord]:
    return [replace(record, seconds=0.0) for record in history]


# --- the objective --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["H1", "MS1", "MS2", "MS3", "ResNet"])
def test_the_penalty_of_weights_is_the_same_on_every_level(name: str) -> None:
    """Also for weights that are no straight lines: the coarse ones are any."""
    fine = make(16, name)
    levels = Levels.of(fine, TrainingConfig(alpha=3.0, levels=(2, 4, 16)))
    coarse = hdnn.coarsen(fine, 2, INTERPOLATION)
    penalties = []
    for level, (depth,) in enumerate(levels.depths):
        there = hdnn.refine(coarse, depth, INTERPOLATION)
        penalties.append(float(levels.settings(level).alpha * smoothness(there.network).detach()))
    assert penalties[0] > 0.1
    assert penalties == pytest.approx([penalties[0]] * 3, rel=1e-12)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_a_step_changes_the_function_of_time_alike_on_every_level(optimizer: str) -> None:
    """The change of K(t) in a step converges, with the order of the scheme."""
    X, target = moons()
    changes = []
    for depth in (64, 128, 256):
        model = hdnn.refine(hdnn.coarsen(make(256), 2), depth)
        start = model.network.K.detach().clone()
        settings = TrainingConfig(optimizer=optimizer, levels=(64, 128, 256), alpha=0.0, epochs=3)
        level = Levels.of(make(256), settings).settings(settings.levels.index(depth))
        once = replace(
            level, levels=None, epochs=1, batch_size=50, learning_rate=level.learning_rate
        )
        Trainer(model, once).fit(X, target)
        changes.append(hdnn.coarsen(model, 2).network.K.detach() - start[:: depth // 2])
    errors = [float((one - other).norm()) for one, other in pairwise(changes)]
    assert errors[0] < 0.1 * float(changes[-1].norm())
    if optimizer == "SGD":  # Adam's first step is the sign of the gradient
        assert np.log2(errors[0] / errors[1]) == pytest.approx(1.0, abs=0.15)


# --- moments --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["H1", "MS1", "MS3"])
@pytest.mark.parametrize("method", ["coordinate", "joint"])
def test_compiled_code_and_autograd_carry_the_same_moments(name: str, method: str) -> None:
    found = []
    for loop in ("compiled", "autograd"):
        model = make(name=name)
        history = Trainer(model, config(method=method, loop=loop)).fit(*moons())
        assert [record.layers for record in history] == [2, 2, 4, 4, 8, 8]
        found.append(model.state_dict())
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-8)


def test_shared_weights_keep_their_moments() -> None:
    model = make(time_invariant=True)
    trainer = Trainer(model, config())
    steps: list[Tensor] = []
    trainer.callbacks.append(lambda t, _: steps.append(t.loop.state()["moments_theta"]))
    trainer.fit(*moons())
    assert [m.shape[2] for m in steps] == [1] * 6
    assert model.network.layers == 8


# --- interruptions --------------------------------------------------------------------------------


@every_loop
def test_a_training_goes_on_from_any_epoch_of_any_level(loop: str) -> None:
    snapshots: list[Snapshot] = []
    model = make()
    trainer = Trainer(model, config(loop), [lambda t, _: snapshots.append(t.snapshot)])
    history = trainer.fit(*moons())
    assert [int(s.tensors["level"]) for s in snapshots][:: len(snapshots) - 1] == [0, 2]
    for snapshot in snapshots:
        again = make()
        rest = Trainer(again, config(loop)).fit(*moons(), resume=snapshot)
        assert timeless(rest) == timeless(history[snapshot.epoch :])
        torch.testing.assert_close(again.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_a_run_stopped_right_after_a_level_has_begun_goes_on_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state between two epochs, when the network is refined already, is a state as well."""
    wanted = RunConfig(DataConfig(size=100), ModelConfig(layers=8), config())
    whole = Run.create(tmp_path / "whole", wanted)
    whole.train()

    take, seen = Trainer._take, []

    def interrupted(self: Trainer, *args: Any) -> Snapshot:
        self.snapshot = take(self, *args)
        seen.append(int(self.snapshot.tensors["level"]))
        if seen[-2:] == [0, 1]:
            raise KeyboardInterrupt
        return self.snapshot

    monkeypatch.setattr(Trainer, "_take", interrupted)
    run = Run.create(tmp_path / "cut", wanted)
    with pytest.raises(KeyboardInterrupt):
        run.train()
    monkeypatch.setattr(Trainer, "_take", take)
    assert len(run.history.read_text().splitlines()) == 2
    run.train()
    assert run.model_file.read_bytes() == whole.model_file.read_bytes()
    records = [json.loads(line) for line in run.history.read_text().splitlines()]
    assert [record["layers"] for record in records] == [2, 2, 4, 4, 8, 8]


def test_a_checkpoint_of_no_level_of_the_run_raises(tmp_path: Path) -> None:
    wanted = RunConfig(DataConfig(size=100), ModelConfig(layers=8), config())
    snapshots: list[Snapshot] = []
    run = Run.create(tmp_path / "run", wanted)
    run.train([lambda t, _: snapshots.append(t.snapshot)])
    run.model_file.unlink()
    for wrong in (7, -1, 1):  # the first state is of level 0
        tensors = {**snapshots[0].tensors, "level": torch.tensor(wrong)}
        run.write_checkpoint(wanted, replace(snapshots[0], tensors=tensors))
        with pytest.raises(FileFormatError, match=r"level|another model"):
            run.train()


# --- when levels end ------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 60))
def test_every_level_has_an_epoch_and_all_have_all(shares: list[int], more: int) -> None:
    epochs = len(shares) + more
    settings = TrainingConfig(
        epochs=epochs, levels=tuple(2**k for k in range(len(shares))), level_epochs=tuple(shares)
    )
    ends = Levels.of(make(2 ** (len(shares) - 1)), settings).ends
    assert ends[-1] == epochs
    assert all(a < b for a, b in pairwise((0, *ends)))
    if epochs % sum(shares) == 0:
        parts = [b - a for a, b in pairwise((0, *ends))]
        assert parts == [share * epochs // sum(shares) for share in shares]


def test_a_level_ends_when_the_validation_loss_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = [5, 4, 6, 7, 3, 9, 9, 9, 9, 9, 9, 9]
    monkeypatch.setattr(Trainer, "_watch", lambda self, data: (losses[len(self.history)], 0.5))
    settings = config("early stopping", epochs=12, level_epochs=(6, 3, 3))
    kept: dict[int, Tensor] = {}
    trainer = Trainer(
        make(), settings, [lambda t, e: kept.update({e.epoch: t.model.network.K.detach().clone()})]
    )
    begins: list[Tensor] = []
    enter = Trainer._enter_next_level

    def noted(self: Trainer, data: Any) -> None:
        enter(self, data)
        begins.append(self.model.network.K.detach().clone())

    monkeypatch.setattr(Trainer, "_enter_next_level", noted)
    history = trainer.fit(*moons())
    # Best in epoch 2, left two epochs later; best in 5, left in 7; then 9 is the first and best.
    assert [record.layers for record in history] == [2] * 4 + [4] * 3 + [8] * 3
    for start, best in zip(begins, (2, 5), strict=True):
        torch.testing.assert_close(start[::2], kept[best], rtol=0, atol=0)


def test_a_training_stopped_on_a_coarse_level_returns_the_whole_depth() -> None:
    def stop(trainer: Trainer, record: EpochRecord) -> None:
        trainer.stopped = record.epoch == 3

    model = make()
    assert len(Trainer(model, config(), [stop]).fit(*moons())) == 3
    assert model.network.layers == 8
    untouched = make()
    Trainer(untouched, config(epochs=0)).fit(*moons())
    torch.testing.assert_close(untouched.state_dict(), make().state_dict(), rtol=0, atol=0)


# --- front ends -----------------------------------------------------------------------------------


def test_stages_of_images_follow_in_proportion() -> None:
    images = hdnn.ImageConfig(size=(8, 8), widths=(4, 4), layers=(2, 4), kernel=3, T=0.4)
    model = hdnn.ImageClassifier(images)
    settings = TrainingConfig(method="joint", epochs=2, levels=(2, 4), batch_size=5)
    X = torch.randint(256, (10, 1, 8, 8), dtype=torch.uint8)
    seen: list[tuple[int, ...]] = []
    depths = lambda t, _: seen.append(tuple(net.layers for net in t.model.networks))  # noqa: E731
    Trainer(model, settings, [depths]).fit(X, torch.arange(10))
    assert seen == [(1, 2), (2, 4)]
    assert model.config is not None
    assert model.config.layers == (2, 4)


def test_the_command_line_takes_levels(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["train", "swiss-roll", "--levels", "2,4", "--level-epochs", "2,1", "--epochs", "3"]
    result = CliRunner().invoke(app, [*words, "--size", "100", "--out", str(out), "--json"])
    assert result.exit_code == 0, result.output
    run = Run.open(out)
    assert run.read_config().model.layers == 4
    assert run.load_model().network.layers == 4
    records = [json.loads(line) for line in run.history.read_text().splitlines()]
    assert [record["layers"] for record in records] == [2, 2, 4]


def test_the_estimator_takes_levels() -> None:
    X, y = (part.numpy() for part in moons())
    clf = hdnn.HDNNClassifier(levels=(2, 4), max_iter=4, random_state=0).fit(X, y)
    assert [record.layers for record in clf.history_] == [2, 2, 4, 4]
    assert clf.model_.network.layers == 4
    clf.set_params(warm_start=True, max_iter=2).fit(X, y)
    assert [record.layers for record in clf.history_] == [None, None]  # goes on at its depth
    assert not hasattr(clf, "partial_fit")
    assert hasattr(clf.set_params(levels=None), "partial_fit")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": (2, 4)}, "depth of the network: got 4 for 8 layers"),
        ({"levels": (8, 8)}, "increasing"),
        ({"levels": ()}, "levels is a list"),
        ({"level_epochs": (1, 2)}, "2 entries for 3 levels"),
        ({"epochs": 2}, "as many epochs"),
        ({"method": "joint", "optimizer": "SGD"}, "output layer"),
    ],
)
def test_levels_that_make_no_sense_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(HdnnError, match=message):
        Levels.of(make(), config(**options))


def test_what_has_one_depth_raises() -> None:
    fcnn = hdnn.Model(hdnn.network("FCNN", features=4, layers=8), 1, hdnn.Augmentation(2, 4))
    with pytest.raises(HdnnError, match="no ODE"):
        Trainer(fcnn, config()).fit(*moons())
    with pytest.raises(HdnnError, match="one depth"):
        Trainer(make(), config(), recorder=Recorder()).fit(*moons())
    several = Ensemble(hdnn.network("H1", features=4, layers=8, T=1.0, ensemble=2), [0, 1])
    X = torch.randn(2, 10, 4)
    with pytest.raises(HdnnError, match="levels"):
        Trainer(several, config()).fit(X, torch.ones(2, 10).long())
