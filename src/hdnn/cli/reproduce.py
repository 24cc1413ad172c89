"""`hdnn reproduce`: the paper's tables and figures, as resumable records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hdnn.cli.base import MORE, Json, app, emit, note_kernels, say, show_table
from hdnn.errors import HdnnError

reproduce = typer.Typer(no_args_is_help=True, help="Reproduce the paper's tables and figures.")
app.add_typer(reproduce, name="reproduce", rich_help_panel=MORE)

Folder = Annotated[Path, typer.Option(help="Folder of the records. Only missing ones are trained.")]
Protocol1 = Annotated[str, typer.Option(help="paper, tuned or tuned-restarts.")]
Split = Annotated[str, typer.Option(help="paper or independent.")]
Data = Annotated[list[str] | None, typer.Option(help="Only this data set. Repeatable.")]
Architecture = Annotated[list[str] | None, typer.Option(help="Only this architecture. Repeatable.")]
Layers = Annotated[list[int] | None, typer.Option(help="Only this depth. Repeatable.")]
Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds.")]
FirstSeed = Annotated[int, typer.Option(help="First seed.")]
Jobs = Annotated[int | None, typer.Option(help="Number of processes (default: 1).")]


def _write(path: Path, text: str) -> None:
    from hdnn.files import atomic

    with atomic(path) as temporary:
        temporary.write_text(text)


@reproduce.command(name="table1")
def reproduce_table1(
    out: Folder = Path("results/table1"),
    protocol: Protocol1 = "tuned",
    split: Split = "paper",
    data: Data = None,
    architecture: Architecture = None,
    layers: Layers = None,
    seeds: Seeds = 20,
    first_seed: FirstSeed = 1000,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Table 1: test accuracies on the Swiss roll and the double moons."""
    from hdnn.paper import experiment, table1
    from hdnn.paper.records import Records
    from hdnn.paper.summaries import texts

    filters = {"data": data or (), "architecture": architecture or (), "layers": layers or ()}
    cells = table1.cells(protocol, split, **filters)  # type: ignore[arg-type]
    all_seeds = range(first_seed, first_seed + seeds)
    note_kernels()
    records = table1.table1(cells).sweep(all_seeds, Records(out, experiment.KEY), jobs)
    rows, title = table1.summary(cells, records), f"Table 1, protocol {protocol}, split {split}"
    page = out / f"table1-{protocol}-{split}.md"
    # Of all cells that have records, whatever the filters show.
    _write(page, table1.page(table1.summary(table1.cells(protocol, split), records), title))
    if as_json:
        emit({"protocol": protocol, "split": split, "rows": rows.to_dict("records")})
        return
    table = texts(rows, {name: table1.FORMATS[name] for name in table1.NARROW})
    show_table(table, table.to_numpy(), title, names=2)
    reached = (rows.reached == "yes").sum()
    say(f"The mean reaches the published value in {reached} of {len(rows)} cells.")
    say(f"table: {page}  (records are beside it)")


@reproduce.command(name="table2")
def reproduce_table2(
    out: Folder = Path("results/table2"),
    protocol: Annotated[str, typer.Option(help="paper, tuned or as-published-code.")] = "paper",
    architecture: Architecture = None,
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
    from hdnn.paper import table2
    from hdnn.paper.summaries import texts

    filters = {"architecture": architecture or (), "layers": layers or ()}
    cells = table2.cells(protocol, data=data, epochs=epochs, **filters)  # type: ignore[arg-type]
    if epochs is not None and data == "mnist":
        raise HdnnError("--epochs is for other --data; on MNIST the protocol fixes the epochs")
    note_kernels()
    all_seeds = range(first_seed, first_seed + seeds)
    records = table2.sweep(cells, all_seeds, out, jobs)
    rows = table2.summary(cells, records)
    _write(out / "README.md", table2.page(records))
    if as_json:
        emit({"protocol": protocol, "rows": rows.to_dict("records")})
        return
    table = texts(rows, {name: table2.FORMATS[name] for name in table2.NARROW})
    show_table(table, table.to_numpy(), f"Table 2, protocol {protocol}")
    say(f"table: {out / 'README.md'}  (records are beside it)")


@reproduce.command(name="figure1")
def reproduce_figure1(
    out: Annotated[Path, typer.Option(help="File to write: png, svg, pdf or jpg.")] = Path(
        "figure1.png"
    ),
    protocol: Protocol1 = "tuned",
    split: Split = "paper",
    seed: Annotated[int, typer.Option(help="Of data, weights and batches.")] = 1000,
) -> None:
    """Figure 1: decision regions of H1 on the Swiss roll and the double moons."""
    from hdnn.paper import figure1
    from hdnn.plots import save_figure

    note_kernels()
    save_figure(figure1.figure1(protocol, split, seed), out)
    say(f"figure: {out}")


@reproduce.command(name="figure2")
def reproduce_figure2(
    out: Folder = Path("results/figure2"),
    seeds: Seeds = 10,
    first_seed: FirstSeed = 1000,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only the networks of the figure.")
    ] = False,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Figure 2: gradient norms of every layer during training."""
    from hdnn.paper import figure2
    from hdnn.paper.records import Records
    from hdnn.plots import save_figure

    note_kernels()
    cases = figure2.FIGURE if quick else figure2.CASES
    all_seeds = range(first_seed, first_seed + seeds)
    records = figure2.figure2(cases).sweep(all_seeds, Records(out, figure2.KEY), jobs)
    if figure2.DRAWN_SEED in all_seeds:
        save_figure(figure2.norms_figure(records), out / "figure2.svg")
    if not quick:
        save_figure(figure2.claims_figure(records), out / "claims.svg")
        _write(out / "figure2.md", figure2.page(records))
    if as_json:
        emit({"records": records})
        return
    table = figure2.table(figure2.FIGURE, records, figure2.NORMS)[[*figure2.NARROW]]
    show_table(table, table.to_numpy(), "Norms of d y_N / d y_l during training")
    say(f"{len(records)} records, tables and figures: {out}")
