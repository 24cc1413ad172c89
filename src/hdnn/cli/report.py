"""`hdnn report`: a run as one page to look at, and as an animation."""

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
    gif: Annotated[
        Path | None,
        typer.Option(
            help="Also animate the data on their way through the layers.",
            callback=with_ending(".gif"),
        ),
    ] = None,
    dark: Annotated[bool, typer.Option(help="Light on dark, for --gif.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a page about a run, to open in a browser.

    It shows how well the network does, how it learned, and what happens to the data and the
    gradients in its layers.
    """
    from hdnn.plots import DARK, LIGHT
    from hdnn.reports.animation import animate, check_animation
    from hdnn.reports.build import check_page_path, material_of_run, render

    path = run / "report.html" if out is None else out
    check_page_path(path)
    if gif is not None:
        check_animation(gif)
    with working(errors, "making the report"):
        material = material_of_run(run)
        render(material).save(path)
        if gif is not None:
            animate(material, gif, theme=DARK if dark else LIGHT)
    if as_json:
        files = {"report": str(path), **({} if gif is None else {"gif": str(gif)})}
        emit({"run": str(run), **files, "bytes": path.stat().st_size})
        return
    say(f"report: {path}")
    if gif is not None:
        say(f"animation: {gif} ({gif.stat().st_size / 1e6:.2f} MB)")


def say_report(run: Path, quiet: bool = False) -> None:
    """Write the page of a run into its folder and name it."""
    from hdnn.reports import report_of_run

    with working(errors, "making the report"):
        path = report_of_run(run).save(run / "report.html")
    if not quiet:
        say(f"report: {path}")
