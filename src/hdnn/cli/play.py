"""`hdnn play`: the playground in the browser."""

from __future__ import annotations

import sys
import webbrowser
from typing import Annotated

import typer

from hdnn.cli.base import app, emit, say


@app.command()
def play(
    port: Annotated[
        int, typer.Option(help="Port on 127.0.0.1; 0: a free one.", min=0, max=65535)
    ] = 0,
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
) -> None:
    """Train networks in the browser.

    Decision regions, flow, gradients; Ctrl-C ends it.
    """
    from hdnn.playground import make_server

    with make_server(port) as server:
        if as_json:
            emit({"url": server.url, "port": server.server_port})
        else:
            say(f"The playground is at {server.url} (Ctrl-C ends it)")
        sys.stdout.flush()  # at once, also where it is a pipe
        if open_browser:
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
