"""The page and the figure of `hdnn demo`: robots, tanks, and the paper's Swiss roll."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from torch import Tensor

from hdnn import plots, robots
from hdnn.data.recordings import Array, Recordings
from hdnn.identification import Identification
from hdnn.identification.simulation import simulate
from hdnn.models import Model
from hdnn.plots.regions import draw_flows
from hdnn.plots.robots import distances, ways
from hdnn.plots.style import LARGE, NORMAL, inline_svg
from hdnn.progress import track
from hdnn.reports import sections
from hdnn.reports.page import Report, ReportInputs, fill

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HALF = 10.0
"""Half the side of the square in which robots are shown, in m: whoever leaves it has left."""
EVERY = 4
"""Steps between two moments of the animation."""
SECONDS, TAIL = 16.0, 12
"""How long it takes, and the moments of a trail."""
TITLE = "What training cannot break"


@dataclass(frozen=True, eq=False)
class DemoInputs:
    """What the demo computed.

    Args:
        drives: of the robots, by controller.
        limit: of the gain, below which a loop with the robots is proved to be stable.
        tanks: the identified system.
        recordings: its test part.
        models: two trained networks, by name; the first is Hamiltonian.
        X, y: points that they classify, and their classes.
        title, sentence: about these networks.
        command: that makes the page.
    """

    drives: Mapping[str, robots.Drive]
    limit: float
    tanks: Identification
    recordings: Recordings
    models: Mapping[str, Model]
    X: Tensor
    y: Tensor
    title: str
    sentence: str
    command: str


def robots_table(drives: Mapping[str, robots.Drive], limit: float) -> tuple[list[str], list[Any]]:
    """Header and rows of texts: costs, distances, and what is proved."""
    header = ["controller", "cost at T", "cost at 10 T", "farthest at 10 T", "stability"]
    rows = [
        [
            name,
            f"{drive.short_cost:,.0f}",
            f"{drive.long_cost:,.0f}",
            f"{drive.distances[-1]:.2g} m",
            "proved" if is_proved(drive, limit) else "no guarantee",
        ]
        for name, drive in drives.items()
    ]
    return header, rows


def is_proved(drive: robots.Drive, limit: float) -> bool:
    """Whether the loop is stable for all weights of the controller."""
    return drive.gain is not None and drive.gain < limit


def tanks_table(result: Identification) -> tuple[list[str], list[Any]]:
    """Header and rows of texts: fits on the test part, and what is proved."""
    fits = result.fits["test"]
    header = ["model", "fit", f"RMSE of {result.output_names[0]}", "cannot diverge"]
    names = {"network": "network", "linear": "linear model", "mean": "mean of the outputs"}
    proofs = {"network": "proved", "linear": "proved", "mean": ""}
    rows = [
        [names[key], fits[key].percent, f"{fits[key].rmse[0]:.3f}", proofs[key]] for key in names
    ]
    return header, rows


# --- the page -------------------------------------------------------------------------------------


def demo_page(inputs: DemoInputs) -> Report:
    """The page, self-contained.

    Args:
        inputs: what it shows.

    Returns:
        The page; `Report.save` writes it.
    """
    first, second = inputs.models.values()
    shown = ReportInputs("the Swiss roll", first, inputs.X, inputs.y, beside=second)
    parts = track(("flow", "gradients"), "making the page, sections")
    content = {name: getattr(sections, name)(shown) for name in parts}
    return fill(
        "demo.html.j2",
        title=TITLE,
        sentence="Three networks that are dynamical systems. What is proved of them holds for all "
        "weights: before training, after it, and whatever the data were.",
        lead=(inputs.title, inputs.sentence),
        robots=_robots(inputs),
        tanks=_tanks(inputs),
        results=None,
        order=[*content],
        command=inputs.command,
        **content,
    )


def _robots(inputs: DemoInputs) -> dict[str, Any]:
    drives, (columns, rows) = inputs.drives, robots_table(inputs.drives, inputs.limit)
    one, other = drives.values()
    near, far = (f"{drive.distances[-1]:.2g} m" for drive in (one, other))
    less = 100 * (1 - one.short_cost / other.short_cost)
    change = f"that of the first is {abs(less):.0f} % {'lower' if less > 0 else 'higher'}"
    T, end = (f"{robots.STEP * steps:g}" for steps in (robots.HORIZON, robots.LONG))
    scene = {
        "robots": robots.ROBOTS,
        "half": HALF,
        "trained": robots.STEP * robots.HORIZON,
        "step": robots.STEP * EVERY,
        "frames": robots.LONG // EVERY + 1,
        "seconds": SECONDS,
        "tail": TAIL,
        "targets": _floats(robots.starts_and_targets()[1][:, 2:].numpy()),
        "paths": [_floats(drive.positions[::EVERY]) for drive in drives.values()],
    }
    return {
        "title": f"Twelve robots swap sides: trained for {T} seconds, run for {end}",
        "sentence": f"Two controllers learned this in simulations of {T} s at about the same cost "
        f"({change}); run for {end} s, the state-space controller, whose loop is proved to be "
        f"stable for all weights, keeps every robot at its target ({near} away), and the MLP lets "
        f"them leave again ({far}).",
        "columns": columns,
        "rows": rows,
        "frames": scene["frames"],
        "data": Markup(json.dumps(scene, allow_nan=False)),
        "still": _chart("ways of the robots", 6.4, 3.4, lambda figure: _draw_ways(figure, drives)),
        "chart": sections.chart(
            "largest distance from a target, over time", lambda axis: _draw_far(axis, drives)
        ),
        "caption": f"The bound of its gain, {one.gain:g}, is below the limit of these robots, "
        f"{inputs.limit:.2f}: so the loop is stable. Stability says where robots end, not which "
        f"way they take, and it is proved for this plant only. T is {T} s; the cost is that of "
        "distances, forces and near collisions. The weights are those of one training (seed 0).",
    }


def _tanks(inputs: DemoInputs) -> dict[str, Any]:
    result, (columns, rows) = inputs.tanks, tanks_table(inputs.tanks)
    fits, name = result.fits["test"], result.output_names[0]
    return {
        "title": "Two tanks: a model from a recording",
        "sentence": f"Identified in {result.seconds:.0f} s from one recording of a pump and a "
        f"water level, the network simulates another with a fit of {fits['network'].percent} "
        f"(linear model: {fits['linear'].percent}), and it cannot diverge for any bounded input: "
        "proved, for all weights.",
        "columns": columns,
        "rows": rows,
        "chart": sections.chart(
            f"{name}: measured, linear model, network",
            lambda axis: plots.signals(axis, *_signals(inputs)),
        ),
        "label": f"{name} on the test part, measured and simulated, over time in s",
        "caption": "A wrong initial state is forgotten whatever the input, which is proved, too: "
        f"in the end it shrinks by e every {result.time_constant:.0f} s. The network has "
        f"{result.states} states and {result.units} units. The tanks are simulated, with noise and "
        f"overflow; the first {inputs.recordings.skip[0]} outputs tell the initial state.",
    }


def _floats(array: Array) -> str:
    return base64.b64encode(np.ascontiguousarray(array, dtype="<f4").tobytes()).decode("ascii")


def _chart(label: str, width: float, height: float, draw: Any) -> Markup:
    figure = plots.new_figure(width, height)
    draw(figure)
    return Markup(inline_svg(figure, label))


def _signals(inputs: DemoInputs) -> tuple[Array, dict[str, Array]]:
    """Time, and the first output of the test part: measured, and by both models."""
    recordings, result = inputs.recordings, inputs.tanks
    skip, (y, *_) = recordings.skip[0], recordings.outputs
    time: Array = result.sampling_time * np.arange(skip, len(y), dtype=float)
    both = {"linear model": result.linear, "network": result.model}
    lines = {name: simulate(model, recordings)[0] for name, model in both.items()}
    return time, {name: each[skip:, 0] for name, each in {"measured": y, **lines}.items()}


# --- the figure -----------------------------------------------------------------------------------


def demo_figure(inputs: DemoInputs) -> Figure:
    """Robots, tanks and the Swiss roll below each other.

    Args:
        inputs: what it shows.

    Returns:
        The figure; `hdnn.plots.save_figure` writes it.
    """
    figure = plots.new_figure(11.6, 12.4)
    rows: Any = figure.subfigures(3, 1, height_ratios=[3.6, 2.8, 5.2], hspace=0.04)
    top, middle, bottom = rows
    theme, (drives, result) = plots.LIGHT, (inputs.drives, inputs.tanks)
    left, right = top.subfigures(1, 2, width_ratios=[2, 1.3])
    _draw_ways(left, drives)
    axis = _draw_far(right.subplots(), drives)
    axis.set_title("largest distance from a target in m", fontsize=NORMAL, loc="left")
    axis = plots.signals(middle.subplots(), *_signals(inputs))
    axis.set(xlabel="time in s", ylabel=result.output_names[0])
    draw_flows(bottom, inputs.models, inputs.X, inputs.y)
    fits = result.fits["test"]
    titles = {
        top: "Twelve robots swap sides: trained for 5 s (strong lines), run for 50 s",
        middle: f"Two tanks, identified from a recording: fit {fits['network'].percent} on "
        f"another, linear model {fits['linear'].percent}; cannot diverge: proved",
        bottom: inputs.title,
    }
    for place, text in titles.items():
        place.suptitle(text, fontsize=LARGE, color=theme.ink, x=0.01, ha="left")
    return figure


def _draw_ways(figure: Any, drives: Mapping[str, robots.Drive]) -> None:
    targets = robots.starts_and_targets()[1][:, 2:]
    notes = {"state space": "stable for all weights", "MLP": "no guarantee"}
    for axis, (name, drive) in zip(figure.subplots(1, len(drives)), drives.items(), strict=True):
        ways(axis, drive.positions, targets, robots.HORIZON, HALF)
        axis.set_title(f"{name}: {notes[name]}", fontsize=NORMAL, loc="left")


def _draw_far(axis: Axes, drives: Mapping[str, robots.Drive]) -> Axes:
    time = robots.STEP * np.arange(robots.LONG + 1)
    lines = {name: drive.distances for name, drive in drives.items()}
    return distances(axis, time, lines, robots.STEP * robots.HORIZON)
