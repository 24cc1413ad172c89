"""Random changes of images that leave their class alone: the same ones for the same seed."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from hdnn.config import TrainingConfig


def augment(images: Tensor, config: TrainingConfig, *place: int) -> Tensor:
    """A batch, each image shifted, rotated, resized and mirrored.

    What is drawn depends on the config's seed and on the place only, so that a training that is
    interrupted goes on with the same images.

    Args:
        images: ``(B, C, H, W)``, uint8 or numbers.
        config: how far, see `TrainingConfig`.
        place: of the batch: the epoch, and its number there.

    >>> black = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    >>> torch.equal(augment(black, TrainingConfig(shift=2, rotate=10.0), 0, 1), black)
    True
    """
    if not config.augments:
        return images
    generator = torch.Generator().manual_seed(_mix(config.seed, *place))
    change = _warp if config.rotate or config.zoom else _move
    return change(images, config, generator)


def _mix(*numbers: int) -> int:
    """One seed of several numbers, far from those of their neighbors (splitmix64)."""
    mask, state = (1 << 64) - 1, 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & mask
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
        state ^= state >> 31
    return state >> 1


def _symmetric(count: int, most: float, generator: torch.Generator) -> Tensor:
    return (2 * torch.rand(count, generator=generator, dtype=torch.float32) - 1) * most


def _mirrored(count: int, flip: bool, generator: torch.Generator) -> Tensor:
    mirrored = torch.randint(0, 2, (count,), generator=generator, dtype=torch.bool)
    return mirrored & flip  # drawn in any case: the other numbers do not depend on the setting


def _move(images: Tensor, config: TrainingConfig, generator: torch.Generator) -> Tensor:
    """Whole pixels: padded with black, then one window of the padded image each."""
    count, _, height, width = images.shape
    most = config.shift
    mirrored = _mirrored(count, config.flip, generator)
    offsets = torch.randint(0, 2 * most + 1, (2, count, 1), generator=generator)
    columns = torch.arange(width).expand(count, width)
    columns = torch.where(mirrored[:, None], columns.flip(1), columns) + offsets[1]
    rows = torch.arange(height) + offsets[0]
    padded = F.pad(images, (most, most, most, most))
    samples = torch.arange(count)[:, None, None]
    moved = padded[samples, :, rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2).contiguous()


def _warp(images: Tensor, config: TrainingConfig, generator: torch.Generator) -> Tensor:
    """An affine map each, by bilinear interpolation; black comes in from outside."""
    count, _, height, width = images.shape
    angle = _symmetric(count, math.radians(config.rotate), generator)
    size = 1 + _symmetric(count, config.zoom, generator)
    mirrored = _mirrored(count, config.flip, generator)
    x, y = (_symmetric(count, 2 * config.shift / side, generator) for side in (width, height))
    sign = torch.where(mirrored, -1.0, 1.0).to(torch.float32)
    sine, cosine = angle.sin() / size, angle.cos() / size
    # affine_grid works in units of half a side, which differ where images are not square.
    first = torch.stack([sign * cosine, -sine * height / width, x], 1)
    second = torch.stack([sign * sine * width / height, cosine, y], 1)
    dtype = torch.float32 if images.dtype == torch.uint8 else images.dtype
    maps = torch.stack([first, second], 1).to(dtype)
    grid = F.affine_grid(maps, list(images.shape), align_corners=False)
    warped = F.grid_sample(images.to(dtype), grid, align_corners=False)
    return warped.round_().to(torch.uint8) if images.dtype == torch.uint8 else warped
