"""`hdnn reproduce`: the paper's tables and figures, as resumable records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hdnn.cli.base import app, console, emit, note_kernels, say
from hdnn.cli.commands import App, with_ending
from hdnn.errors import HdnnError
from hdnn.files import atomic
from hdnn.paper import experiment, figure1, figure2, robustness, table1, table2
from hdnn.paper.records import Records
from hdnn.paper.tables import markdown, terminal, texts
from hdnn.plots import save_figure

reproduce = App(no_args_is_help=True, help="Reproduce the paper's tables and figures.")
app.add_typer(reproduce, name="reproduce")

Folder = Annotated[Path, typer.Option(help="Folder of the records. Only missing ones are trained.")]
Protocol1 = Annotated[str, typer.Option(help="paper, tuned or tuned-restarts.")]
Split = Annotated[str, typer.Option(help="paper or independent.")]
Filter = Annotated[list[str] | None, typer.Option(help="Only this one. Repeatable.")]
Layers = Annotated[list[int] | None, typer.Option(help="Only this depth. Repeatable.")]
Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds.")]
FirstSeed = Annotated[int, typer.Option(help="First seed.")]
Jobs = Annotated[int | None, typer.Option(help="Number of processes.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _write(path: Path, text: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(text)


@reproduce.command(name="table1")
def reproduce_table1(
    out: Folder = Path("results/table1"),
    protocol: Protocol1 = "tuned",
    split: Split = "paper",
    data: Filter = None,
    architecture: Filter = None,
    layers: Layers = None,
    seeds: Seeds = 20,
    first_seed: FirstSeed = 1000,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Table 1: test accuracies on the Swiss roll and the double moons."""
    filters = {"data": data or (), "architecture": architecture or (), "layers": layers or ()}
    cells = table1.cells(protocol, split, **filters)  # type: ignore[arg-type]
    wanted = range(first_seed, first_seed + seeds)
    note_kernels()
    records = table1.table1(cells).sweep(wanted, Records(out, experiment.KEY), jobs)
    rows, title = table1.summary(cells, records), f"Table 1, protocol {protocol}, split {split}"
    page = out / f"table1-{protocol}-{split}.md"
    # Of all cells that have records, whatever the filters show.
    _write(page, table1.page(table1.summary(table1.cells(protocol, split), records), title))
    if as_json:
        emit({"protocol": protocol, "split": split, "rows": rows.to_dict("records")})
        return
    shown = {name: table1.FORMATS[name] for name in table1.NARROW}
    console.print(terminal(texts(rows, shown), title))
    reached = (rows.reached == "yes").sum()
    say(f"The mean reaches the published value in {reached} of {len(rows)} cells.")
    say(f"table: {page}  (records are beside it)")


@reproduce.command(name="table2")
def reproduce_table2(
    out: Folder = Path("results/table2"),
    protocol: Annotated[str, typer.Option(help="paper, tuned or as-published-code.")] = "paper",
    architecture: Annotated[
        list[str] | None, typer.Option(help="MS1, H2 or convolution. Repeatable.")
    ] = None,
    layers: Layers = None,
    seeds: Seeds = 1,
    first_seed: FirstSeed = 0,
    jobs: Jobs = None,
    data: Annotated[str, typer.Option(help="Another image data set.")] = "mnist",
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Fewer epochs, to try out another data set.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Table 2: accuracies of the image network on MNIST."""
    cells = table2.cells(protocol, architecture=architecture or (), layers=layers or (), data=data)
    if epochs is not None and data == "mnist":
        raise HdnnError("--epochs is for other --data; on MNIST the protocol fixes the epochs")
    note_kernels()
    wanted = range(first_seed, first_seed + seeds)
    records = table2.sweep(cells, wanted, out, epochs, jobs)
    rows = table2.summary(cells, records)
    _write(out / "README.md", table2.page(records))
    if as_json:
        emit({"protocol": protocol, "rows": rows.to_dict("records")})
        return
    shown = {name: table2.FORMATS[name] for name in table2.NARROW}
    console.print(terminal(texts(rows, shown), f"Table 2, protocol {protocol}"))
    say(f"table: {out / 'README.md'}  (records are beside it)")


@reproduce.command(name="figure1")
def reproduce_figure1(
    out: Annotated[
        Path,
        typer.Option(help="File to write: png, svg, pdf or jpg.", callback=with_ending(".png")),
    ] = Path("figure1.png"),
    protocol: Protocol1 = "tuned",
    split: Split = "paper",
    seed: Annotated[int, typer.Option(help="Of data, weights and batches.")] = 1000,
) -> None:
    """Figure 1: decision regions of H1 on the Swiss roll and the double moons."""
    note_kernels()
    save_figure(figure1.figure1(protocol, split, seed), out)
    say(f"figure: {out}")


@reproduce.command(name="figure2")
def reproduce_figure2(
    out: Folder = Path("results/figure2"),
    seeds: Seeds = 10,
    first_seed: FirstSeed = figure2.DRAWN_SEED,
    quick: Annotated[bool, typer.Option(help="Only the networks of the figure.")] = False,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Figure 2: norms of d y_N / d y_l during training."""
    note_kernels()
    cases = figure2.FIGURE if quick else figure2.CASES
    wanted = range(first_seed, first_seed + seeds)
    records = figure2.figure2(cases).sweep(wanted, Records(out, figure2.KEY), jobs)
    if figure2.DRAWN_SEED in wanted:
        save_figure(figure2.norms_figure(records), out / "figure2.svg")
    if not quick:
        save_figure(figure2.claims_figure(records), out / "claims.svg")
        _write(out / "figure2.md", figure2.page(records))
    if as_json:
        emit({"records": records})
        return
    table = figure2.table(figure2.FIGURE, records, figure2.NORMS)
    console.print(terminal(table[[*figure2.NARROW]], "Norms of d y_N / d y_l during training"))
    say(f"{len(records)} records, tables and figures: {out}")


@reproduce.command(name="robustness")
def reproduce_robustness(
    out: Annotated[Path | None, typer.Option(help="Folder of the records.")] = None,
    seeds: Seeds = 3,
    first_seed: FirstSeed = 1000,
    samples: Annotated[int, typer.Option(min=1, help="Number of test samples.")] = 500,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Distances of the data of Figure 1 to the decision boundary."""
    note_kernels()
    store = None if out is None else Records(out, robustness.KEY)
    wanted = range(first_seed, first_seed + seeds)
    records = robustness.robustness(samples).sweep(wanted, store, jobs)
    table = robustness.summary(records)
    if out is not None:
        _write(out / "robustness.md", markdown(table))
    if as_json:
        emit({"records": records})
        return
    console.print(terminal(table[[*robustness.NARROW]], "Distance to the decision boundary"))
