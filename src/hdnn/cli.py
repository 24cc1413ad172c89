"""The command line: `hdnn` and `python -m hdnn`."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

import hdnn
from hdnn import zoo
from hdnn.errors import HdnnError, unknown_name

MISUSE = 2
"""The exit code of a request that cannot be met as given."""

app = typer.Typer(
    help="Hamiltonian deep neural networks: gradients that neither vanish nor explode.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()


class _Misuse(typer.core.TyperGroup):
    """Turns an `HdnnError` into a message and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HdnnError as error:
            Console(stderr=True).print(
                f"error: {error}", style="red", highlight=False, soft_wrap=True
            )
            raise typer.Exit(MISUSE) from error


@app.callback(cls=_Misuse)
def main() -> None:
    """Hamiltonian deep neural networks: gradients that neither vanish nor explode."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where to write the figure.")] = Path("demo.png"),
    layers: Annotated[int, typer.Option(help="Depth of the networks.")] = 64,
    seed: Annotated[int, typer.Option(help="Seed of weights and data.")] = 0,
) -> None:
    """Build every network, show what it is, and carry a Swiss roll through its layers."""
    from hdnn.data import swiss_roll
    from hdnn.model import Augmentation
    from hdnn.plots import propagation, save_figure

    generator = torch.Generator().manual_seed(seed)
    points, labels = swiss_roll(2000, generator)
    states = Augmentation(2, 4)(points)
    table = Table(
        title=f"{layers} layers, n = 4, T = 1.2, random weights (seed {seed})",
        caption="gradient: mean over samples of the 2-norm of d y_N / d y_0",
    )
    for heading in ("network", "scheme"):
        table.add_column(heading)
    for heading in ("parameters", "order", "inverse", "M J M' = J", "gradient"):
        table.add_column(heading, justify="right")
    networks = {}
    for name, row in zoo.ARCHITECTURES.items():
        T = 1.2 if row.scheme.uses_step else None
        net = hdnn.network(name, features=4, layers=layers, T=T, generator=generator)
        networks[name] = net
        console.print(f"[bold]{name:8}[/bold]{row.equation}", highlight=False)
        table.add_row(
            name,
            str(net.scheme).split("(", maxsplit=1)[0],
            str(net.parameters_per_layer),
            str(net.scheme.order or "-"),
            _mark(net.invertible),
            _mark(net.structure_preserving),
            f"{_sensitivity(net, states[:200]):.2g}",
        )
    console.print(table)
    shown = {name: networks[name] for name in ("H1", "H2", "MS3", "FCNN")}
    save_figure(propagation(shown, states, labels, shown=5), out)
    console.print(f"The Swiss roll on its way through the layers: {out}")


def _sensitivity(net: hdnn.HamiltonianNetwork, states: torch.Tensor) -> float:
    jacobians = torch.func.vmap(torch.func.jacrev(net))(states)
    return float(torch.linalg.matrix_norm(jacobians.detach(), 2).mean())


def _mark(holds: bool) -> str:
    return "yes" if holds else "no"


@app.command()
def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Versions, threads and architectures."""
    facts = {
        "hdnn": hdnn.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "architectures": list(zoo.ARCHITECTURES),
        "schemes": list(hdnn.schemes.SCHEMES),
    }
    if as_json:
        typer.echo(json.dumps(facts))
        return
    for name, value in facts.items():
        shown = ", ".join(value) if isinstance(value, list) else value
        console.print(f"[bold]{name:14}[/bold]{shown}", highlight=False)


@app.command()
def bench(
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as JSON.")] = False,
    seconds: Annotated[float, typer.Option(help="How long to measure each work.")] = 2.0,
    group: Annotated[
        list[str] | None, typer.Option(help="Only these rows of the table, e.g. small, images.")
    ] = None,
) -> None:
    """Measure speed and memory against peers: ratios of medians in one interleaved run."""
    from hdnn.bench.cases import CASES, machine, measure, run_all

    def report(line: str) -> None:
        if not as_json:
            console.print(line, highlight=False, soft_wrap=True)

    groups = sorted({case.group for case in CASES})
    for name in group or ():
        if name not in groups:
            raise unknown_name("group", name, groups)
    if group:
        chosen = [case for case in CASES if case.group in group]
        found = {"machine": machine(), "cases": [measure(c, seconds, report) for c in chosen]}
    else:
        found = run_all(seconds=seconds, report=report)
    if as_json:
        typer.echo(json.dumps(found, indent=1))
