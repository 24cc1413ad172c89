"""What leaves as ONNX: architecture x layout, the largest deviation, size and time to export.

python benchmarks/export.py
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import hdnn
from hdnn.schemes import RK4, ImplicitMidpoint, Scheme
from hdnn.zoo import ARCHITECTURES

DEPTHS = (16, 256, 1024)
LAYOUTS: dict[str, dict[str, Any]] = {
    "features=8": {"features": 8},
    "channels=8": {"channels": 8},
    "channels=8, kernel=3": {"channels": 8, "kernel": 3},
    "features=8, ensemble=4": {"features": 8, "ensemble": 4},
    "features=8, time-invariant": {"features": 8, "time_invariant": True},
}


def build(name: str, scheme: Scheme | None, layers: int, **layout: Any) -> hdnn.HamiltonianNetwork:
    chosen = ARCHITECTURES[name].scheme if scheme is None else scheme
    step = {"T": 1.0} if chosen.uses_step else {}
    draw = torch.Generator().manual_seed(0)
    return hdnn.network(
        name, layers=layers, scheme=chosen, generator=draw, scale=0.5, **step, **layout
    )


def row(title: str, name: str, scheme: Scheme | None, layout: dict[str, Any], folder: Path) -> str:
    deviations, figures = [], []
    for depth in DEPTHS:
        net = build(name, scheme, depth, **layout)
        try:
            begin = time.perf_counter()
            hdnn.export_onnx(net, folder / "net.onnx", check=False)
            seconds = time.perf_counter() - begin
            export = hdnn.export_onnx(net, folder / "net.onnx")
        except hdnn.HdnnError as error:
            return f"| {title} | raises: {str(error).split(';')[0]} | | | |"
        deviations.append(export.deviation or 0.0)
        figures.append(f"{export.size / 1000:.3g} kB, {1000 * seconds:.2g} ms")
    return f"| {title} | {max(deviations):.0e} | " + " | ".join(figures) + " |"


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(1)
    print("| network | deviation | " + " | ".join(f"{depth} layers" for depth in DEPTHS) + " |")
    print("| --- " * (2 + len(DEPTHS)) + "|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small = build("H1", None, 2, features=8)
        hdnn.export_onnx(small, folder / "net.onnx")  # the first export imports onnx
        for layout, options in LAYOUTS.items():
            for architecture in ARCHITECTURES if "time" not in layout else ("H1",):
                print(row(f"{architecture}, {layout}", architecture, None, options, folder))
        for scheme in (RK4(), ImplicitMidpoint()):
            print(row(f"H1, {scheme}, features=8", "H1", scheme, {"features": 8}, folder))


if __name__ == "__main__":
    main()
