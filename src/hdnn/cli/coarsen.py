"""`hdnn coarsen`: fewer layers for a trained run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hdnn.cli.base import app, emit, say
from hdnn.errors import HdnnError
from hdnn.training.coarsening import Coarsening, write_run
from hdnn.training.prepare import prepare
from hdnn.training.runs import Run


@app.command()
def coarsen(
    run: Annotated[Path, typer.Argument(help="A finished run.")],
    tolerance: Annotated[
        float,
        typer.Option(help="Points of accuracy (or of R^2) on held-out data that may be lost."),
    ] = 0.1,
    layers: Annotated[
        int | None, typer.Option(help="The depth, instead of the smallest within --tolerance.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder of the new run; default: RUN-LAYERS.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Give a trained run fewer layers, as few as keep its accuracy.

    The weights are averaged over time. Where the training solved the output layer given the others,
    it is solved again.
    """
    opened = Run.open(run)
    model, config = opened.load_model(), opened.read_config()
    coarsening = Coarsening(model, prepare(config), config.training)
    if layers is None:
        model = coarsening.smallest(tolerance)
    elif 1 <= layers <= coarsening.layers:
        model = coarsening.at(layers)
    else:
        raise HdnnError(f"--layers is from 1 to {coarsening.layers}, got {layers}")
    before, after = coarsening.score(coarsening.model), coarsening.score(model)
    folder = out or run.with_name(f"{run.name}-{after.layers}")
    if layers is None and after.layers == before.layers:
        _say_unchanged(before.layers, tolerance, as_json)
        return
    metrics = write_run(opened, coarsening, model, folder)
    if as_json:
        emit({"run": str(folder), "before": vars(before), "after": vars(after), **metrics})
        return
    say(
        f"{before.layers} to {after.layers} layers: {100 * before.score:.2f} to "
        f"{100 * after.score:.2f} on held-out data, {before.seconds / after.seconds:.1f} times as "
        "fast"
    )
    say(f"run: {folder}")


def _say_unchanged(layers: int, tolerance: float, as_json: bool) -> None:
    if as_json:
        emit({"run": None, "layers": layers})
    else:
        say(f"fewer than {layers} layers lose more than {tolerance:g} points; nothing was written")
