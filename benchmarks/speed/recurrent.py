"""A training step of a state-space network and of its peers; as a worker, the memory of one.

All have one input, one output and the same number of states; a step is forward and backward of all
outputs, with the gradients of all parameters, in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import hdnn
from hdnn.backends import rollout
from hdnn.fields import ACTIVATIONS
from hdnn.program import Recurrence
from speed.memory import peak
from speed.timing import Work
from speed.worker import Record, serve

Peers = dict[str, Callable[[], Any]]


def model(n: int) -> hdnn.StateSpace:
    """With twice as many units as states."""
    draw = torch.Generator().manual_seed(0)
    return hdnn.StateSpace(inputs=1, outputs=1, states=n, units=2 * n, generator=draw)


def data(batch: int, times: int) -> tuple[Tensor, Tensor]:
    """Inputs, and the gradients of all outputs."""
    draw = torch.Generator().manual_seed(1)
    u, g = (torch.randn(batch, times, 1, generator=draw) for _ in range(2))
    return u, g


class Plain(nn.Module):
    """The same network as one writes it in PyTorch: its equations, and a loop over time."""

    def __init__(self, n: int) -> None:
        super().__init__()
        own = model(n)
        self.h, self.mu, self.weights = own.h, own.mu, own.weights[0]

    def matrices(self) -> dict[str, Tensor]:
        """Of x+ = F x + W tanh(K x + B u + b) + E u, y = C x + D u + c, assembled in float64."""
        own, h = self.weights, self.h
        K, L, A, G = (M.double() for M in (own.K, own.L, own.A, own.G))
        identity, M, J = torch.eye(len(A), dtype=A.dtype), L @ L.T, A - A.T
        top = torch.linalg.eigvalsh(K.T @ K + M)[-1]
        scale = ((2 / h - 2 * self.mu) / top).clamp(max=1.0)
        K, M = scale.sqrt() * K, scale * M + self.mu * identity
        Q = torch.linalg.solve(identity - J / 2, identity + J / 2)
        rest = {name: getattr(own, name) for name in "BbCDc"}
        assembled = {"K": K, "F": Q @ (identity - h * M), "E": h * Q @ G, "W": -h * Q @ K.T}
        return {name: M.float() for name, M in assembled.items()} | rest

    def forward(self, u: Tensor) -> Tensor:
        return loop(u, **self.matrices())


def loop(
    u: Tensor,
    *,
    K: Tensor,
    B: Tensor,
    b: Tensor,
    F: Tensor,
    E: Tensor,
    W: Tensor,
    C: Tensor,
    D: Tensor,
    c: Tensor,
) -> Tensor:
    """In eager PyTorch; what does not depend on the state is computed at once."""
    drives = zip((u @ B.mT + b).unbind(1), (u @ E.mT).unbind(1), strict=True)
    x, states = u.new_zeros(len(u), len(F)), []
    for s, r in drives:
        states.append(x)
        x = torch.addmm(torch.addmm(r, x, F.mT), torch.tanh(torch.addmm(s, x, K.mT)), W.mT)
    return torch.stack(states, 1) @ C.mT + u @ D.mT + c


def kernels(
    u: Tensor,
    *,
    K: Tensor,
    B: Tensor,
    b: Tensor,
    F: Tensor,
    E: Tensor,
    W: Tensor,
    C: Tensor,
    D: Tensor,
    c: Tensor,
) -> Tensor:
    """The same by the kernels of recurrences."""
    none = F.new_zeros(len(F), 1)
    units, states = torch.cat([K, B, b.unsqueeze(1)], 1), torch.cat([F, E, none, W], 1)
    form = Recurrence(units[None], states[None], ACTIVATIONS["tanh"], u.shape[1])
    return rollout(form, u.new_zeros(len(u), len(F)), u)[0] @ C.mT + u @ D.mT + c


class Gated(nn.Module):
    """torch's GRU or LSTM with a linear output."""

    def __init__(self, kind: type[nn.GRU] | type[nn.LSTM], n: int) -> None:
        super().__init__()
        self.cell, self.output = kind(1, n, batch_first=True), nn.Linear(n, 1)

    def forward(self, u: Tensor) -> Tensor:
        return self.output(self.cell(u)[0])


def leaves(n: int) -> dict[str, Tensor]:
    """The matrices of a network, to differentiate by."""
    found = Plain(n).matrices()
    return {name: M.detach().clone().requires_grad_() for name, M in found.items()}


def steps(n: int, u: Tensor, g: Tensor) -> Peers:
    """Training steps by name; the last two begin with the matrices of a step, not with weights."""

    def of_module(module: nn.Module) -> Callable[[], Any]:
        parameters = list(module.parameters())

        def step() -> Any:
            out = module(u)
            return torch.autograd.grad(out[0] if isinstance(out, tuple) else out, parameters, g)

        return step

    own = leaves(n)
    given = list(own.values())
    return {
        "hdnn": of_module(model(n)),
        "LSTM": of_module(Gated(nn.LSTM, n)),
        "GRU": of_module(Gated(nn.GRU, n)),
        "loop": of_module(Plain(n)),
        "kernels": lambda: torch.autograd.grad(kernels(u, **own), given, g),
        "loop of matrices": lambda: torch.autograd.grad(loop(u, **own), given, g),
    }


def prepare(request: Record) -> tuple[Work, Record]:
    """Measure the peak extra memory of a step in a worker; there is nothing to call again."""
    torch.set_num_threads(1)
    n, name = request["states"], request["peer"]
    steps(n, *data(1, 2))[name]()  # loads the kernels
    step = steps(n, *data(request["batch"], request["times"]))[name]
    return lambda calls: 0.0, {"megabytes": peak(step)}


if __name__ == "__main__":
    serve(prepare)
