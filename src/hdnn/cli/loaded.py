"""What commands look at: a run with its model and data, or a file of `hdnn.save`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from hdnn.errors import HdnnError

if TYPE_CHECKING:
    from torch import Tensor

    from hdnn.data import Dataset
    from hdnn.models import Model
    from hdnn.training.runs import Run

RunFolder = Annotated[Path, typer.Argument(help="A finished run.")]
Data = Annotated[
    str | None,
    typer.Option(help="Data set, table or images to look at it with (default: the run's data)."),
]


class LoadedModel(NamedTuple):
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

    def features(self, source: str | None, held_out: bool = False) -> Tensor:
        """Data to look at the model with.

        Args:
            source: as of `hdnn.training.inputs.read_features`; None: the data of the run.
            held_out: of a run, take what it held out, if there is some.

        Raises:
            HdnnError: they cannot be read, or the model is not of a run.
        """
        from hdnn.training.inputs import read_features

        if source is not None:
            return read_features(self.model, source)
        data = self.data()
        return data.X_test if held_out and len(data.X_test) else data.X


def is_identification(path: Path) -> bool:
    """Whether it is a run folder of `hdnn identify`."""
    return (path / "identify.toml").is_file()


def load_run(path: Path) -> LoadedModel:
    """A finished run folder, its model file, or another file of `hdnn.save`.

    Raises:
        HdnnError: it is neither, the run is not finished, or the file holds a bare network.
    """
    from hdnn.models import Model, load
    from hdnn.training.runs import Run

    if is_identification(path):
        raise HdnnError(
            f"{path} is a run of hdnn identify: simulate, evaluate, report and export take it"
        )
    folder = path.parent if path.name == "model.safetensors" else path
    if (folder / "config.toml").is_file():
        run = Run.open(folder)
        return LoadedModel(run.load_model(), run)
    if path.is_file():
        model = load(path)
        if not isinstance(model, Model):
            raise HdnnError(f"{path} holds a network without a model: use hdnn.analysis in Python")
        return LoadedModel(model, None)
    raise HdnnError(f"{path} is neither a run nor a file of hdnn.save")
