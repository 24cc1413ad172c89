"""Pages with tables between marks, and panels of figures."""

from __future__ import annotations

from typing import Any

from hdnn.paper.summaries import fill
from hdnn.plots import clean
from hdnn.plots.style import NORMAL

__all__ = ["fill", "finish"]


def finish(axis: Any, title: str, label: str = "") -> None:
    """Title, label of the x axis and ticks of a panel, once all of it is drawn."""
    axis.set_title(title, fontsize=NORMAL, loc="left")
    axis.set_xlabel(label)
    clean(axis)
