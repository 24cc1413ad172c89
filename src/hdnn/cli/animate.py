"""`hdnn animate`: the data of a run flowing through its layers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hdnn.cli.bars import working
from hdnn.cli.base import app, emit, errors, say
from hdnn.cli.commands import with_ending


@app.command()
def animate(
    run: Annotated[Path, typer.Argument(help="A finished run.")],
    out: Annotated[
        Path,
        typer.Option(
            help="What to write: flow.gif, or .mp4 (extra mp4).", callback=with_ending(".gif")
        ),
    ],
    seconds: Annotated[float, typer.Option(help="How long it lasts, 2 to 8.")] = 5.0,
    dark: Annotated[bool, typer.Option(help="Light on dark.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Animate the data of a run on its way through depth.

    A plain network is beside it where that trains fast.
    """
    from hdnn.plots import DARK, LIGHT
    from hdnn.report import animation, collect

    animation.check_animation(out, seconds)
    with working(errors, "drawing"):
        size = animation.animate(collect.of_run(run), out, seconds, DARK if dark else LIGHT)
    if as_json:
        emit({"run": str(run), "animation": str(out), "bytes": size})
        return
    say(f"animation: {out} ({size / 1e6:.2f} MB)")
