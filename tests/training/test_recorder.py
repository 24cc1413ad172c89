"""The recorder leaves no trace in a training, and what it records is true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import hdnn
from hdnn.errors import FileFormatError, HdnnError
from hdnn.files import write_json_lines
from hdnn.training import Trainer, TrainingConfig
from hdnn.training.compiled import CompiledLoop
from hdnn.training.objective import data_loss, penalty
from hdnn.training.output_solver import solve_output
from hdnn.training.recorder import Recorder, read_recordings
from skips import needs_kernels
from tasks import make, moons, same

WAYS = {
    "compiled": TrainingConfig(epochs=3, batch_size=30, loop="compiled"),
    "autograd": TrainingConfig(epochs=3, batch_size=30, loop="autograd", clip=0.1),
    "joint": TrainingConfig(epochs=3, batch_size=30, method="joint", learning_rate=0.01),
}

every_way = pytest.mark.parametrize(
    "way", ["autograd", *(pytest.param(w, marks=needs_kernels) for w in WAYS if w != "autograd")]
)


def model(name: str = "H1", **options: Any) -> hdnn.Model:
    return make(3, name, layers=5, T=None if name == "FCNN" else 0.6, **options)


def fit(trained: hdnn.Model, config: TrainingConfig, recorder: Recorder | None) -> Trainer:
    trainer = Trainer(trained, config, recorder=recorder)
    trainer.fit(moons(100))  # 4 batches an epoch, the last one smaller
    return trainer


@every_way
@pytest.mark.parametrize(("name", "every"), [("H1", 1), ("FCNN", 3)])
def test_recording_changes_no_bit(way: str, name: str, every: int) -> None:
    plain, recorded = (model(name, dtype=torch.float32) for _ in range(2))
    before = fit(plain, WAYS[way], None)
    after = fit(recorded, WAYS[way], Recorder(every))
    assert same(plain, recorded)
    assert [record.loss for record in before.history] == [record.loss for record in after.history]
    assert [r.iteration for r in after.recorder.recordings] == list(range(0, 12, every))
    assert isinstance(after.loop, CompiledLoop) == (way != "autograd")


@every_way
@pytest.mark.parametrize("width", [4, 40])  # wide: singular values come from LAPACK
def test_first_recording_is_of_the_initial_network_on_the_first_batch(way: str, width: int) -> None:
    fresh, trained = (model("MS3", features=width) for _ in range(2))
    data, config = moons(100), WAYS[way]
    trainer = fit(trained, config, Recorder(1, samples=30))
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))[:30]
    states = fresh.preprocess(data.X)[order]
    M = hdnn.analysis.sensitivities(fresh.network, states)
    first = trainer.recorder.recordings[0]
    values = torch.linalg.svdvals(M)
    for name, right in (
        ("mean", values[..., 0].mean(1)),
        ("minimum", values[..., 0].amin(1)),
        ("maximum", values[..., 0].amax(1)),
        ("smallest", values[..., -1].amin(1)),
        ("of_mean", torch.linalg.svdvals(M.mean(1))[:, 0]),
    ):
        torch.testing.assert_close(getattr(first.norms, name), right, msg=name)
    # The gradient of the objective, K and b of a layer together.
    objective(fresh, config, states, data.y[order]).backward()
    theta, beta = fresh.network.field.weights.theta.grad, fresh.network.field.weights.beta.grad
    layers = torch.cat([theta, beta], -1).norm(dim=-1)
    torch.testing.assert_close(torch.tensor(first.gradient), layers, rtol=1e-5, atol=1e-9)
    assert first.gradient_norm == pytest.approx(float(layers.norm()), rel=1e-5)


def objective(trained: hdnn.Model, config: TrainingConfig, states: Tensor, y: Tensor) -> Tensor:
    out, ones, head = trained.network(states), torch.ones(len(y)), trained.head
    if config.method == "coordinate":
        solve_output(trained, out.detach(), y, ones, config)
    loss = data_loss(head(out), y, ones, "logistic")
    return loss + penalty(trained, head.weight, head.bias, config)


# --- files ----------------------------------------------------------------------------------------


def test_lines_are_recordings_that_pandas_reads(tmp_path: Path) -> None:
    recorder, path = Recorder(3, samples=5), tmp_path / "gradients.jsonl"
    fit(model(), WAYS["autograd"], recorder)
    lines = [recording.to_dict() for recording in recorder.recordings]
    write_json_lines(path, lines)
    assert read_recordings(path) == lines
    frame = pd.read_json(path, lines=True)
    assert frame.iteration.tolist() == [0, 3, 6, 9]
    assert frame.epoch.tolist() == [1, 1, 2, 3]  # of 4 batches each, counted as in the history
    assert np.array(frame["mean"].tolist()).shape == (4, 6)
    for change in ({"epoch": 1.0}, {"iteration": "1"}, {"mean": [1.0]}):
        write_json_lines(path, [lines[0] | change])
        with pytest.raises(FileFormatError, match="line 1 of"):
            read_recordings(path)


def test_numbers_that_are_not_finite_are_null() -> None:
    recorder, watched = Recorder(1, depths=2, samples=2), model()
    recorder.start(watched, batches=4)
    recorder.observe(0, watched.network, torch.full((3, 4), torch.nan), np.full(5, np.nan))
    line = recorder.recordings[0].to_dict()
    assert line["mean"] == [None, 1.0]
    assert line["gradient_norm"] is None
    json.dumps(line, allow_nan=False)


def test_recording_images_raises() -> None:
    digits = hdnn.image_model(channels=1, size=(8, 8), classes=10, layers=(2,))
    with pytest.raises(HdnnError, match="watch for images"):
        Recorder().start(digits, 4)
