"""torch.compile of models with a Hamiltonian block, against eager mode, in one interleaved run.

python benchmarks/compiled.py

The last columns are the same for a twin whose block is a tanh: what torch.compile itself costs or
saves around the block.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import hdnn

Work = Callable[[], object]
CASES = {
    # columns, width, layers, samples
    "30 columns, 16 wide, 32 layers, 125 samples": (30, 16, 32, 125),
    "30 columns, 16 wide, 32 layers, 2000 samples": (30, 16, 32, 2000),
    "30 columns, 32 wide, 256 layers, 500 samples": (30, 32, 256, 500),
}


def model(block: nn.Module, columns: int, width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(columns, width), block, nn.Linear(width, 3)).float()


def step(module: nn.Module, x: Tensor, target: Tensor) -> None:
    nn.functional.cross_entropy(module(x), target).backward()


def infer(module: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        module(x)


def interleaved(works: list[Work], rounds: int) -> list[float]:
    """Median milliseconds of the processor for each, measured in turn."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for work, seconds in zip(works, times, strict=True):
            begin = time.process_time()
            work()
            seconds.append(time.process_time() - begin)
    return [1000 * statistics.median(seconds) for seconds in times]


def row(title: str, columns: int, width: int, layers: int, samples: int, rounds: int) -> str:
    x = torch.randn(samples, columns, dtype=torch.float32)
    target = torch.randint(3, (samples,))
    block = hdnn.network("H1", features=width, layers=layers, T=1.0, scale=0.2)
    cells = []
    torch.compiler.reset()  # torch limits the compilations of a process
    for eager in (model(block, columns, width), model(nn.Tanh(), columns, width)):
        compiled = torch.compile(copy.deepcopy(eager))
        begin = time.perf_counter()
        step(compiled, x, target)
        infer(compiled, x)
        first = time.perf_counter() - begin
        works: list[Work] = []
        for module in (eager, compiled):
            works.append(lambda m=module: step(m, x, target))  # type: ignore[misc]
            works.append(lambda m=module: infer(m, x))  # type: ignore[misc]
        train, predict, train_c, predict_c = interleaved(works, rounds)
        cells += [f"{train:.2f} / {train_c:.2f}", f"{predict:.3f} / {predict_c:.3f}"]
        cells += [f"{first:.1f} s"] if len(cells) == 2 else []
    return f"| {title} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print("Milliseconds, eager / compiled.\n")
    print(
        "| model | training step | prediction | first calls | training step without the block "
        "| prediction without it |"
    )
    print("| --- " * 6 + "|")
    for title, sizes in CASES.items():
        print(row(title, *sizes, rounds), flush=True)


if __name__ == "__main__":
    main()
