"""The animations of the README and the site: ``python docs/animation.py``.

Trains H1 and a ResNet of 64 layers on the Swiss roll, and writes the data on their way through
both, light and dark, to docs/images.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.animation import FuncAnimation, PillowWriter

from hdnn import plots
from hdnn.config import Config
from hdnn.training.runs import prepare
from hdnn.training.trainer import Trainer

FOLDER = Path(__file__).parent / "images"
NAMES = {"H1": "Hamiltonian network (H1)", "ResNet": "ResNet"}
RATE = 12  # images a second: fast enough to see motion, and few enough for a small file
MOMENTS = np.r_[np.zeros(7), np.linspace(0, 1, 36), np.ones(17)]  # held, moving, held


def flows() -> tuple[dict[str, plots.Flow], np.ndarray]:
    """The test data through every network, by its title, and their classes."""
    shown = {}
    for architecture, title in NAMES.items():
        network = {"architecture": architecture, "layers": 64}
        config, data, model = prepare(Config(data={}, model=network))
        Trainer(model, config.training).fit(data)
        right = float((model.predict(data.X_test) == data.y_test).double().mean())
        shown[f"{title}, {100 * right:.1f} % correct"] = plots.flow(model, data.X_test[::6])
    return shown, data.y_test[::6].numpy()


def between(flow: plots.Flow, moment: float) -> plots.Flow:
    """A flow of one frame: the points at a moment, from 0 to 1, between two layers."""
    place = moment * (len(flow.depths) - 1)
    first, second = int(np.floor(place)), int(np.ceil(place))
    points = flow.points[first] + (place - first) * (flow.points[second] - flow.points[first])
    return replace(flow, depths=(flow.depths[round(place)],), points=points[None])


def write(name: str, theme: plots.Theme, shown: dict[str, plots.Flow], labels: np.ndarray) -> None:
    """Write an animation."""
    figure = plots.new_figure(3.2 * len(shown), 3.7, theme)
    axes = figure.subplots(1, len(shown))

    def draw(moment: float) -> None:
        for axis, (title, flow) in zip(axes, shown.items(), strict=True):
            axis.clear()
            now = between(flow, moment)
            plots.layer_states(axis, now, labels, 0, 5.0, box=flow.box())
            axis.set_title(f"{title}\nlayer {now.depths[0]} of {flow.last}", loc="left", size=10)

    animation = FuncAnimation(figure, draw, frames=MOMENTS)
    animation.save(FOLDER / name, PillowWriter(RATE))


if __name__ == "__main__":
    shown, labels = flows()
    write("flow.gif", plots.LIGHT, shown, labels)
    write("flow-dark.gif", plots.DARK, shown, labels)
