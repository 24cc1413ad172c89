"""The slider as one image: the data at four depths, for paper and for readers without scripts."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup, escape

from hdnn.analysis.norms import spaced_depths
from hdnn.plots.flow import Flow
from hdnn.plots.planar import collapsed
from hdnn.report.charts import WIDE
from hdnn.report.scene import Scene

FRAMES, SAMPLES = 4, 400
"""Depths, and samples at most that are drawn."""
GAP, HEADING = 12, 50
SIDE = (WIDE - (FRAMES - 1) * GAP) // FRAMES
HEIGHT = HEADING + SIDE + GAP


def still(shown: Scene) -> Markup:
    """A row for every flow, in the colors of the page."""
    rows = [
        f'<g transform="translate(0 {row * HEIGHT})">{_row(shown, title, moving)}</g>'
        for row, (title, moving) in enumerate(zip(shown.titles, shown.flows, strict=True))
    ]
    words = f"The data at {FRAMES} depths of {' and of '.join(shown.titles)}"
    return Markup(
        f'<svg class="chart" viewBox="0 0 {WIDE} {len(rows) * HEIGHT}" role="img" '
        f'aria-label="{escape(words)}">{"".join(rows)}</svg>'
    )


def _row(shown: Scene, title: str, moving: Flow) -> str:
    parts = [f'<text class="heading" x="0" y="18">{escape(title)}</text>']
    for column, frame in enumerate(spaced_depths(len(moving.depths) - 1, FRAMES)):
        depth = moving.depths[frame]
        name = "input" if depth == 0 else f"layer {depth}"
        parts.append(
            f'<g transform="translate({column * (SIDE + GAP)} {HEADING})">'
            f'<text class="tick" x="0" y="-8">{name}</text>'
            f'<rect class="frame" width="{SIDE}" height="{SIDE}"/>'
            f"{_panel(shown, moving, frame)}</g>"
        )
    return "".join(parts)


def _panel(shown: Scene, moving: Flow, frame: int) -> str:
    """Points, one path for every color; the boundary at the end; a ring where all are one."""
    left, right, bottom, top = moving.box()
    points = moving.points[frame]
    places = (points - (left, bottom)) / (right - left, top - bottom) * (SIDE, -SIDE) + (0, SIDE)
    rows = np.linspace(0, len(points) - 1, min(SAMPLES, len(points))).astype(int)
    parts = []
    if moving.plane.boundary and moving.depths[frame] == moving.last:
        x = -left / (right - left) * SIDE
        parts.append(f'<line class="boundary" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{SIDE}"/>')
    for number in np.unique(shown.numbers):
        chosen = places[rows[shown.numbers[rows] == number]]
        known = chosen[np.isfinite(chosen).all(1)]
        path = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in known)
        color = f' style="stroke:{shown.colors[number]}"' if shown.colors else ""
        parts.append(f'<path class="dot s{number % 10}"{color} d="{path}"/>')
    if collapsed(points, right - left):
        x, y = np.nanmean(places, 0)
        parts.append(_ring(float(x), float(y), len(points)))
    return "".join(parts)


def _ring(x: float, y: float, count: int) -> str:
    anchor = "start" if x < SIDE / 4 else "end" if x > 0.75 * SIDE else "middle"
    below = y + 24 if y < SIDE / 4 else y - 14
    return (
        f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="8"/><text class="tick" '
        f'x="{x:.1f}" y="{below:.1f}" text-anchor="{anchor}">all {count} points</text>'
    )
