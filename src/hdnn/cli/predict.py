"""`hdnn predict`: predictions of a trained run, for tables and images."""

from __future__ import annotations

import csv
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hdnn.cli.base import USE, app, emit, say
from hdnn.cli.runs import RunFolder, encoder_of, open_run
from hdnn.errors import HdnnError, optional

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

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
    from hdnn.data import read_blocks

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
    blocks = read_blocks(data[0], encoder.columns)
    first = next(blocks)
    # The columns of an earlier prediction are replaced, unless the model takes them.
    used = {column.name for column in encoder.columns}
    header = [name for name in first[0] if name in used or name not in titles]
    count = 0
    with _written(out, [*header, *titles]) as write:
        for frame, values in itertools.chain([first], blocks):
            predictions = _predictions(model, encoder.transform(values)) if len(frame) else []
            cells = frame[header].astype(object).to_numpy().tolist()
            write([[*a, *b] for a, b in zip(cells, predictions, strict=True)])
            count += len(frame)
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
    elif out.suffix.lower() == ".csv":
        with atomic(out) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            yield writer.writerows
    else:
        import pandas as pd

        optional("pyarrow", "data")
        rows: list[list[Any]] = []  # the type of a column is known when all of it is
        with atomic(out) as temporary:
            yield rows.extend
            pd.DataFrame(rows, columns=header).to_parquet(temporary, index=False)


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
    return [[float(f"{value:.9g}") for value in row] for row in values]


def _with_probabilities(model: Model, states: Tensor) -> list[list[Any]]:
    """The most probable class of each sample, and the probabilities of all."""
    import torch

    with torch.no_grad():
        probabilities = model.probabilities(states)
    return [
        [model.labels[best], *(float(f"{p:.6g}") for p in row)]
        for best, row in zip(probabilities.argmax(-1).tolist(), probabilities.tolist(), strict=True)
    ]
