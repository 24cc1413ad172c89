"""Training on images: it learns, and goes on bit by bit."""

from __future__ import annotations

import csv
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from hdnn.cli import app
from hdnn.config import Config
from hdnn.data.images import load
from hdnn.errors import HdnnError
from hdnn.models import ImageClassifier, ImageConfig, Model
from hdnn.training import Trainer, TrainingConfig
from hdnn.training.build import statistics
from hdnn.training.distortion import distort
from hdnn.training.optimizers import Average
from hdnn.training.runs import Run, prepare, read_history

JOINT = TrainingConfig(
    method="joint",
    epochs=2,
    batch_size=100,
    learning_rate=0.01,
    schedule="one-cycle",
    warmup=0.5,
    alpha=1e-3,
    alpha_c=2e-4,
)
FULL = replace(
    JOINT,
    epochs=4,
    optimizer="AdamW",
    weight_decay=0.01,
    label_smoothing=0.1,
    averaging=0.9,
    shift=1,
    rotate=5.0,
    zoom=0.05,
    flip=True,
    erase=2,
    validation=0.2,
    early_stopping=2,
)
STAGES: dict[str, Any] = {
    "architecture": "H1",
    "widths": (4, 8),
    "layers": (2, 2),
    "step": 0.1,
    "kernel": 3,
    "norm": "batch",
    "head": "pool",
    "size": (8, 8),
}


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    found = load("digits")
    return found.train[:400], found.train_labels[:400]


def classifier(**options: Any) -> Model:
    config = ImageConfig(**({"size": (8, 8), "layers": (2,)} | options))
    return ImageClassifier(config, generator=torch.Generator().manual_seed(0), dtype=torch.float32)


# --- the trainer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["MS1", "H2"])
def test_the_papers_network_learns_digits(architecture: str) -> None:
    found = load("digits")
    mean, std = statistics(found.train)
    model = classifier(architecture=architecture, layers=(4,), mean=mean, std=std)
    Trainer(model, replace(JOINT, epochs=8)).fit(found.train, found.train_labels)
    accuracy = (model.predict(found.test) == found.test_labels).double().mean()
    assert accuracy > 0.95


def weights_after(model: Model) -> dict[str, Tensor]:
    return {name: t.clone() for name, t in model.state_dict().items()}


@pytest.mark.parametrize("config", [JOINT, FULL], ids=["paper", "everything"])
def test_a_resumed_training_ends_with_the_same_bits(
    config: TrainingConfig, digits: tuple[Tensor, Tensor]
) -> None:
    options = {} if config is JOINT else STAGES
    whole, first, second = (classifier(**options) for _ in range(3))
    Trainer(whole, config).fit(*digits)
    snapshots = []
    Trainer(first, config, [lambda t, e: snapshots.append(t.snapshot)]).fit(*digits)
    Trainer(second, config).fit(*digits, resume=snapshots[0])
    expected, found = weights_after(whole), weights_after(second)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_gradients_are_those_of_the_whole_objective(digits: tuple[Tensor, Tensor]) -> None:
    """One step of SGD with rate 1 is minus the gradient of loss and both penalties, longhand."""
    X, y = digits[0][:50], digits[1][:50]
    config = TrainingConfig(
        method="joint",
        epochs=1,
        batch_size=50,
        learning_rate=1.0,
        optimizer="SGD",
        alpha=0.3,
        alpha_c=0.2,
    )
    model, twin = (classifier(layers=(3,)).double() for _ in range(2))
    Trainer(model, config).fit(X, y)
    net = twin.networks[0]
    K, b = net.K, net.b
    smooth = (K[1:] - K[:-1]).square().sum() + (b[1:] - b[:-1]).square().sum()
    penalty = twin.head.weight.square().sum() + twin.head.bias.square().sum()
    loss = nn.functional.cross_entropy(twin(X), y) + 0.3 * 0.05 / 2 * smooth + 0.2 * penalty
    loss.backward()
    for trained, p in zip(model.parameters(), twin.parameters(), strict=True):
        assert p.grad is not None
        torch.testing.assert_close(trained, p - p.grad)


