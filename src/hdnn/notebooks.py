"""How results look in a notebook: small HTML tables, and plots."""

from __future__ import annotations

import html
import importlib
from collections.abc import Iterable, Sequence
from typing import Any

from hdnn.errors import printable


def table(
    title: str, header: Sequence[str], rows: Iterable[Sequence[str]], notes: Sequence[str] = ()
) -> str:
    """A table as HTML, everything in it escaped.

    Args:
        title: above it.
        header: names of the columns.
        rows: cells as texts.
        notes: lines below it.

    Returns:
        HTML, in the colors of the page around it.

    >>> table("a < b", ["x"], [["1"]], ["so it is"])
    '<p>a &lt; b</p><table><tr><th>x</th></tr><tr><td>1</td></tr></table><p>so it is</p>'
    """

    def row(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{_text(cell)}</{tag}>' for cell in cells)}</tr>"

    body = "".join(row(cells, "td") for cells in rows)
    below = "".join(f"<p>{_text(note)}</p>" for note in notes)
    return f"<p>{_text(title)}</p><table>{row(header, 'th')}{body}</table>{below}"


def _text(text: str) -> str:
    return html.escape(printable(text))


def plots() -> Any:
    """`hdnn.plots`, of the application: without its packages, the error names the extra."""
    return importlib.import_module("hdnn.plots")
