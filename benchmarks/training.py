"""Whole trainings by coordinate descent, single and as an ensemble, against plain eager PyTorch.

    python benchmarks/training.py            a table
    python benchmarks/training.py --json     the same as JSON, with versions

The peer is appendix B.1 of the paper as a researcher would write it: a Python loop over the layers,
autograd, Adam on the hidden layers, and in every iteration ten Adam steps from zero for the output
layer. It runs for a few epochs between the trainings of hdnn, and is scaled to all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from typing import Any

import torch
from speed import plain
from speed.cases import Case
from speed.measure import machine
from torch import Tensor, nn
from torch.nn import functional as F

import hdnn
from hdnn.data import Dataset, split
from hdnn.models import Model
from hdnn.training import Trainer, TrainingConfig
from hdnn.training import train_ensemble as train_side_by_side

Record = dict[str, Any]
CASE = Case("training", "H1", 4, 64, 125)
ADAM = {"lr": 0.05, "betas": (0.9, 0.999)}
OUTPUT_STEPS = 10


def fit_output(features: Tensor, target: Tensor) -> nn.Linear:
    """Ten Adam steps from zero on the regularized cross-entropy, given the features."""
    head = nn.Linear(features.shape[1], 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimizer = torch.optim.Adam(head.parameters(), **ADAM)
    for _ in range(OUTPUT_STEPS):
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(head(features)[:, 0], target)
        loss = loss + 1e-4 * (head.weight.square().sum() + head.bias.square().sum())
        loss.backward()
        optimizer.step()
    return head.requires_grad_(False)


def train_eager(data: Dataset, epochs: int) -> float:
    """Seconds of the peer; one forward pass of the hidden layers serves both descents."""
    X, target = F.pad(data.X.float(), (0, 2)), data.y.float()
    K, b = plain.parameters(CASE)
    optimizer = torch.optim.Adam([K, b], **ADAM)
    start = time.perf_counter()
    for _ in range(epochs):
        for batch in torch.randperm(len(X)).split(CASE.batch):
            features = plain.forward(CASE, X[batch], K, b)
            head = fit_output(features.detach(), target[batch])
            loss = F.binary_cross_entropy_with_logits(head(features)[:, 0], target[batch])
            changes = K.diff(dim=0).square().sum() + b.diff(dim=0).square().sum()
            loss = loss + 5e-3 * 1.2 / CASE.layers / 2 * changes
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return time.perf_counter() - start


def train_one(data: Dataset, epochs: int, **settings: Any) -> float:
    """Seconds of a training by hdnn, final output layer included."""
    model = Model(CASE.network(), 1, hdnn.Augmentation(2, CASE.width))
    training = Dataset.from_arrays(data.X, data.y)
    config = TrainingConfig(epochs=epochs, **settings)
    start = time.perf_counter()
    Trainer(model, config).fit(training)
    return time.perf_counter() - start


def train_ensemble(data: Dataset, epochs: int, members: int) -> float:
    """Seconds per network of an ensemble, final output layers included."""
    networks = replace(CASE, ensemble=members).network()
    states = hdnn.Augmentation(2, CASE.width)(data.X.float()).expand(members, -1, -1)
    y, config = data.y.expand(members, -1), TrainingConfig(epochs=epochs)
    start = time.perf_counter()
    train_side_by_side(networks, states, y, range(members), config)
    return (time.perf_counter() - start) / members


def measure(epochs: int, peer_epochs: int, repeats: int, members: int) -> Record:
    """Medians, interleaved."""
    data = split("swiss-roll")
    train_one(data, 1)  # loads the kernels
    eager, single, ensemble = [], [], []
    for _ in range(repeats):
        eager.append(train_eager(data, peer_epochs) * epochs / peer_epochs)
        single.append(train_one(data, epochs))
        ensemble.append(train_ensemble(data, epochs, members))
    return {
        "machine": machine(),
        "epochs": epochs,
        "peer epochs": peer_epochs,
        "members": members,
        "seconds": {
            "eager": statistics.median(eager),
            "single": statistics.median(single),
            "ensemble": statistics.median(ensemble),
        },
    }


def table(record: Record) -> str:
    """For docs/performance.md."""
    seconds, members = record["seconds"], record["members"]
    return "\n".join(
        [
            f"H1, n = 4, 64 layers, batch 125, float32, Swiss roll, {record['epochs']} epochs;"
            f" plain eager PyTorch takes {seconds['eager']:.1f} s"
            f" ({record['peer epochs']} epochs measured and scaled).",
            "",
            "| | seconds | eager / hdnn |",
            "| --- | --- | --- |",
            *(
                f"| {title} | {seconds[key]:.3f} | {seconds['eager'] / seconds[key]:.0f}x |"
                for key, title in (
                    ("single", "one network"),
                    ("ensemble", f"one network of an ensemble of {members}"),
                )
            ),
        ]
    )


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--peer-epochs", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    record = measure(given.epochs, given.peer_epochs, given.repeats, given.members)
    print(json.dumps(record, indent=1) if given.json else table(record))


if __name__ == "__main__":
    main()
