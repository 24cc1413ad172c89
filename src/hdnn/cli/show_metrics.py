"""How the metrics of a result look on a terminal, at 80 columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from hdnn.cli.base import console, say, warn

MOST_CLASSES = 20
"""Rows of the table by class."""

MOST_COLUMNS = 10
"""Of a confusion matrix that is shown whole; of a larger one, the most frequent confusions are."""

REFERENCES = ("linear", "baseline")

TITLES = {
    "accuracy": "accuracy",
    "log_loss": "log loss",
    "roc_auc": "ROC AUC",
    "average_precision": "average precision",
    "calibration_error": "calibration error",
    "r2": "R2",
    "rmse": "RMSE",
    "mae": "MAE",
}


def show_evaluation(figures: dict[str, Any]) -> None:
    """Everything that `hdnn evaluate` found, but for what is too long; `--json` has all of it."""
    say(f"{figures['samples']} samples")
    _show_overall(figures)
    if "classes" in figures:
        _show_classes(figures["classes"])
        _show_confusion(figures["confusion"], [row["label"] for row in figures["classes"]])
    elif len(figures["targets"]) > 1:
        rows = figures["targets"]
        names = ("r2", "rmse", "mae")
        cells = [[_cut(row["name"]), *(number(row[name]) for name in names)] for row in rows]
        _show(["target", *(TITLES[name] for name in names)], cells)
    _show_warnings(figures["warnings"])


def show_references(references: dict[str, dict[str, Any]], warnings: Sequence[str]) -> None:
    """End a training: linear model and baseline below the result, then what is to be doubted."""
    names = {"log_loss": "loss", "accuracy": "accuracy", "rmse": "rmse", "mae": "mae", "r2": "r2"}
    for title in REFERENCES:
        if title in references:
            figures = references[title]
            shown = [f"{names[k]} {figures[k]:.4f}" for k in names if k in figures]
            say(f"{title:8}  {', '.join(shown)}")
    _show_warnings(warnings)


def _show_warnings(warnings: Sequence[str]) -> None:
    for text in warnings:
        warn(f"warning: {text}")


def number(value: float | None) -> str:
    """Four digits, or a dash for what is not defined."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.4f}" if abs(value) < 100 else f"{value:.5g}"


def _show_overall(figures: dict[str, Any]) -> None:
    others = [name for name in REFERENCES if name in figures]
    rows = [
        [title, number(figures[name]), *(number(figures[other].get(name)) for other in others)]
        for name, title in TITLES.items()
        if name in figures
    ]
    _show(["", "result", *others], rows)


def _show_classes(classes: Sequence[dict[str, Any]]) -> None:
    names = ("precision", "recall", "f1", "average_precision")
    rows = [
        [_cut(row["label"]), str(row["samples"]), *(number(row[name]) for name in names)]
        for row in classes[:MOST_CLASSES]
    ]
    _show(["class", "samples", "precision", "recall", "F1", "avg. prec."], rows)
    if len(classes) > MOST_CLASSES:
        say(f"  and {len(classes) - MOST_CLASSES} more classes; --json has all of them")


def _show_confusion(confusion: Sequence[Sequence[int]], labels: Sequence[Any]) -> None:
    if len(labels) <= MOST_COLUMNS:
        width = max(3, 56 // len(labels))
        header = ["true \\ predicted", *(_cut(label, width) for label in labels)]
        rows = [[_cut(label), *map(str, row)] for label, row in zip(labels, confusion, strict=True)]
        _show(header, rows)
        return
    wrong = [
        (count, labels[i], labels[j])
        for i, row in enumerate(confusion)
        for j, count in enumerate(row)
        if i != j and count
    ]
    wrong.sort(key=lambda entry: -entry[0])
    rows = [[_cut(true), _cut(taken), str(count)] for count, true, taken in wrong[:MOST_COLUMNS]]
    if rows:
        _show(["most confused", "taken for", "samples"], rows)


def _cut(value: Any, most: int = 16) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= most else text[: most - 1] + "…"


def _show(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: names to the left, numbers to the right; labels are no markup."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
    for k, title in enumerate(header):
        table.add_column(Text(title), justify="right" if k else "left", no_wrap=console.width >= 60)
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
    say("")
