"""Figures. Matplotlib is loaded when one is drawn (extra `plots`)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hdnn.analysis import Profile
from hdnn.errors import HdnnError
from hdnn.files import atomic
from hdnn.models import Model
from hdnn.training.recorder import Header

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf", "jpg")
CLASS_COLORS = ("#c1440e", "#1f5a99", "#3a7d44", "#8a5fa8", "#b08a1e")


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
    """Raise for an ending that is no format, or a folder that does not exist."""
    ending = Path(path).suffix.lstrip(".").lower() or "png"
    if ending not in FORMATS:
        raise HdnnError(f"{str(path)!r} is no figure: its name must end in {', '.join(FORMATS)}")
    if not Path(path).parent.is_dir():
        raise HdnnError(f"there is no folder {Path(path).parent} to write {Path(path).name} to")


def color_ramp(count: int) -> list[str]:
    """As many colors, from dark (near the input) to light (near the output)."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["viridis"](0.92 * k / max(count - 1, 1))) for k in range(count)]


def clean(axis: Axes) -> None:
    """Small ticks, a light grid, and no frame above and to the right."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=7)
    axis.grid(True, axis="y", color="#e4e4e4", linewidth=0.6)
    axis.set_axisbelow(True)


def plot_band(
    axis: Axes,
    x: Sequence[float] | np.ndarray,
    low: Iterable[float],
    middle: Iterable[float],
    high: Iterable[float],
    *,
    color: str,
    label: str | None = None,
    style: str = "o-",
) -> None:
    """A line with a band around it.

    Args:
        axis: where to draw.
        x: places.
        low, middle, high: lower end of the band, line, upper end, at every place.
        color, label, style: of the line.
    """
    axis.plot(x, list(middle), style, ms=3, linewidth=1.2, color=color, label=label)
    axis.fill_between(x, list(low), list(high), color=color, alpha=0.13, linewidth=0)


@torch.no_grad()
def decision_regions(
    axis: Axes, model: Model, points: Tensor, labels: Tensor, resolution: int = 300
) -> None:
    """Color the plane by what a model predicts there, with data on top.

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
    regions = model.predict(grid).reshape(resolution, resolution).T.cpu().numpy()
    classes = max(2, model.head.out_features)
    colors = ListedColormap([CLASS_COLORS[k % len(CLASS_COLORS)] for k in range(classes)])
    left, right, bottom, top = (float(side[k]) for side in sides for k in (0, -1))
    axis.imshow(
        regions,
        origin="lower",
        extent=(left, right, bottom, top),
        cmap=colors,
        vmin=-0.5,
        vmax=classes - 0.5,
        alpha=0.28,
        aspect="auto",
        interpolation="nearest",
    )
    _scatter(axis, points, labels)


def _scatter(axis: Axes, points: Tensor, labels: Tensor) -> None:
    colors = [CLASS_COLORS[int(label) % len(CLASS_COLORS)] for label in labels]
    axis.scatter(points[:, 0], points[:, 1], s=2.0, c=colors, linewidths=0)
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
    centered = (states - states.mean(0)).double()
    _, _, directions = torch.linalg.svd(centered, full_matrices=False)
    return centered @ directions[:2].T


# --- gradients ------------------------------------------------------------------------------------


def record_figure(header: Header, records: Sequence[dict[str, Any]], title: str) -> Figure:
    """The record of a run against iterations: norms by depth, gradients by layer, and energy.

    Args:
        header: of the recording.
        records: one for every recorded iteration, at least one.
        title: above it.
    """
    energy = "energy" in records[0]
    panels = [
        ("mean", "mean norm of $dy_N/dy_\\ell$", len(header.depths) - 1),
        ("gradient", "norm of the gradient, by layer", len(records[0].get("gradient") or ())),
        *([("energy", "energy $H$", len(header.depths) - 1)] if energy else []),
    ]
    figure = new_figure(3.2 * len(panels) if energy else 6.6, 3.0)
    axes = figure.subplots(1, len(panels))
    steps = [record["iteration"] for record in records]
    for axis, (name, label, count) in zip(axes, panels, strict=True):
        shown = sorted({round(k * (count - 1) / 7) for k in range(8)}) if count else []
        for shade, k in zip(color_ramp(len(shown)), shown, strict=True):
            depth = f"$\\ell$ = {header.depths[k]}" if name == "mean" else None
            axis.plot(steps, _column(records, name, k), color=shade, linewidth=0.9, label=depth)
        axis.set_ylabel(label, fontsize=8)
        axis.set_xlabel("iteration", fontsize=8)
        if name != "energy":
            axis.set_yscale("log")
        clean(axis)
    axes[0].legend(frameon=False, fontsize=6, ncols=2)
    figure.suptitle(title, fontsize=9)
    return figure


def _column(records: Sequence[dict[str, Any]], name: str, k: int) -> list[float]:
    values = [(record.get(name) or [None] * (k + 1))[k] for record in records]
    return [np.nan if value is None else value for value in values]


def profile_figure(profile: Profile, title: str) -> Figure:
    """Norms of d y_N / d y_l against l: mean, range over samples, and of the batch mean."""
    figure = new_figure(4.6, 3.0)
    axis = figure.subplots()
    norms, depths = profile.largest, profile.depths
    band = norms.min(-1), norms.mean(-1), norms.max(-1)
    plot_band(axis, depths, *band, color=CLASS_COLORS[0], label="mean of samples", style="-")
    axis.collections[0].set_label("smallest to largest")
    axis.plot(depths, profile.of_mean, "--", color=CLASS_COLORS[1], label="of the batch mean")
    axis.set_yscale("log")
    axis.set_xlabel("layer $\\ell$", fontsize=8)
    axis.set_ylabel("norm of $dy_N/dy_\\ell$", fontsize=8)
    axis.set_title(title, fontsize=9)
    axis.legend(frameon=False, fontsize=7)
    clean(axis)
    return figure
