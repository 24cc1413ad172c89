"""Whole trainings by coordinate descent, against plain eager PyTorch.

The peer is appendix B.1 of the paper as a researcher would write it: a Python loop over the layers,
autograd, Adam on the hidden layers, and in every iteration ten Adam steps from zero for the output
layer. It runs for one epoch between the trainings of hdnn, and is scaled to all.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hdnn
from hdnn.data import Dataset, split
from hdnn.training import Trainer, TrainingConfig
from speed import plain
from speed.cases import Case
from speed.timing import interleave, repeat

CASE = Case("training", "H1", 4, 64, 125)
ADAM = {"lr": 0.05, "betas": (0.9, 0.999)}
EPOCHS = 50


def fit_output(features: Tensor, target: Tensor) -> nn.Linear:
    """Ten Adam steps from zero on the regularized cross-entropy, given the features."""
    head = nn.Linear(features.shape[1], 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimizer = torch.optim.Adam(head.parameters(), **ADAM)
    for _ in range(10):
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(head(features)[:, 0], target)
        loss = loss + 1e-4 * (head.weight.square().sum() + head.bias.square().sum())
        loss.backward()
        optimizer.step()
    return head.requires_grad_(False)


def train_eager(data: Dataset) -> None:
    """One epoch of the peer; one forward pass of the hidden layers serves both descents."""
    X, target = F.pad(data.X.float(), (0, 2)), data.y.float()
    K, b = plain.parameters(CASE)
    optimizer = torch.optim.Adam([K, b], **ADAM)
    for batch in torch.randperm(len(X)).split(CASE.batch):
        features = plain.forward(CASE, X[batch], K, b)
        head = fit_output(features.detach(), target[batch])
        loss = F.binary_cross_entropy_with_logits(head(features)[:, 0], target[batch])
        changes = K.diff(dim=0).square().sum() + b.diff(dim=0).square().sum()
        loss = loss + 5e-3 * 1.2 / CASE.layers / 2 * changes
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train_one(data: Dataset) -> None:
    """A training by hdnn, final output layer included."""
    model = hdnn.Model(CASE.network(), 1, hdnn.Padding(2, CASE.width))
    Trainer(model, TrainingConfig(epochs=EPOCHS)).fit(Dataset.from_arrays(data.X, data.y))


def measure_training() -> dict[str, Any]:
    """Seconds of a training of all epochs: medians, interleaved.

    Processor time on one thread, which other work on the machine hardly changes.
    """
    threads, data = torch.get_num_threads(), split("swiss-roll")
    torch.set_num_threads(1)
    eager = repeat(lambda: train_eager(data), time.process_time)
    single = repeat(lambda: train_one(data), time.process_time)
    timings = interleave({"eager": eager, "single": single})
    torch.set_num_threads(threads)
    seconds = {name: timing.median for name, timing in timings.items()}
    seconds["eager"] *= EPOCHS
    print(f"a training of {EPOCHS} epochs, seconds: {seconds}", file=sys.stderr)
    return {"epochs": EPOCHS, "threads": 1, "seconds": seconds}
