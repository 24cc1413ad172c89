"""`hdnn predict` and `hdnn evaluate`: what a trained run is for."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from hdnn.cli.base import app, emit, say
from hdnn.data import iter_rows, read_table
from hdnn.errors import HdnnError
from hdnn.files import atomic
from hdnn.model import Model
from hdnn.training.evaluation import evaluate as measure
from hdnn.training.recipe import prepare
from hdnn.training.runs import Run

RunFolder = Annotated[Path, typer.Argument(help="A finished run.")]


@app.command()
def predict(
    run: RunFolder,
    data: Annotated[
        Path, typer.Argument(help="CSV with the columns that the model was trained on.")
    ],
    out: Annotated[Path, typer.Option(help="CSV to write: the rows with predictions appended.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Append predictions to a CSV file, in constant memory."""
    model = Run.open(run).load_model()
    names = model.feature_names or [f"x{k}" for k in range(model.features)]
    rows = iter_rows(data, names)
    titles = _titles(model)
    count = 0
    with atomic(out) as temporary, open(temporary, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*rows.header, *titles])
        for raw, X in rows:
            writer.writerows([*a, *b] for a, b in zip(raw, _predictions(model, X), strict=True))
            count += len(raw)
    if as_json:
        emit({"rows": count, "out": str(out), "columns": titles})
    else:
        say(f"{count} rows with {', '.join(titles)}: {out}")


def _titles(model: Model) -> list[str]:
    if model.task == "regression":
        count = model.head.out_features
        return ["prediction"] if count == 1 else [f"prediction_{k}" for k in range(count)]
    return ["prediction", *(f"p_{name}" for name in _classes(model))]


def _classes(model: Model) -> list[Any]:
    return model.classes or list(range(max(2, model.head.out_features)))


@torch.no_grad()
def _predictions(model: Model, X: np.ndarray) -> list[list[Any]]:
    states = torch.from_numpy(X).to(model.head.weight.dtype)
    if model.task == "regression":
        values: list[list[float]] = model(states).tolist()
        return [[f"{value:.9g}" for value in row] for row in values]
    chances = model.probabilities(states)
    classes = _classes(model)
    best = chances.argmax(-1).tolist()
    return [
        [classes[k], *(f"{p:.6g}" for p in row)]
        for k, row in zip(best, chances.tolist(), strict=True)
    ]


@app.command()
def evaluate(
    run: RunFolder,
    data: Annotated[
        Path | None, typer.Argument(help="A table; without it, the data that the run held out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a trained run on held-out data or on another table."""
    opened = Run.open(run)
    model = opened.load_model()
    if data is None:
        prepared = prepare(opened.recipe())
        if not len(prepared.X_test):
            raise HdnnError("the run held out no data: pass a table to evaluate on")
        X, target = prepared.X_test, prepared.y_test
    else:
        name = opened.recipe().data.target
        if name is None:
            raise HdnnError("the run was not trained on a table, so another one has no target")
        table = read_table(
            data, name, task=model.task, features=model.feature_names, classes=model.classes
        )
        X = torch.from_numpy(table.X).to(model.head.weight.dtype)
        target = torch.from_numpy(table.targets)
    found = measure(model, X, target)
    if as_json:
        emit(found)
        return
    for title, value in found.items():
        say(f"{title:10}{value:.6g}" if isinstance(value, float) else f"{title:10}{value}")
