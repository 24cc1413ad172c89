"""Latency of predictions against onnxruntime on the same model, in one interleaved run.

python benchmarks/serving.py

Rows of docs/export.md: milliseconds of hdnn / onnxruntime (medians), and their ratio: above 1 hdnn
is faster. Both have one thread, and both take raw columns or uint8 images to probabilities. It is
the time of the processor that counts: with one thread that is the latency of an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import torch
from torch import Tensor

import hdnn

SAMPLES = (1, 12, 100, 1000)
Make = Callable[[int], Tensor]


def table(columns: int, width: int, layers: int, classes: int) -> tuple[hdnn.Model, Make]:
    net = hdnn.network("H1", features=width, layers=layers, T=1.2, scale=0.3, dtype=torch.float32)
    scaler = hdnn.Scaler.fit(torch.randn(100, columns, dtype=torch.float32))
    outputs = 1 if classes == 2 else classes
    model = hdnn.Model(net, outputs, hdnn.Augmentation(columns, width), scaler)
    return model, lambda samples: torch.randn(samples, columns, dtype=torch.float32)


def images(config: hdnn.ImageConfig) -> tuple[hdnn.Model, Make]:
    model = hdnn.ImageClassifier(config, dtype=torch.float32)
    shape = (config.channels, *config.size)
    model(torch.randint(256, (20, *shape), dtype=torch.uint8))  # statistics for batch norm
    return model, lambda samples: torch.randint(256, (samples, *shape), dtype=torch.uint8)


CASES: dict[str, Callable[[], tuple[hdnn.Model, Make]]] = {
    "planar, H1, 16 layers of 4": lambda: table(2, 4, 16, 2),
    "30 columns, H1, 16 layers of 60": lambda: table(30, 60, 16, 2),
    "paper's images, H2, 6 layers of 8": lambda: images(
        hdnn.ImageConfig(architecture="H2", layers=6, step=0.05)
    ),
    "convolutions, H1, 2 stages": lambda: images(
        hdnn.ImageConfig(
            architecture="H1",
            kernel=3,
            widths=(16, 32),
            layers=(4, 4),
            step=0.1,
            norm="batch",
            head="pool",
        )
    ),
}


def compare(works: list[Callable[[], object]], seconds: float) -> list[float]:
    """Median milliseconds of the processor for each, measured in turn."""
    times: list[list[float]] = [[] for _ in works]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 7:
        for work, taken in zip(works, times, strict=True):
            begin = time.process_time()
            work()
            taken.append(time.process_time() - begin)
    return [1000 * statistics.median(taken[1:]) for taken in times]


@torch.inference_mode()
def row(title: str, model: hdnn.Model, make: Make, seconds: float, folder: Path) -> str:
    export = hdnn.export_onnx(model, folder / "model.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(export.path, options, ["CPUExecutionProvider"])
    (name,) = export.inputs
    model.eval()
    cells = []
    for samples in SAMPLES:
        x = make(samples)
        feed = {name: x.numpy()}
        mine, theirs = compare(
            [lambda x=x: model.probabilities(x), lambda feed=feed: session.run(None, feed)],  # type: ignore[misc]
            seconds,
        )
        cells.append(f"{mine:.3g} / {theirs:.3g}, {theirs / mine:.2f}")
    return f"| {title} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="for every cell")
    seconds = parser.parse_args().seconds
    torch.set_num_threads(1)
    print("| model | 1 sample | " + " | ".join(f"{count} samples" for count in SAMPLES[1:]) + " |")
    print("| --- " * (1 + len(SAMPLES)) + "|")
    with tempfile.TemporaryDirectory() as folder:
        for title, case in CASES.items():
            torch.manual_seed(0)
            print(row(title, *case(), seconds, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
