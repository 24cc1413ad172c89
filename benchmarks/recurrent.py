"""State-space networks against LSTM, GRU, the same network as a loop in eager PyTorch, and JAX.

    OMP_NUM_THREADS=1 python benchmarks/recurrent.py --jax JAX/bin/python --json \
        > benchmarks/recurrent.json
    OMP_NUM_THREADS=1 python benchmarks/recurrent.py --states 64 --batch 1 --times 100

Medians of interleaved runs of a training step (speed/recurrent.py), with twice as many units as
states:

- hdnn: `StateSpace`, from its parameters: scaling, Cayley transform, the kernels of recurrences.
- LSTM, GRU: `torch.nn`'s, with as many states and a linear layer.
- loop: the equations of the network as one writes them in PyTorch, with a Python loop over time.
- kernels, loop of matrices, jax: the recurrence alone, from the matrices of a step. JAX runs
  `lax.scan`, the faster of two forms, in an interpreter of its own.

`--json` adds a few rows on two threads (elapsed time), the memory of long sequences, the time of
`cell.step` and that of `net.trajectory`. It takes about 7 minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from speed.measure import machine
from speed.recurrent import data, leaves, model, steps
from speed.timing import Work, interleave, repeat
from speed.worker import Record, Worker

import hdnn

STATES, BATCHES, TIMES = (4, 8, 16, 32, 64), (1, 8, 32, 128), (100, 1000)
ON_TWO_THREADS = ("--states", "16", "--states", "64", "--batch", "32", "--batch", "128")
SLOW = ("GRU", "loop", "loop of matrices")
MEMORY = {"states": 16, "batch": 32, "times": 10_000}


def measure(n: int, batch: int, times: int, jax: Sequence[str], seconds: float) -> Record:
    """One row: seconds of every peer."""
    u, g = data(batch, times)
    functions = steps(n, u, g)
    exact = functions["loop of matrices"]()
    for own, other in (("kernels", "loop of matrices"), ("hdnn", "loop")):
        for found, expected in zip(functions[own](), functions[other](), strict=True):
            size = 1e-3 * float(expected.abs().max())
            torch.testing.assert_close(found, expected, rtol=1e-2, atol=size)
    works: dict[str, Work] = {name: repeat(function) for name, function in functions.items()}
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        for python in jax:
            named = leaves(n)
            arrays = {name: M.detach().numpy() for name, M in named.items()}
            arrays |= {f"grad_{k}": M.numpy() for k, M in zip(named, exact, strict=True)}
            path = Path(folder) / "arrays.npz"
            np.savez(path, u=_times_first(u), g=_times_first(g), **arrays)
            worker = stack.enter_context(Worker(python, "speed.jax_recurrent", **_jax_threads()))
            works[f"jax {worker.ask({'arrays': str(path)})['version']}"] = worker.work
        # The slow ones apart: the fewer peers in a round, the closer in time they are measured.
        fast = {name: work for name, work in works.items() if name not in SLOW}
        timings = interleave(fast, seconds=seconds)
        timings |= interleave({name: works[name] for name in SLOW}, seconds=seconds / 2, least=2)
    ratios = "  ".join(f"{k} {t.median / timings['hdnn'].median:.2f}" for k, t in timings.items())
    own = 1e3 * timings["hdnn"].median
    print(f"n {n:3} batch {batch:4} times {times:5}: {own:8.3f} ms; {ratios}", file=sys.stderr)
    return {
        "states": n,
        "batch": batch,
        "times": times,
        "seconds": {name: float(f"{t.median:.4g}") for name, t in timings.items()},
    }


def _times_first(x: torch.Tensor) -> np.ndarray:
    return x.numpy().transpose(1, 0, 2)


def _jax_threads() -> dict[str, str]:
    one = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    return {"JAX_PLATFORMS": "cpu"} | ({"XLA_FLAGS": one} if torch.get_num_threads() == 1 else {})


def measure_steps() -> Record:
    """Seconds of `cell.step` without gradients, by states and batch."""
    works = {}
    for n in STATES:
        for batch in (1, 32):
            with torch.no_grad():
                cell, u = model(n).assemble(), torch.zeros(batch, 1)
                x = cell.initial(batch)
            step = torch.no_grad()(lambda c=cell, x=x, u=u: c.step(x, u))
            works[f"{n} states, batch {batch}"] = repeat(step)
    return {name: t.median for name, t in interleave(works, seconds=1.0).items()}


def measure_trajectories() -> Record:
    """Seconds of all states of networks, forward and backward, by kernels and reference."""
    found = {}
    for name, n, layers in (("H1", 4, 64), ("MS1", 4, 64), ("H1", 32, 16), ("MS1", 32, 16)):
        works = {}
        for backend in ("fused", "reference"):
            net = hdnn.network(name, features=n, layers=layers, T=1.2, backend=backend)
            leaves = [torch.randn(125, n, requires_grad=True), *net.parameters()]
            g = torch.randn(layers + 1, 125, n)
            works[backend] = repeat(
                lambda net=net, leaves=leaves, g=g: torch.autograd.grad(
                    net.trajectory(leaves[0]), leaves, g
                )
            )
        timings = interleave(works, seconds=0.5)
        row = f"{name}, n = {n}, batch 125, {layers} layers"
        found[row] = {backend: timing.median for backend, timing in timings.items()}
    return found


def measure_memory() -> Record:
    """Peak extra megabytes of a training step on long sequences, each in a process of its own."""
    found = {}
    for peer in ("hdnn", "LSTM", "GRU", "loop"):
        with Worker(sys.executable, "speed.recurrent") as worker:
            found[peer] = worker.ask({"peer": peer} | MEMORY)["megabytes"]
        print(f"memory of {peer}: {found[peer]:.0f} MB", file=sys.stderr)
    return MEMORY | {"megabytes": found}


def on_two_threads(jax: Sequence[str], seconds: float) -> list[Record]:
    """A few rows by a process of its own, as the number of threads decides on the clock."""
    options = [*ON_TWO_THREADS, "--times", "1000", "--seconds", str(seconds), "--rows"]
    options += [option for python in jax for option in ("--jax", python)]
    run = subprocess.run(
        [sys.executable, __file__, *options],
        env=os.environ | {"OMP_NUM_THREADS": "2"},
        stdout=subprocess.PIPE,
        check=True,
    )
    rows: list[Record] = json.loads(run.stdout)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="measure everything, print JSON")
    parser.add_argument("--rows", action="store_true", help="print the rows as JSON")
    parser.add_argument("--seconds", type=float, default=0.3, help="per row")
    parser.add_argument("--states", type=int, action="append", choices=STATES)
    parser.add_argument("--batch", type=int, action="append", choices=BATCHES)
    parser.add_argument("--times", type=int, action="append", choices=TIMES)
    parser.add_argument("--jax", action="append", default=[], metavar="PYTHON")
    given = parser.parse_args()
    rows = [
        measure(n, batch, times, given.jax, given.seconds)
        for times in given.times or TIMES
        for n in given.states or STATES
        for batch in given.batch or BATCHES
    ]
    if given.rows:
        print(json.dumps(rows))
    if given.json:
        records = {
            "machine": machine(),
            "rows": rows,
            "two_threads": on_two_threads(given.jax, given.seconds),
            "memory": measure_memory(),
            "steps": measure_steps(),
            "trajectories": measure_trajectories(),
        }
        print(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
