"""Tables for notebooks, in HTML without scripts or style sheets."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

LONGEST = 300
"""Characters of a cell."""


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


def _text(value: object) -> str:
    text = str(value)
    return html.escape(text if len(text) <= LONGEST else f"{text[:LONGEST]}…")
