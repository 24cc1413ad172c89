"""`hdnn demo`: the paper's Swiss roll in a minute."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from hdnn.cli.bars import working
from hdnn.cli.base import app, console, emit, errors, note_kernels, say
from hdnn.cli.commands import with_ending
from hdnn.config import Config
from hdnn.data import Dataset
from hdnn.models import Model
from hdnn.paper.table1 import cells
from hdnn.training.runs import prepare
from hdnn.training.trainer import Trainer

CELLS = (("H1", 4), ("H1", 16), ("H1", 64), ("MS1", 16), ("MS1", 64), ("FCNN", 16), ("FCNN", 64))
SHOWN = (("H1", 64), ("FCNN", 64))
"""The two that figure and report show side by side."""


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option(help="Where to write the figure.", callback=with_ending(".png"))
    ] = Path("demo.png"),
    seed: Annotated[int, typer.Option(help="Of data, weights and batches.")] = 0,
    epochs: Annotated[int, typer.Option(help="Of each training; the paper has 50.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train H1, MS1 and a plain network, and draw what they learn."""
    from hdnn.plots import check_figure_path
    from hdnn.reports import report

    check_figure_path(out)
    data = prepare(_config("H1", 16, seed, epochs)).data
    models: dict[tuple[str, int], Model] = {}
    records: list[dict[str, Any]] = []
    note_kernels()
    with working(errors, "training"):
        for cell in CELLS:
            models[cell], record = _train(_config(*cell, seed, epochs), data, *cell)
            records.append(record)
    with working(errors, "drawing"):
        _draw(models, records, data, out)
        page = report(
            models[SHOWN[0]],
            data.X_test,
            data.y_test,
            beside=models[SHOWN[1]],
            name="the Swiss roll",
            lead=_lead(records),
        ).save(out.with_suffix(".html"))
    if as_json:
        paths = {"figure": str(out), "report": str(page)}
        emit({**paths, "seed": seed, "epochs": epochs, "networks": records})
        return
    title = f"Swiss roll, 5000 training points, {epochs} epochs, seed {seed}, protocol tuned"
    console.print(_table(title, records))
    say(f"figure: {out}")
    say(f"report: {page}  (open it in a browser: the two networks side by side, layer by layer)")


def _train(config: Config, data: Dataset, name: str, layers: int) -> tuple[Model, dict[str, Any]]:
    """A network of the demo, trained, and its figures."""
    from hdnn.analysis import sensitivities

    config, _, model = prepare(config)
    place = "swiss-roll", name, layers
    paper = next((cell.published for cell in cells() if cell[:3] == place), None)
    start = time.perf_counter()
    Trainer(model, config.training).fit(data)
    seconds = time.perf_counter() - start
    with torch.no_grad():
        M = sensitivities(model.network, model.preprocess(data.X_test[:500]))
    norms = torch.linalg.matrix_norm(M, 2).mean(1)
    return model, {
        "architecture": name,
        "layers": layers,
        "paper": paper,
        "accuracy": float((model.predict(data.X_test) == data.y_test).double().mean()),
        "gradients": [float(norms.min()), float(norms.max())],
        "seconds": seconds,
    }


def _draw(
    models: dict[tuple[str, int], Model], records: list[dict[str, Any]], data: Dataset, out: Path
) -> None:
    from hdnn.plots import flow_figure, save_figure

    names = {"H1": "Hamiltonian (H1)", "FCNN": "plain network"}
    accuracy = _accuracies(records)
    shown = {
        f"{names[cell[0]]}\n{100 * accuracy[cell]:.0f} % correct": models[cell] for cell in SHOWN
    }
    title = _lead(records)[0]
    save_figure(flow_figure(shown, data.X_test, data.y_test, title=title), out)


def _accuracies(records: list[dict[str, Any]]) -> dict[tuple[str, int], float]:
    return {(record["architecture"], record["layers"]): record["accuracy"] for record in records}


def _lead(records: list[dict[str, Any]]) -> tuple[str, str]:
    """The sentence that figure and page show, if it came out so, and what there is to see."""
    accuracy = _accuracies(records)
    good, bad = (accuracy[cell] for cell in SHOWN)
    text = (
        "Two networks of the same size learn to tell two spirals apart. Watch the points pass "
        "through the layers, or drag the slider."
    )
    if not good > 0.95 > 0.6 > bad:
        return "The Swiss roll on its way through 64 layers", text
    title = "64 Hamiltonian layers pull the spirals apart; 64 plain layers crush them to a point"
    reason = (
        " The plain network sends every point to the same place: its gradients vanish, and it can "
        "only guess. The Hamiltonian network follows a flow that keeps points apart and gradients "
        "alive."
    )
    return title, text + reason


def _table(title: str, records: list[dict[str, Any]]) -> Table:
    caption = "gradient: range over layers l of the mean 2-norm of d y_N / d y_l"
    table = Table(title=title, caption=caption)
    table.add_column("network")
    for heading in ("layers", "paper", "hdnn", "gradient", "seconds"):
        table.add_column(heading, justify="right")
    for record in records:
        low, high = record["gradients"]
        table.add_row(
            record["architecture"],
            str(record["layers"]),
            "-" if record["paper"] is None else f"{record['paper']:.1f} %",
            f"{100 * record['accuracy']:.1f} %",
            f"{low:.1e} .. {high:.1e}",
            f"{record['seconds']:.2f}",
        )
    return table


def _config(name: str, layers: int, seed: int, epochs: int) -> Config:
    """A network of the demo on the Swiss roll, under the protocol `tuned`."""
    return Config(
        data={"seed": seed},
        model={"architecture": name, "layers": layers, "seed": seed},
        training={"epochs": epochs, "seed": seed},
    )
