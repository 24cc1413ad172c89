"""The data flowing through depth, as a GIF."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hdnn.errors import HdnnError
from hdnn.files import atomic
from hdnn.plots import LIGHT, Flow, Theme, check_figure_path, new_figure
from hdnn.plots.planar import layer_states
from hdnn.plots.style import NORMAL
from hdnn.reports import words
from hdnn.reports.build import Material
from hdnn.reports.sections import accuracy
from hdnn.reports.slider import Slider, slider

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("gif",)
RATE = 12
"""Images a second: fast enough to see motion, and few enough for a small file."""
HELD = (0.6, 1.4)
"""Seconds that the first and the last layer are shown."""
COLORS = 48
"""Of a GIF: two or three shades of every color that is drawn."""


def check_animation(path: str | os.PathLike[str]) -> None:
    """Raise `HdnnError` for a name or a folder that an animation cannot have."""
    check_figure_path(path, FORMATS, "animation")


def animate(
    material: Material, path: str | os.PathLike[str], seconds: float = 5.0, theme: Theme = LIGHT
) -> int:
    """Write an animation of what was collected; returns its size in bytes.

    Args:
        material: of a finished run.
        path: ends in .gif.
        seconds: with the time for which the first and the last layer are held.
        theme: light or dark.

    Raises:
        HdnnError: the run is not finished, or the name is not allowed.
    """
    check_animation(path)
    if material.model is None:
        raise HdnnError(material.notices[0])
    if not material.model.networks:
        raise HdnnError("the model has no Hamiltonian layers to animate")
    shown = slider(material.models, material.X, material.y, regions=False)
    shares = (accuracy(m, material.X, material.y) for m in material.models.values())
    scores = [words.correct(share) for share in shares]
    images = _images(shown, scores, seconds, theme)
    with atomic(path) as temporary:
        _write_gif(images, temporary)
    return Path(path).stat().st_size


def moments(frames: int, seconds: float) -> np.ndarray:
    """Where between frame 0 and the last every image is: held, moving evenly, held."""
    first, last = (round(part * RATE) for part in HELD)
    moving = max(2, round(seconds * RATE) - first - last)
    way = np.linspace(0, frames - 1, moving)
    return np.concatenate([np.zeros(first), way, np.full(last, frames - 1.0)])


def _images(
    shown: Slider, scores: Sequence[str], seconds: float, theme: Theme
) -> Iterator[np.ndarray]:
    """RGB images ``(H, W, 3)``."""
    for moment in moments(len(shown.flows[0].depths), seconds):
        figure = _frame(shown, scores, float(moment), theme)
        figure.canvas.draw()
        yield np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()  # type: ignore[attr-defined]


def _frame(shown: Slider, scores: Sequence[str], moment: float, theme: Theme) -> Figure:
    """All flows side by side at a moment between two frames; scores are told at the end."""
    count = len(shown.flows)
    figure = new_figure(3.2 * count, 3.7, theme)
    figure.set_layout_engine("none")
    colors = None if shown.colors is None else replace(theme, classes=tuple(shown.colors))
    share = 1 / count
    for number, (name, moving) in enumerate(zip(shown.titles, shown.flows, strict=True)):
        axis = figure.add_axes((share * number + 0.02 * share, 0.015, 0.96 * share, 0.83))
        layer_states(axis, between(moving, moment), shown.numbers, 0, 5.0, colors, moving.box())
        depth = moving.depths[round(moment)]
        place, color = f"layer {depth} of {moving.last}", theme.muted
        if depth == moving.depths[-1] and scores[number]:
            place, color = f"{place}: {scores[number]}", theme.ink
        look: dict[str, Any] = {"transform": axis.transAxes, "va": "bottom"}
        axis.text(0, 1.09, name, fontsize=NORMAL + 1.5, color=theme.ink, **look)
        axis.text(0, 1.015, place, fontsize=NORMAL, color=color, **look)
    return figure


def between(moving: Flow, moment: float) -> Flow:
    """A flow of one frame: the points at a moment that need not be a whole frame."""
    first = min(int(moment), len(moving.depths) - 1)
    second = min(first + 1, len(moving.depths) - 1)
    share = moment - first
    points = (1 - share) * moving.points[first] + share * moving.points[second]
    return replace(moving, depths=(moving.depths[round(moment)],), points=points[None])


def _write_gif(images: Iterator[np.ndarray], path: Path) -> None:
    """One palette for all images, so that only what moves is stored."""
    from PIL import Image

    stills = [Image.fromarray(image) for image in images]
    sheet = np.concatenate([np.asarray(stills[k]) for k in (0, len(stills) // 2, -1)])
    palette = Image.fromarray(sheet).quantize(COLORS, dither=Image.Dither.NONE)
    _keep_exact(palette, sheet[0, 0])
    frames = [still.quantize(palette=palette, dither=Image.Dither.NONE) for still in stills]
    duration = round(1000 / RATE)
    frames[0].save(
        path,
        format="gif",
        save_all=True,
        append_images=frames[1:],
        duration=duration,
        loop=0,
        optimize=True,
    )


def _keep_exact(image: Any, color: np.ndarray) -> None:
    """Put a color, such as the background's, into a palette in place of those very near to it."""
    entries = np.array(image.getpalette()).reshape(-1, 3)
    entries[np.abs(entries - color.astype(int)).max(1) < 8] = color
    image.putpalette(entries.ravel().tolist())
