"""Figure 1: decision regions of H1 on the Swiss roll and the double moons."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hdnn.data import split
from hdnn.paper.table1 import cells, trained_model
from hdnn.plots import decision_regions, new_figure
from hdnn.plots.style import NORMAL

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = (("swiss-roll", 64), ("double-moons", 4))
"""Data and depth."""
DRAWN = 800
"""Test points that are drawn."""


def figure1(protocol: str = "tuned", kind: str = "paper", seed: int = 1000) -> Figure:
    """Train the two networks of Table 1 for a seed, and draw their regions and test data.

    Args:
        protocol: as in Table 1.
        kind: of split, "paper" or "independent".
        seed: of data, weights and batches.

    Returns:
        (a) the Swiss roll with 64 layers, (b) the double moons with 4.
    """
    figure = new_figure(7.2, 3.6)
    for axis, letter, (data, layers) in zip(
        figure.subplots(1, len(PANELS)), "ab", PANELS, strict=True
    ):
        (cell,) = cells(protocol, kind, data=[data], architecture=["H1"], layers=[layers])
        model, accuracy = trained_model(cell, seed)
        part = split(data, kind, seed=seed)
        decision_regions(axis, model, part.X_test[:DRAWN].to(torch.float32), part.y_test[:DRAWN])
        name = data.replace("-", " ").capitalize()
        title = f"({letter}) {name}, H1, {layers} layers: {100 * accuracy:.1f} %"
        axis.set_title(title, fontsize=NORMAL)
    return figure
