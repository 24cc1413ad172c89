"""Curves: gradient norms along depth and during training, learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hdnn.analysis import Norms
from hdnn.analysis.norms import spaced_depths
from hdnn.plots.style import NORMAL, clean, color_ramp, label_ends, log_axis, plot_band, theme_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    depths = norms.depths
    # On a logarithmic axis 0 would be nowhere.
    band = torch.stack([norms.minimum, norms.mean, norms.maximum]).clamp_min(1e-300).numpy()
    plot_band(axis, depths, band, color=color, style="-")
    # At the last layer all norms are 1: labels go to the middle, the next ones left and right of
    # it, to the side of the curve that is free.
    place = len(depths) * (2, 1, 3)[len(axis.texts) % 3] // 4
    rising = bool(band[1, 0] < 0.1 * band[1, -1])
    axis.annotate(
        label,
        (depths[place], float(band[1 if rising else 2, place])),
        xytext=(8, -14) if rising else (0, 5),
        textcoords="offset points",
        ha="left" if rising else "center",
        color=color,
        fontsize=NORMAL,
    )
    log_axis(axis)
    axis.set_xlabel("layer $\\ell$")
    axis.locator_params(axis="x", integer=True)
    return clean(axis)


def learning_curves(axis: Axes, history: Sequence[dict[str, Any]], name: str = "loss") -> Axes:
    """A metric of training and validation data by epoch, each labeled at its end.

    Args:
        axis: where to draw; it becomes logarithmic for a loss that falls far.
        history: a dictionary for every epoch, as `EpochRecord.to_dict` gives it.
        name: "loss" or "accuracy".

    Returns:
        The axis.

    >>> from hdnn import plots
    >>> history = [{"epoch": 1, "loss": 0.7}, {"epoch": 2, "loss": 0.4}]
    >>> axis = plots.learning_curves(plots.new_figure(4, 3).subplots(), history)
    >>> axis.lines[0].get_ydata().tolist()
    [0.7, 0.4]
    """
    columns = {"training": name, "validation": f"validation_{name}"}
    for number, (part, key) in enumerate(columns.items()):
        values = np.array([record.get(key) for record in history], dtype=float)
        if np.isnan(values).all():
            continue
        epochs, color = [record["epoch"] for record in history], theme_of(axis).color(number)
        axis.plot(epochs, values, color=color, linewidth=1.6, label=f"{part} {name}")
        if name == "loss" and 0 < 5 * np.nanmin(values) < np.nanmax(values):
            log_axis(axis)
    axis.set_xlabel("epoch")
    axis.locator_params(axis="x", integer=True)
    return label_ends(clean(axis))


def record_by_depth(axis: Axes, records: Sequence[dict[str, Any]]) -> Axes:
    """Gradient norms during training: a line for each of at most six layers, dark near the input.

    Args:
        axis: where to draw; it becomes logarithmic.
        records: recordings of a training, each with ``iteration``, ``layers`` and ``mean``.

    Returns:
        The axis.

    >>> from hdnn import plots
    >>> records = [{"iteration": k, "layers": [0, 4, 8], "mean": [2.0, 1.5, 1.0]} for k in (0, 8)]
    >>> axis = plots.record_by_depth(plots.new_figure(4, 3).subplots(), records)
    >>> [line.get_label() for line in axis.get_lines()]
    ['layer 0', 'layer 4']
    """
    layers = records[0]["layers"]
    steps = [record["iteration"] for record in records]
    shown = spaced_depths(len(layers) - 2, 6) if len(layers) > 1 else []  # the last is always 1
    for shade, k in zip(color_ramp(len(shown)), shown, strict=True):
        values = [np.nan if r["mean"][k] is None else r["mean"][k] for r in records]
        axis.plot(steps, values, color=shade, linewidth=1.2, label=f"layer {layers[k]}")
    log_axis(axis)
    axis.set_xlabel("iteration")
    return label_ends(clean(axis))
