"""The figures of the gradient analysis: Figure 2, its claims, and the record of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hdnn.analysis import Profile
from hdnn.experiments.figure2 import LIMIT
from hdnn.experiments.figure2_records import GradientRecord
from hdnn.experiments.figure2_summary import Row, rows, select
from hdnn.plots import new_figure
from hdnn.training.recorder import Header

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = {"H1": "H1", "H1 invariant": "H1, time-invariant", "MS3": "MS3", "FCNN": "FCNN"}
COLOURS = {"H1": "#c1440e", "H1 invariant": "#1f5a99", "MS3": "#3a7d44", "FCNN": "#8a5fa8"}


def _ramp(count: int) -> list[str]:
    """From dark (near the input) to light (near the output)."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["viridis"](0.92 * k / max(count - 1, 1))) for k in range(count)]


def _clean(axis: Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=7)
    axis.grid(True, axis="y", color="#e4e4e4", linewidth=0.6)
    axis.set_axisbelow(True)


def figure2(curves: dict[str, Any]) -> Figure:
    """Norms of d y_N / d y_l during training: of the batch mean (top), mean of samples (below)."""
    names = [name for name in TITLES if name in curves]
    figure = new_figure(2.45 * len(names) + 0.5, 4.6)
    axes = figure.subplots(2, len(names), squeeze=False, sharex=True)
    layers = sorted({l for name in names for l in curves[name]["shown"]})
    shades = dict(zip(layers, _ramp(len(layers)), strict=True))
    kinds = (("of_mean", "norm of the batch mean"), ("mean", "mean norm of the samples"))
    for column, name in enumerate(names):
        entry = curves[name]
        for (kind, label), axis in zip(kinds, axes[:, column], strict=True):
            for l, line in zip(entry["shown"], entry[kind], strict=True):
                axis.plot(line, color=shades[l], linewidth=0.7, label=f"$\\ell$ = {l}")
            if name == "FCNN":
                axis.set_yscale("log")
                axis.set_ylim(bottom=1e-16)
            else:
                axis.set_ylim(bottom=0)
            _clean(axis)
            if column == 0:
                axis.set_ylabel(label, fontsize=8)
        letter = "abcd"[column]
        axes[0][column].set_title(
            f"({letter}) {TITLES[name]}, {entry['layers']} layers", fontsize=9
        )
        axes[1][column].set_xlabel("iteration", fontsize=8)
    handles = axes[0][0].get_lines()
    figure.legend(
        handles,
        [str(line.get_label()) for line in handles],
        loc="outside lower center",
        ncols=len(handles),
        fontsize=7,
        frameon=False,
        handlelength=1.2,
    )
    return figure


def claims(records: Sequence[GradientRecord]) -> Figure:
    """Parameter gradients during training; norms against alpha; norms against depth."""
    figure = new_figure(10.2, 3.1)
    axes = figure.subplots(1, 3)
    found = rows(records)
    _slopes(axes[0], found)
    _alphas(axes[1], found)
    _depths(axes[2], found)
    for axis, letter in zip(axes, "abc", strict=True):
        _clean(axis)
        axis.set_title(f"({letter}) {axis.get_title()}", fontsize=9)
    return figure


def _slopes(axis: Axes, found: Sequence[Row]) -> None:
    for name, title in TITLES.items():
        for row in select(found, name, every=1):
            slopes = row.column("gradient")
            middle = 40 * (np.arange(slopes.shape[1]) + 0.5)
            axis.plot(middle, np.median(slopes, 0), color=COLOURS[name], linewidth=1.3, label=title)
            low, high = np.quantile(slopes, (0.1, 0.9), axis=0)
            axis.fill_between(middle, low, high, color=COLOURS[name], alpha=0.13, linewidth=0)
    axis.set_yscale("log")
    axis.set_xlabel("iteration", fontsize=8)
    axis.set_ylabel("norm of the parameter gradient", fontsize=8)
    axis.legend(frameon=False, fontsize=7)
    axis.set_title("parameter gradients: median, 10 to 90 %")


def _alphas(axis: Axes, found: Sequence[Row]) -> None:
    ends: list[float] = []
    for method, colour, label in (
        ("adam", COLOURS["H1"], "H1, penalty in the loss"),
        ("coupled", "#b08a1e", "H1, penalty implicit"),
    ):
        line = select(found, "H1", method, layers=64, T=1.2, every=8)
        places = np.array([2e9 if row.alpha == LIMIT else max(row.alpha, 5e-4) for row in line])
        ends += places.tolist()
        maxima = np.array([row.column("maximum") for row in line])
        low, middle, high = np.quantile(maxima, (0.1, 0.5, 0.9), axis=1)
        axis.plot(places, middle, "o-", ms=3, linewidth=1.2, color=colour, label=label)
        axis.fill_between(places, low, high, color=colour, alpha=0.13, linewidth=0)
    for row in select(found, "H1 invariant", layers=64, T=1.2, every=8):
        low, middle, high = np.quantile(row.column("maximum"), (0.1, 0.5, 0.9))
        axis.axhline(
            middle, color=COLOURS["H1 invariant"], linewidth=1.2, label="time-invariant H1"
        )
        axis.axhspan(low, high, color=COLOURS["H1 invariant"], alpha=0.1, linewidth=0)
    axis.set_xscale("log")
    axis.set_yscale("log")
    ticks = [5e-4, 5e-2, 5.0, 5e2, 5e4, 5e6, 2e9]
    axis.set_xticks(
        ticks,
        ["0", "0.05", "5", "$5{\\cdot}10^2$", "$5{\\cdot}10^4$", "$5{\\cdot}10^6$", "$\\infty$"],
    )
    axis.minorticks_off()
    axis.set_yticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
    axis.set_xlabel("alpha", fontsize=8)
    axis.set_ylabel("largest norm of a sample", fontsize=8)
    axis.set_ylim(1, 400)
    axis.legend(frameon=False, fontsize=7, loc="center right", bbox_to_anchor=(1.0, 0.38))
    axis.set_title("64 layers against alpha")


