"""The tables and figures of docs/why-not-a-resnet.md, made from results/structure.

Run by ``python benchmarks/structure.py --figures``. Tables stand between marks on the page.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import structure

from hdnn.plots import LIGHT, clean, label_ends, new_figure, save_figure
from hdnn.plots.style import NORMAL, SMALL

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "why-not-a-resnet.md"
ORDER = ("ResNet", "H1", "H2", "MS1", "MS2", "MS3", "HS")
"""The networks with a step; FCNN stands beside them where it can."""
GUARANTEES = {
    "ResNet": ("none", "no"),
    "FCNN": ("none", "no"),
    "H1": ("det M ≥ 1, so the norm of M is at least 1", "no"),
    "H2": ("det M ≥ 1, so the norm of M is at least 1", "no"),
    "MS1": ("det M = 1, so the norm of M is at least 1", "yes"),
    "MS2": ("det M ≥ 1, so the norm of M is at least 1", "no"),
    "MS3": ("M J M' = J: singular values in pairs s, 1/s", "yes"),
    "HS": ("M J M' = J: singular values in pairs s, 1/s", "yes"),
}
"""What holds for all weights, steps and depths, and whether the network can be inverted exactly."""
NEAR = 0.01
"""A setting is good if its accuracy is within this of the best of all networks."""


# --- from records to frames -----------------------------------------------------------------------


@functools.cache
def planar() -> pd.DataFrame:
    """A row for every network, depth, initialization and problem."""
    frame = pd.DataFrame(structure.load("planar"))
    place = ["data", "layers", "weights", "init"]
    frame["mean"] = 100 * frame.accuracy.map(np.mean)
    frame["std"] = 100 * frame.accuracy.map(np.std)
    frame["failed"] = frame.accuracy.map(lambda a: int((np.array(a) < structure.FAILED).sum()))
    frame["mean_4T"] = 100 * frame.accuracy_4T.map(
        lambda a: np.mean(a) if isinstance(a, list) else np.nan
    )
    frame["validated"] = frame.tried.map(lambda tried: max(tried["accuracy"]))
    best = frame.groupby(place).validated.transform("max")
    good = [np.array(t["accuracy"]) >= b - NEAR for t, b in zip(frame.tried, best, strict=True)]
    frame["good"] = [100 * share.mean() for share in good]
    frame["good_rates"] = [
        np.nan
        if name == "FCNN"
        else 100
        * share[structure.TIMES.index(T) * len(structure.RATES) :][: len(structure.RATES)].mean()
        for share, name, T in zip(good, frame.network, frame["T"], strict=True)
    ]
    for when in ("start", "end"):
        for measure, place_of in (("largest", 1), ("least", 0), ("smallest", 1)):
            frame[f"{when}_{measure}"] = frame[when].map(lambda d, m=measure, p=place_of: d[m][p])
    return frame


def chosen_init(frame: pd.DataFrame) -> pd.DataFrame:
    """Of both initializations the one that is better on validation data, for every network."""
    place = ["data", "layers", "weights", "network"]
    return frame.loc[frame.groupby(place).validated.idxmax()]


@functools.cache
def random() -> pd.DataFrame:
    """Norms of untrained networks: minimum, median and maximum over the seeds, by name."""
    frame = pd.DataFrame(structure.load("random"))
    for measure in ("largest", "least", "smallest", "energy_drift"):
        for k, name in enumerate(("min", "median", "max")):
            frame[f"{measure}_{name}"] = frame[measure].map(
                lambda v, k=k: v[k] if isinstance(v, list) else np.nan
            )
    return frame


# --- tables ---------------------------------------------------------------------------------------


def markdown(heads: list[str], rows: list[list[str]]) -> str:
    """A table; all columns but the first are aligned to the right."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def short(value: float) -> str:
    """A number with two digits: 0.94, 12, 4e+07."""
    if np.isnan(value):
        return "-"
    return f"{value:.0f}" if 10 <= value < 1e4 else f"{value:.2g}"


