"""`hdnn certify` and `hdnn advise`: what theory says of a network, and which T and depth suit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hdnn.cli.base import CHECK, FAILED, Json, app, console, emit, say, working
from hdnn.cli.loaded import Data, load_run
from hdnn.errors import HdnnError, printable

_COLORS = {"holds": "green", "FAILS": "red", "not met": "yellow", "n/a": "dim"}
Samples = Annotated[int, typer.Option(min=1, help="Number of samples to use, evenly spaced.")]


@app.command(rich_help_panel=CHECK)
def certify(
    run: Annotated[Path, typer.Argument(help="A finished run, or a file written by hdnn.save.")],
    data: Data = None,
    samples: Samples = 100,
    as_json: Json = False,
) -> None:
    """Check which theorems about gradients hold for the Hamiltonian networks of a model.

    Also says which parts of the model nothing is proved about. Exits with 1 if something that is
    proved does not hold.
    """
    from rich.text import Text

    from hdnn import analysis
    from hdnn.training.inputs import examined

    loaded = load_run(run)
    X = examined(loaded.model, loaded.features(data), samples)
    certificate = analysis.certify(loaded.model, X)
    if as_json:
        emit(certificate.to_dict())
    else:
        for line in printable(str(certificate)).splitlines():
            console.print(Text(line, style=_COLORS.get(line[:8].strip(), "")), soft_wrap=True)
    if not certificate.ok:
        raise typer.Exit(FAILED)


@app.command(rich_help_panel=CHECK)
def advise(
    source: Annotated[
        str,
        typer.Argument(
            help="Finished run, file of hdnn.save, data set (swiss-roll, ...) or table."
        ),
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
    data: Data = None,
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
    from hdnn.training.inputs import evenly
    from hdnn.training.runs import prepare

    network = {"architecture": architecture, "layers": layers, "T": T, "seed": seed}
    if (Path(source) / "config.toml").is_file() or source.endswith(".safetensors"):
        if any(value is not None for value in (*network.values(), target)):
            raise HdnnError(
                f"{source} has a network: leave out --architecture, --layers, --T, --target and "
                "--seed, or name data instead"
            )
        loaded = load_run(Path(source))
        model, X = loaded.model, loaded.features(data)
    else:  # the network that `hdnn train` would build
        if data is not None:
            raise HdnnError(f"--data is for a trained network, and {source} is data: leave it out")
        table = {"source": source, "target": target, "seed": seed}
        _, trained_on, model = prepare(Config(data=table, model=network))
        X = trained_on.X
    if model.stem.takes_images:
        raise HdnnError("advise serves planar data sets and tables, not images")
    with torch.no_grad(), working("examining the network"):
        advice = analysis.advise(model.network, model.preprocess(evenly(X, samples)))
    if as_json:
        emit(advice.to_dict())
    else:
        say(str(advice))
