"""Robots in the plane: their ways, and how far they are from their targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from hdnn.plots.style import clean, label_ends, log_axis, theme_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def ways(axis: Axes, positions: ArrayLike, targets: ArrayLike, trained: int, half: float) -> Axes:
    """The ways of robots: strong as long as in training, then faint; dots where they end.

    Args:
        axis: where to draw.
        positions: ``(steps + 1, robots, 2)``; the first half of the robots has a color of its own.
        targets: ``(robots, 2)``, drawn as rings.
        trained: steps of training.
        half: half the side of the square that is shown.

    Returns:
        The axis.

    >>> import numpy as np
    >>> from hdnn.plots.robots import ways
    >>> from hdnn import plots
    >>> axis = ways(plots.new_figure(3, 3).subplots(), np.zeros((9, 2, 2)), np.ones((2, 2)), 4, 2.0)
    >>> axis.get_xlim()
    (np.float64(-2.0), np.float64(2.0))
    """
    theme, places = theme_of(axis), np.asarray(positions)
    x, y = np.asarray(targets).T
    axis.scatter(x, y, s=42, facecolors="none", edgecolors=theme.muted, lw=0.8)
    for k in range(places.shape[1]):
        color, way = theme.color(2 * k // places.shape[1]), places[:, k]
        # Every fourth step is enough for an eye, and for a small SVG.
        axis.plot(*way[trained::4].T, color=color, linewidth=0.6, alpha=0.45)
        axis.plot(*way[: trained + 1].T, color=color, linewidth=1.3)
        axis.plot(*way[-1], "o", ms=4, color=color)
    side, ticks = (-half, half), (-half, -half / 2, 0, half / 2, half)
    clean(axis).set(xlim=side, ylim=side, xticks=ticks, yticks=ticks, box_aspect=1)
    return axis


def distances(axis: Axes, time: ArrayLike, lines: Mapping[str, ArrayLike], trained: float) -> Axes:
    """Distances over time, on a logarithmic axis; a line marks the end of training.

    Args:
        axis: where to draw.
        time: of the values ``(n,)``.
        lines: the distances ``(n,)`` by name.
        trained: when training ended.

    Returns:
        The axis.

    >>> from hdnn import plots
    >>> from hdnn.plots.robots import distances
    >>> axis = plots.new_figure(4, 3).subplots()
    >>> distances(axis, [0, 1, 2], {"MLP": [1.0, 0.1, 5.0]}, trained=1.0).get_yscale()
    'log'
    """
    theme = theme_of(axis)
    for number, (name, values) in enumerate(lines.items()):
        color = theme.color(number)
        axis.plot(np.asarray(time), np.asarray(values), color=color, linewidth=1.2, label=name)
    axis.axvline(trained, color=theme.muted, linewidth=0.8, linestyle=(0, (3, 2)))
    axis.set_xlabel("time in s")
    axis.margins(x=0)
    log_axis(axis)
    return label_ends(clean(axis))
