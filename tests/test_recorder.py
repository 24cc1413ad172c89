"""The recorder leaves no trace in a training, and what it records is true."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import hdnn
from hdnn.config import Config, DataConfig, ModelConfig
from hdnn.data import split
from hdnn.errors import FileFormatError, HdnnError
from hdnn.kernels.native import singular_values
from hdnn.training import Trainer, TrainingConfig
from hdnn.training.compiled import CompiledLoop
from hdnn.training.recorder import GradientLog, RecordConfig, Recorder, gradient_lines, header_line
from hdnn.training.runs import Run
from hdnn.training.trainer import EpochRecord
from skips import needs_kernels

WAYS = {
    "compiled": TrainingConfig(epochs=3, batch_size=30, loop="compiled"),
    "autograd": TrainingConfig(epochs=3, batch_size=30, loop="autograd", clip=0.1),
    "joint": TrainingConfig(epochs=3, batch_size=30, method="joint", learning_rate=0.01),
}

every_way = pytest.mark.parametrize(
    "way", ["autograd", *(pytest.param(w, marks=needs_kernels) for w in WAYS if w != "autograd")]
)
WIDE = 40  # its singular values come from LAPACK


def model(
    name: str = "H1", layers: int = 5, dtype: torch.dtype = torch.float32, width: int = 4
) -> hdnn.Model:
    generator = torch.Generator().manual_seed(3)
    step = {} if name == "FCNN" else {"T": 0.6}
    net = hdnn.network(
        name, features=width, layers=layers, dtype=dtype, generator=generator, **step
    )
    return hdnn.Model(net, 1, hdnn.Augmentation(2, width))


def fit(trained: hdnn.Model, config: TrainingConfig, recorder: Recorder | None) -> Trainer:
    data = split("double-moons", size=200)  # 4 batches an epoch, the last one smaller
    trainer = Trainer(trained, config, recorder=recorder)
    trainer.fit(data.X_train.to(trained.head.weight.dtype), data.y_train)
    return trainer


@every_way
@pytest.mark.parametrize(("name", "width"), [("H1", 4), ("MS3", 4), ("FCNN", 4), ("H1", WIDE)])
@pytest.mark.parametrize("every", [1, 3])
def test_weights_with_and_without_it_are_the_same_bits(
    way: str, name: str, width: int, every: int
) -> None:
    plain, watched = model(name, width=width), model(name, width=width)
    before = fit(plain, WAYS[way], None)
    after = fit(watched, WAYS[way], Recorder(every))
    for (key, a), b in zip(plain.state_dict().items(), watched.state_dict().values(), strict=True):
        assert torch.equal(a, b), key
    strip = [(e.loss, e.penalized, e.accuracy) for e in before.history]
    assert strip == [(e.loss, e.penalized, e.accuracy) for e in after.history]
    assert after.recorder is not None
    assert [r.iteration for r in after.recorder.recordings] == list(range(0, 12, every))
    assert isinstance(after.loop, CompiledLoop) == (way != "autograd")


@every_way
@pytest.mark.parametrize("width", [4, WIDE])
def test_what_is_recorded_first_is_the_initial_network_on_the_first_batch(
    way: str, width: int
) -> None:
    fresh, watched = (model("MS3", dtype=torch.float64, width=width) for _ in range(2))
    data, config = split("double-moons", size=200), WAYS[way]
    trainer = fit(watched, config, Recorder(1, samples=30))
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))[:30]
    states = fresh.preprocess(data.X_train.to(torch.float64))[order]
    M = hdnn.analysis.sensitivities(fresh.network, states)
    assert trainer.recorder is not None
    found = trainer.recorder.recordings[0]
    values = torch.linalg.svdvals(M)
    for name, right in (
        ("mean", values[..., 0].mean(1)),
        ("minimum", values[..., 0].amin(1)),
        ("maximum", values[..., 0].amax(1)),
        ("smallest", values[..., -1].amin(1)),
        ("of_mean", torch.linalg.svdvals(M.mean(1))[:, 0]),
        ("energy", energies(fresh.network, states)),
    ):
        torch.testing.assert_close(getattr(found.norms, name), right, msg=name)
    # The gradient of the objective, K and b of a layer together.
    objective(fresh, config, states, data.y_train[order]).backward()
    theta, beta = fresh.network.field.weights.theta.grad, fresh.network.field.weights.beta.grad
    layers = torch.cat([theta, beta], -1).norm(dim=-1)
    torch.testing.assert_close(torch.tensor(found.gradient), layers, rtol=1e-5, atol=1e-9)
    assert found.gradient_norm == pytest.approx(float(layers.norm()), rel=1e-5)


def energies(net: hdnn.HamiltonianNetwork, y: Tensor) -> Tensor:
    path = net.trajectory(y)
    return torch.stack(
        [net.field_at(min(l, net.layers - 1)).energy(path[l]).mean() for l in range(net.layers + 1)]
    ).detach()


def objective(trained: hdnn.Model, config: TrainingConfig, states: Tensor, y: Tensor) -> Tensor:
    from hdnn.training.loops import solve_output
    from hdnn.training.objective import data_loss, output_penalty, smoothness

    out, ones = trained.network(states), torch.ones(len(y))
    if config.method == "coordinate":
        solve_output(trained, out.detach(), y, ones, config)
    head = trained.head
    loss = data_loss(head(out), y, ones, "logistic") + config.alpha * smoothness(trained.network)
    return loss + config.alpha_c * output_penalty(head.weight, head.bias)


@needs_kernels
def test_singular_values_are_those_of_lapack_also_far_from_one() -> None:
    rng = np.random.default_rng(0)
    for n in (1, 2, 4, 7, 12):
        M = rng.normal(size=(300, n, n))
        M[0], M[1], M[2] = 0, M[1] * 1e-200, M[2] * 1e200
        M[3, :, -1] = M[3, :, 0]
        largest, smallest = singular_values(M)
        right = np.linalg.svd(M, compute_uv=False)
        np.testing.assert_allclose(largest, right[:, 0], rtol=1e-13)
        size = np.maximum(largest, 1e-300)
        np.testing.assert_allclose(smallest / size, right[:, -1] / size, atol=1e-13)
    M = np.ones((2, 3, 3))
    M[1, 2, 0] = np.nan
    assert np.isnan(singular_values(M)[0]).tolist() == [False, True]
    assert np.isnan(singular_values(M)[1]).tolist() == [False, True]


# --- runs -----------------------------------------------------------------------------------------


def recipe() -> Config:
    return Config(
        DataConfig("double-moons", size=200),
        ModelConfig(layers=4),
        TrainingConfig(epochs=4, batch_size=30),
    )


def test_a_killed_run_has_in_the_end_the_record_of_one_that_was_not(tmp_path: Path) -> None:
    recorded = replace(recipe(), record=RecordConfig(3, samples=5))
    whole = Run.create(tmp_path / "whole", recorded)
    whole.train()
    broken = Run.create(tmp_path / "broken", recorded)

    def stop(trainer: Trainer, entry: EpochRecord) -> None:
        if entry.epoch == 3:  # the checkpoint is of an earlier epoch than the record
            raise SystemExit

    with pytest.raises(SystemExit):
        broken.train([stop], checkpoint_seconds=1e9)
    assert len(broken.gradients.read_text().splitlines()) == 1 + 4
    broken.train()
    assert broken.gradients.read_text() == whole.gradients.read_text()
    header, entries = GradientLog(whole.gradients).read()
    assert (header.every, header.samples, header.depths) == (3, 5, (0, 1, 2, 3, 4))
    assert [e["iteration"] for e in entries] == [0, 3, 6, 9, 12, 15]
    assert [e["epoch"] for e in entries] == [1, 1, 2, 3, 4, 4]
    assert all(len(e["mean"]) == 5 and len(e["gradient"]) == 4 for e in entries)


def test_after_a_checkpoint_only_the_rest_is_recorded_again(tmp_path: Path) -> None:
    recorded = replace(recipe(), record=RecordConfig(1))
    whole = Run.create(tmp_path / "whole", recorded)
    whole.train()
    broken = Run.create(tmp_path / "broken", recorded)

    def stop(trainer: Trainer, entry: EpochRecord) -> None:
        if entry.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken.train([stop])
    recorded_so_far = broken.gradients.read_text()
    broken.gradients.write_text(recorded_so_far.replace('"every": 1', '"every": 2', 1))
    with pytest.raises(FileFormatError, match=r"line 1 of .*gradients.jsonl"):
        broken.train()
    more = '{"epoch": 3, "iteration": 8}\n{"epoch": 3, "it'
    broken.gradients.write_text(recorded_so_far + more)
    broken.train()
    assert broken.gradients.read_text() == whole.gradients.read_text()
    Run.create(tmp_path / "whole", recipe(), overwrite=True)
    assert not whole.gradients.exists()


def test_a_record_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gradients.jsonl"
    for text in (
        "",
        "[]",
        '{"every": 1}',
        '{"every": 1, "depths": [0], "samples": 1, "format": 9}',
    ):
        path.write_text(text)
        with pytest.raises(FileFormatError, match="is no record of gradients"):
            GradientLog(path).read()


def test_numbers_that_are_not_finite_are_null(tmp_path: Path) -> None:
    path = tmp_path / "gradients.jsonl"
    recorder = Recorder(1, depths=2, samples=2)
    net = hdnn.network("H1", features=4, layers=2, T=1.0)
    log = GradientLog(path)
    recorder.start(net, torch.full((3, 4), torch.nan))
    recorder.before_step(0, torch.arange(3))
    lines = [header_line(recorder.header(net)), *gradient_lines(recorder.finish(1))]
    path.write_bytes(b"".join(lines))
    _, (entry,) = log.read()
    assert entry["mean"] == [None, 1.0]
    assert entry["gradient_norm"] is None
    assert "gradient" not in entry
    json.dumps(entry, allow_nan=False)


@pytest.mark.parametrize("wrong", [{"every": 0}, {"every": 1.5}, {"samples": 0}, {"every": True}])
def test_counts_are_positive_integers(wrong: dict[str, int]) -> None:
    for kind in (Recorder, RecordConfig):
        with pytest.raises(HdnnError, match="should be"):
            kind(**wrong)
