"""`hdnn advise`: T, step and depth for a network on your data, untrained or trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from hdnn.analysis import Advice, DepthError, advise, depth_error
from hdnn.cli.base import app, emit, say
from hdnn.errors import HdnnError
from hdnn.models import Model
from hdnn.training.coarsening import Coarsening, DepthScore
from hdnn.training.prepare import PreparedRun, prepare
from hdnn.training.run_config import RunConfig
from hdnn.training.runs import Run

LAYERS = 16


@app.command(name="advise")
def advise_command(
    source: Annotated[
        str, typer.Argument(help="A finished run, a data set (swiss-roll, ...) or a table.")
    ],
    architecture: Annotated[str, typer.Option(help="MS1 MS2 MS3 H1 H2 HS ...")] = "H1",
    layers: Annotated[
        int | None, typer.Option(help="Depth; by default 16, and for a table that of hdnn train.")
    ] = None,
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
    """Suggest T, step and depth for a network on your data.

    Of a finished run: also how far its depth is from the ODE, and what fewer layers would cost.
    """
    if samples < 1:
        raise HdnnError(f"--samples is a positive integer, got {samples}")
    if (Path(source) / "config.toml").is_file():
        _advise_run(Run.open(source), samples, as_json)
        return
    given = {"architecture": architecture, "layers": layers, "T": T, "step": step, "width": width}
    model = {**given, "activation": activation, "time_invariant": time_invariant, "seed": seed}
    options: dict[str, dict[str, Any]] = {
        "data": {"source": source, "target": target, "seed": seed},
        "model": model,
    }
    tables = {k: {n: v for n, v in table.items() if v is not None} for k, table in options.items()}
    config = RunConfig.from_tables(tables, "the command line")
    if not config.data.is_table:
        tables["model"].setdefault("layers", LAYERS)
        config = RunConfig.from_tables(tables, "the command line")
    run = PreparedRun.of(config, tables)  # of a table, the network that hdnn train would build
    advice = _advice(run.model, _some(run.data.X_train, samples))
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
    model, config = run.load_model(), run.read_config()
    prepared = prepare(config)
    X = _some(prepared.X_train, samples)
    advice = None if model.stem.takes_images else _advice(model, X)
    error = depth_error(model, X)
    scores = Coarsening(model, prepared, config.training).table() if len(prepared.X_test) else []
    if as_json:
        facts = {} if advice is None else advice.to_dict()
        emit({**facts, "depth": error.to_dict(), "coarsened": [vars(score) for score in scores]})
        return
    if advice is not None:
        say(str(advice))
    _show_depth(error, scores)


def _show_depth(error: DepthError, scores: list[DepthScore]) -> None:
    say(str(error))
    if not scores:
        return
    now = scores[-1]
    say("coarsened to        on held-out data")
    for score in scores[:-1]:
        speed, change = now.seconds / score.seconds, 100 * (score.score - now.score)
        say(
            f"{score.layers:7} layers      {speed:5.1f} times as fast, {100 * score.score:.2f} "
            f"({change:+.2f} points)"
        )
    say(f"{now.layers:7} layers      {100 * now.score:.2f}")
