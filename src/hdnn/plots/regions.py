"""Plots of planes: decision regions, and data flowing through depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hdnn.analysis import profile
from hdnn.analysis.norms import spaced_depths
from hdnn.errors import HdnnError
from hdnn.models import Model
from hdnn.plots.curves import norms_by_depth
from hdnn.plots.flow import Flow, extent, flow
from hdnn.plots.style import LARGE, LIGHT, NORMAL, SMALL, Theme, bare, new_figure, theme_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

LABEL = NORMAL + 1
"""Points of text beside panels that are shown small."""
Box = tuple[float, float, float, float]


def box_around(points: Tensor) -> Box:
    """Left, right, bottom, top around the finite points of ``(samples, 2)``, with a margin."""
    low, high = extent(points.double().cpu().numpy())
    margin = 0.12 * np.maximum(high - low, 1e-6)
    (left, bottom), (right, top) = (low - margin).tolist(), (high + margin).tolist()
    return left, right, bottom, top


def grid(box: Box, resolution: int, dtype: torch.dtype) -> Tensor:
    """``(resolution², 2)``: a grid over a box, row by row from the bottom."""
    left, right, bottom, top = box
    x, y = torch.linspace(left, right, resolution), torch.linspace(bottom, top, resolution)
    rows, columns = torch.meshgrid(y, x, indexing="ij")
    return torch.stack([columns, rows], -1).reshape(-1, 2).to(dtype)


@torch.no_grad()
def decision_regions(
    axis: Axes, model: Model, points: Tensor, labels: Tensor, resolution: int = 300
) -> Axes:
    """Color the plane by the predicted class, with the data on top.

    Args:
        axis: where to draw.
        model: takes two features.
        points, labels: ``(samples, 2)`` and ``(samples,)``.
        resolution: pixels along each side.

    Returns:
        The axis.

    Raises:
        HdnnError: the points are not points of the plane, ``(samples, 2)``.

    >>> import hdnn, torch
    >>> from hdnn import plots
    >>> net = hdnn.network("H1", features=2, layers=8, T=1.0)
    >>> model, X = hdnn.Model(net, 1), torch.randn(30, 2)
    >>> axis = plots.new_figure(3, 3).subplots()
    >>> labels = (X[:, 0] > 0).long()
    >>> plots.decision_regions(axis, model, X, labels, resolution=20) is axis
    True
    """
    from matplotlib.colors import ListedColormap

    if points.ndim != 2 or points.shape[1] != 2:
        raise HdnnError(f"decision regions need points of the plane, got {tuple(points.shape)}")
    box = box_around(points)
    predicted = model.predict(grid(box, resolution, points.dtype)).reshape(resolution, resolution)
    classes = max(2, model.head.out_features)
    theme = theme_of(axis)
    axis.imshow(
        predicted.cpu().numpy(),
        origin="lower",
        extent=box,
        cmap=ListedColormap([theme.color(k) for k in range(classes)]),
        vmin=-0.5,
        vmax=classes - 0.5,
        alpha=0.25,
        aspect="auto",
        interpolation="nearest",
    )
    return scatter(axis, points.cpu().numpy(), labels.cpu().numpy())


def scatter(axis: Axes, points: np.ndarray, labels: np.ndarray, size: float = 2.0) -> Axes:
    """Points ``(samples, 2)`` in the colors of their classes, on a bare axis.

    Args:
        axis: where to draw.
        points: ``(samples, 2)``.
        labels: ``(samples,)``, class numbers.
        size: of a point.

    Returns:
        The axis.

    >>> import numpy as np
    >>> from hdnn import plots
    >>> axis = plots.new_figure(3, 3).subplots()
    >>> plots.scatter(axis, np.zeros((2, 2)), np.array([0, 1])) is axis
    True
    """
    shades = [theme_of(axis).color(int(label)) for label in labels]
    # Thousands of points would make an SVG large: they are an image inside it.
    axis.scatter(points[:, 0], points[:, 1], s=size, c=shades, linewidths=0, rasterized=True)
    return bare(axis)


def layer_states(
    axis: Axes,
    moving: Flow,
    labels: np.ndarray,
    frame: int,
    size: float = 2.0,
    box: Box | None = None,
) -> Axes:
    """The data at one depth of a flow; at the last, the plane that separates two classes.

    If all points have collapsed to one, a ring marks it.

    Args:
        axis: where to draw.
        moving: of `flow`.
        labels: ``(samples,)``, class numbers.
        frame: position in ``moving.depths``.
        size: of a point.
        box: left, right, bottom, top of the visible part; None takes that of the flow.

    Returns:
        The axis.

    >>> import hdnn, torch
    >>> from hdnn import plots
    >>> net = hdnn.network("H1", features=2, layers=8, T=1.0)
    >>> model, X = hdnn.Model(net, 1), torch.randn(30, 2)
    >>> axis = plots.new_figure(3, 3).subplots()
    >>> plots.layer_states(axis, plots.flow(model, X), (X[:, 0] > 0).long().numpy(), 4) is axis
    True
    """
    points, theme = moving.points[frame], theme_of(axis)
    scatter(axis, points, labels, size)
    left, right, bottom, top = moving.box() if box is None else box
    if collapsed(points, right - left):
        x, y = np.nanmean(points, 0)
        share = (x - left) / (right - left)
        axis.plot([x], [y], "o", ms=13, mfc="none", mec=theme.muted, mew=1.0)
        axis.annotate(
            f"all {len(points)} points",
            (x, y),
            xytext=(0, 10 if y < (bottom + top) / 2 else -17),
            textcoords="offset points",
            ha="left" if share < 0.25 else "right" if share > 0.75 else "center",
            fontsize=SMALL,
            color=theme.muted,
        )
    if moving.boundary and moving.depths[frame] == moving.last:
        axis.axvline(0, color=theme.ink, linewidth=1.0)
    axis.set(xlim=(left, right), ylim=(bottom, top), box_aspect=1)
    return axis


def collapsed(points: np.ndarray, side: float) -> bool:
    """Whether points ``(samples, 2)`` have fallen onto one, as seen in a square of this side."""
    # Within 2 % of the side they look like one dot, which is easily overlooked.
    known = points[np.isfinite(points).all(1)]
    return len(known) > 1 and float(np.ptp(known, axis=0).max()) < 0.02 * side


def _states_row(
    axes: Sequence[Axes], moving: Flow, labels: np.ndarray, name: str, fontsize: float
) -> None:
    """A row of panels: the data at evenly spaced depths of a flow; a shallow network has fewer."""
    frames = spaced_depths(len(moving.depths) - 1, len(axes))
    for axis, frame in zip(axes, frames, strict=False):
        depth = moving.depths[frame]
        layer_states(axis, moving, labels, frame)
        axis.set_title("input" if depth == 0 else f"layer {depth}", fontsize=fontsize)
    for axis in axes[len(frames) :]:
        axis.remove()
    axes[0].set_ylabel(name, fontsize=fontsize)


def strip_figure(flows: Mapping[str, Flow], labels: np.ndarray, frames: int = 4) -> Figure:
    """One row per flow: the data at some depths, for paper and for readers without scripts.

    Args:
        flows: by title, all with the same samples.
        labels: ``(samples,)``, class numbers.
        frames: depths that are drawn.

    Returns:
        The figure.

    >>> import hdnn, torch
    >>> from hdnn import plots
    >>> model, X = hdnn.Model(hdnn.network("H1", features=2, layers=8, T=1.0), 1), torch.randn(9, 2)
    >>> figure = strip_figure({"H1": plots.flow(model, X)}, torch.zeros(9).numpy())
    >>> [axis.get_title() for axis in figure.axes]
    ['input', 'layer 3', 'layer 5', 'layer 8']
    """
    figure = new_figure(1.75 * frames, 2.0 * len(flows))
    axes = figure.subplots(len(flows), frames, squeeze=False)
    for row, (name, moving) in zip(axes, flows.items(), strict=True):
        _states_row(row, moving, labels, name, NORMAL)
    return figure


def flow_figure(
    models: Mapping[str, Model],
    points: Tensor,
    labels: Tensor,
    *,
    title: str = "",
    samples: int = 800,
    frames: int = 3,
    theme: Theme = LIGHT,
) -> Figure:
    """One row per model: the data at some depths and the decision regions; gradient norms right.

    Args:
        models: by title; their networks are over features.
        points, labels: ``(samples, 2)`` and ``(samples,)``.
        title: the sentence above the figure.
        samples: how many of them are drawn.
        frames: depths that are drawn.
        theme: light or dark.

    Returns:
        The figure; `save_figure` writes it.

    >>> import hdnn, torch
    >>> from hdnn import plots
    >>> net = hdnn.network("H1", features=2, layers=8, T=1.0)
    >>> model, X = hdnn.Model(net, 1), torch.randn(30, 2)
    >>> figure = plots.flow_figure({"H1": model}, X, (X[:, 0] > 0).long(), frames=2)
    >>> len(figure.axes)
    4
    """
    figure = new_figure(2.05 * (frames + 1) + 3.4, 2.3 * len(models) + 0.5, theme)
    draw_flows(figure, models, points[:samples], labels[:samples], frames)
    figure.suptitle(title, fontsize=LARGE + 1, color=theme.ink, x=0.01, ha="left")
    return figure


@torch.no_grad()
def draw_flows(
    figure: Figure | SubFigure,
    models: Mapping[str, Model],
    points: Tensor,
    labels: Tensor,
    frames: int = 3,
) -> None:
    """What `flow_figure` shows, in a figure or a part of one.

    Args:
        figure: where to draw.
        models, points, labels, frames: see `flow_figure`.
    """
    theme = theme_of(figure)
    layout = figure.add_gridspec(len(models), frames + 2, width_ratios=[1] * (frames + 1) + [1.55])
    for row, (name, model) in enumerate(models.items()):
        *states, plane = (figure.add_subplot(layout[row, k]) for k in range(frames + 1))
        _states_row(states, flow(model, points, frames), labels.cpu().numpy(), name, LABEL)
        decision_regions(plane, model, points, labels).set_box_aspect(1)
        plane.set_title("what it decides", fontsize=LABEL)
    gradients = figure.add_subplot(layout[:, frames + 1])
    for number, (name, model) in enumerate(models.items()):
        norms = profile(model.network, model.preprocess(points), 65)
        norms_by_depth(gradients, norms, name.split("\n")[0], theme.color(2 + number))
    gradients.set_title(
        "gradient norm $|dy_N/dy_\\ell|$ at layer $\\ell$", fontsize=LABEL, loc="left"
    )
