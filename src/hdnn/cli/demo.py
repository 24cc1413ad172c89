"""`hdnn demo`: the paper's Swiss roll in a minute."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hdnn.cli.base import USE, Json, app, emit, note_kernels, say, show_table, working
from hdnn.progress import track

if TYPE_CHECKING:
    import pandas as pd

    from hdnn.models import Model

CELLS = (
    *(("H1", layers) for layers in (4, 16, 64)),
    *(("MS1", layers) for layers in (16, 64)),
    *(("ResNet", layers) for layers in (4, 16, 64)),
    ("FCNN", 64),
)
SHOWN = (("H1", 64), ("ResNet", 64))
"""The two that figure and report show side by side: the deepest, where gradients matter most."""


@app.command(rich_help_panel=USE)
def demo(
    out: Annotated[Path, typer.Option(help="Figure to write.")] = Path("demo.png"),
    seed: Annotated[int, typer.Option(help="Random seed of data, weights and batches.")] = 0,
    epochs: Annotated[int, typer.Option(help="Epochs of each training; the paper has 50.")] = 50,
    as_json: Json = False,
) -> None:
    """Train Hamiltonian networks and ResNets on the Swiss roll, and draw what they learn."""
    from hdnn.plots import flow_figure, save_figure
    from hdnn.plots.style import check_path
    from hdnn.reports import report

    check_path(out)
    note_kernels()
    models: dict[tuple[str, int], Model] = {}
    records: list[dict[str, Any]] = []
    for cell in track(CELLS, "training networks"):
        models[cell], record, data = _train(*cell, seed, epochs)
        records.append(record)
    accuracy = {(r["architecture"], r["layers"]): r["accuracy"] for r in records}
    with working("drawing"):
        title = "The Swiss roll on its way through 64 layers"
        shown = {f"{c[0]}\n{100 * accuracy[c]:.0f} % correct": models[c] for c in SHOWN}
        save_figure(flow_figure(shown, data.X_test, data.y_test, title=title), out)
        page = report(
            models[SHOWN[0]],
            data.X_test,
            data.y_test,
            beside=models[SHOWN[1]],
            name="the Swiss roll",
            lead=(title, _lead(records)),
        ).save(out.with_suffix(".html"))
    if as_json:
        paths = {"figure": str(out), "report": str(page)}
        emit({**paths, "seed": seed, "epochs": epochs, "networks": records})
        return
    title = f"Swiss roll, 5000 training points, {epochs} epochs, seed {seed}"
    table = _table(records)
    show_table(table, table.to_numpy(), title)
    say("gradient norms: mean reaction of the output to a change at a layer, over layers")
    say(f"figure: {out}")
    say(f"report: {page}  (open it in a browser)")


def _train(name: str, layers: int, seed: int, epochs: int) -> tuple[Model, dict[str, Any], Any]:
    """A network of the demo, trained, its metrics, and the data."""
    import torch

    from hdnn.analysis import profile
    from hdnn.config import Config
    from hdnn.paper.table1 import cells
    from hdnn.training.runs import prepare
    from hdnn.training.trainer import Trainer

    settings = {"architecture": name, "layers": layers, "seed": seed}
    config, data, model = prepare(
        Config(data={"seed": seed}, model=settings, training={"epochs": epochs, "seed": seed})
    )
    start = time.perf_counter()
    Trainer(model, config.training).fit(data)
    seconds = time.perf_counter() - start
    with torch.no_grad():
        norms = profile(model.network, model.preprocess(data.X_test[:500]))
    place = "swiss-roll", name, layers
    record = {
        "architecture": name,
        "layers": layers,
        "T": config.model.T,
        "paper": next((cell.published for cell in cells() if cell[:3] == place), None),
        "accuracy": float((model.predict(data.X_test) == data.y_test).double().mean()),
        "gradients": [float(norms.mean.min()), float(norms.mean.max())],
        "seconds": seconds,
    }
    return model, record, data


def _lead(records: list[dict[str, Any]]) -> str:
    """What there is to see, in the numbers of this demo."""
    by_cell = {(r["architecture"], r["layers"]): r for r in records}
    hamiltonian, resnet = (by_cell[cell] for cell in SHOWN)
    plain = by_cell["FCNN", 64]
    return (
        "Two networks of the same size learn to tell two spirals apart: a Hamiltonian network (H1, "
        f"{100 * hamiltonian['accuracy']:.0f} % correct) and a ResNet "
        f"({100 * resnet['accuracy']:.0f} %). Watch the points pass through the layers, or drag "
        "the slider. Skip connections are what keeps gradients alive here: in the paper's plain "
        f"network without them (FCNN, 64 layers, {100 * plain['accuracy']:.0f} % correct) a "
        f"gradient shrinks to {plain['gradients'][0]:.0e} on its way to the input."
    )


def _table(records: list[dict[str, Any]]) -> pd.DataFrame:
    """The networks as rows of texts."""
    import pandas as pd

    from hdnn.paper.summaries import texts

    frame = pd.DataFrame(records)
    frame["paper"] /= 100  # published in per cent
    frame["gradient norms"] = [f"{low:.2g} to {high:.2g}" for low, high in frame.gradients]
    formats = {"architecture": "", "layers": "", "T": "g", "paper": ".1%", "accuracy": ".1%"}
    return texts(frame, {**formats, "gradient norms": "", "seconds": ".2f"})
