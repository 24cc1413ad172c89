"""The same robots twice, trained for five seconds, shown for thirty: ``robots_animation.py``.

Trains the state-space controller and the MLP of `robots.py` with seed 0, in about ten seconds, and
writes what their robots do, light and dark, to docs/images.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import robots
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from PIL import Image

from hdnn import plots

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "images"
TITLES = {"state space": "State space: stable for all weights", "MLP": "MLP: no guarantee"}
STEPS = 600  # thirty seconds
MOMENTS = range(0, STEPS + 1, 6)
PAUSE, LAST = 80, 2000  # milliseconds for an image: three times as fast as the robots
TRAIL = 16  # steps
SHADES = 4  # of every color, on the way to that of the paper: few, for a small file

Paths = npt.NDArray[np.float64]


@torch.no_grad()
def positions(controller: torch.nn.Module) -> Paths:
    """Of every robot, ``(601, 12, 2)``."""
    states, _ = robots.simulate(controller, STEPS)
    found: Paths = (states[:, 0, :, 2:] + robots.starts_and_targets()[1][:, 2:]).numpy()
    return found


def write(name: str, theme: plots.Theme, paths: dict[str, Paths]) -> None:
    """Write an animation."""
    figure = plots.new_figure(5.6, 3.3, theme)
    canvas = FigureCanvasAgg(figure)
    targets = robots.starts_and_targets()[1][:, 2:].T
    colors = [theme.color(k // 6) for k in range(robots.ROBOTS)]
    ticks = {"xticks": [-5, 0, 5], "yticks": [-5, 0, 5]}
    drawn = []
    for axis, (controller, path) in zip(figure.subplots(1, len(paths)), paths.items(), strict=True):
        plots.clean(axis).set(xlim=(-9, 9), ylim=(-9, 9), aspect="equal", **ticks)
        axis.set_title(TITLES[controller], loc="left", size=9, color=theme.ink)
        axis.scatter(*targets, s=50, facecolors="none", edgecolors=theme.muted, linewidths=0.8)
        dots = axis.scatter(*path[0].T, s=22, c=colors, zorder=3)
        trails = [axis.plot([], [], color=color, linewidth=1.0)[0] for color in colors]
        drawn.append((axis, path, dots, trails))
    images = []
    for moment in MOMENTS:
        beyond = moment > robots.HORIZON
        when = "beyond training" if beyond else "as in training"
        for axis, path, dots, trails in drawn:
            dots.set_offsets(path[moment])
            for trail, robot in zip(trails, path.swapaxes(0, 1), strict=True):
                trail.set_data(*robot[max(0, moment - TRAIL) : moment + 1].T)
            color = theme.color(1) if beyond else theme.ink
            axis.set_xlabel(f"{moment * robots.STEP:.0f} s, {when}", color=color)
        canvas.draw()
        images.append(Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3]))
    inks = np.array([to_rgb(c) for c in (theme.ink, theme.muted, theme.grid, *theme.classes[:2])])
    paper, shades = np.array(to_rgb(theme.paper)), np.linspace(0, 1, SHADES + 1)[:, None, None]
    palette = Image.new("P", (1, 1))
    palette.putpalette((255 * (paper + shades * (inks - paper))).round().astype(np.uint8).tobytes())
    first, *rest = (image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images)
    pauses = [PAUSE] * len(rest) + [LAST]
    first.save(FOLDER / name, save_all=True, append_images=rest, duration=pauses, loop=0)


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    paths = {name: positions(robots.train(name, seed=0)[0]) for name in TITLES}
    write("robots.gif", plots.LIGHT, paths)
    write("robots-dark.gif", plots.DARK, paths)
