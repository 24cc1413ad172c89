"""Figure 2: norms of d y_N / d y_l while networks are trained on the double moons.

Every case is trained for 960 iterations as appendix B.1 says, in float64, all seeds side by side.
Norms are measured at every layer, for all samples of the batch, before each step.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from hdnn.analysis import profile
from hdnn.data import split
from hdnn.files import rounded
from hdnn.networks import HamiltonianNetwork
from hdnn.paper import ensembles
from hdnn.paper.experiment import Experiment, frame
from hdnn.paper.records import Record
from hdnn.paper.summaries import markdown
from hdnn.plots.style import (
    LIGHT,
    NORMAL,
    clean,
    color_ramp,
    label_ends,
    new_figure,
    plot_band,
)
from hdnn.training import TrainingConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EPOCHS = 24
"""960 iterations of 125 samples."""
T = 1.2
"""Chosen as in Table 1, on validation data for H1 with 64 layers; not in the paper."""
DRAWN_SEED = 1000
"""The seed whose curves are drawn: only its records hold them, so that files stay small."""
DRAWN_EVERY = 4
"""Iterations between two points of a curve: a panel has no more points than that."""


class Case(NamedTuple):
    """Which network is trained how.

    Args:
        network: "H1", "H1 invariant" (all layers share their weights), "MS3" or "FCNN".
        layers: depth.
        T: final time; 0 where there is none.
        alpha: weight of the smoothness penalty.
        every: iterations from one recording to the next.
    """

    network: str
    layers: int
    T: float = T
    alpha: float = 5e-3
    every: int = 1

    @property
    def shown(self) -> list[int]:
        """Layers l = 1, 11, 21, ..."""
        return list(range(1, self.layers, 10))


KEY = Case._fields
HAMILTONIAN = ("H1", "H1 invariant", "MS3")
DRAWN = (*(Case(name, 64) for name in HAMILTONIAN), Case("FCNN", 64, T=0.0))
FIGURE = (*DRAWN, Case("FCNN", 32, T=0.0))
"""The networks of the figure, and the FCNN of 32 layers that the paper writes about."""
TIMES = tuple(Case(name, 64, T=t, every=8) for name in HAMILTONIAN for t in (0.3, 0.6, 1.2, 2.4))
ALPHAS = tuple(Case("H1", 64, alpha=a, every=8) for a in (0.0, 5e-3, 5e-2, 5e-1, 5.0, 50.0))
DEPTHS = tuple(Case(name, n, every=40) for name in HAMILTONIAN for n in (64, 128, 256, 1024))
CASES = tuple(dict.fromkeys(FIGURE + TIMES + ALPHAS + DEPTHS))
PUBLISHED = {Case("H1", 64): "[1, 17]", Case("H1 invariant", 64): "[1, 37]"}
"""Intervals of the norms over layers and iterations, as printed."""


# --- training -------------------------------------------------------------------------------------


class NormObserver:
    """Norms of networks during training; an `hdnn.training.loops.Observer`.

    Networks that are trained one after the other are observed one after the other.

    Args:
        every: iterations from one recording to the next.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self._values: defaultdict[tuple[str, int], list[np.ndarray]] = defaultdict(list)

    def column(self, name: str) -> np.ndarray:
        """All recordings of a quantity, ``(recordings, seeds, layers)``.

        Args:
            name: "low" and "high" are of the norms of the samples, "of_mean" is the norm of their
                mean. ``(recordings, seeds)``: "smallest" is the smallest singular value,
                "gradient" the norm of the gradient of the objective.
        """
        return np.array([np.concatenate(v) for (key, _), v in self._values.items() if key == name])

    def observe(
        self, iteration: int, network: HamiltonianNetwork, states: Tensor, gradients: np.ndarray
    ) -> None:
        norms = profile(network, states, range(network.layers))
        columns = {
            "low": np.atleast_2d(norms.minimum.numpy()),
            "high": np.atleast_2d(norms.maximum.numpy()),
            "of_mean": np.atleast_2d(norms.of_mean.numpy()),
            "smallest": np.atleast_2d(norms.smallest.numpy()).min(1),
            "gradient": np.linalg.norm(np.atleast_2d(gradients), axis=1),
        }
        for name, values in columns.items():
            self._values[name, iteration].append(values)


