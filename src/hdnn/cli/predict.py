"""`hdnn predict` and `hdnn evaluate`: what a trained run is for."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hdnn.cli.base import USE, Json, app, emit, say, warn
from hdnn.cli.runs import Opened, RunFolder, encoder_of, open_run
from hdnn.cli.show_metrics import show_evaluation
from hdnn.errors import HdnnError, optional

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from hdnn.data import Dataset
    from hdnn.models import Model

BATCH = 500
"""Images that are predicted at once."""
FORMATS = (".csv", ".parquet", ".pq")


@app.command(rich_help_panel=USE)
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
            help="CSV or Parquet file to write: the rows with predictions appended (default: CSV "
            "to standard output)."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --out: print as JSON what was written.")
    ] = False,
) -> None:
    """Append predictions to a table, or list those of images."""
    from hdnn.data import iter_rows

    if as_json and out is None:
        raise HdnnError(
            "--json tells what was written to a file: give --out; without it, predictions go to "
            "standard output as CSV"
        )
    _check_out(out, data)
    model = open_run(run).model
    if model.stem.takes_images:
        _predict_images(model, data, out, as_json)
        return
    if len(data) > 1:
        raise HdnnError(f"one table is predicted at a time, got {len(data)}")
    encoder = encoder_of(model)
    titles = _titles(model)
    header, blocks = iter_rows(data[0], encoder.columns, skip=titles)  # of an earlier prediction
    count = 0
    with _written(out, [*header, *titles]) as write:
        for raw, values in blocks:
            predictions = _predictions(model, encoder.transform(values))
            write([[*a, *b] for a, b in zip(raw, predictions, strict=True)])
            count += len(raw)
    _told(count, "rows", titles, out, as_json)


def _check_out(out: Path | None, data: list[Path]) -> None:
    """Raise `HdnnError` for a file format that cannot be written, and for one's own input."""
    if out is None:
        return
    if out.suffix.lower() not in FORMATS:
        raise HdnnError(f"--out {out} must end in {', '.join(FORMATS)}: CSV or Parquet")
    if out.exists() and any(path.exists() and path.samefile(out) for path in data):
        raise HdnnError(f"--out {out} would overwrite the data: choose another file")


@contextmanager
def _written(out: Path | None, header: list[str]) -> Iterator[Callable[[list[list[Any]]], None]]:
    """Writes rows to a file, CSV or by its ending Parquet, or without one to standard output."""
    from hdnn.files import atomic

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


def _predict_images(model: Model, sources: list[Path], out: Path | None, as_json: bool) -> None:
    from hdnn.cli.images import read_unlabeled
    from hdnn.progress import track

    names, images = read_unlabeled(sources, model.stem.shape)
    titles = _titles(model)
    with _written(out, ["image", *titles]) as write:
        for first in track(range(0, len(images), BATCH), "predicting, in batches"):
            predictions = _with_probabilities(model, images[first : first + BATCH])
            write([[names[first + k], *row] for k, row in enumerate(predictions)])
    _told(len(images), "images", ["image", *titles] if as_json else titles, out, as_json)


def _titles(model: Model) -> list[str]:
    if model.task == "regression":
        count = model.head.out_features
        names = model.target_names or list(map(str, range(count)))
        return ["prediction"] if count == 1 else [f"prediction_{name}" for name in names]
    return ["prediction", *(f"p_{name}" for name in model.labels)]


def _predictions(model: Model, X: np.ndarray) -> list[list[Any]]:
    import torch

    states = torch.from_numpy(X).to(model.head.weight.dtype)
    if model.task == "classification":
        return _with_probabilities(model, states)
    values: list[list[float]] = model.predict(states).tolist()
    return [[f"{value:.9g}" for value in row] for row in values]


def _with_probabilities(model: Model, states: Tensor) -> list[list[Any]]:
    """The most probable class of each sample, and the probabilities of all."""
    import torch

    with torch.no_grad():
        probabilities = model.probabilities(states)
    return [
        [model.labels[best], *(f"{p:.6g}" for p in row)]
        for best, row in zip(probabilities.argmax(-1).tolist(), probabilities.tolist(), strict=True)
    ]


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
    from hdnn.training.evaluation import doubts, evaluate_fully, references

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
    figures |= {**others, "warnings": doubts(figures, others)}
    if as_json:
        emit(figures)
    else:
        show_evaluation(figures)


def _training_data(opened: Opened, needed: bool) -> Dataset | None:
    """The data of a run; None where they are gone and another table can be measured without."""
    try:
        return opened.data()
    except HdnnError as error:
        if needed:
            raise
        warn(f"note: no baseline and no linear model to compare with: {error}")
        return None


def _labeled_data(opened: Opened, data: Path) -> tuple[Tensor, Tensor]:
    import torch

    from hdnn.cli.images import labeled
    from hdnn.data import read_table

    model = opened.model
    if model.stem.takes_images:
        return labeled(data, model)
    target = None if opened.run is None else opened.run.config.data.target
    if target is None:
        raise HdnnError("the run was not trained on a table, so another one has no target")
    encoder = encoder_of(model)
    table = read_table(data, target, task=model.task, classes=model.classes, types=encoder.columns)
    X = torch.from_numpy(encoder.transform(table.columns)).to(model.head.weight.dtype)
    return X, torch.from_numpy(table.targets)
