"""Random changes of pictures that leave their class alone: the same ones for the same seed."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from hdnn.training.settings import TrainingConfig

WHOLE = slice(None)


def distort(pictures: Tensor, config: TrainingConfig, *place: int, share: slice = WHOLE) -> Tensor:
    """A batch, each picture shifted, rotated, resized, mirrored and with a square erased.

    What is drawn depends on the config's seed and on the place only, so that a training that is
    interrupted goes on with the same pictures.

    Args:
        pictures: ``(B, C, H, W)``, uint8 or numbers.
        config: how far, see `TrainingConfig`.
        place: of the batch: the epoch, and its number there.
        share: the part of the batch to return, the same whatever the other parts are.

    >>> black = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    >>> torch.equal(distort(black, TrainingConfig(shift=2, rotate=10.0), 0, 1), black)
    True
    """
    if not config.distorts or not len(pictures[share]):  # torch makes no empty grid
        return pictures[share]
    generator = torch.Generator().manual_seed(_mix(config.seed, *place))
    if config.rotate or config.zoom:
        part = _warp(pictures, config, generator, share)
    elif config.shift or config.flip:
        part = _move(pictures, config, generator, share)
    else:
        part = pictures[share]
    return _erase(part, config.erase, generator, len(pictures), share) if config.erase else part


def _mix(*numbers: int) -> int:
    """One seed of several numbers, far from those of their neighbours (splitmix64)."""
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
    chosen = torch.randint(0, 2, (count,), generator=generator, dtype=torch.bool)
    return chosen if flip else torch.zeros(count, dtype=torch.bool)


def _move(
    pictures: Tensor, config: TrainingConfig, generator: torch.Generator, share: slice
) -> Tensor:
    """Whole pixels: padded with black, then one window of the padded picture each."""
    count, _, height, width = pictures.shape
    most = config.shift
    mirrored = _mirrored(count, config.flip, generator)[share]
    offsets = torch.randint(0, 2 * most + 1, (2, count, 1), generator=generator)[:, share]
    pictures, count = pictures[share], len(mirrored)
    columns = torch.arange(width).expand(count, width)
    columns = torch.where(mirrored[:, None], columns.flip(1), columns) + offsets[1]
    rows = torch.arange(height) + offsets[0]
    padded = F.pad(pictures, (most, most, most, most))
    samples = torch.arange(count)[:, None, None]
    moved = padded[samples, :, rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2).contiguous()


def _warp(
    pictures: Tensor, config: TrainingConfig, generator: torch.Generator, share: slice
) -> Tensor:
    """An affine map each, by bilinear interpolation; black comes in from outside."""
    count, _, height, width = pictures.shape
    angle = _symmetric(count, math.radians(config.rotate), generator)
    size = 1 + _symmetric(count, config.zoom, generator)
    mirrored = _mirrored(count, config.flip, generator)
    x, y = (_symmetric(count, 2 * config.shift / side, generator) for side in (width, height))
    sign = torch.where(mirrored, -1.0, 1.0).to(torch.float32)
    sine, cosine = angle.sin() / size, angle.cos() / size
    # affine_grid works in units of half a side, which differ where pictures are not square.
    first = torch.stack([sign * cosine, -sine * height / width, x], 1)
    second = torch.stack([sign * sine * width / height, cosine, y], 1)
    dtype = torch.float32 if pictures.dtype == torch.uint8 else pictures.dtype
    maps, pictures = torch.stack([first, second], 1).to(dtype)[share], pictures[share]
    grid = F.affine_grid(maps, list(pictures.shape), align_corners=False)
    warped = F.grid_sample(pictures.to(dtype), grid, align_corners=False)
    return warped.round_().to(torch.uint8) if pictures.dtype == torch.uint8 else warped


def _erase(
    pictures: Tensor, side: int, generator: torch.Generator, count: int, share: slice
) -> Tensor:
    """A black square each, its centre anywhere, for the share of ``count`` pictures."""
    _, _, height, width = pictures.shape
    inside = []
    for length in (height, width):
        centre = torch.randint(0, length, (count, 1), generator=generator)[share]
        inside.append(
            (torch.arange(length) - (centre - side // 2)).div(side, rounding_mode="floor") == 0
        )
    square = inside[0][:, None, :, None] & inside[1][:, None, None, :]
    return pictures.masked_fill(square, 0)
