"""State-space networks against GRU, LSTM, the same loop in eager PyTorch, and JAX.

    OMP_NUM_THREADS=1 python benchmarks/recurrent.py --json > benchmarks/recurrent.json
    python benchmarks/recurrent.py --states 64 --batch 1 --jax old-jax/bin/python

A training step: forward and backward of all outputs, with the gradients of all parameters, one
input, one output, twice as many units as states, float32. Medians of one interleaved run.

- hdnn: `StateSpace`, from the parameters: scaling, Cayley transform, the kernels of recurrences.
- cell: the same without these, from the matrices of a step, as the next two have it.
- loop: the prototype's equations as one writes them in PyTorch, a Python loop over time.
- jax: `lax.scan`, the fastest of three forms; an interpreter of its own.
- GRU, LSTM: `torch.nn`'s, with as many states and a linear layer.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from speed.measure import machine
from speed.timing import Work, interleave, repeat
from speed.worker import Record, Worker
from torch import Tensor, nn

import hdnn
from hdnn.backends import rollout
from hdnn.fields import ACTIVATIONS
from hdnn.program import Recurrence

STATES, BATCHES, TIMES = (4, 8, 16, 32, 64), (1, 8, 32, 128), (100, 1000)


def matrices(n: int) -> dict[str, Tensor]:
    """Those of x+ = F x + W tanh(K x + B u + b) + E u, y = C x, of a random network."""
    m = 2 * n
    layer = model(n).weights[0].assemble()
    F, E, W = layer.A.detach().split([n, 1, m], -1)
    K, B = layer.W.detach().split([n, 1], -1)
    C = layer.Y.detach()[:, :n]
    named = {"K": K, "B": B, "b": layer.b.detach(), "F": F, "E": E, "W": W, "C": C}
    return {name: M.clone() for name, M in named.items()}


def model(n: int) -> hdnn.StateSpace:
    draw = torch.Generator().manual_seed(0)
    return hdnn.StateSpace(inputs=1, outputs=1, states=n, units=2 * n, generator=draw)


def explicit(
    u: Tensor, K: Tensor, B: Tensor, b: Tensor, F: Tensor, E: Tensor, W: Tensor, C: Tensor
) -> Tensor:
    """The kernels of recurrences."""
    n, none = len(F), F.new_zeros(len(F), 1)
    form = Recurrence(
        torch.cat([K, B, b.unsqueeze(1)], 1)[None],
        torch.cat([F, E, none, W], 1)[None],
        ACTIVATIONS["tanh"],
        u.shape[1],
    )
    return rollout(form, u.new_zeros(len(u), n), u)[0] @ C.mT


def loop(
    u: Tensor, K: Tensor, B: Tensor, b: Tensor, F: Tensor, E: Tensor, W: Tensor, C: Tensor
) -> Tensor:
    """The same in eager PyTorch; what does not depend on the state is computed at once."""
    drives = zip((u @ B.mT + b).unbind(1), (u @ E.mT).unbind(1), strict=True)
    x, states = u.new_zeros(len(u), len(F)), []
    for s, r in drives:
        states.append(x)
        x = torch.addmm(torch.addmm(r, x, F.mT), torch.tanh(torch.addmm(s, x, K.mT)), W.mT)
    return torch.stack(states, 1) @ C.mT


class Gated(nn.Module):
    """torch's GRU or LSTM with a linear output."""

    def __init__(self, kind: type[nn.GRU] | type[nn.LSTM], n: int) -> None:
        super().__init__()
        self.cell, self.output = kind(1, n, batch_first=True), nn.Linear(n, 1)

    def forward(self, u: Tensor) -> Tensor:
        return self.output(self.cell(u)[0])


def step_of(module: nn.Module, u: Tensor, g: Tensor) -> Callable[[], Any]:
    def step() -> Any:
        out = module(u)
        return torch.autograd.grad(out[0] if isinstance(out, tuple) else out, parameters, g)

    parameters = list(module.parameters())
    if isinstance(module, hdnn.StateSpace):  # c and D are no part of y = C x
        parameters = [p for name, p in module.named_parameters()]
    return step


