"""`hdnn advise`: T, step and depth for a network on your data, untrained or trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from hdnn import zoo
from hdnn.analysis import Advice, advise
from hdnn.cli.base import app, emit, say
from hdnn.config import Config
from hdnn.data import PROBLEMS
from hdnn.errors import HdnnError
from hdnn.models import Model
from hdnn.refinement import refine
from hdnn.training.resolve import TIME
from hdnn.training.runs import Run, prepare


@app.command(name="advise")
def advise_command(
    source: Annotated[
        str, typer.Argument(help="Finished run, data set (swiss-roll, ...) or table.")
    ],
    architecture: Annotated[
        str, typer.Option(help="Architecture: MS1, MS2, MS3, H1, H2, HS, ResNet, FCNN.")
    ] = "H1",
    layers: Annotated[
        int | None, typer.Option(help="Number of layers (default: 16; for a table as hdnn train).")
    ] = None,
    T: Annotated[
        float | None, typer.Option("--T", help="Final time T; the step is h = T / layers.")
    ] = None,
    step: Annotated[float | None, typer.Option(help="Step h, instead of T.")] = None,
    width: Annotated[int | None, typer.Option(help="Width of the network.")] = None,
    activation: Annotated[str, typer.Option(help="Activation function.")] = "tanh",
    time_invariant: Annotated[
        bool, typer.Option(help="Share the weights between all layers.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the data and the initial weights.")] = 0,
    target: Annotated[str | None, typer.Option(help="Column to predict, for a table.")] = None,
    samples: Annotated[int, typer.Option(help="Number of samples to use, evenly chosen.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Suggest T, step and depth for a network on your data.

    For a finished run, also tell what twice the layers would change.
    """
    if samples < 1:
        raise HdnnError(f"--samples is a positive integer, got {samples}")
    if (Path(source) / "config.toml").is_file():
        _advise_run(Run.open(source), samples, as_json)
        return
    given = {"architecture": architecture, "layers": layers, "T": T, "step": step, "width": width}
    model = {**given, "activation": activation, "time_invariant": time_invariant, "seed": seed}
    options: dict[str, Any] = {
        "data": {"source": source, "target": target, "seed": seed},
        "model": model,
    }
    if source.lower().replace("_", "-") in PROBLEMS:
        uses_step = zoo.architecture(architecture).scheme.uses_step
        timed = T is not None or step is not None or not uses_step
        model["T"] = T if timed else TIME  # not what is tuned for Table 1
    run = prepare(Config(**options))  # of a table, the network that hdnn train would build
    advice = _advice(run.model, _some(run.data.X, samples))
    emit(advice.to_dict()) if as_json else say(str(advice))


def _some(X: Tensor, count: int) -> Tensor:
    """Samples, evenly chosen."""
    return X[torch.linspace(0, len(X) - 1, min(count, len(X))).long()]


@torch.no_grad()
def _advice(model: Model, X: Tensor) -> Advice:
    if model.stem.takes_images:
        raise HdnnError("advise serves planar data sets and tables, not images")
    return advise(model.network, model.preprocess(X))


def _advise_run(run: Run, samples: int, as_json: bool) -> None:
    model = run.load_model()
    X = _some(run.load_data().X, samples)
    advice = None if model.stem.takes_images else _advice(model, X)
    change = _change_of_refinement(model, X)
    if as_json:
        facts = {} if advice is None else advice.to_dict()
        emit({**facts, "twice_the_layers": change})
        return
    if advice is not None:
        say(str(advice))
    if change is not None:
        what = "of the predicted classes" if model.task == "classification" else "of their spread"
        say(f"twice the layers    would change {100 * change:.2g} % {what}")


@torch.no_grad()
def _change_of_refinement(model: Model, X: Tensor) -> float | None:
    """How predictions change with twice the layers and the same ODE; None for a plain network.

    The share of the classes that change, or the mean change of values relative to their spread.
    """
    try:
        finer = refine(model, [2 * net.layers for net in model.networks])
    except HdnnError:
        return None
    now, then = (each.eval().predict(X).double() for each in (model, finer))
    if model.task == "classification":
        return float((now != then).double().mean())
    return float(((now - then).abs() / now.std(0, correction=0).clamp_min(1e-300)).mean())
