"""Images with noise, and images changed against a classifier: its accuracy on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

BATCH = 500
"""Images that are changed and classified at once; fixed, so that a seed names the noise."""

Perturbation = Callable[[nn.Module, Tensor, Tensor, float, torch.Generator], Tensor]
"""(model, images, labels, level, generator) -> images; all of them in [0, 1]."""


def gaussian(
    model: nn.Module, x: Tensor, labels: Tensor, sigma: float, generator: torch.Generator
) -> Tensor:
    """x -> clip(x + sigma n, 0, 1), n standard normal."""
    return (x + sigma * torch.randn(x.shape, generator=generator, dtype=x.dtype)).clamp(0, 1)


def salt_and_pepper(
    model: nn.Module, x: Tensor, labels: Tensor, share: float, generator: torch.Generator
) -> Tensor:
    """A share of the pixels, at random places, black or white at random, in all channels."""
    B, _, H, W = x.shape
    order = torch.rand(B, H * W, generator=generator).argsort(1)
    hit = (order < round(share * H * W)).reshape(B, 1, H, W)
    color = torch.randint(0, 2, (B, 1, H, W), generator=generator)
    return torch.where(hit, color.to(x.dtype), x)


def fgsm(
    model: nn.Module, x: Tensor, labels: Tensor, epsilon: float, generator: torch.Generator
) -> Tensor:
    """The fast gradient sign method: every value moves by epsilon the way the loss grows.

    With p the softmax of the logits z, the gradient is a positive multiple of
    (dz/dx)' (q - e_label), where q is the softmax over the *other* classes. That multiple,
    1 - p_label, is left out: where a model is so sure that it rounds to 0, the sign would be lost
    and the model would seem robust.
    """
    with torch.enable_grad():
        moving = x.detach().requires_grad_()
        logits: Tensor = model(moving)
        own = nn.functional.one_hot(labels, logits.shape[1]).bool()
        others = logits.detach().masked_fill(own, -torch.inf).softmax(1)
        (g,) = torch.autograd.grad(logits, moving, others.masked_fill(own, -1.0))
    return (x + epsilon * g.sign()).clamp(0, 1)


PERTURBATIONS: dict[str, Perturbation] = {
    "gaussian": gaussian,
    "salt-and-pepper": salt_and_pepper,
    "fgsm": fgsm,
}
"""By name; a level is sigma, share or epsilon."""


def accuracy_under(
    model: nn.Module, images: Tensor, labels: Tensor, kind: str, levels: Sequence[float]
) -> tuple[float, ...]:
    """The share of perturbed images (uint8) that a classifier gets right, for every level.

    The noise of all levels is drawn from the same seed: models, and levels, meet the same noise.
    """
    model.eval()
    dtype, found = next(model.parameters()).dtype, []
    for level in levels:
        generator, right = torch.Generator().manual_seed(0), 0
        for x, y in zip(images.split(BATCH), labels.split(BATCH), strict=True):
            moved = PERTURBATIONS[kind](model, x.to(dtype) / 255, y, level, generator)
            with torch.no_grad():
                right += int((model(moved).argmax(1) == y).sum())
        found.append(right / len(images))
    return tuple(found)