def train(case: Case, seeds: Sequence[int]) -> tuple[list[Record], NormObserver]:
    """Train a case for every seed.

    Args:
        case: what is trained.
        seeds: of data, weights and batches.

    Returns:
        The records, and all recordings.
    """
    begin = time.perf_counter()
    parts = [split("double-moons", "paper", seed=seed) for seed in seeds]
    data = ensembles.SeedSamples.stack(seeds, parts, "append", torch.float64)
    name, _, invariant = case.network.partition(" ")
    options = {"layers": case.layers, "T": case.T or None, "time_invariant": bool(invariant)}
    network = ensembles.networks(name, seeds, torch.float64, **options)
    observer = NormObserver(case.every)
    # Appendix B.3 gives the FCNN another weight decay.
    decay = 2e-4 if case.network == "FCNN" else 1e-4
    config = TrainingConfig(epochs=EPOCHS, alpha=case.alpha, alpha_c=decay)
    V = ensembles.train(network, data, config, observer, may_diverge=False)
    results = ensembles.results(network, V, data, begin)
    records = [
        {
            **case._asdict(),
            "seed": seed,
            **_recorded(case, observer, network, e, seed),
            **results[e],
        }
        for e, seed in enumerate(seeds)
    ]
    return records, observer


def _recorded(
    case: Case, observer: NormObserver, network: HamiltonianNetwork, e: int, seed: int
) -> Record:
    """What the recordings of one network come to.

    ``minimum`` and ``maximum`` are of the norms of *single samples*, over all samples, recordings
    and layers l = 0 .. N - 1, ``of_mean_...`` of the norm of the *mean* over a batch, which the
    paper's own code plots; ``shown_...`` are by layer; ``gradient`` is by epoch; ``spread`` says
    how much weights vary over layers: mean_j ||K_j - mean K|| / ||mean K||.
    """
    low, high, of_mean = (observer.column(name)[:, e] for name in ("low", "high", "of_mean"))
    gradient = np.array_split(observer.column("gradient")[:, e], EPOCHS)
    K = network.K[e].detach().flatten(1)
    record: Record = {
        "recordings": len(low),
        "minimum": float(low.min()),
        "maximum": float(high.max()),
        "of_mean_minimum": float(of_mean.min()),
        "of_mean_maximum": float(of_mean.max()),
        "smallest": float(observer.column("smallest")[:, e].min()),
        "shown": case.shown,
        "shown_maximum": high[:, case.shown].max(0).tolist(),
        "shown_last": high[-1, case.shown].tolist(),
        "gradient": [float(part.mean()) for part in gradient],
        "spread": float((K - K.mean(0)).norm(dim=1).mean() / K.mean(0).norm()),
    }
    record = {name: rounded(value, 5) for name, value in record.items()}
    record["minimum"] = float(low.min())  # all digits: whether it reaches 1 is a matter of rounding
    if case in DRAWN and seed == DRAWN_SEED:
        curves = of_mean[::DRAWN_EVERY, case.shown].T
        record["curves"] = rounded(curves.tolist(), 4)
    return record


def run(case: Case, seeds: Sequence[int]) -> list[Record]:
    """The records of a case; see `Experiment`."""
    return train(case, seeds)[0]


def figure2(cases: Sequence[Case] = CASES) -> Experiment[Case]:
    """The experiment."""
    return Experiment(cases, KEY, run, together=10)


# --- tables ---------------------------------------------------------------------------------------

Column = Callable[[pd.DataFrame], str]
"""Takes the records of a case, gives the text of a table's cell."""


def _number(x: float) -> str:
    if x != 0 and not 1e-2 <= abs(x) < 1e4:
        return f"{x:.0e}"
    return f"{x:.2f}" if abs(x) < 10 else f"{x:.1f}" if abs(x) < 100 else f"{x:.0f}"