def test_a_training_returns_the_average_that_it_validated(digits: tuple[Tensor, Tensor]) -> None:
    model = classifier()
    config = replace(JOINT, averaging=0.9)
    trainer = Trainer(model, config)
    history = trainer.fit(*digits, validation=digits)
    with torch.no_grad():
        loss = float(nn.functional.cross_entropy(model(digits[0]), digits[1]))
    assert history[-1].validation_loss == pytest.approx(loss, rel=1e-5)
    last = trainer.snapshot
    assert last is not None
    assert not torch.equal(last.tensors["model.head.weight"], model.head.weight)


def test_averages_longhand() -> None:
    line = nn.Linear(1, 1)
    average = Average(line, 0.5)
    expected = line.weight.detach().clone()
    for step in range(4):
        with torch.no_grad():
            line.weight += 1
        keep = min(0.5, (1 + step) / (10 + step))
        expected = keep * expected + (1 - keep) * line.weight.detach()
        average.update()
    torch.testing.assert_close(average.weights["weight"], expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"method": "coordinate"}, "joint"), ({"loop": "compiled"}, "serves models for tables")],
)
def test_what_images_cannot_be_trained_with(
    change: dict[str, Any], message: str, digits: tuple[Tensor, Tensor]
) -> None:
    config = TrainingConfig(**({"method": "joint"} | change))
    with pytest.raises(HdnnError, match=message):
        Trainer(classifier(), config).fit(*digits)


def test_the_one_cycle_schedule() -> None:
    config = TrainingConfig(
        method="joint", epochs=10, learning_rate=2.0, schedule="one-cycle", warmup=2.0
    )
    assert config.learning_rate_at(1.0) == 1.0
    assert config.learning_rate_at(2.0) == 2.0
    assert config.learning_rate_at(6.0) == pytest.approx(1.0)
    assert config.learning_rate_at(10.0) == pytest.approx(0.0)
    assert 0 < config.learning_rate_at(0) < 0.01


# --- distortions ----------------------------------------------------------------------------------


def test_distortions_depend_on_seed_and_place_only(digits: tuple[Tensor, Tensor]) -> None:
    X = digits[0][:20]
    found = distort(X, FULL, 3, 7)
    torch.manual_seed(99)
    assert torch.equal(distort(X, FULL, 3, 7), found)
    assert found.dtype == torch.uint8
    others = [
        distort(X, FULL, 3, 8),
        distort(X, FULL, 4, 7),
        distort(X, replace(FULL, seed=1), 3, 7),
    ]
    assert all(not torch.equal(other, found) for other in others)


def test_shifts_are_all_shifts_up_to_the_largest() -> None:
    dot = torch.zeros(600, 1, 9, 9, dtype=torch.uint8)
    dot[:, :, 4, 4] = 255
    moved = distort(dot, TrainingConfig(shift=2), 0, 0)
    places = {tuple(place[2:].tolist()) for place in moved.nonzero()}
    assert places == {(4 + a, 4 + b) for a in range(-2, 3) for b in range(-2, 3)}
    assert torch.equal(moved.sum((1, 2, 3)), dot.sum((1, 2, 3)))


def test_mirror_images() -> None:
    X = torch.arange(8, dtype=torch.uint8).reshape(1, 1, 2, 4).expand(200, 1, 2, 4)
    found = distort(X, TrainingConfig(flip=True), 0, 0)
    kept = [bool(torch.equal(a, b)) for a, b in zip(found, X, strict=True)]
    turned = [bool(torch.equal(a, b.flip(-1))) for a, b in zip(found, X, strict=True)]
    assert all(a != b for a, b in zip(kept, turned, strict=True))
    assert 60 < sum(kept) < 140


def test_a_rotation_turns_about_the_center() -> None:
    """A disc stays, up to interpolation; its bright half turns by at most the angle."""
    u, v = torch.meshgrid(torch.arange(33) - 16.0, torch.arange(33) - 16.0, indexing="ij")
    half = ((u.square() + v.square() < 144) & (v > 0)).to(torch.float64)
    X = half.expand(50, 1, 33, 33)
    found = distort(X, TrainingConfig(rotate=30.0), 0, 0)[:, 0]
    angles = torch.atan2((found * u).sum((1, 2)), (found * v).sum((1, 2))).rad2deg()
    assert float(angles.abs().max()) < 31
    assert float(angles.max()) > 20
    assert float(angles.min()) < -20
    torch.testing.assert_close(found.sum((1, 2)), X.sum((1, 2, 3)), rtol=0.02, atol=0.0)


