"""`hdnn data`: which data sets there are, and fetching those that have to be."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from hdnn.cli.base import MORE, Json, app, emit, say, warn
from hdnn.errors import unknown_name

group = typer.Typer(help="List and fetch data sets.")
app.add_typer(group, name="data", rich_help_panel=MORE)


@group.callback(invoke_without_command=True)
def data(context: typer.Context) -> None:
    """List and fetch data sets."""
    if context.invoked_subcommand is None:
        listing()


@group.command("list")
def listing(as_json: Json = False) -> None:
    """List data sets by name, and whether their files are there."""
    from hdnn.data import BUNDLED, PROBLEMS, recordings
    from hdnn.data import images as image_sets

    records: list[dict[str, Any]] = [
        {"name": name, "kind": "planar", "state": "ready"} for name in PROBLEMS
    ]
    records += [{"name": name, "kind": "table", "state": "ready"} for name in BUNDLED]
    for name, images in image_sets.IMAGE_SETS.items():
        missing = bool(images.urls) and None in image_sets.find(name)
        state = "to fetch" if missing else "ready"
        records.append({"name": name, "kind": "images", "state": state, "about": images.about})
    records += [
        {"name": name, "kind": "recording", "state": "ready", "about": "simulated"}
        for name in recordings.SIMULATED
    ]
    for name, source in recordings.SOURCES.items():
        state = "ready" if recordings.published_file(name) else "missing"
        about = f"{source.about}; {source.url}"
        records.append({"name": name, "kind": "recording", "state": state, "about": about})
    if as_json:
        emit(records)
        return
    for r in records:
        line = f"{r['name']:16}{r['kind']:10}{r['state']:10}{r.get('about', '')}"
        say(line.rstrip(), indent=36)
    if not os.environ.get("HDNN_DATA"):
        warn(
            "HDNN_DATA is not set: published recordings are read from identification/NAME.csv in "
            "the folder that it names"
        )


@group.command()
def fetch(
    name: Annotated[str, typer.Argument(help="mnist or fashion-mnist.")],
    as_json: Json = False,
) -> None:
    """Download a data set, or verify the files that are there."""
    from hdnn.data import images as image_sets

    key = name.lower().replace("_", "-")
    remote = [name for name, images in image_sets.IMAGE_SETS.items() if images.urls]
    if key not in remote:
        raise unknown_name("data set to fetch", name, remote)
    paths = image_sets.fetch(key)
    if as_json:
        emit({"name": key, "files": [str(path) for path in paths]})
        return
    for path in paths:
        say(f"{path}  checksum is right")