def _depths(axis: Axes, found: Sequence[Row]) -> None:
    for name in ("H1", "H1 invariant", "MS3"):
        line = select(found, name, every=40)
        depth = [row.layers for row in line]
        for field, style in (("maximum", "o-"), ("minimum", "v:")):
            values = np.array([row.column(field) for row in line])
            low, middle, high = np.quantile(values, (0.1, 0.5, 0.9), axis=1)
            label = TITLES[name] if field == "maximum" else None
            axis.plot(depth, middle, style, ms=3, linewidth=1.2, color=COLOURS[name], label=label)
            axis.fill_between(depth, low, high, color=COLOURS[name], alpha=0.13, linewidth=0)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    depths = [64, 128, 256, 1024]
    axis.set_xticks(depths, [str(depth) for depth in depths])
    axis.set_yticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
    axis.minorticks_off()
    axis.set_xlabel("layers", fontsize=8)
    axis.set_ylabel("largest and smallest norm of a sample", fontsize=8)
    axis.legend(frameon=False, fontsize=7, loc="center right")
    axis.set_title("against depth, T = 1.2")


def record_figure(header: Header, entries: Sequence[dict[str, Any]], title: str) -> Figure:
    """The record of a run: norms by depth, gradients by layer, and energy, against iterations."""
    energy = bool(entries) and "energy" in entries[0]
    figure = new_figure(9.6 if energy else 6.6, 3.0)
    axes = figure.subplots(1, 3 if energy else 2)
    steps = [entry["iteration"] for entry in entries]
    chosen = [k for k in range(len(header.depths) - 1)]
    chosen = (
        [chosen[round(k * (len(chosen) - 1) / 7)] for k in range(8)] if len(chosen) > 8 else chosen
    )
    for shade, k in zip(_ramp(len(chosen)), chosen, strict=True):
        name = f"$\\ell$ = {header.depths[k]}"
        axes[0].plot(steps, _column(entries, "mean", k), color=shade, linewidth=0.9, label=name)
        if energy:
            axes[2].plot(steps, _column(entries, "energy", k), color=shade, linewidth=0.9)
    layers = len(entries[0].get("gradient") or ()) if entries else 0
    shown = sorted({round(k * (layers - 1) / 7) for k in range(8)}) if layers else []
    for shade, k in zip(_ramp(len(shown)), shown, strict=True):
        axes[1].plot(steps, _column(entries, "gradient", k), color=shade, linewidth=0.9)
    labels = ("mean norm of $dy_N/dy_\\ell$", "norm of the gradient, by layer", "energy $H$")
    for axis, label in zip(axes, labels, strict=False):
        axis.set_ylabel(label, fontsize=8)
        axis.set_xlabel("iteration", fontsize=8)
        if axis is not axes[-1] or not energy:
            axis.set_yscale("log")
        _clean(axis)
    axes[0].legend(frameon=False, fontsize=6, ncols=2)
    figure.suptitle(title, fontsize=9)
    return figure


def _column(entries: Sequence[dict[str, Any]], name: str, k: int) -> list[float]:
    values = [(entry.get(name) or [None] * (k + 1))[k] for entry in entries]
    return [np.nan if value is None else value for value in values]


def profile_figure(seen: Profile, title: str) -> Figure:
    """Norms of d y_N / d y_l against l: mean, range over samples, and of the batch mean."""
    figure = new_figure(4.6, 3.0)
    axis = figure.subplots()
    largest = seen.largest
    axis.plot(seen.depths, largest.mean(-1), color=COLOURS["H1"], label="mean of samples")
    axis.fill_between(
        seen.depths,
        largest.min(-1),
        largest.max(-1),
        color=COLOURS["H1"],
        alpha=0.15,
        linewidth=0,
        label="smallest to largest",
    )
    axis.plot(
        seen.depths, seen.of_mean, "--", color=COLOURS["H1 invariant"], label="of the batch mean"
    )
    axis.set_yscale("log")
    axis.set_xlabel("layer $\\ell$", fontsize=8)
    axis.set_ylabel("norm of $dy_N/dy_\\ell$", fontsize=8)
    axis.set_title(title, fontsize=9)
    axis.legend(frameon=False, fontsize=7)
    _clean(axis)
    return figure
