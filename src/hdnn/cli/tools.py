"""`hdnn info`."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path
from typing import Annotated

import torch
import typer

import hdnn
from hdnn import zoo
from hdnn.cli.base import app, emit, say
from hdnn.errors import StorageError


def _caches() -> list[Path]:
    """The files that compiled kernels are kept in."""
    from hdnn.kernels.cache import folders

    return [path for folder in folders() for path in folder.glob("*.nb[ic]")]


def _clear() -> None:
    for path in _caches():
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"cannot remove {path}: {error.strerror or error}") from error


@app.command()
def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    clear_cache: Annotated[bool, typer.Option(help="Remove compiled kernels.")] = False,
    warm: Annotated[
        bool, typer.Option(help="Compile all kernels now, as for the image of a container.")
    ] = False,
) -> None:
    """Show versions, threads and the cache of compiled kernels."""
    from hdnn.backends.threads import thread_count
    from hdnn.data import BUNDLED, PROBLEMS
    from hdnn.data.images import IMAGE_SETS
    from hdnn.kernels.cache import folder
    from hdnn.kernels.catalogue import compile_all

    if clear_cache:
        _clear()
    if warm:
        compile_all()
    cached = _caches()
    versions = {
        name: importlib.metadata.version(name)
        for name in ("torch", "numpy", "numba", "safetensors")
    }
    facts = {
        "hdnn": hdnn.__version__,
        "python": platform.python_version(),
        **versions,
        "threads": thread_count(),
        "torch threads": torch.get_num_threads(),
        "backends": list(hdnn.backends.BACKENDS),
        "compiled kernels": len([path for path in cached if path.suffix == ".nbi"]),
        "kept in": str(folder() or "no folder can be written to"),
        "architectures": list(zoo.ARCHITECTURES),
        "schemes": list(hdnn.schemes.SCHEMES),
        "data sets": list(dict.fromkeys((*PROBLEMS, *BUNDLED, *IMAGE_SETS))),
    }
    if as_json:
        emit(facts)
        return
    for name, value in facts.items():
        shown = ", ".join(value) if isinstance(value, list) else value
        say(f"{name:18}{shown}")