def _first(name: str) -> Column:
    return lambda part: str(part[name].iloc[0] or "")


def _interval(low: str, high: str) -> Column:
    return lambda part: f"[{_number(part[low].min())}, {_number(part[high].max())}]"


def _median(name: str, form: Callable[[float], str] = _number) -> Column:
    return lambda part: form(part[name].median())


def _published(part: pd.DataFrame) -> str:
    return PUBLISHED.get(Case(*part[list(KEY)].iloc[0]), "")


def _accuracy(part: pd.DataFrame) -> str:
    percent = 100 * part.test_accuracy
    return f"{percent.mean():.2f} ({percent.min():.2f} to {percent.max():.2f})"


_NETWORK = {"network": _first("network"), "layers": _first("layers"), "T": _first("T")}
NORMS: Mapping[str, Column] = {
    **_NETWORK,
    "seeds": lambda part: str(len(part)),
    "recordings": _first("recordings"),
    "per-sample norms": _interval("minimum", "maximum"),
    "median maximum": _median("maximum"),
    "norm of the batch mean": _interval("of_mean_minimum", "of_mean_maximum"),
    "its median maximum": _median("of_mean_maximum"),
    "paper": _published,
    "test accuracy, %": _accuracy,
}
"""Intervals over all layers, recordings and seeds, and what single seeds reach."""
MINIMA: Mapping[str, Column] = {
    **_NETWORK,
    "recordings": _first("recordings"),
    "smallest norm of a sample, less 1": lambda part: f"{part.minimum.min() - 1:.1e}",
    "smallest norm of a batch mean": lambda part: f"{part.of_mean_minimum.min():.4g}",
    "smallest singular value": lambda part: f"{part.smallest.min():.2g}",
}
NARROW = ("network", "layers", "per-sample norms", "norm of the batch mean", "paper")
"""Columns of `NORMS` that fit on a terminal of 80 columns."""
PENALTIES: Mapping[str, Column] = {
    "network": _first("network"),
    "alpha": lambda part: "any" if "inv" in part.network.iloc[0] else f"{part.alpha.iloc[0]:g}",
    "recordings": _first("recordings"),
    "spread of K over layers": _median("spread", "{:.1e}".format),
    "per-sample norms": _interval("minimum", "maximum"),
    "median maximum": _median("maximum", "{:.4g}".format),
    "norm of the batch mean, median maximum": _median("of_mean_maximum", "{:.4g}".format),
    "test accuracy, %": lambda part: f"{100 * part.test_accuracy.mean():.2f}",
}


def table(
    cases: Sequence[Case], records: Iterable[Record], columns: Mapping[str, Column]
) -> pd.DataFrame:
    """Texts with a row for every case that has records."""
    groups = frame(cases, KEY, records).groupby([*KEY], sort=False)
    rows = [{name: column(part) for name, column in columns.items()} for _, part in groups]
    return pd.DataFrame(rows, columns=[*columns])


def _by_epoch(epoch: int) -> Column:
    return lambda part: f"{np.median([*part.gradient], 0)[epoch]:.1e}"


def _by_layer(place: int) -> Column:
    def text(part: pd.DataFrame) -> str:
        ever, last = (max(v[place] for v in part[f"shown_{name}"]) for name in ("maximum", "last"))
        return f"{ever:.1e}, {last:.1e}"

    return text


