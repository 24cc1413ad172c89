"""`hdnn predict` and `hdnn evaluate`: what a trained run is for."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from hdnn.cli.base import app, emit, say, warn
from hdnn.cli.images import labeled, read_unlabeled
from hdnn.cli.show_metrics import show_evaluation
from hdnn.data import ColumnEncoder, Dataset, iter_rows, read_table
from hdnn.errors import HdnnError, optional
from hdnn.files import atomic
from hdnn.models import Model
from hdnn.progress import track
from hdnn.training.evaluation import evaluate_fully
from hdnn.training.prepare import prepare
from hdnn.training.references import References, doubts
from hdnn.training.runs import Run

BATCH = 500
"""Images that are predicted at once."""

RunFolder = Annotated[Path, typer.Argument(help="A finished run.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="Images: a file that cannot be read is an error.")
]


@app.command()
def predict(
    run: RunFolder,
    data: Annotated[
        list[Path],
        typer.Argument(
            help="CSV or Parquet with the columns that the model was trained on; for images, "
            "folders, files or patterns ('photos/*.jpg'), or an IDX file."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="CSV or Parquet to write: the rows with predictions appended; else they go to "
            "standard output as CSV."
        ),
    ] = None,
    strict: Strict = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --out: print as JSON what was written.")
    ] = False,
) -> None:
    """Append predictions to a table, or list those of images."""
    if as_json and out is None:
        raise HdnnError(
            "--json tells what was written to a file: give --out; without it, predictions go to "
            "standard output as CSV"
        )
    model = Run.open(run).load_model()
    if model.stem.takes_images:
        names, images = read_unlabeled(data, model.stem.shape, strict)
        _predict_images(model, names, images, out, as_json)
        return
    if len(data) > 1:
        raise HdnnError(f"one table is predicted at a time, got {len(data)}")
    encoder = encoder_of(model)
    titles = _titles(model)
    rows = iter_rows(data[0], encoder.columns, skip=titles)  # of an earlier prediction
    count = 0
    with _written(out, [*rows.header, *titles]) as write:
        for raw, values in rows:
            found = _predictions(model, encoder.transform(values))
            write([[*a, *b] for a, b in zip(raw, found, strict=True)])
            count += len(raw)
    _told(count, "rows", titles, out, as_json)


def encoder_of(model: Model) -> ColumnEncoder:
    """What makes numbers of the columns of a table, for a model."""
    names = model.feature_names or [f"x{k}" for k in range(model.features)]
    return ColumnEncoder.from_list(model.columns or [{"name": n, "kind": "number"} for n in names])


@contextmanager
def _written(out: Path | None, header: list[str]) -> Iterator[Callable[[list[list[Any]]], None]]:
    """Writes rows to a file, CSV or by its ending Parquet, or without one to standard output."""
    if out is None:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(header)
        yield writer.writerows
    elif out.suffix.lower() in (".parquet", ".pq"):
        with atomic(out) as temporary, ParquetWriter(temporary, header) as parquet:
            yield parquet.write
    else:
        with atomic(out) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            yield writer.writerows


class ParquetWriter:
    """Writes rows to a Parquet file, block by block; the first block decides the types.

    Args:
        path: the file.
        names: of the columns.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self.path, self.names = path, list(names)
        self.writer: Any = None

    def __enter__(self) -> ParquetWriter:
        optional("pyarrow.parquet", "data")
        return self

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        """Write some rows: texts, numbers and dates."""
        pyarrow, parquet = optional("pyarrow", "data"), optional("pyarrow.parquet", "data")
        columns = [list(column) for column in zip(*rows, strict=True)]
        types = [None] * len(columns) if self.writer is None else self.writer.schema.types
        arrays = [
            pyarrow.array(column, type=kind, from_pandas=True)
            for column, kind in zip(columns, types, strict=True)
        ]
        table = pyarrow.Table.from_arrays(arrays, names=self.names)
        if self.writer is None:
            self.writer = parquet.ParquetWriter(self.path, table.schema)
        self.writer.write_table(table)

    def __exit__(self, *error: object) -> None:
        if self.writer is not None:
            self.writer.close()


def _told(count: int, what: str, titles: list[str], out: Path | None, as_json: bool) -> None:
    if out is None:
        return
    if as_json:
        emit({"rows": count, "out": str(out), "columns": titles})
    else:
        say(f"{count} {what} with {', '.join(titles)}: {out}")


def _predict_images(
    model: Model, names: list[str], images: torch.Tensor, out: Path | None, as_json: bool
) -> None:
    titles = _titles(model)
    with _written(out, ["image", *titles]) as write:
        for first in track(range(0, len(images), BATCH), "predicting, in batches"):
            found = _chances(model, images[first : first + BATCH])
            write([[names[first + k], *row] for k, row in enumerate(found)])
    _told(len(images), "images", ["image", *titles] if as_json else titles, out, as_json)


def _titles(model: Model) -> list[str]:
    if model.task == "regression":
        count = model.head.out_features
        names = model.target_names or list(map(str, range(count)))
        return ["prediction"] if count == 1 else [f"prediction_{name}" for name in names]
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
    strict: Strict = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a trained run on held-out data or on another table.

    Beside it: the majority class or the mean, and a linear model, of the run's training data.
    """
    opened = Run.open(run)
    model = opened.load_model()
    prepared = _run_data(opened, needed=data is None)
    if data is not None:
        X, target = _labeled_data(opened, model, data, strict)
    elif prepared is not None and len(prepared.X_test):
        X, target = prepared.X_test, prepared.y_test
    else:
        raise HdnnError("the run held out no data: pass a table to evaluate on")
    figures = evaluate_fully(model, X, target)
    references = {}
    if prepared is not None:
        fitted = References.fit(model, prepared.X, prepared.y)
        references = fitted.evaluate(X, target)
    figures |= {**references, "warnings": doubts(figures, references)}
    if as_json:
        emit(figures)
    else:
        show_evaluation(figures)


def _run_data(run: Run, needed: bool) -> Dataset | None:
    """The data of a run; None where they are gone and another table can be measured without."""
    try:
        return prepare(run.read_config())
    except HdnnError as error:
        if needed:
            raise
        warn(f"note: no baseline and no linear model to compare with: {error}")
        return None


def _labeled_data(
    run: Run, model: Model, data: Path, strict: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    if model.stem.takes_images:
        return labeled(data, model, strict)
    name = run.read_config().data.target
    if name is None:
        raise HdnnError("the run was not trained on a table, so another one has no target")
    encoder = encoder_of(model)
    table = read_table(data, name, task=model.task, classes=model.classes, types=encoder.columns)
    X = torch.from_numpy(encoder.transform(table.columns)).to(model.head.weight.dtype)
    return X, torch.from_numpy(table.targets)
