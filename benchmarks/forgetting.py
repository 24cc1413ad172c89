"""How fast fitted state-space networks forget: what is proved, and what is seen.

    HDNN_DATA=<folder of recordings> OMP_NUM_THREADS=1 python benchmarks/forgetting.py

Each model is fitted by Adam on windows of the first part of a recording. Columns: the error of a
free run there, relative to the standard deviation; rho and the washout to 1 % for all weights; the
same in the best norm that a search finds; the largest spectral radius over all slopes of the hidden
units (0 or 1 each), below which no norm of any kind can prove a rate; and the steps after which
every difference of states is below 1 % along the recording, to first order.
"""

from __future__ import annotations

import argparse
import itertools
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import hdnn
from hdnn.statespace import StateSpace, washout_of

RECORDINGS = {
    "tanks": ("cascaded-tanks.csv", "uEst", "yEst", slice(1024)),
    "exchanger": ("heat-exchanger.csv", "q", "th", slice(3000)),
    "silverbox": ("silverbox.csv", "V1", "V2", slice(52_230, 72_230)),
    "robot-arm": ("robot-arm.csv", "u", "y", slice(512)),
}
"""File, input, output and the samples that are fitted."""


def recording(name: str) -> tuple[Tensor, Tensor]:
    """Input and output ``(time, 1)``, standardized."""
    file, u, y, part = RECORDINGS[name]
    path = Path(os.environ["HDNN_DATA"]) / file
    table = np.genfromtxt(path, delimiter=",", names=True, deletechars="")
    signals = (torch.from_numpy(table[column][part])[:, None] for column in (u, y))
    first, second = ((signal - signal.mean()) / signal.std() for signal in signals)
    return first, second


def fit(u: Tensor, y: Tensor, seed: int, steps: int) -> StateSpace:
    """A model with 4 states and 12 units, trained on windows behind a washout of 64 samples."""
    draw = torch.Generator().manual_seed(seed)
    model = hdnn.StateSpace(inputs=1, outputs=1, states=4, units=12, generator=draw)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    length = min(256, len(u) // 3)
    for _ in range(steps):
        start = torch.randint(len(u) - length, (16, 1), generator=draw)
        window = start + torch.arange(length)
        loss = (model(u[window])[0] - y[window])[:, 64:].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
    return model


@torch.no_grad()
def jacobians(model: StateSpace, slopes: Tensor) -> Tensor:
    """Of a step, for slopes ``(..., units)`` of the hidden units."""
    Q, K, M = model.weights[0].parts()
    return Q @ (torch.eye(len(M)) - model.h * (K.mT @ (slopes.unsqueeze(-1) * K) + M))


@torch.no_grad()
def observed(model: StateSpace, u: Tensor) -> int:
    """The steps after which every product of Jacobians along the inputs has a norm below 0.01."""
    cell, slopes = model.assemble(), []
    layer, x = cell.layers[0], cell.initial(1)
    for v in u:
        units = torch.cat([x, v[None]], -1) @ layer.W.mT + layer.b
        slopes.append(1 - units.tanh().square())
        x, _ = cell.step(x, v[None])
    F = jacobians(model, torch.cat(slopes))
    product = F
    for steps in range(1, len(F)):
        if float(torch.linalg.matrix_norm(product, 2).max()) < 0.01:
            return steps
        product = F[steps:] @ product[:-1]
    return len(F)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    print("recording   error   rho, washout      tight rho, washout   radius    seen")
    for name in RECORDINGS:
        u, y = recording(name)
        for seed in range(given.seeds):
            model = fit(u, y, seed, given.steps)
            with torch.no_grad():
                error = float((model(u)[0] - y)[64:].square().mean().sqrt())
            plain, tight = model.bounds()
            corners = torch.tensor([*itertools.product((0.0, 1.0), repeat=model.units)])
            radius = torch.linalg.eigvals(jacobians(model, corners)).abs().max()
            print(
                f"{name:10}{error:7.4f}   {float(plain[0].rho):.6f} {washout_of(plain, 0.01):6}  "
                f"   {float(tight[0].rho):.6f} {model.washout(0.01):6}     {float(radius):.6f}"
                f"{observed(model, u[:2000]):7}",
                flush=True,
            )


if __name__ == "__main__":
    main()
