"""Permuted 14 x 14 MNIST: recurrent cells of the same size, trained alike.

    export HDNN_DATA=...                    # or let hdnn download MNIST
    python benchmarks/permuted.py           # what has no record yet; 15 minutes on one core
    python benchmarks/permuted.py --page    # writes the table of the pages

A digit is averaged to 14 x 14 pixels, which a cell reads one by one, 196 of them, in one random
order; a linear layer reads the class off the last state. So what was seen first has to be kept for
196 steps. All cells have about 1,500 parameters, linear layer included, and are trained alike: Adam
for five epochs, batches of 100, a one-cycle learning rate, whose peak is for each cell the one of
three with the smallest error on 10,000 held-out training images, with seed 0. No choice looks at
test images. A linear classifier, which has all pixels at once and nothing to remember, is beside
the cells.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from pages import fill
from torch import Tensor, nn

import hdnn
from hdnn.data import images
from hdnn.fields import Pattern
from hdnn.fields.patterns import skew
from hdnn.files import read_json_lines, write_json_lines
from hdnn.zoo import Architecture

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "results" / "permuted"
PAGES = (OUT / "README.md", ROOT / "docs" / "statespace.md")
TIMES, CLASSES = 14 * 14, 10
STEP, DAMPING = 0.3, 0.1
RATES = (0.01, 0.03, 0.1)
SEEDS, EPOCHS, BATCH = range(2), 5, 100


# --- cells: the last state of a sequence (batch, 196, 1) ------------------------------------------


def damped_skew(n: int) -> Pattern:
    """K - d I for a skew-symmetric K, with d as the last parameter."""
    K = skew(n)
    return Pattern.of(K.code - (K.size + 1) * np.eye(n, dtype=int))


class HamiltonianCell(nn.Module):
    """y += h tanh((K - d I) y + B u + b), h = 0.3, from the state 0; K is skew-symmetric or dense.

    d = 0.1 is no parameter: a dense K begins with it, and to a skew one its gradient is 0.
    """

    def __init__(self, n: int, structured: bool, damping: float, seed: int) -> None:
        super().__init__()
        row: str | Architecture = "ResNet"
        if structured:
            row = Architecture("damped MS2", "", damped_skew) if damping else "MS2"
        self.net = hdnn.network(
            row,
            features=n,
            layers=1,
            step=STEP,
            time_invariant=True,
            inputs=1,
            scale=n**-0.5,
            generator=torch.Generator().manual_seed(seed),
        )
        theta = self.net.field.weights.theta
        with torch.no_grad():
            if not structured:
                theta.view(n, n).diagonal().sub_(damping)
            elif damping:
                theta[..., -1] = damping
                learned = torch.ones_like(theta)
                learned[..., -1] = 0
                theta.register_hook(lambda gradient: gradient * learned)
        self.fixed = int(structured and damping > 0)
        self.width = n

    def forward(self, u: Tensor) -> Tensor:
        return self.net(u.new_zeros(len(u), self.width), u)[:, -1]


class GatedCell(nn.Module):
    """torch's GRU or LSTM."""

    def __init__(self, kind: type[nn.GRU] | type[nn.LSTM], n: int) -> None:
        super().__init__()
        self.cell, self.width, self.fixed = kind(1, n, batch_first=True), n, 0

    def forward(self, u: Tensor) -> Tensor:
        return self.cell(u)[0][:, -1]


class LinearCell(nn.Module):
    """A linear recurrent unit: x+ = r x + s B u with complex r inside the unit circle.

    |r| = exp(-exp(nu)) as published, s = sqrt(1 - |r|^2) is not learned apart from r. A small
    network reads the state; without it the whole would be a linear classifier of the pixels.
    """

    def __init__(self, n: int, units: int) -> None:
        super().__init__()
        radius = torch.sqrt(0.9**2 + (0.999**2 - 0.9**2) * torch.rand(n))
        self.nu = nn.Parameter((-radius.log()).log())
        self.angle = nn.Parameter(torch.log(2 * torch.pi * torch.rand(n)))
        self.B = nn.Parameter(torch.randn(2, n) / 2**0.5)
        self.read, self.width, self.fixed = nn.Linear(2 * n, units), units, 0

    def forward(self, u: Tensor) -> Tensor:
        ages = torch.arange(u.shape[1] - 1, -1, -1, dtype=u.dtype)
        size, turn = -self.nu.exp()[:, None] * ages, self.angle.exp()[:, None] * ages
        scale = (1 - (-2 * self.nu.exp()).exp()).sqrt()[:, None]
        powers = scale * torch.polar(size.exp(), turn) * torch.complex(*self.B)[:, None]
        x = torch.cat([u[..., 0] @ powers.real.mT, u[..., 0] @ powers.imag.mT], -1)
        return nn.functional.gelu(self.read(x))