def accuracy_table() -> str:
    """Mean test accuracy of 20 seeds, and how many failed."""
    frame = planar()
    plain = frame[frame.network == "FCNN"].copy()
    plain["network"] = plain.init.map({"normal": "FCNN (paper)", "scaled": "FCNN (scaled)"})
    frame = pd.concat([chosen_init(frame[frame.network != "FCNN"]), plain])
    names = [*ORDER, "FCNN (scaled)", "FCNN (paper)"]
    rows = []
    for (data, weights, layers), part in frame.groupby(["data", "weights", "layers"], sort=False):
        own = part.set_index("network")
        best = own["mean"].round(1).max()
        cells = []
        for name in names:
            text = "-"
            if name in own.index:
                mean, failed = own.loc[name, "mean"], own.loc[name, "failed"]
                text = f"**{mean:.1f}**" if round(mean, 1) == best else f"{mean:.1f}"
                text += f" ({failed})" if failed else ""
            cells.append(text)
        rows.append(((data, weights, layers), [f"{data}, {weights}, {layers}", *cells]))
    rows.sort(key=lambda row: (row[0][0] != "swiss-roll", row[0][1], row[0][2]))
    return markdown(["problem, weights, layers", *names], [cells for _, cells in rows])


def robustness_table() -> str:
    """Share of good settings, of good learning rates, and accuracy lost at 4 T."""
    frame = planar()
    depths = sorted(frame.layers.unique())
    places = [(weights, [layers]) for weights in ("free", "shared") for layers in depths]
    whole = [(weights, depths) for weights in ("free", "shared")]
    measures: tuple[tuple[str, Callable[[pd.DataFrame], float], str, Any], ...] = (
        ("good settings, %", lambda f: f.good.mean(), ".0f", places),
        ("good learning rates at the chosen T, %", lambda f: f.good_rates.mean(), ".0f", whole),
        ("points lost at 4 T", lambda f: (f["mean"] - f.mean_4T).mean(), ".1f", places),
    )
    rows = []
    for what, measure, form, wanted in measures:
        for weights, layers in wanted:
            part = frame[(frame.weights == weights) & frame.layers.isin(layers)]
            values = [measure(part[part.network == name]) for name in ORDER]
            depth = f"{layers[0]} layers" if len(layers) == 1 else "all depths"
            rows.append([f"{what}: {weights}, {depth}", *(f"{v:{form}}" for v in values)])
    return markdown(["", *ORDER], rows)


def norms_table() -> str:
    """Norms before and after training: median of largest, minimum of least, median of smallest."""
    frame = planar()
    rows = []
    for weights in ("free", "shared"):
        for name in (*ORDER, "FCNN"):
            part = frame[(frame.network == name) & (frame.weights == weights)]
            part = part[(part.layers == 64) & (part.data == "swiss-roll")]
            for init in structure.INITS:
                own = part[part.init == init]
                if len(own):
                    record = own.iloc[0]
                    cells = [
                        short(record[f"{when}_{measure}"])
                        for when in ("start", "end")
                        for measure in ("largest", "least", "smallest")
                    ]
                    rows.append([f"{name}, {weights}, {init}", *cells])
    heads = [f"{when}: {m}" for when in ("start", "end") for m in ("largest", "least", "smallest")]
    return markdown(["network, weights, initial", *heads], rows)


def least_norm(name: str) -> float:
    """The smallest norm of any sample, layer, seed and record."""
    trained = planar()[planar().network == name]
    parts = [trained[when].map(lambda d: d["least"][0]).min() for when in ("start", "end")]
    return float(min(*parts, random()[random().network == name].least_min.min()))


