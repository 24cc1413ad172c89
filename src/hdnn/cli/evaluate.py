"""`hdnn evaluate`: metrics of a trained run, and how they look at 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hdnn.cli.base import USE, Json, app, emit, say, show_table, warn
from hdnn.cli.loaded import LoadedModel, RunFolder, load_run
from hdnn.errors import HdnnError, shortened

if TYPE_CHECKING:
    from hdnn.data import Dataset

CLASS_ROWS = 20
"""Rows of the table by class that are shown."""

CONFUSION_COLUMNS = 10
"""Of a confusion matrix that is shown."""


@app.command(rich_help_panel=USE)
def evaluate(
    run: RunFolder,
    data: Annotated[
        str | None,
        typer.Argument(
            help="Data set, table or folder of images to measure on (default: what the run held "
            "out)."
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="Column of the table with the targets (default: as trained)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a trained run on held-out data or on another table.

    A linear model and the majority class (or the mean) are measured beside it.
    """
    from hdnn.training.evaluation import evaluate as metrics_of
    from hdnn.training.evaluation import references, result_warnings
    from hdnn.training.inputs import read_labeled

    loaded = load_run(run)
    if loaded.run is None and data is None:
        raise HdnnError(f"{run} is a model outside a run: pass the data to evaluate it on")
    if target and data is None:
        raise HdnnError("--target names a column of the table to evaluate on: pass one")
    trained_on = None if loaded.run is None else _training_data(loaded, needed=data is None)
    if data is not None:
        known = None if loaded.run is None else loaded.run.config.data.target
        X, y = read_labeled(loaded.model, data, target or known)
    elif trained_on is not None and len(trained_on.X_test):
        X, y = trained_on.X_test, trained_on.y_test
    else:
        raise HdnnError("the run held out no data: pass data to evaluate on")
    metrics = metrics_of(loaded.model, X, y)
    others = {}
    if trained_on is not None:
        others = references(loaded.model, trained_on.X, trained_on.y, X, y)
    metrics |= {**others, "warnings": result_warnings(metrics, others)}
    if as_json:
        emit(metrics)
    else:
        _show_evaluation(metrics)


def _training_data(loaded: LoadedModel, needed: bool) -> Dataset | None:
    """The data of a run; None if they are gone and another table is evaluated."""
    try:
        return loaded.data()
    except HdnnError as error:
        if needed:
            raise
        warn(f"note: no baseline and no linear model to compare with: {error}")
        return None


# --- on a terminal --------------------------------------------------------------------------------


def _show_evaluation(metrics: dict[str, Any]) -> None:
    """All metrics but what is too long for a screen; `--json` has all of it."""
    from hdnn.training.evaluation import METRICS, REFERENCES, metric_text

    say(f"{metrics['samples']} samples")
    columns = {"result": metrics} | {name: metrics[name] for name in REFERENCES if name in metrics}
    overall = [
        [title, *(metric_text(column.get(name)) for column in columns.values())]
        for name, title in METRICS.items()
        if name in metrics
    ]
    show_table(["", *columns], overall)
    if "classes" in metrics:
        _show_classes(metrics["classes"])
        _show_confusion(metrics["confusion"], [row["label"] for row in metrics["classes"]])
    elif len(metrics["targets"]) > 1:
        rows = metrics["targets"]
        names = ("r2", "rmse", "mae")
        cells = [[_name(row["name"]), *(metric_text(row[name]) for name in names)] for row in rows]
        show_table(["target", *(METRICS[name] for name in names)], cells)
    show_warnings(metrics["warnings"])


def show_warnings(warnings: Sequence[str]) -> None:
    """Show what is to be doubted about a result."""
    for text in warnings:
        warn(f"warning: {text}")


def _name(label: Any, most: int = 16) -> str:
    return shortened(str(label), most)


def _show_classes(classes: Sequence[dict[str, Any]]) -> None:
    from hdnn.training.evaluation import metric_text

    names = ("precision", "recall", "f1", "average_precision")
    rows = [
        [
            _name(row["label"]),
            str(row["samples"]),
            *(metric_text(row[name]) for name in names),
        ]
        for row in classes[:CLASS_ROWS]
    ]
    show_table(["class", "samples", "precision", "recall", "F1", "avg. prec."], rows)
    if len(classes) > CLASS_ROWS:
        say(f"  and {len(classes) - CLASS_ROWS} more classes; --json has all of them")


def _show_confusion(confusion: Sequence[Sequence[int]], labels: Sequence[Any]) -> None:
    if len(labels) > CONFUSION_COLUMNS:
        say(f"The confusion matrix has {len(labels)} columns; --json has it.")
        return
    width = max(3, 56 // len(labels))  # what 80 columns leave beside the names of the rows
    header = ["true \\ predicted", *(_name(label, width) for label in labels)]
    rows = [[_name(label), *map(str, row)] for label, row in zip(labels, confusion, strict=True)]
    show_table(header, rows)
