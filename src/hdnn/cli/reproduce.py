"""`hdnn reproduce`: the paper's tables and figures, as resumable records."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from hdnn.cli.base import app, console, emit, errors, say, warn
from hdnn.cli.commands import App, with_ending
from hdnn.errors import HdnnError
from hdnn.paper import figure1, figure2, figure2_page, render, robustness, table1, table2
from hdnn.paper.engines import Engine
from hdnn.paper.store import Record, Store
from hdnn.plots import save_figure

reproduce = App(no_args_is_help=True, help="Make the paper's tables and figures.")
app.add_typer(reproduce, name="reproduce")

Protocol = Annotated[str, typer.Option(help="paper, tuned or tuned-restarts.")]
Kind = Annotated[str, typer.Option(help="paper or independent.")]
Folder = Annotated[Path, typer.Option(help="Folder of the records.")]
FigureFile = Annotated[
    Path,
    typer.Option(help="Where to write it; the ending is the format.", callback=with_ending(".png")),
]
Table1Records = Annotated[Path, typer.Argument(help="Folder of records of table1.")]
Filter = Annotated[list[str] | None, typer.Option(help="Filter; repeats.")]
Layers = Annotated[list[int] | None, typer.Option(help="Filter; repeats.")]
Seeds = Annotated[int, typer.Option(min=1, help="How many.")]
FirstSeed = Annotated[int, typer.Option(help="The first of them.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Progress:
    """How far a sweep is: a bar with the time left on a terminal, a line now and then elsewhere.

    Args:
        quiet: say nothing.
    """

    def __init__(self, quiet: bool) -> None:
        self.quiet, self.last = quiet, 0.0
        words, count = TextColumn("{task.description}"), MofNCompleteColumn()
        columns = (TextColumn("trainings"), BarColumn(), count, TimeRemainingColumn(), words)
        hidden = quiet or not errors.is_terminal
        self.bar = Bar(*columns, console=errors, transient=True, disable=hidden)
        self.task = self.bar.add_task("", total=None)

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def __call__(self, done: int, total: int, words: str) -> None:
        """Show the trainings done, all of them, and a few words on the one under way."""
        self.bar.update(self.task, completed=done, total=total, description=words)
        if not self.bar.disable or self.quiet:
            return
        if words or done == total or time.monotonic() - self.last > 10:
            self.last = time.monotonic()
            warn(f"{done} of {total} trainings{words and '; '}{words}")


@reproduce.command(name="table1")
def reproduce_table1(
    out: Folder = Path("results/table1"),
    protocol: Protocol = "tuned",
    split: Kind = "paper",
    data: Filter = None,
    architecture: Filter = None,
    layers: Layers = None,
    seeds: Annotated[int, typer.Option(help="How many.")] = 20,
    first_seed: FirstSeed = 1000,
    engine: Annotated[str, typer.Option(help="local, joblib, dask or ray.")] = "local",
    workers: Annotated[int, typer.Option(help="Processes, for joblib.")] = 1,
    address: Annotated[str | None, typer.Option(help="Of a Dask or Ray cluster.")] = None,
    as_json: Json = False,
) -> None:
    """Every cell of Table 1 over many seeds; a second call does only what is missing."""
    cells = table1.select(data or (), architecture or (), layers or ())
    experiment = table1.table1(protocol, split, cells)
    machines, store = Engine(engine, workers, address), Store(out, Record)
    begin = time.perf_counter()
    with Progress(quiet=as_json) as progress:
        wanted = range(first_seed, first_seed + seeds)
        rows = experiment.groups(experiment.sweep(wanted, store, machines, progress))
    took, title = time.perf_counter() - begin, f"Table 1, protocol {protocol}, split {split}"
    for ending, text in table1.pages(rows, title).items():
        render.write(out / f"table1-{protocol}-{split}.{ending}", text)
    table = render.Table(table1.COLUMNS, rows)
    if as_json:
        emit({"protocol": protocol, "split": split, "seconds": took, "rows": table.data()})
        return
    console.print(table.terminal(title, console.width))
    reached = sum(map(table1.reached, rows))
    say(f"the mean reaches the published value in {reached} of {len(rows)} cells; {took:.0f} s")
    page = out / f"table1-{protocol}-{split}.html"
    say(f"table: {page}  (records and other forms are beside it)")


@reproduce.command(name="figure1")
def reproduce_figure1(
    out: FigureFile = Path("figure1.png"),
    protocol: Protocol = "tuned",
    split: Kind = "paper",
    seed: Annotated[int, typer.Option(help="Of data, weights and batches.")] = 1000,
) -> None:
    """Figure 1: decision regions of H1 on the Swiss roll and the double moons."""
    models = figure1.figure1(protocol, split).sweep([seed])
    save_figure(figure1.regions_figure(models, split), out)
    say(f"figure: {out}")


def _table1_rows(records: Path, protocol: str, split: str) -> list[table1.Row]:
    return table1.table1(protocol, split).groups(Store(records, Record).read().values())


@reproduce.command()
def depth(
    records: Table1Records,
    out: FigureFile = Path("depth.png"),
    protocol: Protocol = "tuned",
    split: Kind = "paper",
) -> None:
    """Accuracy against depth, with the spread over seeds."""
    save_figure(figure1.depth_figure(_table1_rows(records, protocol, split)), out)
    say(f"figure: {out}")


@reproduce.command()
def readme(
    records: Table1Records,
    page: Annotated[Path, typer.Option(help="The page to fill.")] = Path("README.md"),
    protocol: Protocol = "tuned",
    split: Kind = "paper",
) -> None:
    """Write the table of the records between the marks of a page."""
    if not page.is_file():
        raise HdnnError(f"there is no page {page}; run this in the repository, or give --page")
    table = table1.compact(_table1_rows(records, protocol, split))
    render.write(page, render.fill(page.read_text(encoding="utf-8"), "table1", table))
    say(f"table: {page}")


@reproduce.command(name="table2")
def reproduce_table2(
    out: Folder = Path("results/table2"),
    protocol: Annotated[str, typer.Option(help="paper, tuned or as-published-code.")] = "paper",
    architecture: Annotated[
        list[str] | None, typer.Option(help="MS1, H2 or convolution; repeats.")
    ] = None,
    layers: Layers = None,
    seeds: Annotated[int, typer.Option(help="How many.")] = 1,
    first_seed: FirstSeed = 0,
    data: Annotated[str, typer.Option(help="Another data set of images.")] = table2.DATA,
    epochs: Annotated[int | None, typer.Option(help="Fewer than the protocol's.")] = None,
    as_json: Json = False,
) -> None:
    """Every cell of Table 2; a second call does only what is missing, from the last epoch on."""
    chosen = table2.protocol(protocol)
    cells = table2.select(architecture or (), layers or ())
    if epochs is not None and (data == table2.DATA or epochs < 1):
        raise HdnnError("--epochs is for trying out other --data; on MNIST the protocol says it")
    experiment = table2.table2(chosen, out, cells, data, epochs)
    with Progress(quiet=as_json) as progress:
        wanted = range(first_seed, first_seed + seeds)
        records = experiment.sweep(wanted, Store(out, table2.ImageRecord), progress=progress)
    render.write(out / "README.md", table2.page(records))
    table = render.Table(table2.COLUMNS, table2.table2(chosen, out, cells).groups(records))
    if as_json:
        emit({"protocol": protocol, "rows": table.data()})
        return
    console.print(table.terminal(f"Table 2, protocol {protocol}", console.width))
    say(f"table: {out / 'README.md'}  (records are beside it)")


@reproduce.command(name="figure2")
def reproduce_figure2(
    out: Annotated[Path, typer.Option(help="Folder of the records and figures.")] = Path(
        "results/figure2"
    ),
    seeds: Seeds = 10,
    first_seed: Annotated[
        int, typer.Option(help="The first of them; its curves are drawn.")
    ] = 1000,
    quick: Annotated[bool, typer.Option(help="Only the four networks of the figure.")] = False,
    as_json: Json = False,
) -> None:
    """Figure 2: norms of d y_N / d y_l during training; a second call does what is missing."""
    begin = time.perf_counter()
    store = Store(out, figure2.GradientRecord)
    cases = figure2.FIGURE if quick else figure2.CASES
    with Progress(quiet=as_json) as progress:
        wanted = range(first_seed, first_seed + seeds)
        experiment = figure2.figure2(store, first_seed, cases)
        records = experiment.sweep(wanted, store, progress=progress)
    save_figure(figure2_page.norms_figure(figure2.read_curves(store)), out / "figure2.svg")
    if not quick:
        save_figure(figure2_page.claims_figure(records), out / "claims.svg")
        render.write(out / "figure2.md", figure2_page.page(records))
    took = time.perf_counter() - begin
    if as_json:
        emit({"seconds": took, "records": [asdict(record) for record in records]})
        return
    rows = figure2.rows(records, figure2.FIGURE)
    say(render.Table(figure2_page.NORMS, rows).markdown())
    say(f"{len(records)} records and their tables: {out}; {took:.0f} s")
    say(f"figure: {out / 'figure2.svg'}")


@reproduce.command(name="robustness")
def reproduce_robustness(
    out: Annotated[Path | None, typer.Option(help="Write the table here, as Markdown.")] = None,
    seeds: Seeds = 3,
    first_seed: FirstSeed = 1000,
    samples: Annotated[int, typer.Option(min=1, help="Test samples.")] = 500,
    as_json: Json = False,
) -> None:
    """Margins and accuracy under perturbation for the data and depths of Figure 1."""
    experiment = robustness.robustness(samples)
    with Progress(quiet=as_json) as progress:
        records = experiment.sweep(range(first_seed, first_seed + seeds), progress=progress)
    rows = experiment.groups(records)
    text = render.Table(robustness.COLUMNS, rows).markdown()
    if out is not None:
        render.write(out, text)
    if as_json:
        emit(render.Table(robustness.DATA, rows).data())
        return
    say(text)
