"""`hdnn certify`: which statements of the theory hold of a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.text import Text
from torch import Tensor

from hdnn.analysis import Certificate, certify
from hdnn.cli.base import FAILED, app, console, emit, warn
from hdnn.cli.use import encoder_of
from hdnn.data import PROBLEMS, iter_rows, split
from hdnn.errors import HdnnError
from hdnn.models import Model, load
from hdnn.networks import HamiltonianNetwork
from hdnn.training.runs import Run

ROWS = 2000
"""States of images (one for every pixel) that are examined at most."""
_COLORS = {"holds": "green", "FAILS": "red", "not met": "yellow", "n/a": "dim"}


@app.command(name="certify")
def certify_command(
    run: Annotated[Path, typer.Argument(help="A finished run, or a file written by hdnn.save.")],
    data: Annotated[
        str | None,
        typer.Option(help="Data set or table to check it on (default: the training data)."),
    ] = None,
    samples: Annotated[int, typer.Option(help="Number of samples to check, evenly chosen.")] = 100,
    tolerance: Annotated[
        float | None, typer.Option(help="Relative tolerance of equations (default: rounding).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check which theorems about gradients hold for a network.

    Exits with 1 if something that is proved does not hold.
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
    return run.load_data().X


def _data(model: Model, source: str) -> Tensor:
    if model.stem.takes_images:
        raise HdnnError("--data is for tables; images are taken from the run itself")
    dtype = model.head.weight.dtype
    if source.lower().replace("_", "-") in PROBLEMS:
        X: Tensor = split(source.lower().replace("_", "-")).X_train.to(dtype)
    else:
        encoder = encoder_of(model)
        rows = iter_rows(Path(source), encoder.columns)
        parts = [torch.from_numpy(encoder.transform(values)) for _, values in rows]
        X = torch.cat(parts).to(dtype) if parts else torch.zeros(0, model.features)
    if not len(X) or X.shape[1] != model.features:
        raise HdnnError(f"the model takes {model.features} features, {source} has {X.shape[1]}")
    return X


def _show(certificate: Certificate) -> None:
    for line in str(certificate).splitlines():
        style = _COLORS.get(line[:8].strip(), "")
        console.print(Text(line, style=style), soft_wrap=True)
