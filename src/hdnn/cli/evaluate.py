"""`hdnn evaluate`: metrics of a trained run, and how they look at 80 columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hdnn.cli.base import USE, Json, app, emit, say, show_table, warn
from hdnn.cli.runs import Opened, RunFolder, encoder_of, open_run
from hdnn.errors import HdnnError

if TYPE_CHECKING:
    from torch import Tensor

    from hdnn.data import Dataset

MOST_CLASSES = 20
"""Rows of the table by class that are shown."""

MOST_COLUMNS = 10
"""Of a confusion matrix that is shown."""


@app.command(rich_help_panel=USE)
def evaluate(
    run: RunFolder,
    data: Annotated[
        Path | None,
        typer.Argument(
            help="Table or folder of images to measure on (default: what the run held out)."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a trained run on held-out data or on another table.

    A linear model and the majority class (or the mean) are measured beside it.
    """
    from hdnn.training.evaluation import evaluate_fully, references, result_warnings

    opened = open_run(run)
    trained_on = _training_data(opened, needed=data is None)
    if data is not None:
        X, y = _labeled_data(opened, data)
    elif trained_on is not None and len(trained_on.X_test):
        X, y = trained_on.X_test, trained_on.y_test
    else:
        raise HdnnError("the run held out no data: pass a table to evaluate on")
    figures = evaluate_fully(opened.model, X, y)
    others = {}
    if trained_on is not None:
        others = references(opened.model, trained_on.X, trained_on.y, X, y)
    figures |= {**others, "warnings": result_warnings(figures, others)}
    if as_json:
        emit(figures)
    else:
        _show_evaluation(figures)


def _training_data(opened: Opened, needed: bool) -> Dataset | None:
    """The data of a run; None if they are gone and another table is evaluated."""
    try:
        return opened.data()
    except HdnnError as error:
        if needed:
            raise
        warn(f"note: no baseline and no linear model to compare with: {error}")
        return None


def _labeled_data(opened: Opened, data: Path) -> tuple[Tensor, Tensor]:
    import torch

    from hdnn.cli.images import read_labeled
    from hdnn.data import read_table

    model = opened.model
    if model.stem.takes_images:
        return read_labeled(data, model)
    target = None if opened.run is None else opened.run.config.data.target
    if target is None:
        raise HdnnError("the run was not trained on a table, so another one has no target")
    encoder = encoder_of(model)
    table = read_table(data, target, task=model.task, classes=model.classes, types=encoder.columns)
    X = torch.from_numpy(encoder.transform(table.columns)).to(model.head.weight.dtype)
    return X, torch.from_numpy(table.targets)


# --- on a terminal --------------------------------------------------------------------------------


def _show_evaluation(figures: dict[str, Any]) -> None:
    """All figures but what is too long for a screen; `--json` has all of it."""
    from hdnn.training.evaluation import METRICS, REFERENCES

    say(f"{figures['samples']} samples")
    columns = {"result": figures} | {name: figures[name] for name in REFERENCES if name in figures}
    overall = [
        [title, *(_number(column.get(name)) for column in columns.values())]
        for name, title in METRICS.items()
        if name in figures
    ]
    show_table(["", *columns], overall)
    if "classes" in figures:
        _show_classes(figures["classes"])
        _show_confusion(figures["confusion"], [row["label"] for row in figures["classes"]])
    elif len(figures["targets"]) > 1:
        rows = figures["targets"]
        names = ("r2", "rmse", "mae")
        cells = [[_cut(row["name"]), *(_number(row[name]) for name in names)] for row in rows]
        show_table(["target", *(METRICS[name] for name in names)], cells)
    show_warnings(figures["warnings"])


def show_warnings(warnings: Sequence[str]) -> None:
    """Show what is to be doubted about a result."""
    for text in warnings:
        warn(f"warning: {text}")


def _number(value: float | None) -> str:
    """Four digits, or a dash for what is not defined."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.4f}" if abs(value) < 100 else f"{value:.5g}"


def _show_classes(classes: Sequence[dict[str, Any]]) -> None:
    names = ("precision", "recall", "f1", "average_precision")
    rows = [
        [_cut(row["label"]), str(row["samples"]), *(_number(row[name]) for name in names)]
        for row in classes[:MOST_CLASSES]
    ]
    show_table(["class", "samples", "precision", "recall", "F1", "avg. prec."], rows)
    if len(classes) > MOST_CLASSES:
        say(f"  and {len(classes) - MOST_CLASSES} more classes; --json has all of them")


def _show_confusion(confusion: Sequence[Sequence[int]], labels: Sequence[Any]) -> None:
    if len(labels) > MOST_COLUMNS:
        say(f"The confusion matrix has {len(labels)} columns; --json has it.")
        return
    width = max(3, 56 // len(labels))  # what 80 columns leave beside the names of the rows
    header = ["true \\ predicted", *(_cut(label, width) for label in labels)]
    rows = [[_cut(label), *map(str, row)] for label, row in zip(labels, confusion, strict=True)]
    show_table(header, rows)


def _cut(value: Any, most: int = 16) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= most else text[: most - 1] + "…"