def measure(n: int, batch: int, times: int, jax: Sequence[str], seconds: float) -> Record:
    """One row: seconds of every peer."""
    draw = torch.Generator().manual_seed(1)
    u, g = (torch.randn(batch, times, 1, generator=draw) for _ in range(2))
    named = {"u": u} | matrices(n)
    leaves = [M.clone().requires_grad_() for M in named.values()]
    functions: dict[str, Callable[[], Any]] = {
        "hdnn": step_of(model(n), u, g),
        "cell": lambda: torch.autograd.grad(explicit(*leaves), leaves, g),
        "loop": lambda: torch.autograd.grad(loop(*leaves), leaves, g),
        "GRU": step_of(Gated(nn.GRU, n), u, g),
        "LSTM": step_of(Gated(nn.LSTM, n), u, g),
    }
    exact = functions["loop"]()
    for own, expected in zip(functions["cell"](), exact, strict=True):
        torch.testing.assert_close(
            own, expected, rtol=1e-2, atol=1e-3 * float(expected.abs().max())
        )
    works: dict[str, Work] = {name: repeat(function) for name, function in functions.items()}
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        for python in jax:
            arrays = {name: M.detach().numpy() for name, M in named.items()}
            arrays |= {f"grad_{k}": M.numpy() for k, M in zip(named, exact, strict=True)}
            for name in ("u", "grad_u"):
                arrays[name] = arrays[name].transpose(1, 0, 2)
            path = Path(folder) / "arrays.npz"
            np.savez(path, g=g.numpy().transpose(1, 0, 2), **arrays)
            worker = stack.enter_context(Worker(python, "speed.jax_recurrent", JAX_PLATFORMS="cpu"))
            works[f"jax {worker.ask({'arrays': str(path)})['version']}"] = worker.work
        # The slow ones apart: the fewer peers in a round, the closer in time they are measured.
        slow = {"loop", "GRU"}
        timings = interleave({k: w for k, w in works.items() if k not in slow}, seconds=seconds)
        timings |= interleave(
            {k: w for k, w in works.items() if k in slow}, seconds=seconds, least=3
        )
    ratios = "  ".join(f"{k} {t.median / timings['hdnn'].median:5.2f}" for k, t in timings.items())
    own = 1e3 * timings["hdnn"].median
    print(f"n {n:3} batch {batch:4} times {times:5}: {own:8.3f} ms; {ratios}", file=sys.stderr)
    return {
        "states": n,
        "batch": batch,
        "times": times,
        "seconds": {k: t._asdict() for k, t in timings.items()},
    }


def measure_steps() -> Record:
    """Seconds of `cell.step` without gradients, by states and batch."""
    found = {}
    for n in STATES:
        for batch in (1, 32):
            with torch.no_grad():
                cell, u = model(n).assemble(), torch.zeros(batch, 1)
                x = cell.initial(batch)
                timing = interleave(
                    {"step": repeat(lambda c=cell, x=x, u=u: c.step(x, u))}, seconds=0.3
                )
            found[f"{n} states, batch {batch}"] = timing["step"].median
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the records as JSON")
    parser.add_argument("--seconds", type=float, default=0.5, help="per row")
    parser.add_argument("--states", type=int, action="append", choices=STATES)
    parser.add_argument("--batch", type=int, action="append", choices=BATCHES)
    parser.add_argument("--times", type=int, action="append", choices=TIMES)
    parser.add_argument("--jax", action="append", default=[], metavar="PYTHON")
    given = parser.parse_args()
    if torch.get_num_threads() > 2:
        torch.set_num_threads(2)
    rows = [
        measure(n, batch, times, given.jax, given.seconds)
        for times in given.times or TIMES
        for n in given.states or STATES
        for batch in given.batch or BATCHES
    ]
    steps = measure_steps()
    for name, own in steps.items():
        print(f"cell.step, {name}: {1e6 * own:.1f} us", file=sys.stderr)
    if given.json:
        print(json.dumps({"machine": machine(), "rows": rows, "steps": steps}, indent=1))


if __name__ == "__main__":
    main()
