"""`hdnn gradients` and `hdnn margins`: what a trained network does to gradients and data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from hdnn.analysis import profile, robustness
from hdnn.cli.base import app, emit, say
from hdnn.cli.commands import with_ending
from hdnn.errors import HdnnError
from hdnn.models import Model
from hdnn.plots import (
    LIGHT,
    check_figure_path,
    new_figure,
    norms_by_depth,
    record_by_depth,
    save_figure,
)
from hdnn.training.prepare import prepare
from hdnn.training.recorder import GradientLog
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
    log = GradientLog(opened.gradients) if opened.gradients.exists() else None
    if log is None and not opened.finished:
        opened.load_model()  # says how to go on with it
    if out is not None:
        check_figure_path(out)
    seen = None
    if opened.finished:
        model, X, _ = _held_out(opened, samples)
        net = model.network
        with torch.no_grad():
            seen = profile(net, model.preprocess(X), depths)
    header, entries = (None, []) if log is None else log.read()
    if out is not None:
        figure = new_figure(6.4, 3.2)
        if header is not None and entries:
            layers = {"layers": header.depths}
            record_by_depth(figure.subplots(), [{**layers, **entry} for entry in entries])
        elif seen is not None:
            norms_by_depth(figure.subplots(), seen, str(run)[-60:], LIGHT.color(0))
        else:
            raise HdnnError(f"{run} has no recordings yet: nothing to draw")
        save_figure(figure, out)
    if as_json:
        record = None if header is None else {**asdict(header), "recordings": entries}
        emit(
            {"run": str(run), "trained": None if seen is None else seen.to_dict(), "record": record}
        )
        return
    if seen is not None:
        say(str(seen))
    if header is not None:
        _say_record(header.depths, header.every, entries)
    if out is not None:
        say(f"figure: {out}")


def _say_record(depths: tuple[int, ...], every: int, entries: list[dict[str, Any]]) -> None:
    say(f"recorded every {every} iterations: {len(entries)} recordings")
    if not entries:
        return

    def table(name: str) -> np.ndarray:
        return np.array([entry[name] for entry in entries], dtype=float)[:, :-1]  # not the identity

    for title, low, high in (
        ("norms of single samples", "minimum", "maximum"),
        ("norms of the batch mean", "of_mean", "of_mean"),
    ):
        say(f"  {title}: [{np.nanmin(table(low)):.4g}, {np.nanmax(table(high)):.4g}]")
    first, last = (entry["gradient_norm"] or 0.0 for entry in (entries[0], entries[-1]))
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
