"""Images with noise, and images changed against a classifier: its accuracy on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from hdnn.errors import HdnnError, unknown_name

BATCH = 500
"""Images that are changed and classified at once; fixed, so that a seed names the draws."""

Perturbation = Callable[[nn.Module, Tensor, Tensor, float, torch.Generator], Tensor]
"""(model, images, labels, level, generator) -> images; all of them in [0, 1]."""


def gaussian(images: Tensor, sigma: float, generator: torch.Generator | None = None) -> Tensor:
    """Images with independent normal noise on every value, cut off at black and white.

        x -> clip(x + sigma n, 0, 1),   n standard normal

    Args:
        images: numbers in [0, 1], of any shape.
        sigma: standard deviation of the noise.
        generator: draws it; None is torch's default generator.
    """
    _check(images, sigma)
    noise = torch.randn(images.shape, generator=generator, dtype=images.dtype)
    return (images + sigma * noise.to(images.device)).clamp(0, 1)


def salt_and_pepper(
    images: Tensor, share: float, generator: torch.Generator | None = None
) -> Tensor:
    """Images with a share of their pixels, at random places, made black or white at random.

    Of every image exactly ``round(share H W)`` pixels are chosen, in all channels together.

    Args:
        images: ``(B, C, H, W)``, numbers in [0, 1].
        share: of the pixels, 0 to 1.
        generator: draws them; None is torch's default generator.

    >>> grey = torch.full((1, 1, 10, 10), 0.5)
    >>> (salt_and_pepper(grey, 0.2) != 0.5).sum()
    tensor(20)
    """
    _check(images, share, most=1.0)
    if images.ndim != 4:
        raise HdnnError(f"salt_and_pepper takes (B, C, H, W), got {tuple(images.shape)}")
    B, _, H, W = images.shape
    order = torch.rand(B, H * W, generator=generator).argsort(1)
    hit = (order < round(share * H * W)).reshape(B, 1, H, W)
    color = torch.randint(0, 2, (B, 1, H, W), generator=generator)
    device, dtype = images.device, images.dtype
    return torch.where(hit.to(device), color.to(device, dtype), images)


def fgsm(model: nn.Module, images: Tensor, labels: Tensor, epsilon: float) -> Tensor:
    """The fast gradient sign method: every value moves by epsilon the way the loss grows.

        x -> clip(x + epsilon sign(g), 0, 1),   g = d cross-entropy(model(x), label) / d x

    With p the softmax of the logits z, g is a positive multiple of (dz/dx)' (q - e_label), where q
    is the softmax over the *other* classes. That multiple, 1 - p_label, is left out: where a model
    is so sure that it rounds to 0, the sign of g would be lost and the model would seem robust.

    Args:
        model: gives logits ``(B, classes)`` of images in [0, 1]; used in the mode it is in.
        images: ``(B, ...)``, numbers in [0, 1].
        labels: true class numbers ``(B,)``.
        epsilon: the largest change of a value.
    """
    _check(images, epsilon)
    with torch.enable_grad():
        x = images.detach().requires_grad_()
        logits: Tensor = model(x)
        if logits.ndim != 2 or logits.shape[1] < 2:
            raise HdnnError(
                f"fgsm needs logits (B, classes) of two classes or more, got {tuple(logits.shape)}"
            )
        own = nn.functional.one_hot(labels, logits.shape[1]).bool()
        others = logits.detach().masked_fill(own, -torch.inf).softmax(1)
        (g,) = torch.autograd.grad(logits, x, others.masked_fill(own, -1.0))
    return (images + epsilon * g.sign()).clamp(0, 1)


PERTURBATIONS: dict[str, Perturbation] = {
    "gaussian": lambda model, x, labels, level, generator: gaussian(x, level, generator),
    "salt-and-pepper": lambda model, x, labels, level, generator: salt_and_pepper(
        x, level, generator
    ),
    "fgsm": lambda model, x, labels, level, generator: fgsm(model, x, labels, level),
}
"""By name; a level is sigma, share or epsilon."""


def accuracy_under(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    perturbation: str | Perturbation,
    levels: Sequence[float],
    seed: int = 0,
) -> tuple[float, ...]:
    """The share of perturbed images that a classifier gets right, for every level.

    The noise of all levels is drawn from the same seed: models, and levels, meet the same noise.
    The model is evaluated (`eval`), in its own precision.

    Args:
        model: gives logits ``(B, classes)`` of images in [0, 1], as `hdnn.ImageClassifier`.
        images: ``(B, C, H, W)``: uint8 (0 to 255) or numbers (0 to 1).
        labels: true class numbers ``(B,)``.
        perturbation: a name of `PERTURBATIONS`, or a function like those.
        levels: its strengths.
        seed: of the noise.

    Returns:
        The accuracy at every level.

    Raises:
        HdnnError: the perturbation or a level is unknown, or images and labels differ.

    >>> brightest = nn.Flatten()
    >>> x = torch.tensor([[0.9, 0.1], [0.4, 0.6]]).reshape(2, 1, 1, 2)
    >>> accuracy_under(brightest, x, torch.tensor([0, 1]), "fgsm", [0.0, 0.2, 0.5])
    (1.0, 0.5, 0.0)
    """
    if isinstance(perturbation, str):
        if perturbation not in PERTURBATIONS:
            raise unknown_name("perturbation", perturbation, PERTURBATIONS)
        perturbation = PERTURBATIONS[perturbation]
    if not len(images) or len(images) != len(labels):
        raise HdnnError(f"every image has a label, got {len(images)} and {len(labels)}")
    before = model.training
    model.eval()
    try:
        return tuple(
            _accuracy(model, images, labels, perturbation, float(level), seed) for level in levels
        )
    finally:
        model.train(before)


def _accuracy(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    perturbation: Perturbation,
    level: float,
    seed: int,
) -> float:
    like = next(model.parameters(), torch.empty(0))
    generator, right = torch.Generator().manual_seed(seed), 0
    for x, y in zip(images.split(BATCH), labels.split(BATCH), strict=True):
        scale = 255 if x.dtype == torch.uint8 else 1
        x, y = x.to(like.device, like.dtype) / scale, y.to(like.device)
        moved = perturbation(model, x, y, level, generator)
        with torch.no_grad():
            right += int((model(moved).argmax(1) == y).sum())
    return right / len(images)


def _check(images: Tensor, level: float, most: float = torch.inf) -> None:
    if not images.is_floating_point() or not bool(((images >= 0) & (images <= 1)).all()):
        raise HdnnError(
            f"images must be floating-point numbers in [0, 1], got {images.dtype}, up to "
            f"{float(images.max()):g}; divide images of 0 to 255 by 255"
        )
    if not 0 <= level <= most:
        raise HdnnError(f"the level of a perturbation is a number in [0, {most:g}], got {level!r}")