def guarantees_table() -> str:
    """What each network guarantees, and what was measured."""
    frame = planar()
    rows = []
    for name, (guarantee, inverse) in GUARANTEES.items():
        own = frame[(frame.network == name) & (frame.weights == "free")]
        deep = own[own.layers >= 16]
        roll = chosen_init(deep[deep.data == "swiss-roll"])["mean"].mean()
        wild = random()[
            (random().network == name) & (random()["T"] == 50) & (random().weights == "free")
        ].iloc[0]
        rows.append(
            [
                name,
                guarantee,
                inverse,
                short(least_norm(name)),
                short(wild.largest_median),
                f"{roll:.1f}",
                f"{deep.good.mean():.0f}",
                "-" if name == "FCNN" else f"{(deep['mean'] - deep.mean_4T).mean():.1f}",
            ]
        )
    heads = ["network", "for all weights and steps", "exact inverse", "least norm seen"]
    heads += ["largest norm, T = 50", "accuracy, %", "good settings, %", "lost at 4 T, points"]
    return markdown(heads, rows)


def at_time(name: str, T: float, weights: str, layers: int, data: str = "swiss-roll") -> float:
    """Validation accuracy at T, with the best learning rate and initialization."""
    own = planar().query(
        "network == @name and weights == @weights and layers == @layers and data == @data"
    )
    tried = np.stack([tried["accuracy"] for tried in own.tried])
    by_time = tried.reshape(len(own), len(structure.TIMES), -1)
    return float(100 * by_time[:, structure.TIMES.index(T)].max())


def tables_table() -> str:
    """Tables and digits: mean accuracy of 10 seeds, and the mean rank over tables."""
    frame = pd.DataFrame(structure.load("tables"))
    for column in ("accuracy", "accuracy_defaults"):
        frame[column] = 100 * frame[column].map(np.mean)
    names = list(structure.MODELS)
    chosen = frame.pivot(index="data", columns="network", values="accuracy")[names]
    default = frame.pivot(index="data", columns="network", values="accuracy_defaults")[names]
    rows = [[name, *(f"{v:.1f}" for v in chosen.loc[name])] for name in structure.TABLES]
    for what, values in (("chosen settings", chosen), ("default settings", default)):
        ranks = values.round(2).rank(axis=1, ascending=False).mean()
        rows.append([f"mean, {what}", *(f"{v:.2f}" for v in values.mean())])
        rows.append([f"mean rank, {what}", *(f"{v:.2f}" for v in ranks)])
    digits = {r["network"]: 100 * np.mean(r["accuracy"]) for r in structure.load("digits")}
    rows.append(["digits as images", *(f"{digits[name]:.1f}" for name in names)])
    return markdown(["data", *names], rows)


def memory_table() -> str:
    """Megabytes and seconds of a step by depth."""
    frame = pd.DataFrame(structure.load("memory"))
    depths = sorted(frame.layers.unique())
    words = {"keep": "keeps all states", "checkpoint": "checkpoints", "inverse": "inverts"}
    rows = []
    for (name, how), part in frame.groupby(["network", "how"], sort=False):
        own = part.set_index("layers")
        cells = [f"{own.megabytes[d]:.0f} MB, {own.seconds[d]:.2g} s" for d in depths]
        rows.append([f"{name}, {words[how]}", *cells])
    return markdown(["", *(f"{d} layers" for d in depths)], rows)


# --- figures --------------------------------------------------------------------------------------

COLORS = {"ResNet": 1, "H1": 0, "MS1": 2, "MS3": 3, "H2": 5, "MS2": 4, "HS": 7, "FCNN": 6}


