"""Whole trainings: coordinate descent against plain eager PyTorch, joint training against JAX.

The peer in PyTorch is appendix B.1 of the paper as a researcher would write it: a Python loop over
the layers, autograd, Adam on the hidden layers, and in every iteration ten Adam steps from zero for
the output layer. It runs for one epoch between the trainings of hdnn, and is scaled to all. In JAX
(`jax_training`) a whole joint training is one jit; its losses fall as hdnn's do.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hdnn
from hdnn.data import Dataset, split
from hdnn.training import Trainer, TrainingConfig
from speed import plain
from speed.cases import Case
from speed.timing import Work, interleave, repeat
from speed.worker import Worker

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


def train_one(data: Dataset, method: str = "coordinate") -> tuple[float, float]:
    """A training by hdnn, final output layer included: the losses of the first and last epoch."""
    model = hdnn.Model(CASE.network(), 1, hdnn.Padding(2, CASE.width))
    trainer = Trainer(model, TrainingConfig(epochs=EPOCHS, method=method))
    history = trainer.fit(Dataset.from_arrays(data.X, data.y))
    return history[0].loss, history[-1].loss


def prepare_jax(worker: Worker, data: Dataset) -> dict[str, Any]:
    """The same joint training, from the same weights."""
    K, b = (p.detach().numpy() for p in plain.parameters(CASE))
    head = hdnn.Model(CASE.network(), 1, hdnn.Padding(2, CASE.width)).head
    W, mu = (p.detach().numpy()[0] for p in (head.weight, head.bias))
    X, y = F.pad(data.X.float(), (0, 2)).numpy(), data.y.float().numpy()
    own = TrainingConfig(epochs=EPOCHS, method="joint")
    rates = {"rate": own.learning_rate, "alpha": own.alpha, "alpha_c": own.alpha_c}
    sizes = {"h": 1.2 / CASE.layers, "epochs": EPOCHS, "batch": own.batch_size}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "arrays.npz"
        np.savez(path, X=X, y=y, K=K, b=b, W=W, mu=mu)
        return worker.ask({"arrays": str(path), **rates, **sizes})


def measure_training(jax: Sequence[str] = ()) -> dict[str, Any]:
    """Seconds of a training of all epochs: medians, interleaved.

    Processor time on one thread, which other work on the machine hardly changes.

    Args:
        jax: interpreters with JAX.
    """
    threads, data = torch.get_num_threads(), split("swiss-roll")
    torch.set_num_threads(1)
    works: dict[str, Work] = {
        "eager": repeat(lambda: train_eager(data), time.process_time),
        "single": repeat(lambda: train_one(data), time.process_time),
        "joint": repeat(lambda: train_one(data, "joint"), time.process_time),
    }
    losses = {"joint": train_one(data, "joint")}
    with ExitStack() as stack:
        for python in jax:
            worker = Worker(
                python,
                "speed.jax_training",
                XLA_FLAGS="--xla_cpu_multi_thread_eigen=false",
                JAX_PLATFORMS="cpu",
                OMP_NUM_THREADS="1",  # for processor time, as here
            )
            answer = prepare_jax(stack.enter_context(worker), data)
            name = f"jax {answer['version']}"
            works[name], losses[name] = worker.work, answer["losses"]
        timings = interleave(works)
    torch.set_num_threads(threads)
    seconds = {name: timing.median for name, timing in timings.items()}
    seconds["eager"] *= EPOCHS
    print(f"a training of {EPOCHS} epochs, seconds: {seconds}; losses: {losses}", file=sys.stderr)
    return {"epochs": EPOCHS, "threads": 1, "seconds": seconds, "losses": losses}
