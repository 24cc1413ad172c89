"""`hdnn gradients` and `hdnn margins`: what a trained network does to gradients and data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from hdnn.analysis import profile, robustness
from hdnn.cli.base import app, emit, say
from hdnn.cli.commands import with_ending
from hdnn.errors import HdnnError
from hdnn.models import Model
from hdnn.plots import check_figure_path, profile_figure, record_figure, save_figure
from hdnn.training.prepare import prepare
from hdnn.training.recorder import Recording, read_recordings
from hdnn.training.runs import Run
from hdnn.training.settings import DEPTHS

RunFolder = Annotated[Path, typer.Argument(help="Run folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _held_out(run: Run, samples: int) -> tuple[Model, torch.Tensor, torch.Tensor]:
    """The trained model of a run with data that it has not seen (else the training data)."""
    model = run.load_model()
    if model.stem.takes_images:
        raise HdnnError(f"{run.folder} is a run on images; look at it with hdnn.analysis.watch")
    data = prepare(run.read_config())
    X, y = (data.X_test, data.y_test) if len(data.X_test) else (data.X, data.y)
    return model, X[:samples], y[:samples]


@app.command()
def gradients(
    run: RunFolder,
    samples: Annotated[
        int, typer.Option(min=1, help="Number of held-out samples to measure.")
    ] = 500,
    depths: Annotated[
        int, typer.Option(min=2, help="Number of layers to show, evenly spaced.")
    ] = DEPTHS,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write a figure: the recorded norms, or else the norms by layer.",
            callback=with_ending(".png"),
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show how strongly the output reacts to a change at each layer."""
    opened = Run.open(run)
    entries = read_recordings(opened.gradients)
    if not opened.gradients.exists() and not opened.finished:
        opened.load_model()  # says how to go on with it
    if out is not None:
        check_figure_path(out)
    seen = None
    if opened.finished:
        model, X, _ = _held_out(opened, samples)
        net = model.network
        with torch.no_grad():
            seen = profile(net, model.preprocess(X), depths)
    if out is not None:
        figure = (
            record_figure(entries, str(run))
            if entries
            else profile_figure(seen, str(run))
            if seen is not None
            else None
        )
        if figure is None:
            raise HdnnError(f"{run} has no recordings yet: nothing to draw")
        save_figure(figure, out)
    if as_json:
        record = [entry.to_dict() for entry in entries]
        emit(
            {"run": str(run), "trained": None if seen is None else seen.to_dict(), "record": record}
        )
        return
    if seen is not None:
        say(str(seen))
    if entries:
        _say_record(entries)
    if out is not None:
        say(f"figure: {out}")


def _say_record(entries: list[Recording]) -> None:
    say(f"recorded: {len(entries)} iterations, the last {entries[-1].iteration}")

    def table(name: str) -> np.ndarray:
        columns = [getattr(entry.norms, name).numpy() for entry in entries]
        return np.array(columns)[:, :-1]  # not the identity

    for title, low, high in (
        ("norms of single samples", "minimum", "maximum"),
        ("norms of the batch mean", "of_mean", "of_mean"),
    ):
        say(f"  {title}: [{np.nanmin(table(low)):.4g}, {np.nanmax(table(high)):.4g}]")
    first, last = (entry.gradient_norm for entry in (entries[0], entries[-1]))
    say(f"  norm of the parameter gradient: {first:.3g} at first, {last:.3g} at last")


@app.command()
def margins(
    run: RunFolder,
    radius: Annotated[
        list[float] | None, typer.Option(help="Length of a perturbation; repeats.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Held-out samples.")] = 500,
    draws: Annotated[int, typer.Option(min=1, help="Random directions a sample.")] = 20,
    as_json: Json = False,
) -> None:
    """Show how far data are from the decision boundary."""
    model, X, y = _held_out(Run.open(run), samples)
    if model.task != "classification":
        raise HdnnError("margins are for classification: a regression has no decision boundary")
    if model.scaler is not None:  # a gap is the mean, as for the model; then it can be moved
        X = torch.where(X.isnan(), model.scaler.mean, X)
    result = robustness(model, X, y, radius or (0.02, 0.05, 0.1), draws)
    levels = (0.01, 0.05, 0.5, 0.95)
    quantiles = result.margins.quantile(torch.tensor(levels, dtype=torch.float64)).tolist()
    if as_json:
        by_level = dict(zip(map(str, levels), quantiles, strict=True))
        emit(
            {
                "run": str(run),
                "samples": len(X),
                "quantiles": by_level,
                "radii": result.radii,
                "random": result.random,
                "worst": result.worst,
            }
        )
        return
    say(f"distance to the decision boundary, {len(X)} samples (negative: classified wrongly)")
    for level, value in zip(levels, quantiles, strict=True):
        say(f"  {100 * level:3.0f} % quantile  {value:.4g}")
    say("accuracy under perturbations of length")
    for r, random, worst in zip(result.radii, result.random, result.worst, strict=True):
        say(f"  {r:<8g} random {random:.4f}   worst {worst:.4f}")