def page(records: Iterable[Record]) -> str:
    """The claims of section 4.3 as tables."""
    records = list(records)

    def written(cases: Sequence[Case], columns: Mapping[str, Column]) -> str:
        rows = table(cases, records, columns)
        return f"{markdown(rows, rows.to_numpy())}\n"

    epochs = {f"{40 * e + 1} - {40 * e + 40}": _by_epoch(e) for e in (0, 4, 7, 12, 23)}
    plain = [case for case in FIGURE if case.network == "FCNN"]
    layers = {f"l = {l}": _by_layer(place) for place, l in enumerate((1, 11, 21, 31))}
    invariant = Case("H1 invariant", 64, every=8)
    parts = [
        "# Figure 2 as numbers\n",
        "Written by `hdnn reproduce figure2`. Norms are of d y_N / d y_l, l = 0 .. N - 1, over all "
        "seeds, all recordings (batches) of the 960 iterations and all layers: of *single "
        'samples*, and of the *mean over the batch*. "Median maximum": of the seeds\' maxima.\n',
        written(FIGURE, NORMS),
        "The FCNN by layer, largest norm of a single sample: ever, and at the last recording.\n",
        written(plain, {"network": _first("network"), "layers": _first("layers")} | layers),
        "Norm of the gradient of the objective with respect to all hidden layers, mean over "
        "windows of iterations, median over seeds:\n",
        written(FIGURE, {**_NETWORK, **epochs}),
        "## Never below 1\n",
        written((*DRAWN[:3], *DEPTHS, *TIMES), MINIMA),
        "## Deeper, at the same T, recorded every 40 iterations\n",
        written(DEPTHS, NORMS),
        "## Other T, recorded every 8 iterations\n",
        written(TIMES, NORMS),
        "## Against alpha, recorded every 8 iterations\n",
        written((*ALPHAS, invariant), PENALTIES),
    ]
    return "\n".join(parts)


# --- figures --------------------------------------------------------------------------------------

TITLES = {"H1": "H1", "H1 invariant": "H1, shared weights", "MS3": "MS3", "FCNN": "FCNN (paper)"}
COLORS = dict(zip(("H1 invariant", "H1", "MS3", "FCNN"), LIGHT.classes, strict=False))


def norms_figure(records: Iterable[Record]) -> Figure:
    """The norm of the batch mean of d y_N / d y_l during training, and the Hamiltonian ones closer.

    All panels have a logarithmic axis. Those of a row share it.
    """
    drawn = frame(DRAWN, KEY, [record for record in records if "curves" in record])
    figure = new_figure(9.9, 4.8)
    axes = figure.subplots(2, len(DRAWN), sharex=True, sharey="row")
    shades = color_ramp(len(DRAWN[0].shown))
    for column, row in enumerate(drawn.itertuples()):
        for axis in axes[: 2 if row.network in HAMILTONIAN else 1, column]:
            for l, line, shade in zip(row.shown, row.curves, shades, strict=True):
                steps = range(0, DRAWN_EVERY * len(line), DRAWN_EVERY)
                axis.plot(steps, line, color=shade, linewidth=0.8, label=f"{l}")
            axis.set_xlabel("" if axis in axes[0] and row.network in HAMILTONIAN else "iteration")
        title = f"({'abcd'[column]}) {TITLES[row.network]}"
        axes[0, column].set_title(title, fontsize=NORMAL, loc="left")
    rows = {
        "norm of $\\partial y_N/\\partial y_\\ell$": (1e-16, 1e3),
        "the same, enlarged": (0.7, 30),
    }
    for line, (label, limits) in zip(axes, rows.items(), strict=True):
        line[0].set(ylabel=label, yscale="log", ylim=limits)
        for axis in line:
            _style(axis)
    axes[1, 0].set_yticks([1, 3, 10, 30], ["1", "3", "10", "30"])
    axes[1, 0].minorticks_off()
    axes[0, 3].tick_params(labelbottom=True)
    _legend_of_layers(axes[0, 0], axes[1, 3])
    return figure


def _style(axis: Axes) -> None:
    clean(axis)
    axis.tick_params(labelsize=NORMAL - 0.5)
    for label in (axis.xaxis.label, axis.yaxis.label):
        label.set_fontsize(NORMAL)


def _legend_of_layers(drawn: Axes, place: Axes) -> None:
    """The shades of the layers in a place of its own: too many and too close to label lines."""
    place.axis("off")
    legend = place.legend(
        handles=drawn.get_lines(),
        loc="center",
        title="with respect to layer ℓ",
        fontsize=NORMAL,
        title_fontsize=NORMAL,
        frameon=False,
    )
    for line in legend.get_lines():
        line.set_linewidth(3)


