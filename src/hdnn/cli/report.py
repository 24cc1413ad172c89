"""`hdnn report`: a run as one page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hdnn.cli.bars import working
from hdnn.cli.base import app, emit, errors, say
from hdnn.cli.commands import with_ending


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A run, finished or not.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The page to write; default: report.html in the run.",
            callback=with_ending(".html"),
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a page about a run, to open in a browser.

    How well it does, its layers, its gradients, what theory says of it.
    """
    with working(errors, "making the report"):
        path = write_report(run, out)
    if as_json:
        emit({"run": str(run), "report": str(path), "bytes": path.stat().st_size})
        return
    say(f"report: {path}")


def say_report(run: Path, quiet: bool = False) -> None:
    """Write the page of a run into its folder and name it."""
    with working(errors, "making the report"):
        path = write_report(run)
    if not quiet:
        say(f"report: {path}")


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write the page of a run, by default into its folder; returns its path."""
    from hdnn.report.build import check_page_path, report_of_run

    path = run / "report.html" if out is None else out
    if out is not None:
        check_page_path(out)
    return report_of_run(run).save(path)
