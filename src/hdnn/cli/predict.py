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

from hdnn.cli.base import USE, app, say
from hdnn.cli.loaded import RunFolder, load_run
from hdnn.errors import HdnnError, optional, printable

if TYPE_CHECKING:
    from torch import Tensor

    from hdnn.models import Model

BATCH = 500
"""Images that are predicted at once."""
FORMATS = (".csv", ".parquet", ".pq")
Rows = list[list[Any]]


@app.command(rich_help_panel=USE)
def predict(
    run: RunFolder,
    data: Annotated[
        list[Path],
        typer.Argument(
            help="CSV or Parquet with the columns that the model was trained on; for images, "
            "folders or files."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="CSV or Parquet file to write: the rows with predictions appended (default: CSV "
            "to standard output)."
        ),
    ] = None,
) -> None:
    """Append predictions to a table, or list those of images."""
    _check_out(out, data)
    model = load_run(run).model
    titles = _titles(model)
    if model.stem.takes_images:
        header, blocks = _of_images(model, data)
    else:
        header, blocks = _of_table(model, data, titles)
    count = 0
    with _writer(out, [*header, *titles]) as write:
        for rows in blocks:
            write(rows)
            count += len(rows)
    if out is not None:
        say(f"{count} rows with {', '.join(titles)}: {out}")


def _check_out(out: Path | None, data: list[Path]) -> None:
    """Raise `HdnnError` for a file format that cannot be written, and for one's own input."""
    if out is None:
        return
    if out.suffix.lower() not in FORMATS:
        raise HdnnError(f"--out {out} must end in {', '.join(FORMATS)}: CSV or Parquet")
    if out.exists() and any(path.exists() and path.samefile(out) for path in data):
        raise HdnnError(f"--out {out} would overwrite the data: choose another file")


def _titles(model: Model) -> list[str]:
    """The columns that are appended."""
    if model.task == "regression":
        count = model.head.out_features
        names = model.target_names or list(map(str, range(count)))
        return ["prediction"] if count == 1 else [f"prediction_{name}" for name in names]
    return ["prediction", *(f"p_{name}" for name in model.labels)]


def _of_table(
    model: Model, data: list[Path], titles: list[str]
) -> tuple[list[str], Iterator[Rows]]:
    """The header of a table, and its rows with predictions, a block at a time."""
    import torch

    from hdnn.data import read_blocks
    from hdnn.training.inputs import encoder_of

    if len(data) > 1:
        raise HdnnError(f"one table is predicted at a time, got {len(data)}")
    encoder = encoder_of(model)
    blocks = read_blocks(data[0], encoder.columns)
    first = next(blocks)
    # Columns of an earlier prediction are replaced, so that a file can be predicted again.
    used = {column.name for column in encoder.columns}
    header = [name for name in first[0] if name in used or name not in titles]

    def rows() -> Iterator[Rows]:
        for frame, values in itertools.chain([first], blocks):
            X = torch.from_numpy(encoder.transform(values)).to(model.head.weight.dtype)
            predictions = _predictions(model, X) if len(frame) else []
            cells = frame[header].astype(object).to_numpy().tolist()
            yield [[*a, *b] for a, b in zip(cells, predictions, strict=True)]

    return header, rows()


def _of_images(model: Model, data: list[Path]) -> tuple[list[str], Iterator[Rows]]:
    """The names of images with predictions, a batch at a time."""
    from hdnn.progress import track
    from hdnn.training.inputs import read_unlabeled

    names, images = read_unlabeled(data, model)

    def rows() -> Iterator[Rows]:
        for first in track(range(0, len(images), BATCH), "predicting, in batches"):
            predictions = _predictions(model, images[first : first + BATCH])
            yield [[names[first + k], *row] for k, row in enumerate(predictions)]

    return ["image"], rows()


def _predictions(model: Model, X: Tensor) -> Rows:
    """Values, or the most probable class of each sample and the probabilities of all."""
    import torch

    from hdnn.files import rounded

    # Rounded to the digits that float32 has: the others are noise, and double the file.
    if model.task == "regression":
        return [rounded(row, 9) for row in model.predict(X).tolist()]
    with torch.no_grad():
        probabilities = model.probabilities(X)
    return [
        [model.labels[best], *rounded(row, 6)]
        for best, row in zip(probabilities.argmax(-1).tolist(), probabilities.tolist(), strict=True)
    ]


class _StandardOutput:
    """Cells as they are for programs; on a terminal, without control characters."""

    def write(self, text: str) -> None:
        sys.stdout.write(printable(text) if sys.stdout.isatty() else text)


@contextmanager
def _writer(out: Path | None, header: list[str]) -> Iterator[Callable[[Rows], None]]:
    """Writes rows to a file, CSV or by its ending Parquet, or without one to standard output."""
    from hdnn.files import atomic

    if out is None:
        writer = csv.writer(_StandardOutput(), lineterminator="\n")
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
        rows: Rows = []  # the type of a column is known when all of it is
        with atomic(out) as temporary:
            yield rows.extend
            pd.DataFrame(rows, columns=header).to_parquet(temporary, index=False)
