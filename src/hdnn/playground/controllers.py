"""The controllers of the page's second tab: a state-space network and an MLP, trained alike."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor, nn

from hdnn.control import LinearPlant, feedback, gain_limit, sampled
from hdnn.playground.page import FOLDER
from hdnn.statespace import StateSpace

STEP = 0.05
"""Seconds between measurements; the least damping mu is what `StateSpace` takes for it."""

MASS = ([[0.0, 1.0], [-1.0, -0.2]], [[0.0], [1.0]], [[0.0, 1.0]])
"""Mass 1, spring 1, friction 0.2: position and velocity; a force acts, the velocity is measured."""

GAIN = 20.0
"""Of the state-space controller: half of what the sampled mass bears."""

HORIZON, ITERATIONS = 100, 300


class MLP(nn.Module):
    """y = V tanh(W u + b) + c, as a controller without memory."""

    def __init__(self, units: int = 24) -> None:
        super().__init__()
        shapes = ((units, 1), (units,), (1, units), (1,))
        starts = (nn.Parameter(0.3 * torch.randn(shape, dtype=torch.float64)) for shape in shapes)
        self.W, self.b, self.V, self.c = starts

    def initial(self, batch: int) -> Tensor:
        """No state."""
        return torch.zeros(batch, 0, dtype=torch.float64)

    def step(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """What `hdnn.control.Controller` says."""
        return x, torch.tanh(u @ self.W.mT + self.b) @ self.V.mT + self.c


def controllers() -> dict[str, StateSpace | MLP]:
    """Both before training, with 76 and 73 parameters."""
    torch.manual_seed(0)
    network = StateSpace(inputs=1, states=4, units=8, step=STEP, passive=True, gain=GAIN).double()
    return {"stateSpace": network, "mlp": MLP()}


def cost(plant: LinearPlant, controller: StateSpace | MLP) -> Tensor:
    """The mean over 5 s, from 32 starts."""
    generator = torch.Generator().manual_seed(1)
    starts = torch.randn(32, 2, dtype=torch.float64, generator=generator)
    loop = feedback(plant, controller, starts, steps=HORIZON)
    return loop.plant.square().mean() + 0.1 * loop.applied.square().mean()


def contents() -> dict[str, Any]:
    """What `controllers.json` holds: plant, limit, and parameters with their costs."""
    plant = sampled(*MASS, step=STEP)
    limit = gain_limit(*MASS, step=STEP)
    assert limit.proved
    found = {}
    for name, controller in controllers().items():
        optimizer = torch.optim.Adam(controller.parameters(), lr=0.02)
        for _ in range(ITERATIONS):
            optimizer.zero_grad()
            cost(plant, controller).backward()
            optimizer.step()
        last = round(float(cost(plant, controller).detach()), 4)
        named = {k.rpartition(".")[2]: v for k, v in controller.named_parameters()}
        weights = {k: v.detach().round(decimals=6).tolist() for k, v in named.items()}
        found[name] = {"cost": last, "weights": weights}
    return {
        "plant": {name: getattr(plant, name).tolist() for name in "ABC"},
        "step": STEP,
        "mu": 1e-3 / STEP,
        "gain": GAIN,
        "limit": round(limit.gain, 3),
        **found,
    }


if __name__ == "__main__":
    text = ",\n".join(f'"{name}": {json.dumps(value)}' for name, value in contents().items())
    (FOLDER / "controllers.json").write_text(f"{{\n{text}\n}}\n", encoding="utf-8")
