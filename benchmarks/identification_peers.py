"""Models beside hdnn in benchmarks/identification.py: GRU, LSTM, a linear recurrent unit, and a
state-space network without structure.

All are trained alike: Adam with one cycle of the learning rate on random windows. An encoder, a
small network that sees the `PAST` samples before, gives the first state, in training and in
simulations. Of each of two sizes the weights with the smallest free-run error on the validation
part are kept, and of the two sizes the one whose error is smaller. Signals, parts and scaling are
those that hdnn gets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hdnn.backends import rollout
from hdnn.fields import ACTIVATIONS
from hdnn.program import Recurrence

PAST, WINDOW, BATCH = 20, 256, 16
STEPS, RATE = 3000, 5e-3
EVERY = 100  # steps between two looks at the validation part


class Recurrent(nn.Module):
    """States of a sequence, an output that is linear in them, and the encoder of the first one."""

    def __init__(self, inputs: int, outputs: int, states: int) -> None:
        super().__init__()
        self.output = nn.Linear(states, outputs)
        self.through = nn.Linear(inputs, outputs, bias=False)
        self.encoder = nn.Sequential(
            nn.Linear(PAST * (inputs + outputs), 32), nn.Tanh(), nn.Linear(32, states)
        )

    def states_of(self, u: Tensor, x0: Tensor) -> Tensor:
        """All states ``(B, T, states)``, y_t from state t."""
        raise AssertionError

    def forward(self, past: Tensor, u: Tensor) -> Tensor:
        """Outputs from inputs ``(B, T, d)`` and what was measured before, ``(B, PAST, d + q)``."""
        return self.output(self.states_of(u, self.encoder(past.flatten(1)))) + self.through(u)


class Gated(Recurrent):
    """torch's GRU or LSTM; the encoder gives what the output sees."""

    def __init__(self, kind: type[nn.GRU] | type[nn.LSTM], inputs: int, outputs: int, n: int):
        super().__init__(inputs, outputs, n)
        self.cell = kind(inputs, n, batch_first=True)

    def states_of(self, u: Tensor, x0: Tensor) -> Tensor:
        first = torch.tanh(x0).unsqueeze(0)
        begin = (first, first) if isinstance(self.cell, nn.LSTM) else first
        states: Tensor = self.cell(u, begin)[0]
        return states


class Residual(Recurrent):
    """x+ = x + F x + W tanh(K x + B u + b) + E u: the same cell, nothing bounds it."""

    def __init__(self, inputs: int, outputs: int, n: int) -> None:
        super().__init__(inputs, outputs, n)
        m = 2 * n
        self.W = nn.Parameter(torch.randn(m, n + inputs + 1) / (n + inputs) ** 0.5)
        change = torch.randn(n, n + inputs + 1 + m) * 0.1 / (n + m) ** 0.5
        change[:, :n] -= 0.1 * torch.eye(n)
        self.change = nn.Parameter(change)

    def states_of(self, u: Tensor, x0: Tensor) -> Tensor:
        n = len(self.change)
        A = self.change + torch.eye(n, self.change.shape[1])
        form = Recurrence(self.W[None], A[None], ACTIVATIONS["tanh"], u.shape[1])
        return rollout(form, x0, u)[0]


