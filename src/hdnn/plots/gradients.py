"""Curves: norms of gradients along depth and during training, and learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hdnn.analysis import Norms
from hdnn.plots.style import (
    NORMAL,
    SMALL,
    clean,
    color_ramp,
    label_ends,
    new_figure,
    plot_band,
    theme_of,
)
from hdnn.training.recorder import Recording

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def norms_by_depth(axis: Axes, norms: Norms, label: str, color: str) -> Axes:
    """Norms of d y_N / d y_l against l: mean of the samples, and their range as a band.

    Args:
        axis: where to draw; it becomes logarithmic.
        norms: of `hdnn.analysis.profile`.
        label: text next to the curve.
        color: of the curve and the label.

    Returns:
        The axis.

    >>> import hdnn, torch
    >>> from hdnn import plots
    >>> net = hdnn.network("H1", features=4, layers=8, T=1.0)
    >>> norms = hdnn.analysis.profile(net, torch.randn(10, 4))
    >>> axis = plots.new_figure(4, 3).subplots()
    >>> plots.norms_by_depth(axis, norms, "H1", "#0072b2").get_yscale()
    'log'
    """
    depths, band = norms.depths, _band(norms)
    plot_band(axis, depths, *band, color=color, style="-")
    # At the last layer all norms are 1: the label goes to the middle, to the side that is free.
    middle, rising = len(depths) // 2, band[1][0] < 0.1 * band[1][-1]
    axis.annotate(
        label,
        (depths[middle], float(band[1 if rising else 2][middle])),
        xytext=(8, -14) if rising else (0, 5),
        textcoords="offset points",
        ha="left" if rising else "center",
        color=color,
        fontsize=NORMAL,
    )
    axis.set_yscale("log")
    axis.set_xlabel("layer $\\ell$")
    return clean(axis)


def _band(norms: Norms) -> list[np.ndarray]:
    """Minimum, mean and maximum; on a logarithmic axis 0 would be nowhere."""
    return [c.clamp_min(1e-300).numpy() for c in (norms.minimum, norms.mean, norms.maximum)]


def learning_curves(
    axis: Axes, history: Sequence[dict[str, Any]], names: Sequence[str] = ("loss",)
) -> Axes:
    """Metrics of the history by epoch, each labeled at its end.

    Args:
        axis: where to draw.
        history: a dictionary for every epoch, as `EpochRecord.to_dict` gives it.
        names: which metrics.

    Returns:
        The axis.

    >>> from hdnn import plots
    >>> history = [{"epoch": 1, "loss": 0.7}, {"epoch": 2, "loss": 0.4}]
    >>> axis = plots.learning_curves(plots.new_figure(4, 3).subplots(), history)
    >>> axis.lines[0].get_ydata().tolist()
    [0.7, 0.4]
    """
    theme = theme_of(axis)
    epochs = [entry["epoch"] for entry in history]
    for number, name in enumerate(names):
        values = [np.nan if entry.get(name) is None else entry[name] for entry in history]
        label = name.replace("_", " ")
        axis.plot(epochs, values, color=theme.color(number), linewidth=1.6, label=label)
    axis.set_xlabel("epoch")
    return label_ends(clean(axis))


def record_figure(records: Sequence[Recording], title: str) -> Figure:
    """The record of a run against iterations: norms by depth, gradients by layer, and energy.

    Args:
        records: one for every recorded iteration, at least one.
        title: above it.

    Returns:
        The figure.

    >>> import hdnn, torch
    >>> from hdnn import plots
    >>> from hdnn.training import Recording
    >>> net = hdnn.network("H1", features=4, layers=8, T=1.0)
    >>> norms = hdnn.analysis.profile(net, torch.randn(10, 4), depths=3)
    >>> records = [Recording(1, k, norms, (0.1, 0.2), 0.3) for k in (0, 8)]
    >>> len(plots.record_figure(records, "H1").axes)
    3
    """
    first = records[0]
    panels = [
        ("mean", "mean norm of $dy_N/dy_\\ell$", len(first.norms.layers) - 1),
        ("gradient", "norm of the gradient, by layer", len(first.gradient)),
    ]
    if first.norms.energy is not None:
        panels.append(("energy", "energy $H$", len(first.norms.layers) - 1))
    figure = new_figure(3.4 * len(panels), 3.2)
    axes = figure.subplots(1, len(panels))
    for axis, (name, label, count) in zip(axes, panels, strict=True):
        _by_depth(axis, records, name, count)
        axis.set_title(label, fontsize=NORMAL, loc="left")
        if name != "energy":
            axis.set_yscale("log")
        clean(axis)
    handles = axes[0].get_lines()
    labels = [str(line.get_label()) for line in handles]
    look: dict[str, Any] = {"frameon": False, "fontsize": SMALL, "handlelength": 1.2}
    figure.legend(handles, labels, loc="outside lower center", ncols=len(handles), **look)
    figure.suptitle(title[:120], fontsize=NORMAL)
    return figure


def _by_depth(axis: Axes, records: Sequence[Recording], name: str, count: int) -> None:
    """A line for each of at most eight depths, dark near the input."""
    steps = [record.iteration for record in records]
    shown = sorted({round(k * (count - 1) / 7) for k in range(8)}) if count else []
    for shade, k in zip(color_ramp(len(shown)), shown, strict=True):
        depth = f"$\\ell$ = {records[0].norms.layers[k]}" if name == "mean" else None
        axis.plot(steps, _column(records, name, k), color=shade, linewidth=1.1, label=depth)
    axis.set_xlabel("iteration")


def _column(records: Sequence[Recording], name: str, k: int) -> list[float]:
    if name == "gradient":
        return [record.gradient[k] for record in records]
    return [float(getattr(record.norms, name)[k]) for record in records]


def profile_figure(norms: Norms, title: str) -> Figure:
    """Norms of d y_N / d y_l against l: mean, range over samples, and of the batch mean.

    Args:
        norms: of `hdnn.analysis.profile`.
        title: above it.

    Returns:
        The figure.

    >>> import hdnn, torch
    >>> from hdnn import plots
    >>> net = hdnn.network("H1", features=4, layers=8, T=1.0)
    >>> norms = hdnn.analysis.profile(net, torch.randn(10, 4))
    >>> len(plots.profile_figure(norms, "H1, 8 layers").axes)
    1
    """
    figure = new_figure(5.0, 3.2)
    axis = figure.subplots()
    theme = theme_of(axis)
    depths = norms.depths
    plot_band(axis, depths, *_band(norms), color=theme.color(0), label="mean of samples", style="-")
    axis.collections[0].set_label("smallest to largest")
    axis.plot(depths, norms.of_mean, "--", color=theme.color(1), label="of the batch mean")
    axis.set_yscale("log")
    axis.set_xlabel("layer $\\ell$")
    axis.set_ylabel("norm of $dy_N/dy_\\ell$")
    axis.set_title(title[:120], fontsize=NORMAL, loc="left")
    axis.legend(frameon=False, fontsize=SMALL)
    clean(axis)
    return figure
