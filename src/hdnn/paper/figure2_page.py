"""What the records of Figure 2 say: the claims of section 4.3 as tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hdnn.paper.figure2 import (
    ALPHAS,
    COUPLED,
    DEPTHS,
    FIGURE,
    LIMIT,
    TIMES,
    Curves,
    GradientRecord,
    Row,
    T,
    rows,
)
from hdnn.paper.render import Column, Table, markdown
from hdnn.plots import LIGHT, clean, color_ramp, label_ends, new_figure, plot_band
from hdnn.plots.style import NORMAL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PUBLISHED = {"H1": "[1, 17]", "H1 invariant": "[1, 37]"}
"""Intervals of the norms over layers and iterations, of 64-layer networks, as printed."""
WINDOWS = ((0, "1 - 40"), (4, "161 - 200"), (7, "281 - 320"), (12, "481 - 520"), (23, "921 - 960"))
"""Epochs, and the iterations that they hold."""
TITLES = {
    "H1": "H1",
    "H1 invariant": "H1, shared weights",
    "MS3": "MS3",
    "FCNN": "plain network",
}
COLORS = dict(zip(("H1 invariant", "H1", "MS3", "FCNN"), LIGHT.classes, strict=False))


def select(found: Sequence[Row], network: str, method: str = "adam", **fields: float) -> list[Row]:
    """The cases of a network that have the given depth, T or alpha, in their order."""
    kept = [
        row
        for row in found
        if (row.cell.network, row.cell.method) == (network, method)
        and all(getattr(row.cell, name) == value for name, value in fields.items())
    ]
    return sorted(kept, key=lambda row: row.cell.key)


# --- tables ---------------------------------------------------------------------------------------


def interval(low: float, high: float) -> str:
    """An interval for people.

    >>> interval(1.0000001, 56.94), interval(3e-21, 2.5)
    ('[1.00, 56.9]', '[3e-21, 2.50]')
    """
    return f"[{_number(low)}, {_number(high)}]"


def _number(x: float) -> str:
    if x != 0 and not 1e-2 <= abs(x) < 1e4:
        return f"{x:.0e}"
    return f"{x:.2f}" if abs(x) < 10 else f"{x:.1f}" if abs(x) < 100 else f"{x:.0f}"


def _interval(low: str, high: str) -> Callable[[Row], str]:
    return lambda row: interval(row.column(low).min(), row.column(high).max())


def _median(name: str) -> Callable[[Row], float]:
    return lambda row: float(np.median(row.column(name)))


def _median_text(name: str) -> Callable[[Row], str]:
    return lambda row: _number(_median(name)(row))


def _paper(row: Row) -> str:
    """What the paper prints, for what it shows."""
    return PUBLISHED.get(row.cell.network, "") if row.cell in FIGURE else ""


def _accuracy(row: Row) -> str:
    values = row.percent("test_accuracy")
    return f"{values.mean():.2f} ({values.min():.2f} to {values.max():.2f})"


def _alpha(row: Row) -> str:
    if row.cell.network == "H1 invariant":
        return "does not matter"
    return "infinite" if row.cell.alpha == LIMIT else f"{row.cell.alpha:g}"


_NETWORK: Column[Row] = Column("network", lambda row: row.cell.network)
_LAYERS: Column[Row] = Column("layers", lambda row: row.cell.layers)
_T: Column[Row] = Column("T", lambda row: row.cell.T or "")
_LOOKS: Column[Row] = Column("looks", lambda row: row.records[0].looks)
_SINGLE: Column[Row] = Column("norms of single samples", _interval("minimum", "maximum"))
NORMS: tuple[Column[Row], ...] = (
    *(_NETWORK, _LAYERS, _T),
    Column("seeds", lambda row: row.seeds),
    *(_LOOKS, _SINGLE),
    Column("median maximum", _median_text("maximum")),
    Column("norm of the batch mean", _interval("of_mean_minimum", "of_mean_maximum")),
    Column("median maximum", _median_text("of_mean_maximum")),
    Column("paper", _paper),
    Column("test accuracy, %", _accuracy),
)
"""Intervals over all layers, looks and seeds, and what single seeds reach."""
MINIMA: tuple[Column[Row], ...] = (
    *(_NETWORK, _LAYERS, _T, _LOOKS),
    Column("smallest norm of a sample, less 1", lambda row: row.column("minimum").min() - 1, ".1e"),
    Column("smallest norm of a batch mean", lambda row: row.column("of_mean_minimum").min(), ".4g"),
    Column("smallest singular value", lambda row: row.column("smallest").min(), ".2g"),
)
"""The smallest norms that occurred."""
PENALTIES: tuple[Column[Row], ...] = (
    _NETWORK,
    Column("penalty", lambda row: "implicit" if row.cell.method == "coupled" else "in the loss"),
    Column("alpha", _alpha),
    _LOOKS,
    Column("spread of K over layers", _median("spread"), ".1e"),
    _SINGLE,
    Column("median maximum", _median("maximum"), ".4g"),
    Column("norm of the batch mean, median maximum", _median("of_mean_maximum"), ".4g"),
    Column("test accuracy, %", lambda row: row.percent("test_accuracy").mean(), ".2f"),
)
"""Norms against alpha."""


def layers_table(row: Row) -> str:
    """Largest norms by layer, over all seeds: ever, and at the last look."""
    lines = (("ever", "shown_maximum"), ("last look", "shown_last"))
    texts = [[title, *(f"{x:.1e}" for x in row.column(name).max(0))] for title, name in lines]
    return markdown(["l", *map(str, row.records[0].shown)], texts)


def gradients_table(found: Sequence[Row]) -> str:
    """Median over seeds of the norm of the gradient of the objective, in windows of iterations."""
    lines = []
    for row in found:
        medians = np.median(row.column("gradient"), 0)
        texts = [f"{medians[epoch]:.1e}" if epoch < len(medians) else "-" for epoch, _ in WINDOWS]
        lines.append([f"{row.cell.network}, {row.cell.layers} layers", *texts])
    return markdown(["network", *(name for _, name in WINDOWS)], lines)


def page(records: Sequence[GradientRecord]) -> str:
    """All tables, as Markdown."""
    main, deep, times, alphas, coupled = (
        rows(records, cases) for cases in (FIGURE, DEPTHS, TIMES, ALPHAS, COUPLED)
    )
    in_loss = sorted(alphas + select(times, "H1", T=T), key=lambda row: row.cell.alpha)
    parts = [
        "# Figure 2 as numbers\n",
        "Written by `hdnn reproduce figure2`. Norms are of d y_N / d y_l, l = 0 .. N - 1, over all "
        "seeds, all looks (batches) of the 960 iterations and all layers: of *single samples*, and "
        'of the *mean over the batch*. "Median maximum": of the seeds\' maxima.\n',
        Table(NORMS, main).markdown(),
        "The FCNN by layer, largest norm of a single sample:\n",
        *(layers_table(row) for row in select(main, "FCNN")),
        "Norm of the gradient of the objective with respect to all hidden layers, mean over "
        "windows of iterations, median over seeds:\n",
        gradients_table(main),
        "## Never below 1\n",
        Table(MINIMA, [*main[:3], *deep, *times]).markdown(),
        "## Deeper, at the same T, looks every 40 iterations\n",
        Table(NORMS, deep).markdown(),
        "## Other T, looks every 8 iterations\n",
        Table(NORMS, times).markdown(),
        "## Against alpha, looks every 8 iterations\n",
        Table(PENALTIES, in_loss).markdown(),
        Table(PENALTIES, coupled + select(times, "H1 invariant", T=T)).markdown(),
    ]
    return "\n".join(parts)


# --- figures --------------------------------------------------------------------------------------


DRAWN = 240
"""Iterations of a curve that are drawn, about: as many as a panel has points."""


def norms_figure(curves: Mapping[str, Curves]) -> Figure:
    """Norms of d y_N / d y_l during training: of the batch mean (top), mean of samples (below)."""
    names = [name for name in TITLES if name in curves]
    figure = new_figure(2.35 * len(names) + 0.5, 4.8)
    axes = figure.subplots(2, len(names), squeeze=False, sharex=True)
    layers = sorted({l for name in names for l in curves[name].shown})
    shades = dict(zip(layers, color_ramp(len(layers)), strict=True))
    axes[0][0].set_ylabel("norm of the mean")
    axes[1][0].set_ylabel("mean of the norms")
    for column, name in enumerate(names):
        seen = curves[name]
        for lines, axis in zip((seen.of_mean, seen.mean), axes[:, column], strict=True):
            for l, line in zip(seen.shown, lines, strict=True):
                steps = range(0, len(line), max(1, len(line) // DRAWN))
                drawn = [line[step] for step in steps]
                axis.plot(steps, drawn, color=shades[l], linewidth=0.8, label=f"{l}")
            axis.set_yscale("log" if name == "FCNN" else "linear")
            axis.set_ylim(bottom=1e-16 if name == "FCNN" else 0)
            _set_text(clean(axis))
        title = f"({'abcd'[column]}) {TITLES[name]},\n{seen.layers} layers"
        axes[0][column].set_title(title, fontsize=NORMAL, loc="left")
        axes[1][column].set_xlabel("iteration", fontsize=NORMAL)
    _legend_of_layers(figure, axes[0][0])
    return figure


def _set_text(axis: Axes) -> None:
    axis.tick_params(labelsize=NORMAL - 0.5)
    axis.yaxis.label.set_fontsize(NORMAL)


def _legend_of_layers(figure: Figure, axis: Axes) -> None:
    """The shades of the layers, which are too many and too close for labels at the lines."""
    handles = axis.get_lines()
    labels = [str(line.get_label()) for line in handles]
    look: dict[str, Any] = {"fontsize": NORMAL, "title_fontsize": NORMAL, "frameon": False}
    legend = figure.legend(
        *(handles, labels),
        loc="outside lower center",
        ncols=len(handles),
        title="gradients with respect to layer ℓ: dark near the input, light near the output",
        handlelength=1.4,
        **look,
    )
    for line in legend.get_lines():
        line.set_linewidth(3)


def claims_figure(records: Sequence[GradientRecord]) -> Figure:
    """Parameter gradients during training; norms against alpha; norms against depth."""
    figure = new_figure(11.5, 3.5)
    axes = figure.subplots(1, 3)
    found = rows(records)
    panels = {
        "(a) while training": _gradients,
        "(b) 64 layers": _alphas,
        "(c) deeper, $T$ = 1.2": _depths,
    }
    for axis, (title, draw) in zip(axes, panels.items(), strict=True):
        draw(axis, found)
        _set_text(clean(axis))
        axis.xaxis.label.set_fontsize(NORMAL)
        axis.set_title(title, fontsize=NORMAL, loc="left")
    for axis in axes:
        label_ends(axis)
    return figure


def _gradients(axis: Axes, found: Sequence[Row]) -> None:
    for name, title in TITLES.items():
        for row in select(found, name, every=1):
            norms = row.column("gradient")
            middle = 40 * (np.arange(norms.shape[1]) + 0.5)
            band = np.quantile(norms, (0.1, 0.5, 0.9), axis=0)
            plot_band(axis, middle, *band, color=COLORS[name], label=title, style="-")
    axis.set_yscale("log")
    axis.set_xlabel("iteration")
    axis.set_ylabel("norm of the parameters' gradient")


def _bands(line: Sequence[Row], field: str) -> np.ndarray:
    """10, 50 and 90 % quantiles over seeds of a field: ``(3, rows)``."""
    return np.quantile([row.column(field) for row in line], (0.1, 0.5, 0.9), axis=1)


def _norm_ticks(axis: Axes) -> None:
    axis.set_yscale("log")
    axis.minorticks_off()
    axis.set_yticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])


def _alphas(axis: Axes, found: Sequence[Row]) -> None:
    for method, color, label in (
        ("adam", COLORS["H1"], "H1, penalty in the loss"),
        ("coupled", LIGHT.color(4), "H1, implicit"),
    ):
        line = select(found, "H1", method, layers=64, T=T, every=8)
        alphas = (row.cell.alpha for row in line)
        places = [2e9 if alpha == LIMIT else max(alpha, 5e-4) for alpha in alphas]
        plot_band(axis, places, *_bands(line, "maximum"), color=color, label=label)
    for row in select(found, "H1 invariant", layers=64, T=T, every=8):
        low, middle, high = _bands([row], "maximum")[:, 0]
        color = COLORS["H1 invariant"]
        axis.axhline(middle, color=color, linewidth=1.2)
        axis.axhspan(low, high, color=color, alpha=0.1, linewidth=0)
        axis.text(30, 0.62 * middle, "H1, shared weights", color=color, fontsize=NORMAL, va="top")
    axis.set_xscale("log")
    names = ["0", "0.05", "5", "$5{\\cdot}10^4$", "$\\infty$"]
    axis.set_xticks([5e-4, 5e-2, 5.0, 5e4, 2e9], names)
    _norm_ticks(axis)
    axis.set_xlabel("smoothness penalty $\\alpha$")
    axis.set_ylabel("largest norm of $\\partial y_N/\\partial y_\\ell$")
    axis.set_ylim(1, 400)


def _depths(axis: Axes, found: Sequence[Row]) -> None:
    for name in ("H1", "H1 invariant", "MS3"):
        line = select(found, name, every=40)
        depths, color = [row.cell.layers for row in line], COLORS[name]
        maxima, minima = _bands(line, "maximum"), _bands(line, "minimum")
        plot_band(axis, depths, *maxima, color=color, label=TITLES[name])
        plot_band(axis, depths, *minima, color=color, style="v:")
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
    axis.set_ylabel("largest norm of $\\partial y_N/\\partial y_\\ell$")
