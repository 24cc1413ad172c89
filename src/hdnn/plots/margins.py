"""How far the statements of a certificate are from failing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hdnn.analysis import Certificate
from hdnn.plots.style import SMALL, clean, theme_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hdnn.analysis.checks import Check

MOST = 1e3
"""A larger margin is drawn as this one."""


def margins(axis: Axes, certificate: Certificate) -> Axes:
    """By what factor each statement holds: left of 1 it does not, and right of it is room.

    The factor is that between what was measured and what it is compared with. Filled points are
    theorems, rings what is measured only; statements that follow from structure have no point.

    Args:
        axis: where to draw; it becomes logarithmic.
        certificate: of `hdnn.analysis.certify`.

    Returns:
        The axis.

    >>> import hdnn, torch
    >>> from hdnn import plots
    >>> net = hdnn.network("MS3", features=4, layers=6, T=0.5)
    >>> certificate = hdnn.analysis.certify(net, torch.randn(8, 4))
    >>> plots.margins(plots.new_figure(6, 4).subplots(), certificate).get_xscale()
    'log'
    """
    theme = theme_of(axis)
    shown = [check for check in certificate.checks if check.holds is not None and check.comparison]
    shown = sorted(shown, key=lambda check: not check.proved)
    axis.axvline(1, color=theme.muted, linewidth=1)
    for place, check in enumerate(shown):
        color = theme.color(2 if check.holds else 1)
        fill = color if check.proved else theme.paper
        if not math.isnan(check.value):
            axis.plot([margin(check)], [place], "o", ms=6, mfc=fill, mec=color, clip_on=False)
        axis.annotate(
            check.comparison,
            (1.03, place),
            xycoords=axis.get_yaxis_transform(),
            va="center",
            fontsize=SMALL,
            color=theme.muted if check.holds else color,
            annotation_clip=False,
        )
    clean(axis).set(xscale="log", xlim=(1 / MOST, MOST), xlabel="holds by this factor")
    axis.set_yticks(range(len(shown)), [check.name for check in shown])
    axis.set_ylim(len(shown) - 0.5, -0.5)
    return axis


def margin(check: Check) -> float:
    """The factor by which a statement holds, within `MOST`; at 1 it just does.

    Args:
        check: with a value.

    Returns:
        A number from 1 / `MOST` to `MOST`; below 1 exactly where it does not hold.
    """
    small, large = check.value, check.tolerance
    if check.relation == ">=":
        small, large = large, small
    if not math.isfinite(large) or small <= 0 or large <= 0:
        return MOST if check.holds else 1 / MOST
    found = min(max(large / small, 1 / MOST), MOST)
    return max(found, 1.0) if check.holds else min(found, 1 / 1.01)
