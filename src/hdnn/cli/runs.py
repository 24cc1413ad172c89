"""What commands look at: a run with its model and data, or a file of `hdnn.save`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from hdnn.errors import HdnnError

if TYPE_CHECKING:
    from hdnn.data import ColumnEncoder, Dataset
    from hdnn.models import Model
    from hdnn.training.runs import Run

RunFolder = Annotated[Path, typer.Argument(help="A finished run.")]


class Opened(NamedTuple):
    """A finished run, or a file of `hdnn.save`.

    Args:
        model: trained.
        run: None for a file.
    """

    model: Model
    run: Run | None

    def data(self) -> Dataset:
        """The data that the model was trained on, in its precision.

        Raises:
            HdnnError: the model is not of a run, or its data are gone.
        """
        if self.run is None:
            raise HdnnError("a model outside a run does not know its data: pass --data")
        return self.run.load_data()


def open_run(path: Path) -> Opened:
    """A finished run folder, its model file, or another file of `hdnn.save`.

    Raises:
        HdnnError: it is neither, the run is not finished, or the file holds a bare network.
    """
    from hdnn.models import Model, load
    from hdnn.training.runs import Run

    folder = path.parent if path.name == "model.safetensors" else path
    if (folder / "config.toml").is_file():
        run = Run.open(folder)
        return Opened(run.load_model(), run)
    if path.is_file():
        model = load(path)
        if not isinstance(model, Model):
            raise HdnnError(f"{path} holds a network without a model: use hdnn.analysis in Python")
        return Opened(model, None)
    raise HdnnError(f"{path} is neither a run nor a file of hdnn.save")


def encoder_of(model: Model) -> ColumnEncoder:
    """What makes numbers of the columns of a table, for a model."""
    from hdnn.data import ColumnEncoder

    names = model.feature_names or [f"x{k}" for k in range(model.features)]
    return ColumnEncoder.from_list(model.columns or [{"name": n, "kind": "number"} for n in names])
