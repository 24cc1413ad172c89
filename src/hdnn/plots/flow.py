"""Data on their way through the layers of a model, as points in one fixed plane."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hdnn.analysis.norms import spaced_depths
from hdnn.models import Model
from hdnn.threads import one_thread

FRAMES = 65
"""Depths that are shown at most: evenly spaced, with both ends."""


@dataclass(frozen=True)
class Flow:
    """Samples at depths of a model, projected to one fixed plane: what moves is the data.

    Args:
        depths: ``(D,)`` layer numbers, counted over all blocks; 0 is the input.
        points: ``(D, samples, 2)``; NaN where a state is not finite.
        shares: of the variance of all states that each axis shows.
        boundary: whether the first axis is the distance to the plane that separates two classes.
        last: the number of layers of the model.

    >>> import hdnn, torch
    >>> from hdnn import plots
    >>> net = hdnn.network("H1", features=2, layers=8, T=1.0)
    >>> model, X = hdnn.Model(net, 1), torch.randn(30, 2)
    >>> flow = plots.flow(model, X)
    >>> flow.points.shape, flow.last
    ((9, 30, 2), 8)
    """

    depths: tuple[int, ...]
    points: np.ndarray
    shares: tuple[float, float]
    boundary: bool
    last: int

    def box(self) -> tuple[float, float, float, float]:
        """Left, right, bottom, top of a square around all points, with a margin.

        Returns:
            Four numbers, in the plane's units.
        """
        low, high = extent(self.points.reshape(-1, 2))
        half = max(float((high - low).max()) * 0.55, 1e-6)
        (x, y) = (low + high) / 2
        return float(x - half), float(x + half), float(y - half), float(y + half)


def extent(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and the largest coordinates of the finite points ``(samples, 2)``."""
    known = points[np.isfinite(points).all(1)]
    known = known if len(known) else np.zeros((1, 2))
    return known.min(0), known.max(0)


def _project(model: Model, states: np.ndarray) -> tuple[np.ndarray, tuple[float, float], bool]:
    """States ``(D, samples, n)`` as points of a plane, the same at all depths; see `Flow`.

    For two classes of planar data: the first axis is the distance to the plane that the head
    separates them by, the second the direction of largest variance along it. Otherwise the two
    principal components of the states of all depths together.
    """
    flat = states.reshape(-1, states.shape[-1])
    flat = flat[np.isfinite(flat).all(1)]
    if not len(flat):
        flat = np.zeros((1, states.shape[-1]))
    center = flat.mean(0)
    centered = flat - center
    weight = model.head.weight.detach().double().cpu().numpy()
    norm = float(np.linalg.norm(weight[0]))
    two_classes = weight.shape[0] == 1 and model.task == "classification"
    boundary = model.features == 2 and two_classes and norm > 0
    if boundary:
        normal = weight[0] / norm
        center = center - ((center @ normal) + float(model.head.bias[0].detach()) / norm) * normal
        along = _leading(centered - np.outer(centered @ normal, normal), 1)
        axes = np.stack([normal, along[0]])
    else:
        axes = _leading(centered, 2)
    total = max(float((centered**2).sum()), 1e-300)
    one, two = (float(((centered @ axis) ** 2).sum()) / total for axis in axes)
    return (states - center) @ axes.T, (one, two), boundary


def _leading(centered: np.ndarray, count: int) -> np.ndarray:
    """Directions of largest variance, ``(count, n)``; zeros where there are no more."""
    # A few thousand states determine the directions; the time of an SVD grows with all of them.
    rows = centered[:: max(1, len(centered) // 4000)]
    with one_thread(rows.size * rows.shape[1]):
        directions = torch.linalg.svd(torch.from_numpy(rows), full_matrices=False)[2].numpy()
    leading = np.zeros((count, centered.shape[1]))
    leading[: min(count, len(directions))] = directions[:count]
    # The sign of a direction is arbitrary: fix it, so that a figure is the same every time.
    peaks = np.abs(leading).argmax(1)
    return leading * np.where(leading[np.arange(count), peaks] < 0, -1.0, 1.0)[:, None]


@torch.no_grad()
def flow(model: Model, X: Tensor, most: int = FRAMES) -> Flow:
    """Where data are at depths 0 to N of a model, in one fixed plane.

    Blocks of images that differ in size cannot share a plane: then the last one is shown.

    Args:
        model: the trained model.
        X: ``(samples, features)``, or images ``(samples, C, H, W)``.
        most: depths at most.

    Returns:
        The points at every depth that is shown.

    >>> import hdnn
    >>> net = hdnn.network("H1", features=4, layers=8, T=1.0)
    >>> flow(Model(net, 1, hdnn.models.Padding(2, 4)), torch.randn(10, 2)).points.shape
    (9, 10, 2)
    """
    net, y = model.block_inputs(model.prepare(X))[-1]
    last = sum(block.layers for block in model.networks)
    depths = spaced_depths(net.layers, most)
    states = net.trajectory(y)[depths].flatten(2).double().cpu().numpy()
    numbers = tuple(last - net.layers + depth for depth in depths)
    return Flow(numbers, *_project(model, states), last)
