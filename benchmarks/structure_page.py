"""The tables and figures of docs/why-not-a-resnet.md (and choosing.md) from results/structure.

Run by ``python benchmarks/structure.py --figures``. Tables stand between marks on the page.
"""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import structure

from hdnn.plots import LIGHT, clean, label_ends, new_figure, save_figure
from hdnn.plots.style import NORMAL, SMALL

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, CHOOSING = DOCS / "why-not-a-resnet.md", DOCS / "choosing.md"
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
DEPTHS = (4, 16, 64)
"""Where all networks were trained; of 256 layers there are fewer."""
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
    # By T: the share of learning rates that are good; FCNN has no T.
    frame["good_by_T"] = [
        {}
        if name == "FCNN"
        else dict(zip(structure.TIMES, 100 * by_time(share).mean(1), strict=True))
        for share, name in zip(good, frame.network, strict=True)
    ]
    chosen = zip(frame.good_by_T, frame["T"], strict=True)
    frame["good_rates"] = [shares.get(T, np.nan) for shares, T in chosen]
    for when in ("start", "end"):
        for measure, place_of in (("largest", 1), ("least", 0), ("smallest", 1)):
            frame[f"{when}_{measure}"] = frame[when].map(lambda d, m=measure, p=place_of: d[m][p])
    return frame


def by_time(values: np.ndarray) -> np.ndarray:
    """``(..., times, learning rates)``: what was measured for every setting, by T."""
    return values.reshape(*values.shape[:-1], len(structure.TIMES), len(structure.RATES))


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


@functools.cache
def long_times() -> pd.DataFrame:
    """Shared weights over long times: how many trainings reach 99 %, and their mean accuracy."""
    frame = pd.DataFrame(structure.load("long"))
    frame["solved"] = frame.accuracy.map(lambda a: int((np.array(a) >= 0.99).sum()))
    frame["trainings"] = frame.accuracy.map(lambda a: np.array(a).size)
    frame["mean"] = 100 * frame.accuracy.map(np.mean)
    frame["share"] = 100 * frame.solved / frame.trainings
    return frame


# --- tables ---------------------------------------------------------------------------------------


