"""What durability costs: the share of a training that waits for the disk.

    python benchmarks/durability.py                    # the default interval of checkpoints, 5 s
    python benchmarks/durability.py --interval 0       # a checkpoint after every epoch

Every `fsync` of a run is timed, beside the training as a whole.
"""

from __future__ import annotations

import argparse
import io
import os
import tempfile
import time
from contextlib import redirect_stdout

from hdnn.cli import app

RUNS = {
    "planar, 64 layers": ["swiss-roll", "--layers", "64", "--epochs", "2000"],
    "planar, 64 layers, recorded": [
        *("swiss-roll", "--layers", "64", "--record", "20", "--epochs", "1000")
    ],
    "digits, convolutions": [
        *("digits", "--preset", "convolutional", "--widths", "8,16", "--layers", "2,2"),
        *("--epochs", "30"),
    ],
}


def train(arguments: list[str], interval: float) -> tuple[float, int, float]:
    """Train once; the seconds, how often the disk was waited for, and for how long."""
    waits: list[float] = []
    fsync = os.fsync

    def timed(descriptor: int) -> None:
        start = time.perf_counter()
        fsync(descriptor)
        waits.append(time.perf_counter() - start)

    with tempfile.TemporaryDirectory(dir=".") as folder, redirect_stdout(io.StringIO()):
        words = [*arguments, "--checkpoint-seconds", str(interval), "--out", f"{folder}/run"]
        os.fsync = timed
        start = time.perf_counter()
        try:
            app(["train", *words], standalone_mode=False)
        finally:
            os.fsync = fsync
    return time.perf_counter() - start, len(waits), sum(waits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between checkpoints")
    interval = parser.parse_args().interval
    print("| training | seconds | fsync calls | share of the time |")
    print("| --- | ---: | ---: | ---: |")
    for name, arguments in RUNS.items():
        train([*arguments[:-1], "1"], interval)  # compiles; epochs are the last word
        seconds, calls, waited = train(arguments, interval)
        print(f"| {name} | {seconds:.1f} | {calls} | {100 * waited / seconds:.2f} % |")


if __name__ == "__main__":
    main()
