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


def _caches() -> list[Path]:
    """The files in which numba keeps compiled kernels, beside the package and for the user."""
    from numba.core import config

    package = Path(hdnn.__file__).parent
    files = [path for folder in package.rglob("__pycache__") for path in folder.glob("*.nb[ic]")]
    for folder in (config.CACHE_DIR, platformdirs_numba()):
        if folder and Path(folder).is_dir():
            files += [p for p in Path(folder).rglob("*.nb[ic]") if "hdnn" in str(p)]
    return files


def platformdirs_numba() -> str:
    """Where numba keeps its cache when the package folder cannot be written to."""
    import platformdirs

    return platformdirs.user_cache_dir("numba", appauthor=False)


@app.command()
def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    clear_cache: Annotated[bool, typer.Option(help="Remove compiled kernels.")] = False,
) -> None:
    """Show versions, threads and the cache of compiled kernels."""
    from hdnn.backends.threads import thread_count
    from hdnn.data import PROBLEMS

    cached = _caches()
    if clear_cache:
        for path in cached:
            path.unlink(missing_ok=True)
        cached = []
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
        "architectures": list(zoo.ARCHITECTURES),
        "schemes": list(hdnn.schemes.SCHEMES),
        "data sets": list(PROBLEMS),
    }
    if as_json:
        emit(facts)
        return
    for name, value in facts.items():
        shown = ", ".join(value) if isinstance(value, list) else value
        say(f"{name:18}{shown}")
