"""Charts for the terminal: the learning curve, and gradient norms by depth, in characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.text import Text

from hdnn.analysis import Norms, profile
from hdnn.training.runs import read_history
from hdnn.training.trainer import EpochRecord, Trainer

HEIGHT, WIDTH, MARGIN = 5, 34, 12
"""Characters of a chart, and of what stands at its left."""
BLOCKS, ASCII = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
EXAMINED = 100
"""Samples whose gradients are measured."""


class Charts:
    """A callback of a training that draws charts at its end."""

    def __init__(self) -> None:
        self.trainer: Trainer | None = None

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        self.trainer = trainer

    def norms(self) -> Norms | None:
        """Norms of d y_N / d y_l on training data; None for images."""
        if self.trainer is None or self.trainer.model.stem.takes_images:
            return None
        with torch.no_grad():
            net, y = self.trainer.model.block_inputs(self.trainer.loop.data.states[:EXAMINED])[0]
        return profile(net, y, WIDTH)

    def show(self, history: Path, console: Console) -> None:
        """Print them side by side, or one below the other where there is no room."""
        entries = read_history(history) if history.exists() else []
        losses = [record["loss"] for record in entries]
        letters = BLOCKS if console.encoding.lower().startswith("utf") else ASCII
        charts, room = [], max(8, min(WIDTH, console.width - MARGIN))
        if len(losses) > 1:
            ends = (str(entries[0]["epoch"]), str(entries[-1]["epoch"]))
            charts.append(chart("loss by epoch", losses, ends, letters, room))
        found = self.norms()
        if found is not None and len(found.layers) > 1:
            ends = (str(found.layers[0]), str(found.layers[-1]))
            title = "reaction of the output, by layer"
            charts.append(chart(title, found.mean.tolist(), ends, letters, room))
        for line in beside(charts, console.width):
            console.print(Text(line, style="cyan"), soft_wrap=True)


def chart(
    title: str,
    values: Sequence[float],
    ends: tuple[str, str],
    letters: str,
    width: int = WIDTH,
) -> list[str]:
    r"""Lines of a chart of positive values, on a logarithmic axis.

    >>> print("\n".join(chart("loss", [1.0, 0.1, 0.01], ("1", "3"), ASCII)))
    loss
       1 |@
         |@
         |@=
         |@@
    0.01 |@@.
          1 3
    """
    logs = [math.log10(v) if 0 < v < math.inf else math.nan for v in values]
    logs = _shrunk(logs, width)
    known = [v for v in logs if not math.isnan(v)]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    span = max(high - low, 1e-9)
    steps = len(letters) - 1
    # The smallest value still has the lowest step, so that it is seen.
    levels = [
        0 if math.isnan(v) else max(1, round((v - low) / span * HEIGHT * steps)) for v in logs
    ]
    marks = [f"{10**high:.3g}", *[""] * (HEIGHT - 2), f"{10**low:.3g}"]
    margin = max(map(len, marks))
    lines = [title]
    for row, mark in enumerate(marks):
        floor = (HEIGHT - 1 - row) * steps
        bars = "".join(letters[min(max(level - floor, 0), steps)] for level in levels)
        lines.append(f"{mark:>{margin}} |{bars}".rstrip())
    first, last = ends
    gap = max(1, len(levels) - len(first) - len(last))
    return [*lines, " " * (margin + 2) + first + " " * gap + last]


def _shrunk(values: list[float], width: int) -> list[float]:
    """At most so many values: the means of stretches of equal length."""
    if len(values) <= width:
        return values
    parts = np.array_split(np.array(values), width)
    known = [part[~np.isnan(part)] for part in parts]
    return [float(part.mean()) if len(part) else math.nan for part in known]


def beside(charts: Sequence[list[str]], width: int) -> list[str]:
    """Lines of charts next to each other, or below each other where they are too wide."""
    if not charts:
        return []
    wide = [max(map(len, lines)) + 4 for lines in charts]
    if sum(wide) > width or len(charts) == 1:
        return [line for lines in charts for line in lines]
    rows = zip(*charts, strict=True)
    return [
        "".join(f"{cell:<{w}}" for cell, w in zip(row, wide, strict=True)).rstrip() for row in rows
    ]