def markdown(heads: list[str], rows: list[list[str]], texts: int = 1) -> str:
    """A table; all columns but the first ones, which are texts, are aligned to the right."""
    lines = [heads, ["---"] * texts + ["---:"] * (len(heads) - texts), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def short(value: float) -> str:
    """A number with two digits: 0.94, 12, 4e+07."""
    if np.isnan(value):
        return "-"
    return f"{value:.0f}" if 10 <= value < 1e4 else f"{value:.2g}"


def accuracy_table() -> str:
    """Mean and spread of the test accuracy of 20 seeds, and how many failed."""
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
                mean, std, failed = own.loc[name, ["mean", "std", "failed"]]
                text = f"**{mean:.1f}**" if round(mean, 1) == best else f"{mean:.1f}"
                text += f" ± {std:.1f}"
                text += f" ({failed:.0f})" if failed else ""
            cells.append(text)
        rows.append(((data, weights, layers), [f"{data}, {weights}, {layers}", *cells]))
    rows.sort(key=lambda row: (row[0][0] != "swiss-roll", row[0][1], row[0][2]))
    return markdown(["problem, weights, layers", *names], [cells for _, cells in rows])


def robustness_table() -> str:
    """Share of good settings, of good learning rates, and accuracy lost at 4 T."""
    frame = planar()
    places = [(weights, [layers]) for weights in ("free", "shared") for layers in DEPTHS]
    whole = [(weights, DEPTHS) for weights in ("free", "shared")]
    measures: tuple[tuple[str, Callable[[pd.DataFrame], float], str, Any], ...] = (
        ("good settings, %", lambda f: f.good.mean(), ".0f", places),
        ("good learning rates at the chosen T, %", lambda f: f.good_rates.mean(), ".0f", whole),
        ("points lost at 4 T", lambda f: (f["mean"] - f.mean_4T).mean(), ".1f", places),
        ("seconds of a training", lambda f: f.seconds.median(), ".3f", [("free", [64])]),
    )
    rows = []
    for what, measure, form, wanted in measures:
        for weights, layers in wanted:
            part = frame[(frame.weights == weights) & frame.layers.isin(layers)]
            values = [measure(part[part.network == name]) for name in ORDER]
            depth = f"{layers[0]} layers" if len(layers) == 1 else "all depths"
            rows.append([f"{what}: {weights}, {depth}", *(f"{v:{form}}" for v in values)])
    return markdown(["", *ORDER], rows)


def long_table() -> str:
    """Shared weights: trainings that reach 99 %, and the mean accuracy, by T."""
    frame, names = long_times(), ("ResNet", "H1", "H2", "MS1", "MS2", "MS3")
    rows = []
    for (init, T), part in frame.groupby(["init", "T"], sort=False):
        own = part.set_index("network")
        cells = [f"{own.solved[n]} ({own['mean'][n]:.1f})" for n in names]
        rows.append([f"{init}, T = {T:g}", *cells])
    return markdown(["initial, T", *names], rows)


def norms_table() -> str:
    """Norms before and after training: median of largest, minimum of least, median of smallest."""
    frame = planar()
    rows = []
    for weights in ("free", "shared"):
        for name in (*ORDER, "FCNN"):
            part = frame[(frame.network == name) & (frame.weights == weights)]
            part = part[(part.layers == 64) & (part.data == "swiss-roll")]
            for init in structure.INITS if name == "FCNN" else ("normal",):
                record = part[part.init == init].iloc[0]
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
        deep = own[own.layers.isin(DEPTHS[1:])]
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
    return markdown(heads, rows, texts=3)


def at_time(name: str, T: float, weights: str, layers: int, data: str = "swiss-roll") -> float:
    """Validation accuracy at T, with the best learning rate and initialization."""
    own = planar().query(
        "network == @name and weights == @weights and layers == @layers and data == @data"
    )
    tried = by_time(np.stack([tried["accuracy"] for tried in own.tried]))
    return float(100 * tried[:, structure.TIMES.index(T)].max())


def tables_table() -> str:
    """Tables and digits: mean accuracy of 10 seeds, and the mean rank over tables."""
    names = list(structure.MODELS)
    chosen, default = table_scores("accuracy"), table_scores("accuracy_defaults")
    rows = [[name, *(f"{v:.1f}" for v in chosen.loc[name])] for name in structure.TABLES]
    for what, values in (("chosen settings", chosen), ("default settings", default)):
        ranks = values.round(2).rank(axis=1, ascending=False).mean()
        rows.append([f"mean, {what}", *(f"{v:.2f}" for v in values.mean())])
        rows.append([f"mean rank, {what}", *(f"{v:.2f}" for v in ranks)])
        # The same rows train and test all networks, so that tables are compared in pairs.
        gain = values.sub(values["ResNet"], axis=0)
        pairs = zip(gain.mean(), gain.sem(), strict=True)
        cells = ["-", *(f"{mean:+.1f} ± {error:.1f}" for mean, error in list(pairs)[1:])]
        rows.append([f"over ResNet (standard error), {what}", *cells])
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


# --- hypotheses -----------------------------------------------------------------------------------


def listed(values: dict[str, float], form: Callable[[float], str]) -> str:
    """ResNet 99.9, H1 100.0, ..."""
    return ", ".join(f"{name} {form(value)}" for name, value in values.items())


def percent(value: float) -> str:
    """One decimal."""
    return f"{value:.1f}"


def accuracies(layers: int, weights: str, data: str, names: tuple[str, ...]) -> dict[str, float]:
    """Mean test accuracy with the chosen initialization."""
    own = chosen_init(planar()).query("layers == @layers and weights == @weights and data == @data")
    return dict(own.set_index("network")["mean"].loc[list(names)])


def good(weights: str, layers: int, names: tuple[str, ...]) -> dict[str, float]:
    """Share of good settings in per cent."""
    own = planar().query("weights == @weights and layers == @layers")
    return dict(own.groupby("network").good.mean().loc[list(names)])


def solved(data: str) -> dict[str, float]:
    """Of the paper's protocol, 64 layers: how many of the settings reach 99 %."""
    return {
        r["network"]: float((np.array(r["tried"]["accuracy"]) >= 0.99).sum())
        for r in structure.load("protocol")
        if r["data"] == data and r["layers"] == 64 and r["network"] != "FCNN"
    }


def solved_long(T: float, names: tuple[str, ...]) -> dict[str, float]:
    """Of 120 trainings with shared weights over long times: how many reach 99 %."""
    own = long_times()[long_times()["T"] == T].groupby("network").solved.sum()
    return {name: float(own[name]) for name in names}


def untrained(
    column: str, names: tuple[str, ...], weights: str, T: float = 50.0, scale: float = 1.0
) -> dict[str, float]:
    """A measure of untrained networks of 256 layers."""
    own = random().query("weights == @weights and T == @T and scale == @scale")
    return dict(own.set_index("network")[column].loc[list(names)])


def hypotheses_table() -> str:
    """Where structure would pay by theory: what was measured, and whether it holds."""
    four, main = ("ResNet", "H1", "MS1", "MS3"), ("ResNet", "H1", "H2", "MS1", "MS2", "MS3")
    twins = good("free", 64, ("MS3", "HS"))
    drift = untrained("energy_drift_median", ("H1", "MS1", "MS3"), "shared")
    rows = [
        [
            "It is more accurate (free weights, Swiss roll).",
            f"16 layers: {listed(accuracies(16, 'free', 'swiss-roll', main), percent)}. "
            f"4 layers: {listed(accuracies(4, 'free', 'swiss-roll', main), percent)}.",
            "No; H1 and H2 lead with 4 layers, MS1 and MS3 fall behind",
        ],
        [
            "T and learning rate are easier to choose.",
            f"Good settings, 64 layers: {listed(good('free', 64, main), short)} %. HS is MS3 "
            f"relabeled: {short(twins['HS'])} against {short(twins['MS3'])} % is what chance does.",
            "No",
        ],
        [
            "The same, trained as the paper trains (constant learning rate).",
            "Settings of 35 that reach 99 %, 64 layers, Swiss roll: "
            f"{listed(solved('swiss-roll'), short)}; double moons: "
            f"{listed(solved('double-moons'), short)}.",
            "No: on the Swiss roll, MS3 and HS, the same network, differ as much as any others",
        ],
        [
            "It pays with shared weights over long times.",
            "Double moons, 64 layers, trainings of 120 (20 seeds, 3 learning rates, both "
            f"initializations) that reach 99 %. T = 2: {listed(solved_long(2.0, main), short)}; "
            f"T = 20: {listed(solved_long(20.0, main), short)}; "
            f"T = 50: {listed(solved_long(50.0, main), short)}.",
            "Yes up to T = 20, for MS2 most; at T = 50 (h = 0.8) only MS2 stays ahead",
        ],
        [
            "With shared weights, it is easier to tune and more accurate.",
            f"Good settings, 64 layers: {listed(good('shared', 64, main), short)} %. Tuned, Swiss "
            f"roll: {listed(accuracies(64, 'shared', 'swiss-roll', main), percent)} %; double "
            f"moons: {listed(accuracies(64, 'shared', 'double-moons', main), percent)} %.",
            "Easier for H1, H2 and MS2; hardly more accurate once tuned",
        ],
        [
            "It pays for large T.",
            "Swiss roll, 64 layers, T = 50, best learning rate: "
            f"{listed({n: at_time(n, 50.0, 'free', 64) for n in main}, percent)}; shared weights: "
            f"{listed({n: at_time(n, 50.0, 'shared', 64) for n in main}, percent)}.",
            "A little for MS1, MS2 and MS3; H1 and H2 need a smaller T",
        ],
        [
            "The norm of no gradient falls below 1, for any weights.",
            "Least norm of all samples, layers, weights, trained or not: "
            f"{listed({n: least_norm(n) for n in (*main, 'FCNN')}, short)}.",
            "Yes, proved; a ResNet comes close without it",
        ],
        [
            "No direction vanishes.",
            "Smallest singular value, untrained, 256 layers, T = 50, shared weights: "
            f"{listed(untrained('smallest_min', main, 'shared'), short)}; free weights: "
            f"{listed(untrained('smallest_min', main, 'free'), short)}.",
            "MS1 and MS2: nearly. MS3: as small as the largest is large",
        ],
        [
            "Gradients do not explode.",
            "Largest norm (median of seeds), 256 layers, T = 50: "
            f"{listed(untrained('largest_median', main, 'free'), short)}; shared weights: "
            f"{listed(untrained('largest_median', main, 'shared'), short)}.",
            "MS1 does not; with free weights, H1, H2 and MS3 grow far more than a ResNet",
        ],
        [
            "The energy is conserved (shared weights).",
            "Largest change of H by a factor, 256 layers, T = 50: "
            f"{listed({n: float(np.exp(d)) for n, d in drift.items()}, lambda v: f'{v:.2f}')}.",
            "Yes for MS1, MS3, HS; forward Euler lets it grow. No gain in accuracy was seen",
        ],
        [
            "Exact inversion saves memory.",
            memory_sentence(),
            "Yes, and it is faster than checkpoints; a ResNet with checkpoints is not far off",
        ],
    ]
    rows.insert(5, starts_row(four))
    return markdown(["By theory", "Measured", "Does it hold?"], rows, texts=3)


def starts_row(names: tuple[str, ...]) -> list[str]:
    """Trainings from weights that are too small or too large."""
    records = {(r["init"], r["network"]): r for r in structure.load("starts")}
    worst = 100 * min(np.mean(r["accuracy"]) for (_, n), r in records.items() if n != "FCNN")
    parts = []
    for init in structure.STARTS:
        reached = {
            name: float((np.array(records[init, name]["tried"]["accuracy"]) >= 0.99).sum())
            for name in names
        }
        parts.append(f"{init} times the paper's weights: {listed(reached, short)}")
    return [
        "It trains from any initial weights.",
        f"Swiss roll, 64 layers: tuned, every network but FCNN reaches {worst:.1f} %. Settings of "
        f"35 that reach 99 %, from {'; '.join(parts)}.",
        "No: all train, and the ResNet's settings are good most often",
    ]


def memory_sentence() -> str:
    """Inversion against checkpoints at the largest depth."""
    frame = pd.DataFrame(structure.load("memory")).set_index(["network", "how", "layers"])
    deep = frame.xs(256, level="layers")
    words = {"keep": "keeping all states", "checkpoint": "checkpoints", "inverse": "inversion"}
    parts = [
        f"{words[how]} {deep.megabytes['MS3', how]:.0f} MB, {deep.seconds['MS3', how]:.1f} s"
        for how in words
    ]
    error, plain = deep.error["MS3", "inverse"], deep.loc["ResNet", "checkpoint"]
    return (
        f"MS3, width 256, 256 layers: {'; '.join(parts)} (error of y_0 {error:.0e}). ResNet, "
        f"checkpoints: {plain.megabytes:.0f} MB, {plain.seconds:.1f} s."
    )


def conclusion() -> str:
    """Five sentences, with the numbers of the records."""
    main = ("ResNet", "H1", "H2", "MS1", "MS2", "MS3")
    deep = [a for n in (16, 64) for a in accuracies(n, "free", "swiss-roll", ORDER).values()]
    free = good("free", 64, main)
    flat = accuracies(4, "free", "swiss-roll", main)
    brief, lasting, longest = (solved_long(T, main) for T in (2.0, 20.0, 50.0))
    wild = untrained("largest_median", main, "free")
    scores = table_scores("accuracy").mean()
    best = max(list(main)[1:], key=lambda name: free[name])
    text = (
        "1. **For accuracy, a ResNet will do**: with free weights and 16 or 64 layers, it and all "
        f"Hamiltonian networks reach {min(deep):.1f} to {max(deep):.1f} % on the Swiss roll, "
        f"{free['ResNet']:.0f} % of its settings of T and learning rate are good at 64 layers "
        f"({best}, the best of the others: {free[best]:.0f} %), and on 13 tables it averages "
        f"{scores['ResNet']:.1f} % (H1 {scores['H1']:.1f}, MS1 {scores['MS1']:.1f}, "
        f"MS3 {scores['MS3']:.1f}).\n"
        "2. **What structure adds is a proof**: for all weights, steps and depths, no norm of "
        "d y_N / d y_l falls below 1 in H1, H2, MS1, MS2, MS3 and HS; a ResNet has no such bound, "
        f"but the least norm that we saw is {least_norm('ResNet'):.2f}: vanishing gradients are a "
        "problem of networks without skip connections.\n"
        "3. **It is no protection against growth, except in MS1**: untrained, with 256 layers and "
        f"T = 50, norms reach {short(wild['MS1'])} in MS1, {short(wild['ResNet'])} in a ResNet, "
        f"{short(wild['MS3'])} in MS3 and {short(wild['H1'])} in H1.\n"
        "4. **It pays where all layers share their weights and the flow is long**: on the double "
        f"moons with 64 layers and T = 20, {lasting['MS2']:.0f} of 120 trainings of MS2 reach 99 "
        f"%, {lasting['MS1']:.0f} of MS1, {lasting['MS3']:.0f} of MS3, {lasting['H1']:.0f} of H1 "
        f"and {lasting['ResNet']:.0f} of a ResNet, which has {brief['ResNet']:.0f} with T = 2 "
        f"(H1 {brief['H1']:.0f}); with T = 50 (h = 0.8), little of the gain is left "
        f"(MS2 {longest['MS2']:.0f}, ResNet {longest['ResNet']:.0f}, MS1 {longest['MS1']:.0f}).\n"
        f"5. **So**: take H1 for few layers (Swiss roll, 4 layers: {flat['H1']:.1f} %, ResNet "
        f"{flat['ResNet']:.1f} %, MS3 {flat['MS3']:.1f} %), MS2, a ResNet with skew-symmetric K "
        "and half the parameters, for shared weights or large T, MS1 for gradients of even size, "
        "MS3 or HS where you need M J M' = J, a conserved energy or an exact inverse, and "
        "otherwise a ResNet, which hdnn computes as fast."
    )
    wrap = functools.partial(textwrap.fill, width=130, subsequent_indent="   ")
    return "\n".join(wrap(sentence, break_on_hyphens=False) for sentence in text.splitlines())


def choosing_table() -> str:
    """When to take which network."""
    main = ("ResNet", "H1", "MS1", "MS3")
    flat = listed(accuracies(4, "free", "swiss-roll", main), percent)
    drift = float(np.exp(untrained("energy_drift_median", ("MS3",), "shared")["MS3"]))
    deep = [a for n in (16, 64) for a in accuracies(n, "free", "swiss-roll", ORDER).values()]
    rows = [
        [
            "accuracy, with 16 layers or more",
            "a ResNet, or any other",
            f"{min(deep):.1f} to {max(deep):.1f} % on the Swiss roll, all networks; good settings "
            f"with 64 layers: {listed(good('free', 64, main), short)} %",
        ],
        ["few layers", "H1 or H2, T below 1", f"Swiss roll, 4 layers: {flat} %"],
        [
            "the same weights in all layers",
            "MS2, or H1 with a small T",
            "double moons, 64 layers, T = 20, trainings of 120 that reach 99 %: "
            f"{listed(solved_long(20.0, (*main, 'MS2')), short)}",
        ],
        [
            "large T, gradients of even size",
            "MS1 or MS2",
            "largest norms, untrained, 256 layers, T = 50: "
            f"{listed(untrained('largest_median', (*main, 'MS2'), 'free'), short)}",
        ],
        [
            "a conserved energy, or M J M' = J",
            "MS3 or HS",
            f"with shared weights, T = 50, the energy of MS3 changes by a factor of {drift:.2f}",
        ],
        ["an exact inverse", "MS1, MS3 or HS", memory_sentence().rstrip(".")],
        [
            "a proof that no gradient vanishes",
            "any but ResNet and FCNN",
            "no layer shrinks volumes, so that the norm of d y_N / d y_l is at least 1",
        ],
    ]
    return markdown(["you want", "take", "because"], rows, texts=3)


def table_scores(column: str) -> pd.DataFrame:
    """Mean accuracy in per cent, a row a table, a column a network."""
    frame = pd.DataFrame(structure.load("tables"))
    frame["mean"] = 100 * frame[column].map(np.mean)
    return frame.pivot(index="data", columns="network", values="mean")[list(structure.MODELS)]


# --- figures --------------------------------------------------------------------------------------

LOWEST = 1e-12
"""Smaller singular values are drawn to here."""
COLORS = {"ResNet": 1, "H1": 0, "MS1": 2, "MS3": 3, "H2": 5, "MS2": 4, "HS": 7, "FCNN": 6}


def over_time() -> Any:
    """Against T: good learning rates, trainings with shared weights; good settings by depth."""
    figure = new_figure(10.0, 3.2)
    axes = figure.subplots(1, 3, sharey=True)
    for name in ("ResNet", "H1", "MS1", "MS2", "MS3"):
        own = planar().query("network == @name and weights == 'free' and layers in @DEPTHS")
        curves = (
            pd.DataFrame(list(own[own.layers == 64].good_by_T)).mean(),
            long_times().query("network == @name").groupby("T").share.mean(),
            own.groupby("layers").good.mean(),
        )
        color = LIGHT.color(COLORS[name])
        for axis, curve in zip(axes, curves, strict=True):
            axis.plot(curve.index, curve, "o-", ms=3, linewidth=1.6, color=color, label=name)
    for axis, title, what, places in zip(
        axes,
        ("free weights: good learning rates", "shared: trainings at 99 %", "free: good settings"),
        ("T (64 layers)", "T (64 layers)", "layers"),
        (structure.TIMES, structure.LONG_TIMES, DEPTHS),
        strict=True,
    ):
        axis.set_xscale("log")
        axis.set_xticks(places, [f"{place:g}" for place in places])
        axis.minorticks_off()
        axis.set_xlabel(what)
        axis.set_title(title, fontsize=NORMAL, loc="left")
        clean(axis)
    axes[0].set(ylabel="%", ylim=(0, 103))
    for axis in axes:
        label_ends(axis)
    return figure


def norms() -> Any:
    """Ranges of singular values of d y_N / d y_l: untrained and trained."""
    figure = new_figure(10.0, 3.2)
    names = [*(name for name in ORDER if name != "HS"), "FCNN"]
    measures = (("smallest", 0), ("least", 0), ("largest", 2))
    panels = [
        (f"untrained, 256 layers, T = 50, {weights}", random().query(query))
        for weights, query in (
            ("free", "T == 50 and weights == 'free'"),
            ("shared", "T == 50 and weights == 'shared'"),
        )
    ]
    trained = planar().query("data == 'swiss-roll' and layers == 64 and init == 'normal'")
    trained = trained[trained.weights == "free"]
    ends = pd.DataFrame(
        [{"network": n, **end} for n, end in zip(trained.network, trained.end, strict=True)]
    )
    panels.append(("trained, 64 layers, T chosen, free", ends))
    for axis, (title, frame) in zip(figure.subplots(1, 3, sharey=True), panels, strict=True):
        axis.axhline(1, color=LIGHT.muted, lw=0.8)
        own = frame.set_index("network")
        for x, name in enumerate(names):
            color = LIGHT.color(COLORS[name])
            low, middle, high = (max(own[m][name][k], LOWEST) for m, k in measures)
            axis.plot([x, x], [low, high], color=color, lw=1.5, alpha=0.6)
            axis.plot([x, x], [middle, high], color=color, lw=5, solid_capstyle="butt")
        axis.set_yscale("log")
        axis.set_ylim(LOWEST, 1e10)
        axis.set_title(title, fontsize=NORMAL, loc="left")
        clean(axis)
        axis.set_xticks(range(len(names)), names, fontsize=SMALL - 1)
    figure.axes[0].set_ylabel("singular values of d y_N / d y_l", fontsize=SMALL)
    return figure


# --- the page -------------------------------------------------------------------------------------

TABLES: dict[str, Callable[[], str]] = {
    "conclusion": conclusion,
    "guarantees": guarantees_table,
    "accuracy": accuracy_table,
    "robustness": robustness_table,
    "long": long_table,
    "norms": norms_table,
    "tables": tables_table,
    "memory": memory_table,
    "hypotheses": hypotheses_table,
    "networks": choosing_table,
}


def filled(text: str) -> str:
    """A page with every table written between its marks."""
    for key, table in TABLES.items():
        pattern = rf"(<!-- {key} -->\n).*?(<!-- end -->)"
        if f"<!-- {key} -->" in text:
            made = table()
            text = re.sub(pattern, lambda m, made=made: f"{m[1]}{made}\n{m[2]}", text, flags=re.S)
    return text


def write() -> None:
    """Fill the tables of the pages and draw the figures."""
    for page in (PAGE, CHOOSING):
        page.write_text(filled(page.read_text()))
    save_figure(over_time(), DOCS / "figures" / "structure-T.svg")
    save_figure(norms(), DOCS / "figures" / "structure-norms.svg")
