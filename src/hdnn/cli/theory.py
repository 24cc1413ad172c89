"""`hdnn certify` and `hdnn advise`: what theory says of a network, and which T and depth suit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hdnn.cli.base import CHECK, FAILED, Json, app, console, emit, say, warn
from hdnn.cli.runs import Opened, encoder_of, evenly, open_run
from hdnn.errors import HdnnError

if TYPE_CHECKING:
    from torch import Tensor

    from hdnn.models import Model
    from hdnn.networks import HamiltonianNetwork

PIXELS = 2000
"""States of images (one for every pixel) that are examined at most."""
_COLORS = {"holds": "green", "FAILS": "red", "not met": "yellow", "n/a": "dim"}
Samples = Annotated[int, typer.Option(min=1, help="Number of samples to use, evenly chosen.")]


@app.command(rich_help_panel=CHECK)
def certify(
    run: Annotated[Path, typer.Argument(help="A finished run, or a file written by hdnn.save.")],
    data: Annotated[
        str | None,
        typer.Option(help="Data set or table to check it on (default: the training data)."),
    ] = None,
    samples: Samples = 100,
    tolerance: Annotated[
        float | None, typer.Option(help="Relative tolerance of equations (default: rounding).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check which theorems about gradients hold for a network.

    Exits with 1 if something that is proved does not hold.
    """
    import torch
    from rich.text import Text

    from hdnn import analysis

    with torch.no_grad():
        pairs = _blocks(open_run(run), data, samples)
    certificates = [analysis.certify(network, y, tolerance=tolerance) for network, y in pairs]
    if as_json:
        records = [certificate.to_dict() for certificate in certificates]
        emit(records[0] if len(records) == 1 else {"blocks": records})
    else:
        for line in "\n".join(map(str, certificates)).splitlines():
            console.print(Text(line, style=_COLORS.get(line[:8].strip(), "")), soft_wrap=True)
    if not all(certificate.ok for certificate in certificates):
        raise typer.Exit(FAILED)


def _blocks(
    opened: Opened, data: str | None, samples: int
) -> list[tuple[HamiltonianNetwork, Tensor]]:
    """Every Hamiltonian block of a model, with states that enter it."""
    import torch

    from hdnn.networks import HamiltonianNetwork

    model = opened.model
    if isinstance(model, HamiltonianNetwork):
        if data is not None or model.features is None:
            raise HdnnError("a network without a model takes states, not data; save the model")
        warn("a network without data: examined on standard normal states")
        draw = torch.Generator().manual_seed(0)
        dtype = next(model.parameters()).dtype
        return [(model, torch.randn(samples, model.features, generator=draw).to(dtype))]
    X = evenly(opened.data().X if data is None else _read(model, data), samples)
    if model.stem.takes_images:
        X = X[: max(1, PIXELS // X[0, 0].numel())]
    blocks = model.block_inputs(model.prepare(X))
    if not blocks:
        raise HdnnError("the model has no Hamiltonian block")
    return blocks


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
        str, typer.Option(help="MS1, MS2, MS3, H1, H2, HS, ResNet or FCNN.")
    ] = "H1",
    layers: Annotated[
        int | None, typer.Option(help="Number of layers (default: as hdnn train).")
    ] = None,
    T: Annotated[
        float | None, typer.Option("--T", help="Final time T; the step is h = T / layers.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Column to predict, for a table.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the data and the initial weights.")] = 0,
    samples: Samples = 100,
    as_json: Json = False,
) -> None:
    """Suggest T, step and depth for a network on your data.

    For a finished run, also tell what twice the layers would change.
    """
    import torch

    from hdnn import analysis

    trained = (Path(source) / "config.toml").is_file()
    if trained:
        opened = open_run(Path(source))
        model, X = opened.model, evenly(opened.data().X, samples)
    else:
        model, X = _untrained(source, target, architecture, layers, T, seed)
        X = evenly(X, samples)
    if model.stem.takes_images:
        raise HdnnError("advise serves planar data sets and tables, not images")
    with torch.no_grad():
        advice = analysis.advise(model.network, model.preprocess(X))
    change = _change_of_refinement(model, X) if trained else None
    if as_json:
        emit({**advice.to_dict(), **({"twice_the_layers": change} if trained else {})})
        return
    say(str(advice))
    if change is not None:
        what = "of the predicted classes" if model.task == "classification" else "of their spread"
        say(f"twice the layers    would change {100 * change:.2g} % {what}")


def _untrained(
    source: str,
    target: str | None,
    architecture: str,
    layers: int | None,
    T: float | None,
    seed: int,
) -> tuple[Model, Tensor]:
    """The network that `hdnn train` would build, and its training data."""
    from hdnn.config import Config
    from hdnn.training.runs import prepare

    model = {"architecture": architecture, "layers": layers, "T": T, "seed": seed}
    data = {"source": source, "target": target, "seed": seed}
    prepared = prepare(Config(data=data, model=model))
    return prepared.model, prepared.data.X


def _change_of_refinement(model: Model, X: Tensor) -> float | None:
    """How predictions change with twice the layers and the same ODE; None for a plain network.

    The share of the classes that change, or the mean change of values relative to their spread.
    """
    from hdnn.refinement import refine

    try:
        finer = refine(model, [2 * net.layers for net in model.networks])
    except HdnnError:
        return None
    now, then = (each.eval().predict(X).double() for each in (model, finer))
    if model.task == "classification":
        return float((now != then).double().mean())
    return float(((now - then).abs() / now.std(0, correction=0).clamp_min(1e-300)).mean())
