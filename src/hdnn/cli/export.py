"""`hdnn export` and `hdnn info`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hdnn.cli.base import MORE, Json, app, emit, say
from hdnn.cli.loaded import is_identification, load_run


@app.command(rich_help_panel=MORE)
def export(
    run: Annotated[Path, typer.Argument(help="A finished run, or a file of hdnn.save.")],
    out: Annotated[
        Path, typer.Option(help="ONNX file to write; of an identified system also a .c file.")
    ],
    check: Annotated[
        bool, typer.Option(help="Compare with hdnn on a batch, if onnxruntime is installed.")
    ] = True,
    unroll: Annotated[
        int, typer.Option(min=0, help="ONNX: most layers to write out; deeper ones are a Scan.")
    ] = 64,
    as_json: Json = False,
) -> None:
    """Write a trained model as ONNX, or an identified system as C.

    Raw columns or uint8 images in, probabilities out; inputs in, outputs out, in the units of the
    data; see docs/export.md.
    """
    from hdnn.models import export_c, load
    from hdnn.models.onnx_export import export_onnx

    if is_identification(run):
        from hdnn.identification.runs import IdentificationRun

        model: Any = IdentificationRun.open(run).load().model
    else:
        model = load(run) if run.is_file() else load_run(run).model
    if out.suffix.lower() == ".c":
        export_c(model, out)
        if as_json:
            emit({"out": str(out), "bytes": out.stat().st_size})
        else:
            say(f"{out.stat().st_size} bytes: {out}")
        return
    written = export_onnx(model, out, check=check, unroll=unroll)
    if as_json:
        shapes = {"inputs": dict(written.inputs), "outputs": dict(written.outputs)}
        numbers = {"bytes": written.size, "deviation": written.deviation}
        emit({"out": str(out), **numbers, **shapes})
        return
    for title, values in (("input", written.inputs), ("output", written.outputs)):
        for name, shape in values.items():
            say(f"{title:8}{name} ({', '.join(map(str, shape))})")
    if written.deviation is None:
        say("not compared with hdnn: that needs onnxruntime, pip install 'hdnn[onnx]', and --check")
    else:
        say(f"differs from hdnn by {written.deviation:.2g} on a batch")
    say(f"{written.size} bytes: {out}")


@app.command(rich_help_panel=MORE)
def info(as_json: Json = False) -> None:
    """Show versions, threads, and the names that hdnn knows."""
    import platform
    from importlib.metadata import version

    import torch

    import hdnn
    from hdnn.data import BUNDLED, PROBLEMS
    from hdnn.data.images import IMAGE_SETS
    from hdnn.data.recordings import SIMULATED, SOURCES
    from hdnn.kernels import native

    facts = {
        "hdnn": hdnn.__version__,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy", "safetensors")},
        "threads": torch.get_num_threads(),
        "kernels": native.obstacle() or f"compiled, {native.instruction_set()}",
        "backends": list(hdnn.backends.BACKENDS),
        "architectures": list(hdnn.zoo.ARCHITECTURES),
        "schemes": list(hdnn.schemes.SCHEMES),
        "data sets": list(dict.fromkeys((*PROBLEMS, *BUNDLED, *IMAGE_SETS, *SIMULATED, *SOURCES))),
    }
    if as_json:
        emit(facts)
        return
    for name, value in facts.items():
        say(f"{name:15}{', '.join(value) if isinstance(value, list) else value}", indent=15)