def over_time() -> Any:
    """Validation accuracy at the best learning rate against T, 64 layers, and good settings."""
    figure = new_figure(10.0, 3.2)
    axes = figure.subplots(1, 3, width_ratios=(1, 1, 1))
    for axis, weights in zip(axes, ("free", "shared"), strict=False):
        for name in ("ResNet", "H1", "MS1", "MS3"):
            part = planar().query(
                "data == 'swiss-roll' and layers == 64 and weights == @weights and network == @name"
            )
            tried = np.stack([t["accuracy"] for t in part.tried]).max(0)
            values = 100 * tried.reshape(len(structure.TIMES), -1).max(1)
            color = LIGHT.color(COLORS[name])
            axis.semilogx(structure.TIMES, values, "o-", ms=3, lw=1.6, color=color, label=name)
        axis.set(xlabel="T (64 layers)", ylabel="accuracy, %", ylim=(50, 101.5))
        axis.set_title(f"Swiss roll, {weights} weights", fontsize=NORMAL, loc="left")
    for name in ("ResNet", "H1", "MS1", "MS3"):
        own = planar().query("network == @name and weights == 'free'")
        shares = own.groupby("layers").good.mean()
        color = LIGHT.color(COLORS[name])
        axes[2].semilogx(shares.index, shares, "o-", ms=3, lw=1.6, color=color, label=name, base=2)
    axes[2].set(xlabel="layers", ylabel="% of T x learning rate", ylim=(0, 75))
    axes[2].set_xticks(sorted(planar().layers.unique()), sorted(planar().layers.unique()))
    axes[2].set_title("settings within 1 point of the best", fontsize=NORMAL, loc="left")
    for axis in axes:
        clean(axis)
    for axis in axes:
        label_ends(axis)
    return figure


def norms() -> Any:
    """Ranges of singular values of d y_N / d y_l: untrained and trained."""
    figure = new_figure(10.0, 3.2)
    names = (*ORDER, "FCNN")
    left, right = figure.subplots(1, 2)
    wild = random().query("T == 50 and weights == 'free'").set_index("network")
    trained = planar().query(
        "data == 'swiss-roll' and layers == 64 and weights == 'free' and init == 'normal'"
    )
    trained = trained.set_index("network")
    panels = (
        (left, wild.smallest_min, wild.least_min, wild.largest_max),
        (
            right,
            *(
                trained.end.map(lambda d, m=m, k=k: d[m][k])
                for m, k in (("smallest", 0), ("least", 0), ("largest", 2))
            ),
        ),
    )
    for axis, smallest, least, largest in panels:
        axis.axhline(1, color=LIGHT.muted, lw=0.8)
        for x, name in enumerate(names):
            color = LIGHT.color(COLORS[name])
            low = max(smallest[name], 1e-12)
            axis.plot([x, x], [low, largest[name]], color=color, lw=1.2, alpha=0.45)
            axis.plot([x, x], [max(least[name], 1e-12), largest[name]], color=color, lw=5)
        axis.set_yscale("log")
        axis.set_ylim(3e-13, 1e9)
        clean(axis)
        axis.set_xticks(range(len(names)), names, fontsize=SMALL)
    left.set_title("untrained, 256 layers, T = 50", fontsize=NORMAL, loc="left")
    right.set_title("trained on the Swiss roll, 64 layers, T chosen", fontsize=NORMAL, loc="left")
    left.set_ylabel("singular values of d y_N / d y_l", fontsize=SMALL)
    return figure


# --- the page -------------------------------------------------------------------------------------

TABLES: dict[str, Callable[[], str]] = {
    "guarantees": guarantees_table,
    "accuracy": accuracy_table,
    "robustness": robustness_table,
    "norms": norms_table,
    "tables": tables_table,
    "memory": memory_table,
}


def filled(text: str) -> str:
    """The page with every table written between its marks."""
    for key, table in TABLES.items():
        pattern = rf"(<!-- {key} -->\n).*?(\n<!-- end -->)"
        made = table()
        text = re.sub(pattern, lambda m, made=made: m[1] + made + m[2], text, flags=re.S)
    return text


def write() -> None:
    """Fill the tables of the page and draw its figures."""
    PAGE.write_text(filled(PAGE.read_text()))
    save_figure(over_time(), DOCS / "figures" / "structure-T.svg")
    save_figure(norms(), DOCS / "figures" / "structure-norms.svg")
