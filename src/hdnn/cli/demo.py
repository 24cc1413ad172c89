"""`hdnn demo`: what hdnn is for, in under two minutes."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hdnn.cli.base import USE, Json, app, emit, note_kernels, say, show_table, working
from hdnn.cli.identify import summary
from hdnn.progress import track

if TYPE_CHECKING:
    import pandas as pd

    from hdnn.models import Model
    from hdnn.robots import Drive

CELLS = (
    *(("H1", layers) for layers in (4, 16, 64)),
    ("ResNet", 64),
    ("FCNN", 64),
)
SHOWN = (("H1", 64), ("ResNet", 64))
"""The two that figure and page show side by side: the deepest, where gradients matter most."""
STATES, UNITS = 2, 12
"""Of the model of the tanks."""


@app.command(rich_help_panel=USE)
def demo(
    out: Annotated[Path, typer.Option(help="Figure to write.")] = Path("demo.png"),
    seed: Annotated[int, typer.Option(help="Random seed of data, weights and batches.")] = 0,
    epochs: Annotated[int, typer.Option(help="Epochs of each training; the paper has 50.")] = 50,
    as_json: Json = False,
) -> None:
    """Run robots, identify a system, and train the paper's networks: a figure and a page.

    Robots with a controller that is stable for all weights and with an MLP, from stored weights; a
    model of two tanks that cannot diverge; Hamiltonian networks and others on the Swiss roll.
    """
    from hdnn import robots
    from hdnn.config import IdentificationConfig
    from hdnn.data import load_recordings
    from hdnn.identification import identify
    from hdnn.identification.search import scored_parts
    from hdnn.plots import save_figure
    from hdnn.plots.style import check_path
    from hdnn.reports.demo import (
        DemoInputs,
        demo_figure,
        demo_page,
        is_proved,
        robots_table,
        tanks_table,
    )

    check_path(out)
    note_kernels()
    controllers, limit = robots.load_controllers(), robots.loop_limit().gain
    drives = {
        name: robots.Drive.of(controllers[name])
        for name in track([*controllers], "running the robots")
    }
    recordings = load_recordings("two-tanks")
    config = IdentificationConfig(states=STATES, units=UNITS, restarts=1, seed=seed)
    tanks = identify(recordings, config)
    models: dict[tuple[str, int], Model] = {}
    records: list[dict[str, Any]] = []
    for cell in track(CELLS, "training networks"):
        models[cell], record, data = _train(*cell, seed, epochs)
        records.append(record)
    accuracy = {(r["architecture"], r["layers"]): r["accuracy"] for r in records}
    inputs = DemoInputs(
        drives,
        limit,
        tanks,
        scored_parts(recordings, config)["test"],
        {f"{c[0]}\n{100 * accuracy[c]:.0f} % correct": models[c] for c in SHOWN},
        data.X_test,
        data.y_test,
        "The Swiss roll on its way through 64 layers",
        _sentence(records),
        f"hdnn demo --seed {seed} --epochs {epochs} --out {shlex.quote(out.name)}",
    )
    with working("drawing"):
        save_figure(demo_figure(inputs), out)
        page = demo_page(inputs).save(out.with_suffix(".html"))
    if as_json:
        driven = [_driven(name, drive, is_proved(drive, limit)) for name, drive in drives.items()]
        paths = {"figure": str(out), "report": str(page)}
        parts = {"robots": driven, "tanks": summary(tanks), "networks": records}
        emit({**paths, "seed": seed, "epochs": epochs, **parts})
        return
    show_table(*robots_table(drives, limit), "Twelve robots swap sides: T = 5 s, stored weights")
    show_table(*tanks_table(tanks), "Two tanks, identified: free runs on the test part")
    title = f"Swiss roll, 5000 training points, {epochs} epochs, seed {seed}"
    table = _table(records)
    show_table(table, table.to_numpy(), title)
    say("gradient norms: mean reaction of the output to a change at a layer, over layers")
    say(f"figure: {out}")
    say(f"page: {page}  (open it in a browser)")


def _driven(name: str, drive: Drive, proved: bool) -> dict[str, Any]:
    """What --json says of the robots with a controller."""
    return {
        "controller": name,
        "parameters": drive.parameters,
        "gain": drive.gain,
        "cost_T": drive.short_cost,
        "cost_10T": drive.long_cost,
        "largest_distance": float(drive.distances[-1]),
        "stable_for_all_weights": proved,
    }


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


def _sentence(records: list[dict[str, Any]]) -> str:
    """What there is to see, in the numbers of this demo."""
    by_cell = {(r["architecture"], r["layers"]): r for r in records}
    hamiltonian, resnet = (by_cell[cell] for cell in SHOWN)
    plain, low = by_cell["FCNN", 64], resnet["gradients"][0]
    seen = "none does here, by no theorem" if low > 0.999 else f"it falls to {low:.2g}"
    return (
        "Two networks of 64 layers learn to tell two spirals apart, the task of the paper (H1: "
        f"{100 * hamiltonian['accuracy']:.0f} % correct, ResNet: {100 * resnet['accuracy']:.0f} "
        "%); in H1 no gradient norm falls below 1, which is proved for all weights, in the ResNet "
        f"{seen}, and in the paper's plain network without skip connections (FCNN, "
        f"{100 * plain['accuracy']:.0f} % correct) a gradient shrinks to "
        f"{plain['gradients'][0]:.0e} on its way to the input. Watch the points pass through the "
        "layers, or drag the slider."
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
