"""`hdnn reproduce`: the paper's tables and figures, as resumable records."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from hdnn.cli.base import app, console, emit, errors, say, warn
from hdnn.errors import HdnnError
from hdnn.experiments import figures, summary, table2, table2_summary
from hdnn.experiments.records import Record, Store
from hdnn.experiments.specs import protocol as find_protocol
from hdnn.experiments.specs import select
from hdnn.experiments.sweep import sweep
from hdnn.files import atomic
from hdnn.plots import save_figure

reproduce = typer.Typer(no_args_is_help=True, help="The paper's tables and figures.")
app.add_typer(reproduce, name="reproduce")

Protocol = Annotated[str, typer.Option(help="paper, tuned or tuned-restarts.")]
Kind = Annotated[str, typer.Option(help="paper or independent.")]


@reproduce.command()
def table1(
    out: Annotated[Path, typer.Option(help="Folder of the records.")],
    protocol: Protocol = "tuned",
    split: Kind = "paper",
    data: Annotated[list[str] | None, typer.Option(help="Filter; repeats.")] = None,
    architecture: Annotated[list[str] | None, typer.Option(help="Filter; repeats.")] = None,
    layers: Annotated[list[int] | None, typer.Option(help="Filter; repeats.")] = None,
    seeds: Annotated[int, typer.Option(help="How many.")] = 20,
    first_seed: Annotated[int, typer.Option(help="The first of them.")] = 1000,
    engine: Annotated[str, typer.Option(help="local, joblib, dask or ray.")] = "local",
    workers: Annotated[int, typer.Option(help="Processes, for joblib.")] = 1,
    address: Annotated[str | None, typer.Option(help="Of a Dask or Ray cluster.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Every cell of Table 1 over many seeds; a second call does only what is missing."""
    find_protocol(protocol)
    cells = select(data or (), architecture or (), layers or ())
    store = Store(out, Record)
    begin = time.perf_counter()
    with _bar(quiet=as_json) as progress:
        sweep(
            store,
            cells,
            protocol,
            split,
            range(first_seed, first_seed + seeds),
            engine=engine,
            workers=workers,
            address=address,
            progress=progress,
        )
    took = time.perf_counter() - begin
    rows = summary.summarise(cells, store.read().values(), protocol, split)
    _write(out, rows, protocol, split)
    if as_json:
        shown = [asdict(row) | {"reached": row.reached} for row in rows]
        emit({"protocol": protocol, "split": split, "seconds": took, "rows": shown})
        return
    texts, title = [summary.cells_of(row) for row in rows], f"protocol {protocol}, split {split}"
    console.print(_table(f"Table 1, {title}", summary.HEADINGS, texts, summary.SPARE))
    reached = sum(row.reached for row in rows)
    say(f"the mean reaches the published value in {reached} of {len(rows)} cells; {took:.0f} s")
    say(f"records and tables: {out}")


@reproduce.command()
def figure1(
    out: Annotated[Path, typer.Option(help="Where to write it; the ending is the format.")],
    protocol: Protocol = "tuned",
    split: Kind = "paper",
    seed: Annotated[int, typer.Option(help="Of data, weights and batches.")] = 1000,
) -> None:
    """Figure 1: decision regions of H1 on the Swiss roll and the double moons."""
    find_protocol(protocol)
    save_figure(figures.figure1(protocol, split, seed), out)
    say(f"figure: {out}")


@reproduce.command()
def depth(
    records: Annotated[Path, typer.Argument(help="Folder of records of table1.")],
    out: Annotated[Path, typer.Option(help="Where to write it; the ending is the format.")],
    protocol: Protocol = "tuned",
    split: Kind = "paper",
) -> None:
    """Accuracy against depth, with the spread over seeds."""
    rows = summary.summarise(select(), Store(records, Record).read().values(), protocol, split)
    save_figure(figures.depth_figure(rows), out)
    say(f"figure: {out}")


def _write(out: Path, rows: list[summary.Row], protocol: str, split: str) -> None:
    """The table as Markdown, CSV and HTML beside the records."""
    title = f"Table 1, protocol {protocol}, split {split}"
    texts = {
        "md": "\n".join(
            [
                f"# {title}\n",
                summary.compact(rows),
                summary.markdown(rows),
                "Section 4.1: H1 and H2 against MS1 to MS3 at equal depth, mean test accuracy.\n",
                summary.claims(rows),
            ]
        ),
        "csv": summary.comma_separated(rows),
        "html": summary.page(rows, title),
    }
    for ending, text in texts.items():
        with atomic(out / f"table1-{protocol}-{split}.{ending}") as temporary:
            temporary.write_text(text)


