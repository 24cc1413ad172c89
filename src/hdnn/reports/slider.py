"""The slider of a report: points and decision regions at every depth, as compact numbers."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hdnn.errors import shortened
from hdnn.models import Model
from hdnn.plots.flow import Flow, flow
from hdnn.plots.regions import Box, box_around, grid
from hdnn.plots.style import color_ramp
from hdnn.reports.words import number
from hdnn.training.inputs import evenly

RESOLUTION = 120
"""Cells along each side of the decision regions."""
CHUNK = 2400
"""Points of the grid that go through the network at once, at all its depths."""
BINS = 8
"""Colors of a regression's targets."""
SAMPLES = {"planar": 800, "table": 500, "image": 200}


@dataclass(frozen=True)
class Slider:
    """What the slider shows: flows of the model and of another beside it.

    Args:
        samples: the data that are drawn, ``(samples, ...)``.
        numbers: class, or bin of the target, of every sample.
        labels: of classes; of bins, the ends of their range.
        colors: of the bins; None for classes, which have the page's palette.
        flows: of the networks.
        regions: by network and depth, class numbers ``(RESOLUTION, RESOLUTION)``; none where the
            data are not planar.
        box: of the regions in the input plane.
    """

    samples: Tensor
    numbers: np.ndarray
    labels: list[str]
    colors: list[str] | None
    flows: list[Flow]
    regions: list[np.ndarray | None]
    box: Box | None

    def data(self) -> dict[str, Any]:
        """Plain values for the page: numbers as base64, regions as run lengths."""
        planar = self.box is not None
        return {
            "samples": len(self.numbers),
            "numbers": _base64(self.numbers.astype(np.uint8)),
            "colors": self.colors,
            "inputs": _base64(self.samples.float().numpy()) if planar else None,
            "box": self.box,
            "resolution": RESOLUTION,
            "flows": [
                {
                    "depths": moving.depths,
                    "last": moving.last,
                    "box": moving.box(),
                    "boundary": moving.boundary,
                    "points": _base64(moving.points.astype("<f4")),
                    "regions": None if areas is None else [_base64(_run_lengths(a)) for a in areas],
                }
                for moving, areas in zip(self.flows, self.regions, strict=True)
            ],
        }


def slider(models: Sequence[Model], X: Tensor, y: Tensor) -> Slider:
    """What the slider shows of models on data; decision regions of planar classes only."""
    first = models[0]
    planar = first.features == 2 and not first.stem.takes_images
    kind = "planar" if planar else "image" if first.stem.takes_images else "table"
    samples, target = (evenly(data, SAMPLES[kind]) for data in (X, y))
    numbers, labels, colors = _numbers(first, target)
    box = box_around(samples) if planar else None
    flows = [flow(model, samples) for model in models]
    regions: list[np.ndarray | None] = [None] * len(models)
    if box is not None and first.task == "classification":
        pairs = zip(models, flows, strict=True)
        regions = [regions_by_depth(model, box, moving.depths) for model, moving in pairs]
    return Slider(samples, numbers, labels, colors, flows, regions, box)


def _numbers(model: Model, target: Tensor) -> tuple[np.ndarray, list[str], list[str] | None]:
    if model.task == "classification":
        labels = [shortened(str(label)) for label in model.labels]
        return target.cpu().numpy().astype(int), labels, None
    values = target.reshape(len(target), -1)[:, 0].double().numpy()
    edges = np.quantile(values, np.linspace(0, 1, BINS + 1))
    numbers = np.searchsorted(edges[1:-1], values, side="right")
    return numbers, [number(edges[0]), number(edges[-1])], color_ramp(BINS)


@torch.no_grad()
def regions_by_depth(model: Model, box: Box, depths: Sequence[int]) -> np.ndarray:
    """``(D, RESOLUTION, RESOLUTION)``: the class that the head reads from the state at a depth.

    At the last depth these are the decision regions of the model.
    """
    cells = grid(box, RESOLUTION, model.head.weight.dtype)
    parts = []
    for chunk in cells.split(CHUNK):
        states = model.network.trajectory(model.preprocess(chunk))[list(depths)]
        logits = model.head(states)
        classes = logits.argmax(-1) if logits.shape[-1] > 1 else (logits[..., 0] > 0).long()
        parts.append(classes.to(torch.uint8))
    regions: np.ndarray = torch.cat(parts, 1).reshape(-1, RESOLUTION, RESOLUTION).numpy()
    return regions


def _run_lengths(area: np.ndarray) -> np.ndarray:
    """Pairs (class, length) of equal cells that follow each other, lengths up to 255."""
    flat = area.ravel()
    starts = np.flatnonzero(np.r_[True, flat[1:] != flat[:-1]])
    lengths = np.diff(np.r_[starts, len(flat)])
    counts = -(-lengths // 255)
    pairs = np.full((counts.sum(), 2), 255, dtype=np.uint8)
    pairs[:, 0] = np.repeat(flat[starts], counts)
    pairs[counts.cumsum() - 1, 1] = lengths - 255 * (counts - 1)
    return pairs


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