def claims_figure(records: Iterable[Record]) -> Figure:
    """Parameter gradients during training; norms against alpha; norms against depth."""
    records = list(records)
    figure = new_figure(11.5, 3.5)
    axes = figure.subplots(1, 3)
    panels = {
        "(a) while training": _draw_gradients,
        "(b) 64 layers": _draw_alphas,
        "(c) deeper, $T$ = 1.2": _draw_depths,
    }
    for axis, (title, draw) in zip(axes, panels.items(), strict=True):
        draw(axis, records)
        _style(axis)
        axis.set_title(title, fontsize=NORMAL, loc="left")
    for axis in axes:
        label_ends(axis)
    return figure


def _draw_gradients(axis: Axes, records: Sequence[Record]) -> None:
    for case in DRAWN:
        norms = np.array([*frame([case], KEY, records).gradient])
        iterations = 40 * (np.arange(EPOCHS) + 0.5)
        band = np.quantile(norms, (0.1, 0.5, 0.9), axis=0)
        color, label = COLORS[case.network], TITLES[case.network]
        plot_band(axis, iterations, band, color=color, label=label, style="-")
    axis.set_yscale("log")
    axis.set_xlabel("iteration")
    axis.set_ylabel("norm of the parameters' gradient")


def _bands(cases: Sequence[Case], records: Sequence[Record], field: str) -> np.ndarray:
    """10, 50 and 90 % quantiles over the seeds of every case, ``(3, cases)``."""
    groups = frame(cases, KEY, records).groupby([*KEY], sort=False)[field]
    return np.array([groups.quantile(q) for q in (0.1, 0.5, 0.9)])


def _norm_ticks(axis: Axes) -> None:
    axis.set_yscale("log")
    axis.minorticks_off()
    axis.set_yticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
    axis.set_ylabel("largest norm of $\\partial y_N/\\partial y_\\ell$")


def _draw_alphas(axis: Axes, records: Sequence[Record]) -> None:
    places = [max(case.alpha, 5e-4) for case in ALPHAS]  # a logarithmic axis has no 0
    band = _bands(ALPHAS, records, "maximum")
    plot_band(axis, places, band, color=COLORS["H1"], label="H1")
    invariant = _bands([Case("H1 invariant", 64, every=8)], records, "maximum")
    low, middle, high = invariant[:, 0]
    color = COLORS["H1 invariant"]
    axis.axhline(middle, color=color, linewidth=1.2)
    axis.axhspan(low, high, color=color, alpha=0.1, linewidth=0)
    axis.text(50, 1.08 * middle, TITLES["H1 invariant"], color=color, fontsize=NORMAL, ha="right")
    axis.set_xscale("log")
    axis.set_xticks([5e-4, 5e-3, 5e-2, 0.5, 5.0, 50.0], ["0", "0.005", "0.05", "0.5", "5", "50"])
    axis.minorticks_off()
    _norm_ticks(axis)
    axis.set_xlabel("smoothness penalty $\\alpha$")


def _draw_depths(axis: Axes, records: Sequence[Record]) -> None:
    for name in HAMILTONIAN:
        cases = [case for case in DEPTHS if case.network == name]
        depths, color = [case.layers for case in cases], COLORS[name]
        maxima, minima = (_bands(cases, records, field) for field in ("maximum", "minimum"))
        plot_band(axis, depths, maxima, color=color, label=TITLES[name])
        plot_band(axis, depths, minima, color=color, style="v:")
    axis.annotate(
        *("smallest, of all three", (64, 1)),
        xytext=(4, 5),
        textcoords="offset points",
        fontsize=NORMAL,
        color=LIGHT.muted,
    )
    axis.set_xscale("log", base=2)
    axis.set_xticks([64, 128, 256, 1024], ["64", "128", "256", "1024"])
    _norm_ticks(axis)
    axis.set_xlabel("layers")
