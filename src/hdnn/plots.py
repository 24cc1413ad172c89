"""Figures. Matplotlib is loaded when one is drawn (extra `plots`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hdnn.errors import HdnnError
from hdnn.files import atomic
from hdnn.models import Model
from hdnn.network import HamiltonianNetwork

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf", "jpg")
CLASS_COLOURS = ("#c1440e", "#1f5a99", "#3a7d44", "#8a5fa8", "#b08a1e")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of a size in inches, drawn without a screen."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise HdnnError("figures need matplotlib: pip install 'hdnn[plots]'") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: str | os.PathLike[str], dpi: int = 100) -> None:
    """Write a figure, atomically; the ending of the path chooses the format."""
    check_figure_path(path)
    with atomic(path) as temporary:
        figure.savefig(temporary, format=Path(path).suffix.lstrip(".") or "png", dpi=dpi)


def check_figure_path(path: str | os.PathLike[str]) -> None:
    """Refuse an ending that is no format, or a folder that does not exist."""
    ending = Path(path).suffix.lstrip(".").lower() or "png"
    if ending not in FORMATS:
        raise HdnnError(f"{str(path)!r} is no figure: its name must end in {', '.join(FORMATS)}")
    if not Path(path).parent.is_dir():
        raise HdnnError(f"there is no folder {Path(path).parent} to write {Path(path).name} to")


@torch.no_grad()
def propagation(
    networks: Mapping[str, HamiltonianNetwork],
    states: Tensor,
    labels: Tensor,
    shown: int = 4,
) -> Figure:
    """The data on their way through the layers: a row for every network, a column for a depth.

    Args:
        networks: by title.
        states: ``(samples, n)``, the augmented data.
        labels: ``(samples,)``.
        shown: how many depths.
    """
    figure = new_figure(1.6 * shown, 1.55 * len(networks))
    axes = figure.subplots(len(networks), shown, squeeze=False)
    for place, (title, net) in enumerate(networks.items()):
        row = axes[place]
        trajectory = net.trajectory(states)
        for column, axis in enumerate(row):
            layer = round(column * net.layers / max(shown - 1, 1))
            _scatter(axis, trajectory[layer][:, :2], labels)
            axis.margins(0.08)
            if place == 0:
                axis.set_title(f"layer {layer}", fontsize=8)
        row[0].set_ylabel(title, fontsize=10)
    return figure


@torch.no_grad()
def decision_regions(
    axis: Axes, model: Model, points: Tensor, labels: Tensor, resolution: int = 300
) -> None:
    """Colour the plane by what a model predicts there, with data on top.

    Args:
        axis: where to draw.
        model: takes two features.
        points, labels: ``(samples, 2)`` and ``(samples,)``.
        resolution: pixels along each side.
    """
    from matplotlib.colors import ListedColormap

    low, high = points.min(0).values, points.max(0).values
    margin = 0.12 * (high - low)
    sides = [
        torch.linspace(float(a), float(b), resolution)
        for a, b in zip(low - margin, high + margin, strict=True)
    ]
    grid = torch.cartesian_prod(*sides).to(points.dtype)
    found = model.predict(grid).reshape(resolution, resolution).T.cpu().numpy()
    classes = max(2, model.head.out_features)
    colours = ListedColormap([CLASS_COLOURS[k % len(CLASS_COLOURS)] for k in range(classes)])
    left, right, bottom, top = (float(side[k]) for side in sides for k in (0, -1))
    axis.imshow(
        found,
        origin="lower",
        extent=(left, right, bottom, top),
        cmap=colours,
        vmin=-0.5,
        vmax=classes - 0.5,
        alpha=0.28,
        aspect="auto",
        interpolation="nearest",
    )
    _scatter(axis, points, labels)


def _scatter(axis: Axes, points: Tensor, labels: Tensor) -> None:
    colours = [CLASS_COLOURS[int(label) % len(CLASS_COLOURS)] for label in labels]
    axis.scatter(points[:, 0], points[:, 1], s=2.0, c=colours, linewidths=0)
    axis.set_xticks([])
    axis.set_yticks([])


@torch.no_grad()
def regions_and_propagation(
    models: Mapping[str, Model], points: Tensor, labels: Tensor, samples: int = 500
) -> Figure:
    """Decision regions of every model; below, the data on their way through its layers.

    Args:
        models: by title.
        points, labels: ``(samples, 2)`` and ``(samples,)``.
        samples: how many of them are drawn.
    """
    points, labels = points[:samples], labels[:samples]
    figure = new_figure(1.75 * len(models), 7.0)
    axes = figure.subplots(4, len(models), squeeze=False)
    for column, (title, model) in enumerate(models.items()):
        decision_regions(axes[0][column], model, points, labels)
        axes[0][column].set_title(title.replace(": ", "\n"), fontsize=8)
        states = model.network.trajectory(model.preprocess(points))
        for row, share in enumerate((1 / 3, 2 / 3, 1.0), start=1):
            layer = round(share * model.network.layers)
            axis = axes[row][column]
            _scatter(axis, _plane(states[layer]), labels)
            axis.margins(0.08)
            axis.set_xlabel(f"layer {layer}", fontsize=7)
    for row, name in enumerate(("decision", "1/3 of depth", "2/3 of depth", "last layer")):
        axes[row][0].set_ylabel(name, fontsize=8)
    return figure


def _plane(states: Tensor) -> Tensor:
    """The two directions in which states ``(samples, n)`` spread most."""
    centred = (states - states.mean(0)).double()
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    return centred @ directions[:2].T
