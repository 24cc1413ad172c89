"""Signals of a system and its models over time, residuals, poles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from hdnn.plots.style import clean, color_ramp, label_ends, log_axis, theme_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MODELS = {"network": 0, "linear model": 1}
"""Color and order of the models in all charts; what is measured has the color of the text."""


def signals(
    axis: Axes,
    time: ArrayLike,
    lines: Mapping[str, ArrayLike],
    labels: bool = True,
    log: bool = False,
) -> Axes:
    """Signals over time; names that begin as a model's have its color.

    Args:
        axis: where to draw.
        time: of the samples ``(n,)``.
        lines: the signals ``(n,)`` by name.
        labels: whether names are written at the ends of the lines.
        log: whether the y axis is logarithmic.

    Returns:
        The axis.

    >>> from hdnn import plots
    >>> lines = {"measured": [0, 1, 1], "network": [0, 0.9, 1]}
    >>> axis = plots.signals(plots.new_figure(4, 3).subplots(), [0, 0.1, 0.2], lines)
    >>> [text.get_text() for text in axis.texts]
    ['measured', 'network']
    """
    theme = theme_of(axis)
    for name, values in lines.items():
        own = [number for model, number in MODELS.items() if name.startswith(model)]
        color = theme.color(own[0]) if own else theme.ink
        axis.plot(np.asarray(time), np.asarray(values), color=color, linewidth=1.1, label=name)
    axis.set_xlabel("time")
    axis.margins(x=0)
    if log:
        log_axis(axis)
    return label_ends(clean(axis)) if labels else clean(axis)


def autocorrelation(axis: Axes, values: ArrayLike, band: float) -> Axes:
    """Autocorrelation of residuals, with a band for that of white noise.

    Args:
        axis: where to draw.
        values: at the lags 0, 1, ...
        band: half of its width.

    Returns:
        The axis.

    >>> from hdnn import plots
    >>> axis = plots.new_figure(4, 3).subplots()
    >>> plots.autocorrelation(axis, [1.0, 0.1, -0.02], 0.06).get_xlabel()
    'lag in samples'
    """
    theme, heights = theme_of(axis), np.asarray(values)
    lags = np.arange(len(heights))
    axis.axhspan(-band, band, color=theme.muted, alpha=0.2, linewidth=0)
    axis.vlines(lags, 0, heights, color=theme.color(0), linewidth=1)
    axis.plot(lags, heights, "o", ms=3, color=theme.color(0))
    axis.axhline(0, color=theme.muted, linewidth=0.6)
    axis.set_xlabel("lag in samples")
    return clean(axis)


def poles(axis: Axes, network: Sequence[ArrayLike], linear: ArrayLike) -> Axes:
    """Poles in the unit circle: a network's at several operating points, a linear model's.

    Args:
        axis: where to draw.
        network: the poles at every operating point, from dark to light.
        linear: the poles of the linear model, as crosses.

    Returns:
        The axis, which shows as much of the circle as there are poles.

    >>> from hdnn import plots
    >>> axis = plots.poles(plots.new_figure(4, 4).subplots(), [[0.9], [0.8]], [0.85])
    >>> float(axis.get_lines()[-1].get_xdata()[0])
    0.85
    """
    theme, turn = theme_of(axis), np.linspace(0, 2 * np.pi, 400)
    axis.plot(np.cos(turn), np.sin(turn), color=theme.muted, linewidth=1)
    for own, shade in zip(network, color_ramp(len(network)), strict=True):
        points = np.asarray(own, dtype=complex)
        axis.plot(points.real, points.imag, "o", ms=5, mew=0, alpha=0.85, color=shade)
    cross = np.asarray(linear, dtype=complex)
    axis.plot(cross.real, cross.imag, "x", ms=7, mew=1.6, color=theme.color(MODELS["linear model"]))
    every = np.concatenate([*(np.asarray(own, dtype=complex) for own in network), cross, [1.0]])
    center = complex((every.real.min() + every.real.max()) / 2)
    side = max(0.05, 1.25 * float(np.abs(every - center).max()))
    if side < 0.5:  # else the whole circle
        axis.set(xlim=(center.real - side, center.real + side), ylim=(-side, side))
    axis.set_aspect("equal")
    axis.set(xlabel="real part", ylabel="imaginary part")
    return clean(axis)
