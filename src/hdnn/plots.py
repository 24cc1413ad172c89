"""Figures. Matplotlib is loaded when one is drawn (extra `plots`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hdnn.errors import HdnnError
from hdnn.files import atomic
from hdnn.network import HamiltonianNetwork

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLASS_COLOURS = ("#c1440e", "#1f5a99", "#3a7d44", "#8a5fa8", "#b08a1e")


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise HdnnError("figures need matplotlib: pip install 'hdnn[plots]'") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure, atomically; the ending of the path chooses the format."""
    with atomic(path) as temporary:
        figure.savefig(temporary, format=Path(path).suffix.lstrip(".") or "png", dpi=120)


@torch.no_grad()
def propagation(
    networks: Mapping[str, HamiltonianNetwork],
    states: Tensor,
    labels: Tensor,
    shown: int = 4,
) -> Figure:
    """The data on their way through the layers: a row for every network, a column for a depth.

    Args:
        networks: by title.
        states: ``(samples, n)``, the augmented data.
        labels: ``(samples,)``.
        shown: how many depths.
    """
    figure = _figure(1.6 * shown, 1.55 * len(networks))
    axes = figure.subplots(len(networks), shown, squeeze=False)
    colours = [CLASS_COLOURS[int(label) % len(CLASS_COLOURS)] for label in labels]
    for place, (title, net) in enumerate(networks.items()):
        row = axes[place]
        trajectory = net.trajectory(states)
        for column, axis in enumerate(row):
            layer = round(column * net.layers / (shown - 1))
            points = trajectory[layer][:, :2].cpu().numpy()
            axis.scatter(points[:, 0], points[:, 1], s=2.0, c=colours, linewidths=0)
            axis.set_xticks([])
            axis.set_yticks([])
            axis.margins(0.08)
            if place == 0:
                axis.set_title(f"layer {layer}", fontsize=8)
        row[0].set_ylabel(title, fontsize=10)
    return figure
