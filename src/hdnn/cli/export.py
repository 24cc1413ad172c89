"""`hdnn export`: a trained run as a file that needs no hdnn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hdnn.cli.base import app, emit, say
from hdnn.models import load
from hdnn.models.export import export_onnx
from hdnn.training.runs import Run


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A finished run, or a file of hdnn.save.")],
    out: Annotated[Path, typer.Option(help="ONNX file to write.")],
    check: Annotated[
        bool, typer.Option(help="Compare with hdnn on a batch, if onnxruntime is installed.")
    ] = True,
    encoded: Annotated[bool, typer.Option(help="Take a table as its encoder gives it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a trained model as ONNX.

    Raw columns or uint8 images in, probabilities out; see docs/export.md.
    """
    model = load(run) if run.is_file() else Run.open(run).load_model()
    written = export_onnx(model, out, check=check, encoded=encoded)
    if as_json:
        shapes = {"inputs": dict(written.inputs), "outputs": dict(written.outputs)}
        figures = {"bytes": written.size, "deviation": written.deviation}
        emit({"out": str(out), **figures, **shapes})
        return
    for title, values in (("input", written.inputs), ("output", written.outputs)):
        for name, shape in values.items():
            say(f"{title:8}{name} ({', '.join(map(str, shape))})")
    if written.deviation is None:
        say("not compared with hdnn: that needs onnxruntime, pip install 'hdnn[onnx]', and --check")
    else:
        say(f"differs from hdnn by {written.deviation:.2g} on a batch")
    say(f"{written.size} bytes: {out}")