class LinearRecurrentUnit(Recurrent):
    """x+ = diag(lambda) x + E u, |lambda| < 1 complex, and a small network of x and u."""

    def __init__(self, inputs: int, outputs: int, n: int) -> None:
        super().__init__(inputs, outputs, n)
        sizes = 0.5 + 0.499 * torch.rand(n)
        self.log_decay = nn.Parameter(torch.log(-torch.log(sizes)))
        self.angle = nn.Parameter(torch.rand(n) * math.pi / 4)
        self.E = nn.Parameter(torch.randn(n, inputs, 2) / (2 * inputs) ** 0.5)
        self.start = nn.Linear(n, 2 * n)
        self.mix = nn.Sequential(nn.Linear(2 * n + inputs, 2 * n), nn.Tanh(), nn.Linear(2 * n, n))

    def states_of(self, u: Tensor, x0: Tensor) -> Tensor:
        times = torch.arange(u.shape[1] + 1)
        exponent = torch.complex(-torch.exp(self.log_decay), self.angle)
        powers = torch.exp(times[:, None] * exponent)  # (T + 1, n)
        gain = torch.sqrt(1 - torch.exp(-2 * torch.exp(self.log_decay)))
        driven = (u.to(powers.dtype) @ torch.view_as_complex(self.E).mT) * gain
        size = 2 * u.shape[1]  # x_t = lambda^t x_0 + sum_k lambda^k u_{t - 1 - k}, by FFT
        convolved = torch.fft.ifft(
            torch.fft.fft(powers[:-1].unsqueeze(0), size, dim=1)
            * torch.fft.fft(driven, size, dim=1),
            dim=1,
        )[:, : u.shape[1] - 1]
        begin = torch.view_as_complex(self.start(x0).unflatten(-1, (-1, 2)))
        x = powers[:-1] * begin.unsqueeze(1)
        x = torch.cat([x[:, :1], x[:, 1:] + convolved], 1)
        mixed: Tensor = self.mix(torch.cat([torch.view_as_real(x).flatten(-2), u], -1))
        return mixed


Make = Callable[[int, int, int], Recurrent]
PEERS: dict[str, Make] = {
    "GRU": lambda d, q, n: Gated(nn.GRU, d, q, n),
    "LSTM": lambda d, q, n: Gated(nn.LSTM, d, q, n),
    "residual": Residual,
    "linear recurrent unit": LinearRecurrentUnit,
}
SIZES = (8, 16)


@dataclass(frozen=True)
class Trained:
    """A model, its free-run error on the validation part, and what it cost.

    Args:
        model: in evaluation mode.
        validation: root mean square error.
        states, parameters: its size.
        best: the step that gave these weights.
    """

    model: Recurrent
    validation: float
    states: int
    parameters: int
    best: int

    @torch.no_grad()
    def simulate(self, u: Tensor, past: Tensor) -> Tensor:
        """Outputs ``(T, q)`` for inputs ``(T, d)`` after ``(PAST, d + q)`` measured samples."""
        y: Tensor = self.model(past[None].float(), u[None].float())
        return y[0].double()


def train(name: str, u: Tensor, y: Tensor, first: int, seed: int) -> Trained:
    """The better one of two sizes; samples from `first` on are for validation.

    Args:
        name: of the peer.
        u: inputs ``(T, d)``, scaled.
        y: outputs ``(T, q)``, scaled.
        first: the first sample of the validation part.
        seed: of weights and windows.
    """
    fits = [_train(PEERS[name], n, u.float(), y.float(), first, seed) for n in SIZES]
    return min(fits, key=lambda fit: fit.validation)


def _train(make: Make, n: int, u: Tensor, y: Tensor, first: int, seed: int) -> Trained:
    torch.manual_seed(seed)
    model, both = make(u.shape[1], y.shape[1], n), torch.cat([u, y], 1)
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, STEPS, pct_start=0.1)
    window = min(WINDOW, (first - PAST) // 2)
    best, weights, when = math.inf, model.state_dict(), 0
    for step in range(STEPS + 1):
        if step % EVERY == 0:
            with torch.no_grad():
                found = model(both[None, first - PAST : first], u[None, first:])[0]
            error = float((found - y[first:]).square().mean().sqrt())
            if error < best:
                weights = {k: v.clone() for k, v in model.state_dict().items()}
                best, when = error, step
        begin = torch.randint(PAST, first - window + 1, (BATCH,))
        at = begin[:, None] + torch.arange(window)
        past = both[begin[:, None] + torch.arange(-PAST, 0)]
        loss = (model(past, u[at]) - y[at]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step < STEPS:
            cycle.step()
    model.load_state_dict(weights)
    return Trained(model.eval(), best, n, sum(p.numel() for p in model.parameters()), when)