def test_erased_squares() -> None:
    X = torch.full((100, 2, 8, 6), 9, dtype=torch.uint8)
    found = distort(X, TrainingConfig(erase=3), 0, 0)
    holes = (found == 0).sum((2, 3))
    assert torch.equal(holes[:, 0], holes[:, 1])
    assert (int(holes.min()), int(holes.max())) == (4, 9)


def test_statistics_of_images() -> None:
    X = torch.randint(0, 256, (50, 3, 4, 5), dtype=torch.uint8)
    mean, std = statistics(X)
    wide = (X / 255.0).transpose(0, 1).flatten(1)
    torch.testing.assert_close(torch.tensor(mean), wide.mean(1))
    torch.testing.assert_close(torch.tensor(std), wide.std(1, correction=0))


# --- recipes and runs -----------------------------------------------------------------------------


def test_the_papers_protocol_is_appendix_B2() -> None:
    training = prepare(Config(data={"source": "digits"})).config.training
    assert (training.epochs, training.batch_size, training.optimizer) == (40, 100, "Adam")
    assert [training.learning_rate_at(e) for e in (0, 1)] == pytest.approx([0.04, 0.032])
    assert (training.alpha, training.alpha_c, training.weight_decay) == (1e-3, 2e-4, 0.0)


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    recipe = Config(data={"source": "digits"}, model={"layers": 2}, training={"epochs": 3})
    Run.create(tmp_path / "whole", recipe).train()
    run = Run.create(tmp_path / "killed", recipe)

    def kill(trainer: Trainer, entry: Any) -> None:
        if entry.epoch == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run.train([kill], checkpoint_seconds=0.0)
    assert not run.finished
    run.train()
    one, two = (Run(tmp_path / name).load_model().state_dict() for name in ("whole", "killed"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    entries = read_history(run.history)
    assert [entry["epoch"] for entry in entries] == [1, 2, 3]


# --- the command line -----------------------------------------------------------------------------


def command(*words: object) -> Any:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def test_train_evaluate_predict(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command(
        "train",
        "digits",
        "--protocol",
        "convolutional",
        "--width",
        "4,8",
        "--layers",
        "1,1",
        "--epochs",
        3,
        "--lr",
        0.02,
        *("--set", "training.averaging=0.5", "--set", "training.shift=0"),
        *("--set", "training.rotate=0"),
        "--out",
        run,
    )
    found = json.loads(command("evaluate", run, "--json").stdout)
    assert found["samples"] == 359
    assert found["accuracy"] > 0.7
    test = load("digits").test
    file = tmp_path / "images-idx3-ubyte"
    file.write_bytes(struct.pack(">I3I", 0x803, len(test), 8, 8) + test.numpy().tobytes())
    command("predict", run, file, "--out", tmp_path / "out.csv")
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    model = Run(run).load_model()
    assert [row["prediction"] for row in rows] == [str(k) for k in model.predict(test).tolist()]
    assert sum(float(rows[0][f"p_{k}"]) for k in range(10)) == pytest.approx(1, abs=1e-4)


def test_a_folder_of_images_by_class(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    found = load("digits")
    for label in ("no", "yes"):
        (tmp_path / "data" / label).mkdir(parents=True)
    for number in range(60):
        label = "yes" if found.train_labels[number] > 4 else "no"
        image = pillow.fromarray(found.train[number, 0].numpy())
        image.save(tmp_path / "data" / label / f"{number}.png")
    run = tmp_path / "run"
    command("train", tmp_path / "data", "--layers", 1, "--epochs", 1, "--out", run)
    result = json.loads(command("evaluate", run, tmp_path / "data", "--json").stdout)
    assert result["samples"] == 60
    command("predict", run, tmp_path / "data", "--out", tmp_path / "out.csv")
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert len(rows) == 60
    assert {row["prediction"] for row in rows} <= {"no", "yes"}
    assert rows[0]["image"].startswith("no/")


def test_a_folder_does_not_hide_a_data_set_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits" / "checkpoint").mkdir(parents=True)  # as of a run with that name
    assert len(prepare(Config(data={"source": "digits"})).data.X_test) == 359
