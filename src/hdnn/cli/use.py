"""`hdnn predict` and `hdnn evaluate`: what a trained run is for."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from hdnn.cli.base import app, emit, say, warn
from hdnn.cli.figures import show_evaluation
from hdnn.cli.images import labeled, read_unlabeled
from hdnn.data import iter_rows, read_table
from hdnn.errors import HdnnError
from hdnn.files import atomic
from hdnn.models import Model
from hdnn.training.evaluation import evaluate_fully
from hdnn.training.prepare import Prepared, prepare
from hdnn.training.references import References, doubts
from hdnn.training.runs import Run

RunFolder = Annotated[Path, typer.Argument(help="A finished run.")]


@app.command()
def predict(
    run: RunFolder,
    data: Annotated[
        Path,
        typer.Argument(
            help="CSV with the columns that the model was trained on; for images, a folder of "
            "them or an IDX file."
        ),
    ],
    out: Annotated[Path, typer.Option(help="CSV to write: the rows with predictions appended.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Append predictions to a table, or list those of images."""
    model = Run.open(run).load_model()
    if model.stem.takes_images:
        _predict_images(model, data, out, as_json)
        return
    names = model.feature_names or [f"x{k}" for k in range(model.features)]
    rows = iter_rows(data, names)
    titles = _titles(model)
    count = 0
    with atomic(out) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*rows.header, *titles])
        for raw, X in rows:
            writer.writerows([*a, *b] for a, b in zip(raw, _predictions(model, X), strict=True))
            count += len(raw)
    if as_json:
        emit({"rows": count, "out": str(out), "columns": titles})
    else:
        say(f"{count} rows with {', '.join(titles)}: {out}")


def _predict_images(model: Model, data: Path, out: Path, as_json: bool) -> None:
    channels, height, width = model.stem.shape
    names, images = read_unlabeled(data, channels, (height, width))
    titles = _titles(model)
    with atomic(out) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["image", *titles])
        for first in range(0, len(images), 500):
            found = _chances(model, images[first : first + 500])
            writer.writerows([names[first + k], *row] for k, row in enumerate(found))
    if as_json:
        emit({"rows": len(images), "out": str(out), "columns": ["image", *titles]})
    else:
        say(f"{len(images)} images with {', '.join(titles)}: {out}")


def _titles(model: Model) -> list[str]:
    if model.task == "regression":
        count = model.head.out_features
        return ["prediction"] if count == 1 else [f"prediction_{k}" for k in range(count)]
    return ["prediction", *(f"p_{name}" for name in model.labels)]


@torch.no_grad()
def _predictions(model: Model, X: np.ndarray) -> list[list[Any]]:
    states = torch.from_numpy(X).to(model.head.weight.dtype)
    if model.task == "regression":
        values: list[list[float]] = model(states).tolist()
        return [[f"{value:.9g}" for value in row] for row in values]
    return _chances(model, states)


@torch.no_grad()
def _chances(model: Model, states: torch.Tensor) -> list[list[Any]]:
    chances = model.probabilities(states)
    classes = model.labels
    best = chances.argmax(-1).tolist()
    return [
        [classes[k], *(f"{p:.6g}" for p in row)]
        for k, row in zip(best, chances.tolist(), strict=True)
    ]


@app.command()
def evaluate(
    run: RunFolder,
    data: Annotated[
        Path | None,
        typer.Argument(
            help="A table or a folder of images; without it, the data that the run held out."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a trained run on held-out data or on another table.

    Beside it: the majority class or the mean, and a linear model, of the run's training data.
    """
    opened = Run.open(run)
    model = opened.load_model()
    prepared = _run_data(opened, needed=data is None)
    if data is not None:
        X, target = _labeled_data(opened, model, data)
    elif prepared is not None and len(prepared.X_test):
        X, target = prepared.X_test, prepared.y_test
    else:
        raise HdnnError("the run held out no data: pass a table to evaluate on")
    figures = evaluate_fully(model, X, target)
    references = {}
    if prepared is not None:
        fitted = References.fit(model, prepared.X_train, prepared.y_train)
        references = fitted.evaluate(X, target)
    figures |= {**references, "warnings": doubts(figures, references)}
    if as_json:
        emit(figures)
    else:
        show_evaluation(figures)


def _run_data(run: Run, needed: bool) -> Prepared | None:
    """The data of a run; None where they are gone and another table can be measured without."""
    try:
        return prepare(run.read_config())
    except HdnnError as error:
        if needed:
            raise
        warn(f"note: no baseline and no linear model to compare with: {error}")
        return None


def _labeled_data(run: Run, model: Model, data: Path) -> tuple[torch.Tensor, torch.Tensor]:
    if model.stem.takes_images:
        return labeled(data, model)
    name = run.read_config().data.target
    if name is None:
        raise HdnnError("the run was not trained on a table, so another one has no target")
    table = read_table(
        data, name, task=model.task, features=model.feature_names, classes=model.classes
    )
    X = torch.from_numpy(table.X).to(model.head.weight.dtype)
    return X, torch.from_numpy(table.targets)
