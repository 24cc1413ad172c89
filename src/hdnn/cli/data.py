"""`hdnn data`: which data sets there are, and fetching those that have to be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hdnn.cli.base import app, emit, say
from hdnn.cli.commands import App
from hdnn.errors import HdnnError, unknown_name

group = App(help="List and fetch data sets.")
app.add_typer(group, name="data")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder of data sets; else HDNN_DATA, else in the user's cache."),
]


@group.callback(invoke_without_command=True)
def data(context: typer.Context) -> None:
    """List and fetch data sets."""
    if context.invoked_subcommand is None:
        listing()


@group.command("list")
def listing(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Every data set by name, and whether its files are there and right."""
    from hdnn.data import BUNDLED, PROBLEMS
    from hdnn.data import images as image_sets

    records: list[dict[str, Any]] = [
        {"name": name, "kind": "planar", "state": "ready"} for name in PROBLEMS
    ]
    records += [{"name": name, "kind": "table", "state": "ready"} for name in BUNDLED]
    records += [_state(chosen, data_dir) for chosen in image_sets.IMAGE_SETS.values()]
    if as_json:
        emit(records)
        return
    for record in records:
        say(f"{record['name']:16}{record['kind']:10}{record['state']:10}{record.get('about', '')}")


@group.command()
def fetch(
    name: Annotated[str, typer.Argument(help="mnist or fashion-mnist.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a data set, or check and repair the one that is there."""
    from hdnn.data import images as image_sets
    from hdnn.data.fetch import REMOTES, data_root, obtain

    key = name.lower().replace("_", "-")
    if key not in REMOTES:
        if key in image_sets.IMAGE_SETS:
            raise HdnnError(f"{key} needs no fetching; to fetch there are {', '.join(REMOTES)}")
        raise unknown_name("data set to fetch", name, REMOTES)
    found = obtain(REMOTES[key], data_dir, copy=True)
    record = {
        "name": key,
        "folder": str(data_root(data_dir) / key),
        "files": {name: str(path) for name, path in found.paths.items()},
        "sources": found.sources,
        "notes": found.faults,
    }
    if as_json:
        emit(record)
        return
    for path in found.paths.values():
        origin = found.sources.get(path.name)
        say(f"{path}  {f'from {origin}' if origin else 'was there, its sum is right'}")
    for note in found.faults:
        say(f"note: {note}")


def _state(chosen: Any, data_dir: Path | None) -> dict[str, Any]:
    from hdnn.data.fetch import REMOTES, look

    size = " x ".join(map(str, chosen.shape))
    about = f"{chosen.title}, {chosen.train} + {chosen.test} of {size}"
    record = {"name": chosen.name, "kind": "images", "state": "ready", "about": about}
    if chosen.fetched:
        found = look(REMOTES[chosen.name], data_dir)
        if len(found.paths) < len(REMOTES[chosen.name].files):
            record["state"] = "damaged" if found.faults else "missing"
        record["files"] = {name: str(path) for name, path in found.paths.items()}
    return record