def _table(
    title: str, headings: Sequence[str], rows: list[list[str]], spare: Sequence[str]
) -> Table:
    """A table without the first columns of `spare`, as many as the terminal has no room for."""
    columns = dict(zip(headings, zip(*rows, strict=True), strict=True)) if rows else {}
    width = {heading: max(map(len, (heading, *cells))) for heading, cells in columns.items()}
    for heading in spare:
        if sum(width[name] + 3 for name in columns) > console.width:
            columns.pop(heading, None)
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for heading in columns:
        left = heading in ("data", "network")
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells, style="yellow" if cells[-1] == "no" else None)
    return table


class _bar:  # noqa: N801 (a context manager that reads like a function)
    """Progress with the time left on a terminal; a line now and then elsewhere."""

    def __init__(self, quiet: bool) -> None:
        self.quiet, self.last = quiet, 0.0
        self.bar: Progress | None = None

    def __enter__(self) -> _bar:
        if not self.quiet and errors.is_terminal:
            self.bar = Progress(
                TextColumn("trainings"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=errors,
                transient=True,
            )
            self.bar.start()
            self.task = self.bar.add_task("trainings", total=None)
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def __call__(self, done: int, total: int) -> None:
        if self.bar is not None:
            self.bar.update(self.task, completed=done, total=total)
        elif not self.quiet and (time.monotonic() - self.last > 10 or done == total):
            self.last = time.monotonic()
            warn(f"{done} of {total} trainings")


@reproduce.command()
def readme(
    records: Annotated[Path, typer.Argument(help="Folder of records of table1.")],
    page: Annotated[Path, typer.Option(help="The page to fill.")] = Path("README.md"),
    protocol: Protocol = "tuned",
    split: Kind = "paper",
) -> None:
    """Write the table of the records between the marks of a page."""
    rows = summary.summarise(select(), Store(records, Record).read().values(), protocol, split)
    text = summary.fill(page.read_text(), summary.compact(rows))
    with atomic(page) as temporary:
        temporary.write_text(text)
    say(f"table: {page}")


@reproduce.command(name="table2")
def table2_command(
    out: Annotated[Path, typer.Option(help="Folder of the records.")],
    protocol: Annotated[str, typer.Option(help="paper, tuned or as-published-code.")] = "paper",
    architecture: Annotated[
        list[str] | None, typer.Option(help="MS1, H2 or convolution; repeats.")
    ] = None,
    layers: Annotated[list[int] | None, typer.Option(help="Filter; repeats.")] = None,
    seeds: Annotated[int, typer.Option(help="How many.")] = 1,
    first_seed: Annotated[int, typer.Option(help="The first of them.")] = 0,
    data: Annotated[str, typer.Option(help="Another data set of pictures.")] = table2.DATA,
    epochs: Annotated[int | None, typer.Option(help="Fewer than the protocol's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Every cell of Table 2; a second call does only what is missing, from the last epoch on."""
    chosen = table2.protocol(protocol)
    cells = table2.select(architecture or (), layers or ())
    if epochs is not None and (data == table2.DATA or epochs < 1):
        raise HdnnError("--epochs is for trying out other --data; on MNIST the protocol says it")
    store = Store(out, table2.ImageRecord)
    table2.sweep(
        store,
        cells,
        chosen,
        range(first_seed, first_seed + seeds),
        data=data,
        epochs=epochs,
        report=(lambda line: None) if as_json else warn,
    )
    records = list(store.read().values())
    with atomic(out / "README.md") as temporary:
        temporary.write_text(table2_summary.page(records))
    rows = table2_summary.summarise(cells, records, protocol)
    if as_json:
        shown = [asdict(row) | {"reached": row.reached} for row in rows]
        emit({"protocol": protocol, "rows": shown})
        return
    texts, spare = [table2_summary.cells_of(row) for row in rows], table2_summary.SPARE
    console.print(_table(f"Table 2, protocol {protocol}", table2_summary.HEADINGS, texts, spare))
    say(f"records and table: {out}")
