"""Training on images: it learns, goes on to the same bits, and its random changes are the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hdnn.data import Dataset, holdout
from hdnn.data.images import load
from hdnn.errors import HdnnError
from hdnn.models import Model, image_model
from hdnn.training import Trainer, TrainingConfig
from hdnn.training.augmentation import augment
from tasks import dataset, same

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
AUGMENTED: dict[str, Any] = {"shift": 1, "rotate": 5.0, "zoom": 0.05, "flip": True}
STOPPED: dict[str, Any] = {"epochs": 4, "validation": 0.2, "early_stopping": 2}
FULL = JOINT.replace(optimizer="AdamW", weight_decay=0.01, averaging=0.9, **AUGMENTED, **STOPPED)
STAGES: dict[str, Any] = {"widths": (4, 8), "layers": (2, 2), "kernel": 3, "norm": "batch"}


@pytest.fixture(scope="module")
def digits() -> Dataset:
    data = load("digits")
    return Dataset.from_arrays(data.X[:400], data.y[:400])


def classifier(**options: Any) -> Model:
    draw = torch.Generator().manual_seed(0)
    settings = {"channels": 1, "size": (8, 8), "classes": 10, "layers": (2,)} | options
    return image_model(**settings, generator=draw, dtype=torch.float32)


# --- the trainer ----------------------------------------------------------------------------------


def test_resumed_training_ends_with_the_same_bits(digits: Dataset) -> None:
    whole, second = (classifier(architecture="H1", step=0.1, **STAGES) for _ in range(2))
    states: list[Any] = []
    Trainer(whole, FULL, [lambda t, e: states.append(t.state)]).fit(digits)
    Trainer(second, FULL).fit(digits, resume=states[0])
    assert same(whole, second)


def test_gradients_are_those_of_the_whole_objective(digits: Dataset) -> None:
    """One step of SGD with rate 1 is minus the gradient of loss and both penalties, longhand."""
    X, y = digits.X[:50], digits.y[:50]
    config = TrainingConfig(method="joint", optimizer="SGD", learning_rate=1.0, epochs=1)
    config = config.replace(batch_size=50, alpha=0.3, alpha_c=0.2)
    model, twin = (classifier(layers=(3,)).double() for _ in range(2))
    Trainer(model, config).fit(dataset(X, y))
    net = twin.networks[0]
    K, b = net.K, net.b
    smooth = (K[1:] - K[:-1]).square().sum() + (b[1:] - b[:-1]).square().sum()
    penalty = twin.head.weight.square().sum() + twin.head.bias.square().sum()
    loss = nn.functional.cross_entropy(twin(X), y) + 0.3 * 0.05 / 2 * smooth + 0.2 * penalty
    loss.backward()
    for trained, p in zip(model.parameters(), twin.parameters(), strict=True):
        assert p.grad is not None
        torch.testing.assert_close(trained, p - p.grad)


def test_returned_weights_are_the_validated_average(digits: Dataset) -> None:
    model = classifier()
    trainer = Trainer(model, JOINT.replace(averaging=0.9, validation=0.2))
    history = trainer.fit(digits)
    _, held = holdout(400, 0.2, 0, digits.y)
    with torch.no_grad():
        loss = float(nn.functional.cross_entropy(model(digits.X[held]), digits.y[held]))
    assert history[-1].validation_loss == pytest.approx(loss, rel=1e-5)
    assert trainer.state is not None
    assert not torch.equal(trainer.state["model"]["head.weight"], model.head.weight)


def test_coordinate_descent_on_images_raises(digits: Dataset) -> None:
    with pytest.raises(HdnnError, match="joint"):
        Trainer(classifier(), TrainingConfig()).fit(digits)


# --- augmentation ---------------------------------------------------------------------------------


def test_augmentation_depends_on_seed_and_place_only(digits: Dataset) -> None:
    X = digits.X[:20]
    images = augment(X, FULL, 3, 7)
    torch.manual_seed(99)
    assert torch.equal(augment(X, FULL, 3, 7), images)
    assert images.dtype == torch.uint8
    others = [
        augment(X, FULL, 3, 8),
        augment(X, FULL, 4, 7),
        augment(X, FULL.replace(seed=1), 3, 7),
    ]
    assert all(not torch.equal(other, images) for other in others)


def test_shifts_are_all_shifts_up_to_the_largest() -> None:
    dot = torch.zeros(600, 1, 9, 9, dtype=torch.uint8)
    dot[:, :, 4, 4] = 255
    moved = augment(dot, TrainingConfig(shift=2), 0, 0)
    places = {tuple(place[2:].tolist()) for place in moved.nonzero()}
    assert places == {(4 + a, 4 + b) for a in range(-2, 3) for b in range(-2, 3)}
    assert torch.equal(moved.sum((1, 2, 3)), dot.sum((1, 2, 3)))


def test_mirrored_images() -> None:
    X = torch.arange(8, dtype=torch.uint8).reshape(1, 1, 2, 4).expand(200, 1, 2, 4)
    turned = [torch.equal(a, X[0].flip(-1)) for a in augment(X, TrainingConfig(flip=True), 0, 0)]
    assert 60 < sum(turned) < 140


def test_a_rotation_turns_about_the_center() -> None:
    """A disc stays, up to interpolation; its bright half turns by at most the angle."""
    u, v = torch.meshgrid(torch.arange(33) - 16.0, torch.arange(33) - 16.0, indexing="ij")
    half = ((u.square() + v.square() < 144) & (v > 0)).to(torch.float64)
    X = half.expand(50, 1, 33, 33)
    turned = augment(X, TrainingConfig(rotate=30.0), 0, 0)[:, 0]
    angles = torch.atan2((turned * u).sum((1, 2)), (turned * v).sum((1, 2))).rad2deg()
    assert float(angles.abs().max()) < 31
    assert float(angles.max()) > 20
    assert float(angles.min()) < -20
    torch.testing.assert_close(turned.sum((1, 2)), X.sum((1, 2, 3)), rtol=0.02, atol=0.0)
