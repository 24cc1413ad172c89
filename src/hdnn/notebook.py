"""Small pieces of HTML for notebooks: a table and a curve, without scripts or style sheets."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

LONGEST = 300
"""Characters of a cell."""
_WIDTH, _HEIGHT, _EDGE = 420, 120, 34


def table(title: str, rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> str:
    """A table with a title above it; every cell comes out as text.

    >>> table("net", [("layers", 8)])
    '<table><caption ...>net</caption><tbody><tr><td ...>layers</td><td ...>8</td></tr>...'
    """
    look = ' style="text-align:left;vertical-align:top;padding:2px 12px 2px 0"'
    head = "".join(f"<th{look}>{_text(name)}</th>" for name in header)
    body = "".join(
        f"<tr>{''.join(f'<td{look}>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    caption = f'<caption style="text-align:left;font-weight:bold">{_text(title)}</caption>'
    titles = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f"<table>{caption}{titles}<tbody>{body}</tbody></table>"


def curve(title: str, values: Sequence[float]) -> str:
    """Positive values against their place, on a logarithmic axis, as SVG.

    What is not a positive number is left out.
    """
    known = [(k, math.log10(v)) for k, v in enumerate(values) if 0 < v < math.inf]
    if len(known) < 2:
        return ""
    low, high = min(v for _, v in known), max(v for _, v in known)
    span = max(high - low, 1e-9)
    last = max(1, len(values) - 1)
    points = " ".join(
        f"{_EDGE + 20 + (_WIDTH - _EDGE - 24) * k / last:.1f},"
        f"{8 + (_HEIGHT - 30) * (high - v) / span:.1f}"
        for k, v in known
    )
    text = 'font-size="11" fill="currentColor" font-family="sans-serif"'
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{_text(title)}">'
        f'<text x="0" y="14" {text}>{10**high:.2g}</text>'
        f'<text x="0" y="{_HEIGHT - 22}" {text}>{10**low:.2g}</text>'
        f'<text x="{_EDGE + 20}" y="{_HEIGHT - 4}" {text}>{_text(title)}</text>'
        f'<polyline points="{points}" fill="none" stroke="#0072b2" stroke-width="2"/></svg>'
    )


def _text(value: object) -> str:
    text = str(value)
    return html.escape(text if len(text) <= LONGEST else f"{text[:LONGEST]}…")
