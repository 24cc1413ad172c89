"""Pages with tables between marks, and panels of figures."""

from __future__ import annotations

import re
from typing import Any

from hdnn.plots import clean
from hdnn.plots.style import NORMAL


def fill(text: str, parts: dict[str, str]) -> str:
    """A page with each part written between ``<!-- its name -->`` and ``<!-- end -->``."""
    for name, part in parts.items():
        pattern = rf"(<!-- {name} -->\n).*?(\n<!-- end -->)"
        text = re.sub(pattern, lambda m, part=part: m[1] + part + m[2], text, flags=re.S)
    return text


def finish(axis: Any, title: str, label: str = "") -> None:
    """Title, label of the x axis and ticks of a panel, once all of it is drawn."""
    axis.set_title(title, fontsize=NORMAL, loc="left")
    axis.set_xlabel(label)
    clean(axis)
