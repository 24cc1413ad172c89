"""Up to which width the kernels win: the reference's time over fused's, forward and backward.

    python benchmarks/crossovers.py            a table
    python benchmarks/crossovers.py --json     the same as JSON, with versions

The numbers behind `CROSSOVERS` in src/hdnn/backends/selection.py. Takes about six minutes.
"""

from __future__ import annotations

import argparse
import itertools
import json
from typing import Any

import torch
from speed.cases import machine
from speed.peers import fused, reference
from speed.timing import interleave

import hdnn

ARCHITECTURES, WIDTHS = ("H1", "MS1", "MS3", "H2"), (32, 48, 64, 80, 96, 128)
SIZES = ((125, 64), (1024, 16), (4096, 64))  # samples, layers
DEEP = (64, 80)  # widths for the last of these, which takes a second a call


def ratio(name: str, width: int, samples: int, layers: int, dtype: torch.dtype) -> float:
    """How many times longer the reference takes."""
    generator = torch.Generator().manual_seed(0)
    net = hdnn.network(
        name,
        features=width,
        layers=layers,
        T=1.2,
        scale=width**-0.5,
        dtype=dtype,
        generator=generator,
    )
    y = torch.randn(samples, width, dtype=dtype, generator=generator)
    works = {"fused": fused(net, y), "reference": reference(net, y)}
    timings = interleave(works, seconds=0.5, least=5)
    return timings["reference"].median / timings["fused"].median


def measure() -> dict[str, Any]:
    """A row for every network, with one ratio for every size."""
    rows = []
    for dtype, name, width in itertools.product(
        (torch.float32, torch.float64), ARCHITECTURES, WIDTHS
    ):
        ratios = [
            None
            if (samples, layers) == SIZES[-1] and width not in DEEP
            else round(ratio(name, width, samples, layers, dtype), 2)
            for samples, layers in SIZES
        ]
        rows.append(
            {
                "dtype": str(dtype).removeprefix("torch."),
                "network": name,
                "width": width,
                "ratios": ratios,
            }
        )
    return {"machine": machine(), "sizes": SIZES, "rows": rows}


def table(found: dict[str, Any]) -> str:
    """Networks down, sizes across; float32 / float64."""
    heads = [f"{samples} samples, {layers} layers" for samples, layers in found["sizes"]]
    lines = [f"| network | n | {' | '.join(heads)} |", f"| --- | --- |{' --- |' * len(heads)}"]
    cells: dict[tuple[str, int], list[list[str]]] = {}
    for row in found["rows"]:
        numbers = ["-" if r is None else f"{r:.2f}" for r in row["ratios"]]
        cells.setdefault((row["network"], row["width"]), []).append(numbers)
    for (name, width), both in cells.items():
        joined = [a if a == b == "-" else f"{a} / {b}" for a, b in zip(*both, strict=True)]
        lines.append(f"| {name} | {width} | {' | '.join(joined)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    found = measure()
    print(json.dumps(found, indent=1) if given.json else table(found))


if __name__ == "__main__":
    main()
