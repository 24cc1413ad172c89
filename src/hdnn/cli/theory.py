"""`hdnn certify` and `hdnn advise`: what the theory says of a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table
from torch import Tensor

from hdnn.analysis import Certificate, advise, certify
from hdnn.cli.base import FAILED, app, console, emit, say, warn
from hdnn.data import PROBLEMS, iter_rows, split
from hdnn.errors import HdnnError
from hdnn.models import Model, load
from hdnn.networks import HamiltonianNetwork
from hdnn.training.prepare import build, prepare
from hdnn.training.run_config import RunConfig
from hdnn.training.runs import Run

ROWS = 2000
"""States of images (one for every pixel) that are examined at most."""
_COLORS = {"holds": "green", "FAILS": "red", "not met": "yellow", "n/a": "dim"}


@app.command(name="certify")
def certify_command(
    run: Annotated[Path, typer.Argument(help="A finished run, or a file of hdnn.save.")],
    data: Annotated[
        str | None,
        typer.Option(help="A data set or a table to examine it on; default: the training data."),
    ] = None,
    samples: Annotated[int, typer.Option(help="How many of them, evenly chosen.")] = 100,
    tolerance: Annotated[
        float | None, typer.Option(help="Of equations; default: from rounding and scale.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check which statements of the theory hold, with numbers.

    The exit code is 1 where something fails that is proved.
    """
    if samples < 1:
        raise HdnnError(f"--samples is a positive integer, got {samples}")
    with torch.no_grad():
        pairs = _blocks(run, data, samples)
    certificates = [certify(network, y, tolerance=tolerance) for network, y in pairs]
    if as_json:
        records = [certificate.to_dict() for certificate in certificates]
        emit(records[0] if len(records) == 1 else {"blocks": records})
    else:
        for certificate in certificates:
            _show(certificate)
    if not all(certificate.ok for certificate in certificates):
        raise typer.Exit(FAILED)


def _blocks(path: Path, data: str | None, samples: int) -> list[tuple[HamiltonianNetwork, Tensor]]:
    """Every Hamiltonian block of what is saved there, with states that enter it."""
    folder = path.parent if path.name == "model.safetensors" else path
    run = Run.open(folder) if folder.is_dir() and (folder / "config.toml").is_file() else None
    if run is None and not path.is_file():
        raise HdnnError(f"{path} is neither a run nor a file of hdnn.save")
    model = load(path) if run is None else run.load_model()
    if isinstance(model, HamiltonianNetwork):
        if data is not None or model.features is None:
            raise HdnnError("a network without a model takes states, not data; save the model")
        warn("a network without data: examined on standard normal states")
        draw = torch.Generator().manual_seed(0)
        dtype = next(model.parameters()).dtype
        return [(model, torch.randn(samples, model.features, generator=draw).to(dtype))]
    X = _data(model, data) if data is not None else _training_data(run)
    subset = X[torch.linspace(0, len(X) - 1, min(samples, len(X))).long()]
    if model.stem.takes_images:
        pixels = subset.shape[-1] * subset.shape[-2]
        subset = subset[: max(1, ROWS // pixels)]
    blocks = model.block_inputs(model.prepare(subset))
    if not blocks:
        raise HdnnError("the model has no Hamiltonian block")
    return blocks


def _training_data(run: Run | None) -> Tensor:
    if run is None:
        raise HdnnError("a model outside a run does not know its data: pass --data")
    return prepare(run.read_config()).X_train


def _data(model: Model, source: str) -> Tensor:
    if model.stem.takes_images:
        raise HdnnError("--data is for tables; images are taken from the run itself")
    dtype = model.head.weight.dtype
    if source.lower().replace("_", "-") in PROBLEMS:
        X: Tensor = split(source.lower().replace("_", "-")).X_train.to(dtype)
    else:
        rows = iter_rows(Path(source), model.columns.columns)
        parts = [torch.from_numpy(model.columns.transform(values)) for _, values in rows]
        X = torch.cat(parts).to(dtype) if parts else torch.zeros(0, model.features)
    if not len(X) or X.shape[1] != model.features:
        raise HdnnError(f"the model takes {model.features} features, {source} has {X.shape[1]}")
    return X


def _show(certificate: Certificate) -> None:
    say(certificate.network)
    say(f"{certificate.samples} samples; {certificate.dtype}, examined in float64")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", "check", "measured", "statement"):
        table.add_column(title, overflow="fold", no_wrap=not title)
    for check in certificate.checks:
        color = _COLORS[check.verdict]
        table.add_row(
            f"[{color}]{check.verdict}[/]", check.name, check.comparison, _plain(check.statement)
        )
    console.print(table)
    say(certificate.summary)
    for check in certificate.failed:
        say(f"- {check.name} ({check.reference}): {check.consequence}")


def _plain(text: str) -> str:
    return text.replace("[", r"\[")  # brackets are rich's markup


@app.command(name="advise")
def advise_command(
    source: Annotated[str, typer.Argument(help="A data set (swiss-roll, ...) or a table.")],
    architecture: Annotated[str, typer.Option(help="MS1 MS2 MS3 H1 H2 HS ...")] = "H1",
    layers: Annotated[int, typer.Option(help="Depth.")] = 16,
    T: Annotated[float | None, typer.Option("--T", help="Final time, h = T / layers.")] = None,
    step: Annotated[float | None, typer.Option(help="Step h, instead of T.")] = None,
    width: Annotated[int | None, typer.Option(help="Width of the network.")] = None,
    activation: Annotated[str, typer.Option(help="tanh, ...")] = "tanh",
    time_invariant: Annotated[bool, typer.Option(help="All layers share weights.")] = False,
    seed: Annotated[int, typer.Option(help="Of the data and the initial weights.")] = 0,
    target: Annotated[str | None, typer.Option(help="Column of a table to predict.")] = None,
    samples: Annotated[int, typer.Option(help="How many states, evenly chosen.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Suggest T, step and depth for a network on your data."""
    if samples < 1:
        raise HdnnError(f"--samples is a positive integer, got {samples}")
    options: dict[str, dict[str, Any]] = {
        "data": {"source": source, "target": target, "seed": seed},
        "model": {
            "architecture": architecture,
            "layers": layers,
            "T": T,
            "step": step,
            "width": width,
            "activation": activation,
            "time_invariant": time_invariant,
            "seed": seed,
        },
    }
    tables = {k: {n: v for n, v in table.items() if v is not None} for k, table in options.items()}
    config = RunConfig.from_tables(tables, "the command line")
    prepared = prepare(config)
    model = build(config, prepared)
    if model.stem.takes_images:
        raise HdnnError("advise serves planar data sets and tables, not images")
    X = prepared.X_train
    subset = X[torch.linspace(0, len(X) - 1, min(samples, len(X))).long()]
    with torch.no_grad():
        advice = advise(model.network, model.preprocess(subset))
    emit(advice.to_dict()) if as_json else say(str(advice))
