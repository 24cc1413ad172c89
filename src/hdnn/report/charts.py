"""Charts as inline SVG: they take the page's colors, scale with it, print, and need no script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

WIDE, NARROW, HEIGHT = 640, 470, 290
"""Sizes in units of which a line of text has about 14."""
LEFT, RIGHT, TOP, BOTTOM = 70, 96, 14, 42
FLOOR = 1e-30
"""The smallest number of a logarithmic axis."""
LARGEST = 1e300
"""Values from here on, infinity and NaN have no place on an axis."""


@dataclass(frozen=True)
class Series:
    """A line, with a band around it where there is one.

    Args:
        label: written at its end.
        x, y: places and values; a value that is not finite leaves a gap.
        low, high: the band.
        color: number in the palette of the page.
        fade: opacity.
    """

    label: str
    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    color: int = 0
    fade: float = 1.0


class _Scale:
    """Numbers to pixels."""

    def __init__(
        self, values: np.ndarray, start: float, end: float, log: bool = False, whole: bool = False
    ) -> None:
        self.log, self.whole = log, whole
        shown = np.log10(np.maximum(values, FLOOR)) if log else values
        low, high = float(shown.min()), float(shown.max())
        if log:
            low, high = math.floor(low * 2) / 2, math.ceil(high * 2) / 2
        if high - low < 1e-9 * max(1.0, abs(high)):
            room = max(0.5, 1e-3 * abs(high))
            low, high = low - room, high + room
        self.low, self.high, self.start, self.end = low, high, start, end
        self.fixed: list[tuple[float, str]] = []

    def __call__(self, value: float) -> float:
        position = math.log10(max(value, FLOOR)) if self.log else value
        return self.start + (self.end - self.start) * (position - self.low) / (self.high - self.low)

    def ticks(self, most: int = 6) -> list[tuple[float, str]]:
        if self.fixed:
            return self.fixed
        if self.log:
            first, last = math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9)
            if last - first < 2:  # too few powers of ten for an axis
                found = [m * 10.0**k for k in range(first - 1, last + 1) for m in (1, 2, 5)]
                inside = [v for v in found if self.low - 1e-9 <= math.log10(v) <= self.high + 1e-9]
                return [(v, f"{v:.3g}") for v in inside]
            step = max(1, math.ceil((last - first) / most))
            # Multiples of the step, so that 1 is among them.
            return [(10.0**k, _power(k)) for k in range(-(-first // step) * step, last + 1, step)]
        return _round_ticks(self.low, self.high, most, 1.0 if self.whole else 0.0)


def _power(exponent: int) -> str:
    if -3 <= exponent <= 4:
        return f"{10.0**exponent:g}"
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _round_ticks(low: float, high: float, most: int, least: float) -> list[tuple[float, str]]:
    """Round numbers between two, at most so many, at least so far from each other."""
    raw = max((high - low) / most, least)
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [(k * step, f"{k * step:.6g}") for k in range(first, last + 1)]


def _finite(*columns: Sequence[float] | np.ndarray | None) -> np.ndarray:
    parts = [np.asarray(c, dtype=float).ravel() for c in columns if c is not None]
    values = np.concatenate(parts) if parts else np.zeros(1)
    values = values[np.abs(values) < LARGEST]
    return values if len(values) else np.zeros(1)


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str = "",
    log: bool = False,
    width: int = WIDE,
    converge: bool = False,
    x_ticks: Sequence[float] = (),
    notes: Sequence[str] = (),
) -> Markup:
    """Lines over a common axis, each labeled at its end.

    Args:
        series: what is drawn.
        title: what it shows, for those who do not see it.
        x_label, y_label: of the axes.
        log: a logarithmic vertical axis.
        width: `WIDE` or `NARROW`.
        converge: all lines end in one point, so they are labeled on their way.
        x_ticks: the only ticks of a then logarithmic horizontal axis.
        notes: above the points of the first line, which are then marked.
    """
    right = width - (RIGHT if any(s.label for s in series) and not converge else 16)
    x = _Scale(_finite(*(s.x for s in series)), LEFT, right, log=bool(x_ticks), whole=True)
    if x_ticks:
        x.fixed = [(tick, f"{tick:g}") for tick in x_ticks]
        low, high = (math.log10(f(x_ticks)) for f in (min, max))
        x.low, x.high = low - 0.08 * (high - low), high + 0.02 * (high - low)
    values = _finite(*(column for s in series for column in (s.y, s.low, s.high)))
    if log and (values > 0).any():
        values = values[values > 0]
    y = _Scale(values, HEIGHT - BOTTOM, TOP + 20 if converge or notes else TOP, log)
    parts = [_axes(x, y, x_label, y_label)]
    for line in series:
        parts += [_band(line, x, y), _line(line, x, y)]
    parts += _inner_labels(series, x, y) if converge else _labels(series, x, y)
    parts += _marks(series[0], notes, x, y) if notes else []
    return _svg(title, parts, width)


def scatter_chart(
    x: np.ndarray, y: np.ndarray, *, title: str, x_label: str, y_label: str
) -> Markup:
    """Points, and the diagonal on which both coordinates agree."""
    values = _finite(x, y)
    across = _Scale(values, LEFT, NARROW - 16)
    up = _Scale(values, HEIGHT - BOTTOM, TOP)
    ends = [(across(v), up(v)) for v in (across.low, across.high)]
    (x1, y1), (x2, y2) = ends
    dots = [
        f'<circle cx="{across(a):.1f}" cy="{up(b):.1f}" r="2.2"/>'
        for a, b in zip(x, y, strict=True)
        if math.isfinite(a) and math.isfinite(b)
    ]
    return _svg(
        title,
        [
            _axes(across, up, x_label, y_label),
            f'<line class="rule" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>',
            f'<g class="dots">{"".join(dots)}</g>',
        ],
        NARROW,
    )


def _axes(x: _Scale, y: _Scale, x_label: str, y_label: str) -> str:
    parts = []
    for value, text in y.ticks(5):
        place = y(value)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{x.end:.0f}" y1="{place:.1f}" y2="{place:.1f}"/>'
        )
        parts.append(
            f'<text class="tick" x="{LEFT - 8}" y="{place + 4:.1f}" text-anchor="end">{text}</text>'
        )
    for value, text in x.ticks(6):
        parts.append(
            f'<text class="tick" x="{x(value):.1f}" y="{HEIGHT - BOTTOM + 18}" '
            f'text-anchor="middle">{text}</text>'
        )
    middle = (x.start + x.end) / 2
    parts.append(
        f'<text class="name" x="{middle:.0f}" y="{HEIGHT - 4}" text-anchor="middle">'
        f"{escape(x_label)}</text>"
    )
    if y_label:
        parts.append(
            f'<text class="name" transform="translate(13 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) '
            f'rotate(-90)" text-anchor="middle">{escape(y_label)}</text>'
        )
    return "".join(parts)


def _runs(line: Series, x: _Scale, y: _Scale) -> list[list[tuple[float, float]]]:
    """Stretches of finite values, as pixels."""
    found: list[list[tuple[float, float]]] = [[]]
    for a, b in zip(line.x, line.y, strict=True):
        if not abs(float(b)) < LARGEST:
            found.append([])
        else:
            found[-1].append((x(a), y(b)))
    return [run for run in found if run]


def _line(line: Series, x: _Scale, y: _Scale) -> str:
    look = f'class="line s{line.color % 10}" style="opacity:{line.fade:.2f}"'
    paths = []
    for run in _runs(line, x, y):
        if len(run) == 1:
            paths.append(f'<circle {look} cx="{run[0][0]:.1f}" cy="{run[0][1]:.1f}" r="2"/>')
            continue
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in run)
        paths.append(f'<polyline {look} points="{points}"/>')
    return "".join(paths)


def _band(line: Series, x: _Scale, y: _Scale) -> str:
    if line.low is None or line.high is None:
        return ""
    edges = zip(line.x, line.low.tolist(), line.high.tolist(), strict=True)
    known = [(x(a), y(b), y(c)) for a, b, c in edges if abs(b) < LARGEST and abs(c) < LARGEST]
    upper = [f"{a:.1f},{c:.1f}" for a, _, c in known]
    lower = [f"{a:.1f},{b:.1f}" for a, b, _ in known]
    return f'<polygon class="band f{line.color % 10}" points="{" ".join(upper + lower[::-1])}"/>'


def _marks(line: Series, notes: Sequence[str], x: _Scale, y: _Scale) -> list[str]:
    """A dot at every point of a line, and a note above it."""
    parts = []
    for number, (a, b) in enumerate(zip(line.x, line.y, strict=True)):
        place, height = f"{x(a):.1f}", y(b)
        look = f'class="f{line.color % 10}" r="3.5"'
        parts.append(f'<circle {look} cx="{place}" cy="{height:.1f}"/>')
        if number < len(notes):
            parts.append(
                f'<text class="tick" x="{place}" y="{height - 10:.1f}" text-anchor="middle">'
                f"{escape(notes[number])}</text>"
            )
    return parts


def _labels(series: Sequence[Series], x: _Scale, y: _Scale) -> list[str]:
    """Labels at the ends of the lines, pushed apart where they would overlap."""
    ends = []
    for line in series:
        runs = _runs(line, x, y)
        if line.label and runs:
            ends.append((runs[-1][-1][1], line))
    ends.sort(key=lambda end: end[0])
    places: list[float] = []
    for wanted, _ in ends:
        places.append(max(wanted, places[-1] + 16) if places else wanted)
    excess = (places[-1] - (HEIGHT - BOTTOM)) if places else 0
    shift = max(0.0, excess)
    return [
        f'<text class="label f{line.color % 10}" x="{x.end + 8:.1f}" y="{place - shift + 4:.1f}">'
        f"{escape(line.label)}</text>"
        for place, (_, line) in zip(places, ends, strict=True)
    ]


def _inner_labels(series: Sequence[Series], x: _Scale, y: _Scale) -> list[str]:
    """Labels at a third of the way: above the upper line, below the lower one if there is room."""
    place = x.start + (x.end - x.start) / 3
    lines = []
    for line in series:
        points = [point for run in _runs(line, x, y) for point in run]
        if line.label and points:
            across, heights = zip(*points, strict=True)
            under = np.linspace(place, place + 9 * len(line.label), 9)  # where the label stands
            lines.append((np.interp(under, across, heights), line))
    lines.sort(key=lambda found: float(found[0].mean()))
    found = []
    for number, (near, line) in enumerate(lines):
        below = float(near.max()) + 22
        lower = number > 0 and below < HEIGHT - BOTTOM
        found.append(
            f'<text class="label f{line.color % 10}" x="{place:.1f}" '
            f'y="{below if lower else float(near.min()) - 10:.1f}">{escape(line.label)}</text>'
        )
    return found


def _svg(title: str, parts: Sequence[str], width: int) -> Markup:
    return Markup(
        f'<svg class="chart" viewBox="0 0 {width} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )
