"""Noise is what it says it is, and the fast gradient sign method climbs as fast as it can."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hdnn
from hdnn.analysis import accuracy_under
from hdnn.analysis.perturbations import BATCH, PERTURBATIONS, fgsm, gaussian, salt_and_pepper
from hdnn.data import images as image_sets
from hdnn.errors import HdnnError


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    found = image_sets.load("digits")
    return found.train, found.train_labels


def softmax_classifier(scale: float = 0.3) -> nn.Sequential:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with torch.no_grad():
        model[1].weight.copy_(scale * torch.randn(10, 64))
    return model


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_gaussian_noise_is_seeded_clipped_and_normal() -> None:
    x = torch.rand(20, 1, 30, 30)
    noisy = gaussian(x, 0.2, generator())
    assert torch.equal(noisy, gaussian(x, 0.2, generator()))
    assert not torch.equal(noisy, gaussian(x, 0.2, generator(4)))
    assert float(noisy.min()) == 0.0
    assert float(noisy.max()) == 1.0
    # In the middle of the range nothing is cut off.
    inside = gaussian(torch.full((20, 1, 30, 30), 0.5), 0.05, generator()) - 0.5
    assert abs(float(inside.mean())) < 4 * 0.05 / 18_000**0.5
    assert float(inside.std()) == pytest.approx(0.05, rel=0.03)


def test_salt_and_pepper_changes_the_stated_share_to_black_or_white() -> None:
    x = torch.rand(50, 3, 10, 12) * 0.8 + 0.1
    spoilt = salt_and_pepper(x, 0.15, generator())
    changed = spoilt != x
    assert (changed.sum((-2, -1)) == 18).all()
    assert (changed == changed[:, :1]).all()  # a pixel fails in all its channels
    white = spoilt[changed] == 1
    assert (white | (spoilt[changed] == 0)).all()
    assert float(white.double().mean()) == pytest.approx(0.5, abs=0.07)
    places = changed[:, 0].double().mean(0)  # everywhere, not always at the same pixels
    assert float(places.max()) < 0.4
    assert torch.equal(spoilt, salt_and_pepper(x, 0.15, generator()))
    assert not torch.equal(spoilt, salt_and_pepper(x, 0.15, generator(4)))


def test_fgsm_of_a_softmax_classifier_is_the_formula(digits: tuple[Tensor, Tensor]) -> None:
    model, labels = softmax_classifier(), digits[1][:40]
    x = 0.2 + 0.6 * digits[0][:40].double() / 255  # a small step is then cut off nowhere
    W = model[1].weight.detach()
    p = model(x).detach().softmax(1)
    g = ((p - torch.eye(10)[labels]) @ W).reshape(x.shape)
    torch.testing.assert_close(fgsm(model, x, labels, 0.1), x + 0.1 * g.sign())

    def loss(images: Tensor) -> Tensor:
        return cross_entropy(model(images).detach(), labels, reduction="none")

    # To first order the loss grows by epsilon |g|_1, and no step of that size does better.
    first = g.abs().sum((1, 2, 3))
    for epsilon in (1e-4, 1e-5):
        growth = loss(fgsm(model, x, labels, epsilon)) - loss(x)
        bound = 0.5 * (epsilon * W.abs().sum(1).max()) ** 2
        assert ((growth - epsilon * first).abs() <= bound).all()
        other = loss(x + epsilon * torch.randn_like(x).sign()) - loss(x)
        assert (other < growth).all()


def test_a_sure_model_does_not_hide_its_gradient() -> None:
    """The gradient of the loss itself underflows to zero here; its sign is still known."""
    model = softmax_classifier(scale=300.0).float()
    x = torch.rand(30, 1, 8, 8, dtype=torch.float32)
    labels = model(x).argmax(1)
    probe = x.clone().requires_grad_()
    (naive,) = torch.autograd.grad(cross_entropy(model(probe), labels, reduction="sum"), probe)
    assert (naive == 0).all((1, 2, 3)).any()
    assert (fgsm(model, x, labels, 0.01) != x).any(3).any(2).all()


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_images_stay_images(name: str, digits: tuple[Tensor, Tensor]) -> None:
    model, change = softmax_classifier(), PERTURBATIONS[name]
    x, labels = digits[0][:50].double() / 255, digits[1][:50]
    assert torch.equal(change(model, x, labels, 0.0, generator()), x)
    moved = change(model, x, labels, 0.7, generator())
    assert float(moved.min()) == 0.0
    assert float(moved.max()) == 1.0
    assert not moved.requires_grad
    with pytest.raises(HdnnError, match="level"):
        change(model, x, labels, -0.1, generator())
    with pytest.raises(HdnnError, match=r"\[0, 1\].*255"):
        change(model, 255 * x, labels, 0.1, generator())


@pytest.mark.parametrize("architecture", ["H2", "MS1"])
def test_accuracy_is_that_of_direct_evaluation(
    architecture: str, digits: tuple[Tensor, Tensor]
) -> None:
    config = hdnn.ImageConfig(architecture=architecture, layers=3, size=(8, 8), norm="batch")
    model = hdnn.ImageClassifier(config, generator=generator()).eval()
    images, labels = digits
    with torch.no_grad():  # untrained, but of several minds, and right on two of three images
        model.head.bias -= model(images).mean(0)
    right = model.predict(images)
    labels = torch.where(torch.arange(len(labels)) % 3 > 0, right, labels)
    x = images.double() / 255
    moved = fgsm(model, x, labels, 0.1)
    accuracies = [float((model.predict(given) == labels).double().mean()) for given in (x, moved)]
    assert accuracies[1] < accuracies[0] - 0.1
    model.train()
    assert accuracy_under(model, images, labels, "fgsm", [0, 0.1]) == pytest.approx(accuracies)
    assert model.training  # left as it was; evaluated with the averages of the training
    model.eval()
    draws = generator(5)
    noisy = torch.cat([gaussian(part, 0.3, draws) for part in x.split(BATCH)])
    direct = float((model.predict(noisy) == labels).double().mean())
    assert len(x) > 2 * BATCH
    assert accuracy_under(model, x, labels, "gaussian", [0.3], seed=5) == (direct,)


def test_misuse_is_named(digits: tuple[Tensor, Tensor]) -> None:
    model, (x, labels) = softmax_classifier(), digits
    with pytest.raises(HdnnError, match="gaussian"):
        accuracy_under(model, x, labels, "gausian", [0.1])
    with pytest.raises(HdnnError, match="label"):
        accuracy_under(model, x, labels[:5], "fgsm", [0.1])
    with pytest.raises(HdnnError, match="two classes"):
        fgsm(nn.Flatten(0), torch.rand(2, 1, 2, 2), labels[:2], 0.1)
    with pytest.raises(HdnnError, match=r"B, C, H, W"):
        salt_and_pepper(torch.rand(3, 4), 0.1)