class Pixels(nn.Flatten):
    """No cell: all pixels."""

    width, fixed = TIMES, 0


CELLS: dict[str, Callable[[int], Any]] = {
    "MS2, damping 0.1": lambda seed: HamiltonianCell(44, True, DAMPING, seed),
    "MS2": lambda seed: HamiltonianCell(44, True, 0.0, seed),
    "without skew structure": lambda seed: HamiltonianCell(33, False, DAMPING, seed),
    "GRU": lambda seed: GatedCell(nn.GRU, 19),
    "LSTM": lambda seed: GatedCell(nn.LSTM, 17),
    "linear recurrent unit": lambda seed: LinearCell(32, 16),
    "linear classifier of the pixels": lambda seed: Pixels(),
}


def classifier(name: str, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    cell = CELLS[name](seed)
    return nn.Sequential(cell, nn.Linear(cell.width, CLASSES))


# --- data and training ----------------------------------------------------------------------------

Part = tuple[Tensor, Tensor]
"""Sequences ``(samples, 196, 1)`` and their classes."""


def parts() -> dict[str, Part]:
    """Training, validation and test images in one random order of pixels."""
    data = images.load("mnist")
    draw = torch.Generator().manual_seed(0)
    order, rows = torch.randperm(TIMES, generator=draw), torch.randperm(60_000, generator=draw)

    def sequences(X: Tensor) -> Tensor:
        small = nn.functional.avg_pool2d(X.float(), 2).flatten(1)[:, order]
        return small.unsqueeze(-1)

    X, X_test = sequences(data.X), sequences(data.X_test)
    held_out, rest = rows[:10_000], rows[10_000:]
    mean, std = X[rest].mean(), X[rest].std()
    X, X_test = (X - mean) / std, (X_test - mean) / std
    return {
        "train": (X[rest], data.y[rest]),
        "validation": (X[held_out], data.y[held_out]),
        "test": (X_test, data.y_test),
    }


def train(cell: str, seed: int, rate: float, data: Part) -> nn.Module:
    model = classifier(cell, seed)
    X, y = data
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=EPOCHS * len(X) // BATCH
    )
    draw = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(X), generator=draw).split(BATCH):
            loss = nn.functional.cross_entropy(model(X[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
    return model


@torch.no_grad()
def error(model: nn.Module, part: Part) -> float:
    """In percent."""
    X, y = part
    found = torch.cat([model(rows).argmax(-1) for rows in X.split(1000)])
    return round(100 * float((found != y).double().mean()), 2)


def parameters(name: str) -> int:
    model = classifier(name, 0)
    return sum(p.numel() for p in model.parameters()) - model[0].fixed


def jobs(seeds: int) -> Iterator[dict[str, Any]]:
    """Cell, seed and learning rate of every training."""
    yield from ({"cell": name, "seed": 0, "rate": rate} for name in CELLS for rate in RATES)
    for seed in SEEDS[1:seeds]:
        yield from ({"cell": name, "seed": seed, "rate": chosen(name)} for name in CELLS)


def chosen(name: str) -> float:
    tried = [record for record in records() if record["cell"] == name and record["seed"] == 0]
    return float(min(tried, key=lambda record: record["validation"])["rate"])


def records() -> list[dict[str, Any]]:
    return read_json_lines(OUT / "records.jsonl", dict)


def table() -> str:
    frame = pd.DataFrame(records())
    lines = ["| cell | parameters | learning rate | validation, % | test, %, each seed |"]
    lines.append("| --- | ---: | ---: | ---: | --- |")
    for name in CELLS:
        own = frame[(frame.cell == name) & (frame.rate == chosen(name))].sort_values("seed")
        tests = ", ".join(f"{value:.1f}" for value in own.test)
        size, rate, validation = own.parameters.iloc[0], own.rate.iloc[0], own.validation.mean()
        lines.append(f"| {name} | {size:,} | {rate:g} | {validation:.1f} | {tests} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--page", action="store_true", help="write the table of the pages")
    arguments = parser.parse_args()
    if arguments.page:
        for page in PAGES:
            page.write_text(fill(page.read_text(), {"permuted": table()}))
        return
    torch.set_num_threads(1)
    OUT.mkdir(parents=True, exist_ok=True)
    data = parts()
    for key in jobs(arguments.seeds):
        known = records()
        if any(key.items() <= record.items() for record in known):
            continue
        begin = time.process_time()
        model = train(data=data["train"], **key)
        errors = {part: error(model, data[part]) for part in ("validation", "test")}
        record = key | errors | {"parameters": parameters(key["cell"]), "epochs": EPOCHS}
        seconds = round(time.process_time() - begin)
        record |= {"seconds": seconds, "version": hdnn.__version__, "torch": torch.__version__}
        write_json_lines(OUT / "records.jsonl", [*known, record])
        print(record, flush=True)


if __name__ == "__main__":
    main()
