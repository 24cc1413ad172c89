"""The claims of section 4.3 as numbers, from the records of Figure 2."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hdnn.errors import HdnnError
from hdnn.experiments.figure2 import (
    ALPHAS,
    COUPLED,
    DEPTHS,
    FIGURE,
    LIMIT,
    TIMES,
    Case,
    T,
)
from hdnn.experiments.figure2_records import GradientRecord

PUBLISHED = {"H1": "[1, 17]", "H1 invariant": "[1, 37]"}
"""Intervals of the norms over layers and iterations, of 64-layer networks, as printed."""
WINDOWS = ((0, "1 - 40"), (4, "161 - 200"), (7, "281 - 320"), (12, "481 - 520"), (23, "921 - 960"))
"""Epochs, and the iterations that they hold."""


@dataclass(frozen=True)
class Row:
    """All seeds of one case."""

    network: str
    method: str
    layers: int
    T: float
    alpha: float
    every: int
    records: tuple[GradientRecord, ...]

    @property
    def seeds(self) -> int:
        return len(self.records)

    def column(self, name: str) -> np.ndarray:
        """A field of all records: ``(seeds, ...)``."""
        values = [getattr(record, name) for record in self.records]
        if len({np.shape(value) for value in values}) > 1:
            raise HdnnError(
                f"the records of {self.network} with {self.layers} layers differ in the length of "
                f"{name}; remove those that are wrong from records.jsonl"
            )
        return np.array(values)


def rows(records: Iterable[GradientRecord]) -> list[Row]:
    """Records by case, in the order of network, depth, T, alpha."""
    found: dict[tuple[Any, ...], list[GradientRecord]] = {}
    for r in records:
        found.setdefault(r.key[:-1], []).append(r)
    ordered = sorted(found.items())
    return [Row(*key, tuple(group)) for key, group in ordered]  # type: ignore[call-arg]


def select(found: Sequence[Row], network: str, method: str = "adam", **fields: float) -> list[Row]:
    """The cases of a network that have the given depth, T or alpha."""
    return [
        row
        for row in found
        if (row.network, row.method) == (network, method)
        and all(getattr(row, name) == value for name, value in fields.items())
    ]


def _of(found: Sequence[Row], cases: Sequence[Case]) -> list[Row]:
    """The rows of cases, those of a network together."""
    by_key = {(r.network, r.method, r.layers, r.T, r.alpha, r.every): r for r in found}
    kept = [by_key[case.key] for case in cases if case.key in by_key]
    order = [case.network for case in FIGURE]
    return sorted(kept, key=lambda row: order.index(row.network))


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


def norms_table(found: Sequence[Row]) -> str:
    """Intervals over all layers, looks and seeds, and what single seeds reach."""
    lines = [
        "| network | layers | T | seeds | looks | norms of single samples | median maximum | "
        "norm of the batch mean | median maximum | paper | test accuracy, % |",
        "| --- " * 11 + "|",
    ]
    for row in found:
        high, mean_high = row.column("maximum"), row.column("of_mean_maximum")
        single = interval(row.column("minimum").min(), high.max())
        batch = interval(row.column("of_mean_minimum").min(), mean_high.max())
        paper = PUBLISHED.get(row.network, "") if row.layers == 64 and row.every == 1 else ""
        accuracy = 100 * row.column("test_accuracy")
        lines.append(
            f"| {row.network} | {row.layers} | {row.T or ''} | {row.seeds} | "
            f"{row.records[0].looks} | {single} | {_number(float(np.median(high)))} | {batch} | "
            f"{_number(float(np.median(mean_high)))} | {paper} | {accuracy.mean():.2f} "
            f"({accuracy.min():.2f} to {accuracy.max():.2f}) |"
        )
    return "\n".join(lines) + "\n"


def minima_table(found: Sequence[Row]) -> str:
    """The smallest norm of a single sample less 1, and the smallest norm of a batch mean."""
    lines = [
        "| network | layers | T | looks | smallest norm of a sample, less 1 | smallest norm of a "
        "batch mean | smallest singular value |",
        "| --- " * 7 + "|",
    ]
    for row in found:
        lines.append(
            f"| {row.network} | {row.layers} | {row.T or ''} | {row.records[0].looks} | "
            f"{row.column('minimum').min() - 1:.1e} | "
            f"{row.column('of_mean_minimum').min():.4g} | {row.column('smallest').min():.2g} |"
        )
    return "\n".join(lines) + "\n"


def layers_table(row: Row) -> str:
    """Largest norms by layer, over all seeds: ever, and at the last look."""
    ever, last = row.column("shown_maximum").max(0), row.column("shown_last").max(0)
    lines = ["| l | " + " | ".join(map(str, row.records[0].shown)) + " |"]
    lines.append("| --- " * (len(ever) + 1) + "|")
    lines.append("| ever | " + " | ".join(f"{x:.1e}" for x in ever) + " |")
    lines.append("| last look | " + " | ".join(f"{x:.1e}" for x in last) + " |")
    return "\n".join(lines) + "\n"


def slopes_table(found: Sequence[Row]) -> str:
    """Median over seeds of the norm of the gradient of the objective, in windows of iterations."""
    lines = [
        "| network | " + " | ".join(name for _, name in WINDOWS) + " |",
        "| --- " * (len(WINDOWS) + 1) + "|",
    ]
    for row in found:
        medians = np.median(row.column("gradient"), 0)
        shown = [f"{medians[epoch]:.1e}" if epoch < len(medians) else "-" for epoch, _ in WINDOWS]
        cells = " | ".join(shown)
        lines.append(f"| {row.network}, {row.layers} layers | {cells} |")
    return "\n".join(lines) + "\n"


def alpha_table(found: Sequence[Row]) -> str:
    """Norms against alpha; the time-invariant network last."""
    lines = [
        "| network | penalty | alpha | looks | spread of K over layers | norms of single samples | "
        "median maximum | norm of the batch mean, median maximum | test accuracy, % |",
        "| --- " * 9 + "|",
    ]
    for row in found:
        alpha = "infinite" if row.alpha == LIMIT else f"{row.alpha:g}"
        if row.network == "H1 invariant":
            alpha = "does not matter"
        kind = {"adam": "in the loss", "coupled": "implicit"}[row.method]
        single = interval(row.column("minimum").min(), row.column("maximum").max())
        lines.append(
            f"| {row.network} | {kind} | {alpha} | {row.records[0].looks} | "
            f"{np.median(row.column('spread')):.1e} | {single} | "
            f"{np.median(row.column('maximum')):.4g} | "
            f"{np.median(row.column('of_mean_maximum')):.4g} | "
            f"{100 * row.column('test_accuracy').mean():.2f} |"
        )
    return "\n".join(lines) + "\n"


def page(records: Iterable[GradientRecord]) -> str:
    """All tables, as Markdown."""
    found = rows(records)
    main = _of(found, FIGURE)
    deep, times, coupled = _of(found, DEPTHS), _of(found, TIMES), _of(found, COUPLED)
    in_loss = sorted(_of(found, ALPHAS) + select(times, "H1", T=T), key=lambda row: row.alpha)
    coupled += select(times, "H1 invariant", T=T)
    parts = [
        "# Figure 2 as numbers\n",
        "Written by `hdnn reproduce figure2`. Norms are of d y_N / d y_l, l = 0 .. N - 1, over all "
        "seeds, all looks (batches) of the 960 iterations and all layers: of *single samples*, and "
        'of the *mean over the batch*. "Median maximum": of the seeds\' maxima.\n',
        norms_table(main),
        "The FCNN by layer, largest norm of a single sample:\n",
        *(layers_table(r) for r in select(main, "FCNN")),
        "Norm of the gradient of the objective with respect to all hidden layers, mean over "
        "windows of iterations, median over seeds:\n",
        slopes_table(main),
        "## Never below 1\n",
        minima_table([*main[:3], *deep, *times]),
        "## Deeper, at the same T, looks every 40 iterations\n",
        norms_table(deep),
        "## Other T, looks every 8 iterations\n",
        norms_table(times),
        "## Against alpha, looks every 8 iterations\n",
        alpha_table(in_loss),
        alpha_table(coupled),
    ]
    return "\n".join(parts)
