"""Steps of a network between torch layers while another process is busy: is there a cliff?

    python benchmarks/busy_core.py            # torch is imported before hdnn: the bad order
    python benchmarks/busy_core.py --runs 9

Every run is a process of its own, which trains ``Linear - H1 - Linear`` for some steps beside a
process that keeps one core busy, and prints the median and the 90th percentile of a step in ms.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

STEP = """
import torch, hdnn, statistics, time
torch.manual_seed(0)
net = torch.nn.Sequential(
    torch.nn.Linear({inputs}, 4),
    hdnn.network("H1", features=4, layers=16, T=1.2),
    torch.nn.Linear(4, 2),
)
x = torch.randn({batch}, {inputs})
optimizer = torch.optim.Adam(net.parameters())
times = []
for _ in range({steps}):
    start = time.perf_counter()
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
    times.append(1e3 * (time.perf_counter() - start))
times = sorted(times[20:])
print(statistics.median(times), times[9 * len(times) // 10])
"""


def run(batch: int, inputs: int, steps: int, settings: dict[str, str]) -> tuple[float, float]:
    code = STEP.format(batch=batch, inputs=inputs, steps=steps)
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=True,
    )
    median, high = map(float, result.stdout.split())
    return median, high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--inputs", type=int, default=20)
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE for the runs")
    options = parser.parse_args()
    settings = dict(text.split("=", 1) for text in options.set)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        start = time.perf_counter()
        found = [
            run(options.batch, options.inputs, options.steps, settings) for _ in range(options.runs)
        ]
    finally:
        busy.kill()
        busy.wait()
    for median, high in found:
        print(f"median {median:8.2f} ms   90 % {high:8.2f} ms")
    print(f"median of medians {statistics.median(m for m, _ in found):.2f} ms", end="")
    print(f" ({time.perf_counter() - start:.0f} s, {settings or 'no settings'})")


if __name__ == "__main__":
    main()
