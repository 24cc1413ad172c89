"""`hdnn info`."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Annotated

import torch
import typer

import hdnn
from hdnn import zoo
from hdnn.cli.base import app, emit, say
from hdnn.kernels import native


@app.command()
def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show versions, threads and what hdnn knows by name."""
    from hdnn.data import BUNDLED, PROBLEMS
    from hdnn.data.images import IMAGE_SETS

    versions = {
        name: importlib.metadata.version(name) for name in ("torch", "numpy", "safetensors")
    }
    facts = {
        "hdnn": hdnn.__version__,
        "python": platform.python_version(),
        **versions,
        "threads": torch.get_num_threads(),
        "kernels": native.obstacle() or f"compiled, {native.instruction_set()}",
        "backends": list(hdnn.backends.BACKENDS),
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
