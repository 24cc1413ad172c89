"""`hdnn certify` and `hdnn advise`: what theory says of a network, and which T and depth suit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hdnn.cli.base import CHECK, FAILED, Json, app, console, emit, say
from hdnn.cli.runs import encoder_of, open_run
from hdnn.errors import HdnnError, printable

if TYPE_CHECKING:
    from torch import Tensor

    from hdnn.models import Model

_COLORS = {"holds": "green", "FAILS": "red", "not met": "yellow", "n/a": "dim"}
Samples = Annotated[int, typer.Option(min=1, help="Number of samples to use, evenly spaced.")]


@app.command(rich_help_panel=CHECK)
def certify(
    run: Annotated[Path, typer.Argument(help="A finished run, or a file written by hdnn.save.")],
    data: Annotated[
        str | None,
        typer.Option(help="Data set or table to check it on (default: the training data)."),
    ] = None,
    samples: Samples = 100,
    as_json: Json = False,
) -> None:
    """Check which theorems about gradients hold for the Hamiltonian networks of a model.

    Also says which parts of the model nothing is proved about. Exits with 1 if something that is
    proved does not hold.
    """
    from rich.text import Text

    from hdnn import analysis
    from hdnn.training.evaluation import examined

    opened = open_run(run)
    X = opened.data().X if data is None else _read(opened.model, data)
    certificate = analysis.certify(opened.model, examined(opened.model, X, samples))
    if as_json:
        emit(certificate.to_dict())
    else:
        for line in printable(str(certificate)).splitlines():
            console.print(Text(line, style=_COLORS.get(line[:8].strip(), "")), soft_wrap=True)
    if not certificate.ok:
        raise typer.Exit(FAILED)


def _read(model: Model, source: str) -> Tensor:
    """A planar problem or a table, as the model takes it."""
    import torch

    from hdnn.data import PROBLEMS, read_blocks, split

    if model.stem.takes_images:
        raise HdnnError("--data is for tables; images are taken from the run itself")
    name = source.lower().replace("_", "-")
    if name in PROBLEMS:
        X: Tensor = split(name).X
    else:
        encoder = encoder_of(model)
        blocks = read_blocks(Path(source), encoder.columns)
        X = torch.cat([torch.from_numpy(encoder.transform(values)) for _, values in blocks])
    if not len(X) or X.shape[1] != model.features:
        raise HdnnError(f"the model takes {model.features} features, {source} has {X.shape[1]}")
    return X.to(model.head.weight.dtype)


@app.command(rich_help_panel=CHECK)
def advise(
    source: Annotated[
        str, typer.Argument(help="Finished run, data set (swiss-roll, ...) or table.")
    ],
    architecture: Annotated[
        str | None,
        typer.Option(help="MS1, MS2, MS3, H1, H2, HS, ResNet or FCNN (default: H1)."),
    ] = None,
    layers: Annotated[
        int | None, typer.Option(help="Number of layers (default: as hdnn train).")
    ] = None,
    T: Annotated[
        float | None, typer.Option("--T", help="Final time T; the step is h = T / layers.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Column to predict, for a table.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the data and the initial weights (default: 0).")
    ] = None,
    samples: Samples = 100,
    as_json: Json = False,
) -> None:
    """Suggest T, step and depth for the network of a run, or for one on your data."""
    import torch

    from hdnn import analysis
    from hdnn.config import Config
    from hdnn.training.evaluation import evenly
    from hdnn.training.runs import prepare

    network = {"architecture": architecture, "layers": layers, "T": T, "seed": seed}
    if (Path(source) / "config.toml").is_file():
        if any(value is not None for value in (*network.values(), target)):
            raise HdnnError(
                f"{source} is a run, which has a network and data: leave out --architecture, "
                "--layers, --T, --target and --seed, or name its data instead"
            )
        opened = open_run(Path(source))
        model, X = opened.model, opened.data().X
    else:  # the network that `hdnn train` would build
        table = {"source": source, "target": target, "seed": seed}
        _, data, model = prepare(Config(data=table, model=network))
        X = data.X
    if model.stem.takes_images:
        raise HdnnError("advise serves planar data sets and tables, not images")
    with torch.no_grad():
        advice = analysis.advise(model.network, model.preprocess(evenly(X, samples)))
    if as_json:
        emit(advice.to_dict())
    else:
        say(str(advice))
