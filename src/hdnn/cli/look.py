"""`hdnn report`, `hdnn gradients` and `hdnn play`: what people look at."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer

from hdnn.cli.base import LOOK, Json, app, emit, say, working
from hdnn.cli.loaded import Data, is_identification, load_run
from hdnn.errors import HdnnError, printable

DEPTHS = 9
"""Layers whose norms `hdnn gradients` lists, evenly spaced: what fits on a screen."""


@app.command(rich_help_panel=LOOK)
def report(
    run: Annotated[Path, typer.Argument(help="A run, finished or not.")],
    out: Annotated[
        Path | None, typer.Option(help="Page to write (default: report.html in the run).")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Train a ResNet of the same size to show beside it.")
    ] = False,
) -> None:
    """Write a page about a run, to open in a browser.

    It shows results, learning, and what happens to data and gradients in the layers; of an
    identified system, simulations, residuals, step responses, poles and what is proved.
    """
    from hdnn.plots.style import check_path
    from hdnn.reports.page import PAGES, report_of_run
    from hdnn.training.runs import Run

    if not is_identification(run):
        Run.open(run)  # raises before the default path inside it is checked
    path = run / "report.html" if out is None else out
    check_path(path, PAGES, "page")
    if is_identification(run):
        with working("making the report"):
            report_of_run(run, compare).save(path)
    else:
        report_of_run(run, compare).save(path)
    say(f"report: {path}  (open it in a browser)")


@app.command(rich_help_panel=LOOK)
def gradients(
    run: Annotated[
        Path,
        typer.Argument(help="A run, finished or recorded with --record, or a file of hdnn.save."),
    ],
    data: Data = None,
    samples: Annotated[
        int, typer.Option(min=1, help="Number of held-out samples to measure.")
    ] = 500,
    out: Annotated[
        Path | None,
        typer.Option(help="Write a figure: the recorded norms, or else the norms by layer."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show how strongly the output reacts to a change at each layer of the last block."""
    from hdnn import plots
    from hdnn.analysis import profile
    from hdnn.plots.style import check_path
    from hdnn.training.inputs import block_states
    from hdnn.training.runs import Run

    folder = Run(run)
    records = folder.read_gradients() if folder.config_file.is_file() else []
    if out is not None:
        check_path(out)
    norms = None
    if folder.finished or not records:
        loaded = load_run(run)  # raises for an unfinished run, with the command that continues it
        states = block_states(loaded.model, loaded.features(data, held_out=True), samples)
        if not states:
            raise HdnnError(f"{run} has no Hamiltonian block; use hdnn.analysis.watch in Python")
        norms = profile(*states[-1], DEPTHS)
    if out is not None:
        figure = plots.new_figure(6.4, 3.2)
        if records:
            plots.record_by_depth(figure.subplots(), records)
        elif norms is not None:
            name = printable(str(run))[-60:]  # a longer label would leave the figure
            plots.norms_by_depth(figure.subplots(), norms, name, plots.LIGHT.color(0))
        plots.save_figure(figure, out)
    if as_json:
        trained = None if norms is None else norms.to_dict()
        emit({"run": str(run), "trained": trained, "recordings": records})
        return
    if norms is not None:
        say(str(norms))
    if records:
        _say_records(records)
    if out is not None:
        say(f"figure: {out}")


def _say_records(records: list[dict[str, Any]]) -> None:
    """The range of norms during training, without the last layer, whose norm is 1."""
    import numpy as np

    say(f"during training: {len(records)} recordings")
    for title, low, high in (
        ("single samples", "minimum", "maximum"),
        ("mean of a batch", "of_mean", "of_mean"),
    ):
        lows, highs = (np.array([r[k] for r in records], float)[:, :-1] for k in (low, high))
        say(f"  {title}: {np.nanmin(lows):.4g} to {np.nanmax(highs):.4g}")


@app.command(rich_help_panel=LOOK)
def play(
    port: Annotated[
        int, typer.Option(help="Port on 127.0.0.1 (0: any free port).", min=0, max=65535)
    ] = 0,
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser.")
    ] = True,
    out: Annotated[
        Path | None, typer.Option(help="Write the page as one HTML file instead of serving it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
) -> None:
    """Train networks in the browser. Ctrl-C stops the server."""
    from hdnn.playground import make_page, make_server

    if out is not None:
        from hdnn.reports.page import Report

        page = Report(make_page().html).save(out)
        if as_json:
            emit({"page": str(page)})
        else:
            say(f"page: {page}  (open it in a browser)")
        return
    with make_server(port) as server:
        if as_json:
            emit({"url": server.url, "port": server.server_port})
        else:
            say(f"The playground is at {server.url} (Ctrl-C stops it)")
        sys.stdout.flush()  # at once, also where it is a pipe
        if open_browser:
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
