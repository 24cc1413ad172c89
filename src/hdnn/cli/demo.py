"""`hdnn demo`: the paper's Swiss roll in a minute."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from hdnn.cli.base import app, console, emit, errors, say
from hdnn.models import Model
from hdnn.paper.table1 import PROTOCOLS, cells, settings
from hdnn.training.prepare import build, prepare
from hdnn.training.run_config import RunConfig
from hdnn.training.settings import DataConfig, ModelConfig
from hdnn.training.trainer import Trainer

CELLS = (("H1", 4), ("H1", 16), ("H1", 64), ("MS1", 16), ("MS1", 64), ("FCNN", 16), ("FCNN", 64))


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where to write the figure.")] = Path("demo.png"),
    seed: Annotated[int, typer.Option(help="Of data, weights and batches.")] = 0,
    epochs: Annotated[int, typer.Option(help="Of each training; the paper has 50.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train H1, MS1 and a plain network, and draw what they learn."""
    from hdnn.analysis import sensitivities
    from hdnn.plots import check_figure_path, regions_and_propagation, save_figure

    check_figure_path(out)
    config = RunConfig(DataConfig(seed=seed))
    config = replace(config, training=replace(config.training, epochs=epochs, seed=seed))
    data = prepare(config)
    table = Table(
        title=f"Swiss roll, 5000 training points, {epochs} epochs, seed {seed}, protocol tuned",
        caption="gradient: range over layers l of the mean 2-norm of d y_N / d y_l",
    )
    table.add_column("network")
    for heading in ("layers", "paper", "hdnn", "gradient", "seconds"):
        table.add_column(heading, justify="right")
    models: dict[str, Model] = {}
    records: list[dict[str, Any]] = []
    with errors.status("training"):
        # The first call compiles; it is not part of anybody's training time.
        Trainer(build(config, data), replace(config.training, epochs=1)).fit(
            data.X_train, data.y_train
        )
        for name, layers in CELLS:
            cell_config, paper = _published(config, name, layers)
            model = build(cell_config, data)
            start = time.perf_counter()
            Trainer(model, cell_config.training).fit(data.X_train, data.y_train)
            seconds = time.perf_counter() - start
            accuracy = float((model.predict(data.X_test) == data.y_test).double().mean())
            with torch.no_grad():
                M = sensitivities(model.network, model.preprocess(data.X_test[:500]))
            norms = torch.linalg.matrix_norm(M, 2).mean(1)
            table.add_row(
                name,
                str(layers),
                "-" if paper is None else f"{paper:.1f} %",
                f"{100 * accuracy:.1f} %",
                f"{norms.min():.1e} .. {norms.max():.1e}",
                f"{seconds:.2f}",
            )
            records.append(
                {
                    "architecture": name,
                    "layers": layers,
                    "paper": paper,
                    "accuracy": accuracy,
                    "gradients": [float(norms.min()), float(norms.max())],
                    "seconds": seconds,
                }
            )
            models[f"{name}, {layers} layers: {100 * accuracy:.1f} %"] = model
    figure = regions_and_propagation(models, data.X_test, data.y_test)
    save_figure(figure, out)
    if as_json:
        emit({"figure": str(out), "seed": seed, "epochs": epochs, "networks": records})
        return
    console.print(table)
    say(f"Decision regions, and the way of the data through the layers: {out}")


def _published(config: RunConfig, name: str, layers: int) -> tuple[RunConfig, float | None]:
    """A network of the demo under the protocol `tuned`, and what the paper prints for it."""
    seed, epochs = config.training.seed, config.training.epochs
    tuned, place = PROTOCOLS["tuned"], ("swiss-roll", name, layers)
    cell = next((c for c in cells() if (c.data, c.architecture, c.layers) == place), None)
    training, model, paper = tuned.training, ModelConfig(name, layers, seed=seed), None
    if cell is not None:
        tuned_cell, paper = settings("tuned", cell), cell.published
        training = replace(training, learning_rate=tuned_cell.learning_rate)
        model = replace(model, T=tuned_cell.T, augmentation=tuned_cell.augmentation)
    training = replace(training, seed=seed, epochs=epochs)
    return replace(config, model=model, training=training), paper
