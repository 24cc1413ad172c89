"""The tables and figures of docs/why-not-a-resnet.md and results/structure/README.md.

Run by ``python benchmarks/structure.py --figures``. Tables stand between marks on the pages.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import structure
from pages import fill, finish

from hdnn.paper.summaries import markdown
from hdnn.plots import LIGHT, label_ends, new_figure, save_figure
from hdnn.plots.style import SMALL

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = (DOCS / "why-not-a-resnet.md", ROOT / "results" / "structure" / "README.md")
ORDER = ["ResNet", "H1", "H2", "MS1", "MS2", "MS3", "HS"]
"""The networks with a step; FCNN stands beside them where it can."""
GUARANTEES = {
    "ResNet": ("none", "no"),
    "FCNN": ("none", "no"),
    "H1": (r"$\det M \ge 1$, so norm $\ge 1$", "no"),
    "H2": (r"$\det M \ge 1$, so norm $\ge 1$", "no"),
    "MS1": (r"$\det M = 1$, so norm $\ge 1$", "yes"),
    "MS2": (r"$\det M \ge 1$, so norm $\ge 1$", "no"),
    "MS3": (r"$M J M^\top = J$, so norm $\ge 1$", "yes"),
    "HS": (r"$M J M^\top = J$, so norm $\ge 1$", "yes"),
}
"""What holds for all weights, steps and depths, and whether the network can be inverted exactly."""
DEPTHS = (4, 16, 64)
"""Where all networks were trained; of 256 layers there are fewer."""
NEAR = 0.01
"""A setting is good if its accuracy is within this of the best of all networks."""
SOLVED = 0.99


# --- from records to frames -----------------------------------------------------------------------


def read(part: str) -> pd.DataFrame:
    """The records of a part; where there are accuracies of seeds, their mean and spread in %."""
    frame = structure.load(part)
    if "accuracy" in frame:
        frame["mean"] = 100 * frame.accuracy.map(np.mean)
        frame["std"] = 100 * frame.accuracy.map(np.std)
        frame["solved"] = frame.accuracy.map(lambda a: int((np.array(a) >= SOLVED).sum()))
    return frame


def place(values: pd.Series, k: int) -> pd.Series:
    """One of minimum, median and maximum (0, 1, 2) of what was measured for all seeds."""
    return values.map(lambda v: v[k] if isinstance(v, list) else np.nan)


@functools.cache
def planar() -> pd.DataFrame:
    """A row for every network, depth, initialization and problem."""
    frame = read("planar")
    frame["failed"] = frame.accuracy.map(lambda a: int((np.array(a) < structure.FAILED).sum()))
    frame["lost_4T"] = frame["mean"] - 100 * frame.accuracy_4T.map(np.mean, na_action="ignore")
    frame["tried"] = frame.tried.map(lambda tried: np.array(tried["accuracy"]))
    frame["validated"] = frame.tried.map(np.max)
    best = frame.groupby(["data", "layers", "weights", "init"]).validated.transform("max")
    frame["good_settings"] = [a >= b - NEAR for a, b in zip(frame.tried, best, strict=True)]
    frame["good"] = 100 * frame.good_settings.map(np.mean)
    return frame


def by_time(values: pd.Series) -> np.ndarray:
    """``(records, times, learning rates)``: what was measured for every setting; not for FCNN."""
    return np.stack(values).reshape(-1, len(structure.TIMES), len(structure.RATES))


def chosen_init(frame: pd.DataFrame) -> pd.DataFrame:
    """Of both initializations the one that is better on validation data, for every network."""
    return frame.loc[frame.groupby(["data", "layers", "weights", "network"]).validated.idxmax()]


def untrained(measure: str, k: int, weights: str) -> pd.Series:
    """A measure of untrained networks of 256 layers with T = 50, by network."""
    frame = read("random").query("weights == @weights and T == 50").set_index("network")
    return place(frame[measure], k)


@functools.cache
def least_norm() -> pd.Series:
    """The smallest norm of any sample, layer, seed and record, by network."""
    random = read("random")
    parts = [random.assign(least=place(random.least, 0))]
    for when in ("start", "end"):
        parts.append(planar().assign(least=planar()[when].map(lambda d: d["least"][0])))
    return pd.concat(parts).groupby("network").least.min()


# --- tables ---------------------------------------------------------------------------------------


def short(value: float) -> str:
    """A number with two digits: 0.94, 12, 4e+07."""
    if np.isnan(value):
        return "-"
    return f"{value:.0f}" if 10 <= value < 1e4 else f"{value:.2g}"


def row(title: str, values: pd.Series, form: Callable[[float], str] = short) -> list[str]:
    """A row with a number for every network of `ORDER`."""
    return [title, *(form(value) for value in values.reindex(ORDER))]


def accuracy_table() -> str:
    """Mean and spread of the test accuracy of 20 seeds, and how many failed."""
    frame = planar()
    plain = frame[frame.network == "FCNN"].copy()
    plain["network"] = plain.init.map({"normal": "FCNN (paper)", "scaled": "FCNN (scaled)"})
    frame = pd.concat([chosen_init(frame[frame.network != "FCNN"]), plain])
    frame["data"] = pd.Categorical(frame.data, ["swiss-roll", "double-moons"])
    names, rows = [*ORDER, "FCNN (scaled)", "FCNN (paper)"], []
    for key, part in frame.groupby(["data", "weights", "layers"], observed=True):
        best, cells = part["mean"].round(1).max(), dict.fromkeys(names, "-")
        for one in part.itertuples():
            text = f"{one.mean:.1f}"
            text = (f"**{text}**" if round(one.mean, 1) == best else text) + f" ± {one.std:.1f}"
            cells[one.network] = text + (f" ({one.failed})" if one.failed else "")
        rows.append([", ".join(map(str, key)), *cells.values()])
    return markdown(["problem, weights, layers", *names], rows, left=1)


def robustness_table() -> str:
    """Share of good settings, and accuracy lost at 4 T."""
    rows, frame = [], planar().query("layers in @DEPTHS")
    for what, column, form in (
        ("good settings, %", "good", "{:.0f}"),
        ("points lost at 4 T", "lost_4T", "{:.1f}"),
    ):
        for (weights, layers), part in frame.groupby(["weights", "layers"]):
            values = part.groupby("network")[column].mean()
            rows.append(row(f"{what}: {weights}, {layers} layers", values, form.format))
    seconds = frame.query("weights == 'free' and layers == 64").groupby("network").seconds
    rows.append(row("seconds of a training: free, 64 layers", seconds.median(), "{:.3f}".format))
    return markdown(["", *ORDER], rows, left=1)


def long_table() -> str:
    """Shared weights: trainings that reach 99 %, and the mean accuracy, by T."""
    rows = []
    for (init, T), part in read("long").groupby(["init", "T"], sort=False):
        own = part.set_index("network").loc[ORDER[:-1]]
        cells = [f"{one.solved} ({one.mean:.1f})" for one in own.itertuples()]
        rows.append([f"{init}, T = {T:g}", *cells])
    return markdown(["initial, T", *ORDER[:-1]], rows, left=1)


def guarantees_table() -> str:
    """What each network guarantees, and what was measured."""
    deep = planar().query("weights == 'free' and layers in (16, 64)")
    roll = chosen_init(deep[deep.data == "swiss-roll"]).groupby("network")["mean"].mean()
    means = deep.groupby("network")[["good", "lost_4T"]].mean()
    largest = untrained("largest", 1, "free")
    rows = []
    for name, texts in GUARANTEES.items():
        cells = [short(least_norm()[name]), short(largest[name]), f"{roll[name]:.1f}"]
        lost = "-" if name == "FCNN" else f"{means.lost_4T[name]:.1f}"
        rows.append([name, *texts, *cells, f"{means.good[name]:.0f}", lost])
    heads = ["network", "for all weights and steps", "exact inverse", "least norm seen"]
    heads += ["largest norm, T = 50", "accuracy, %", "good settings, %", "lost at 4 T, points"]
    return markdown(heads, rows, left=3)


def measures_table() -> str:
    """What else the answers rest on: other starts and protocols, long times, untrained networks."""
    rows = []
    for part, column, title in (
        ("protocol", "data", "settings of 35 that reach 99 %, paper's protocol, {}"),
        ("starts", "init", "settings of 35 that reach 99 %, {} times the paper's weights"),
    ):
        frame = read(part)
        frame["solved"] = [sum(a >= SOLVED for a in t["accuracy"]) for t in frame.tried]
        for key, own in frame.groupby(column, sort=False):
            rows.append(row(title.format(key), own.set_index("network").solved))
    solved = read("long").groupby(["T", "network"]).solved.sum()
    for T in (2.0, 20.0, 50.0):
        title = f"trainings of 120 that reach 99 %, shared weights, double moons, T = {T:g}"
        rows.append(row(title, solved[T]))
    for weights in ("free", "shared"):
        own = planar().query("weights == @weights and layers == 64 and data == 'swiss-roll'")
        own = own[own.network != "FCNN"]
        best = pd.Series(100 * by_time(own.tried)[:, -1].max(-1), own.network)
        at_50 = best.groupby(level=0).max()
        title = f"validation accuracy at T = 50, best learning rate, {weights}, %"
        rows.append(row(title, at_50, "{:.1f}".format))
    for measure, k, title in (
        ("largest", 1, "largest norm"),
        ("smallest", 0, "smallest singular value"),
    ):
        for weights in ("free", "shared"):
            rows.append(row(f"{title}, untrained, {weights}", untrained(measure, k, weights)))
    drift = np.exp(untrained("energy_drift", 1, "shared"))
    form = lambda value: "-" if np.isnan(value) else f"{value:.2f}"  # noqa: E731
    rows.append(row("largest change of H by a factor, untrained, shared", drift, form))
    return markdown(["", *ORDER], rows, left=1)


def tables_table() -> str:
    """Tables: mean accuracy of 10 seeds, and the mean rank over tables."""
    names, frame = list(structure.MODELS), read("tables")
    frame["default"] = 100 * frame.accuracy_defaults.map(np.mean)
    tuned, default = (
        frame.pivot(index="data", columns="network", values=column)[names]
        for column in ("mean", "default")
    )
    rows = [[name, *(f"{v:.1f}" for v in tuned.loc[name])] for name in structure.TABLES]
    for what, values in (("chosen settings", tuned), ("default settings", default)):
        ranks = values.round(2).rank(axis=1, ascending=False).mean()
        rows.append([f"mean, {what}", *(f"{v:.2f}" for v in values.mean())])
        rows.append([f"mean rank, {what}", *(f"{v:.2f}" for v in ranks)])
        # The same rows train and test all networks, so that tables are compared in pairs.
        gain = values.sub(values["ResNet"], axis=0)[names[1:]]
        pairs = zip(gain.mean(), gain.sem(), strict=True)
        cells = ["-", *(f"{mean:+.1f} ± {error:.1f}" for mean, error in pairs)]
        rows.append([f"over ResNet (standard error), {what}", *cells])
    return markdown(["data", *names], rows, left=1)


# --- figures --------------------------------------------------------------------------------------

LOWEST = 1e-12
"""Smaller singular values are drawn to here."""
COLORS = {"ResNet": 1, "H1": 0, "MS1": 2, "MS3": 3, "H2": 5, "MS2": 4, "FCNN": 6}


def over_time() -> Any:
    """Against T: good learning rates, trainings with shared weights; good settings by depth."""
    figure = new_figure(10.0, 3.2)
    axes, long = figure.subplots(1, 3, sharey=True), read("long")
    long["share"] = 100 * long.solved / long.accuracy.map(np.size)
    for name in ("ResNet", "H1", "MS1", "MS2", "MS3"):
        own = planar().query("network == @name and weights == 'free' and layers in @DEPTHS")
        deep = own[own.layers == 64]
        curves = (
            pd.Series(100 * by_time(deep.good_settings).mean((0, 2)), structure.TIMES),
            long[long.network == name].groupby("T").share.mean(),
            own.groupby("layers").good.mean(),
        )
        color = LIGHT.color(COLORS[name])
        for axis, curve in zip(axes, curves, strict=True):
            axis.plot(curve.index, curve, "o-", ms=3, linewidth=1.6, color=color, label=name)
    for axis, title, label, places in zip(
        axes,
        ("free weights: good learning rates", "shared: trainings at 99 %", "free: good settings"),
        ("T (64 layers)", "T (64 layers)", "layers"),
        (structure.TIMES, structure.LONG_TIMES, DEPTHS),
        strict=True,
    ):
        axis.set_xscale("log")
        axis.set_xticks(places, [f"{place:g}" for place in places])
        axis.minorticks_off()
        finish(axis, title, label)
    axes[0].set(ylabel="%", ylim=(0, 103))
    for axis in axes:
        label_ends(axis)
    return figure


def norms() -> Any:
    """Ranges of singular values of d y_N / d y_l: untrained and trained."""
    figure, random = new_figure(10.0, 3.2), read("random").query("T == 50")
    trained = planar().query(
        "data == 'swiss-roll' and layers == 64 and init == 'normal' and weights == 'free'"
    )
    ends = pd.DataFrame(list(trained.end)).assign(network=trained.network.to_numpy())
    panels = {
        "untrained, 256 layers, T = 50, free": random[random.weights == "free"],
        "untrained, 256 layers, T = 50, shared": random[random.weights == "shared"],
        "trained, 64 layers, T chosen, free": ends,
    }
    names = [*ORDER[:-1], "FCNN"]
    for axis, (title, frame) in zip(
        figure.subplots(1, 3, sharey=True), panels.items(), strict=True
    ):
        axis.axhline(1, color=LIGHT.muted, lw=0.8)
        for x, one in enumerate(frame.set_index("network").loc[names].itertuples()):
            color = LIGHT.color(COLORS[one.Index])
            low, middle, high = np.maximum((one.smallest[0], one.least[0], one.largest[2]), LOWEST)
            axis.plot([x, x], [low, high], color=color, lw=1.5, alpha=0.6)
            axis.plot([x, x], [middle, high], color=color, lw=5, solid_capstyle="butt")
        axis.set_yscale("log")
        axis.set_ylim(LOWEST, 1e10)
        finish(axis, title)
        axis.set_xticks(range(len(names)), names, fontsize=SMALL - 1)
    figure.axes[0].set_ylabel("singular values of d y_N / d y_l", fontsize=SMALL)
    return figure


# --- the pages ------------------------------------------------------------------------------------

TABLES: dict[str, Callable[[], str]] = {
    "guarantees": guarantees_table,
    "accuracy": accuracy_table,
    "robustness": robustness_table,
    "measures": measures_table,
    "long": long_table,
    "tables": tables_table,
}


def filled(text: str) -> str:
    """A page with each of its tables written between its marks."""
    return fill(text, {name: table() for name, table in TABLES.items()})


def write() -> None:
    """Fill the tables of the pages and draw the figures."""
    for page in PAGES:
        page.write_text(filled(page.read_text()))
    save_figure(over_time(), DOCS / "figures" / "structure-T.svg")
    save_figure(norms(), DOCS / "figures" / "structure-norms.svg")
