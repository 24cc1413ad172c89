"""Training on the plane: the networks of many seeds side by side, as one ensemble.

A seed draws its data, its weights and the order of its batches, so it gives the same network
however seeds are grouped.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import hdnn
from hdnn.data import Dataset
from hdnn.models import Padding
from hdnn.networks import HamiltonianNetwork
from hdnn.paper.records import Record
from hdnn.training import TrainingConfig
from hdnn.training.ensemble import train_ensemble
from hdnn.training.loops import Observer
from hdnn.training.output_solver import with_ones

WIDTH = 4
ORDER_SEED = 1_000_000
"""Added to a seed for the order of batches, so that it is not the stream of the weights."""


class SeedSamples(NamedTuple):
    """Padded data of all seeds.

    Args:
        seeds: one for every network.
        X, y: training part, ``(seeds, samples, WIDTH)`` and ``(seeds, samples)``.
        X_test, y_test: test part.
    """

    seeds: list[int]
    X: Tensor
    y: Tensor
    X_test: Tensor
    y_test: Tensor

    @classmethod
    def stack(
        cls,
        seeds: Sequence[int],
        parts: Sequence[Dataset],
        padding: str,
        dtype: torch.dtype,
    ) -> SeedSamples:
        """The data of splits, one for every seed."""
        pad = Padding(2, WIDTH, padding)
        X, y, X_test, y_test = (
            torch.stack([getattr(part, name) for part in parts])
            for name in ("X", "y", "X_test", "y_test")
        )
        return cls(list(seeds), pad(X.to(dtype)), y, pad(X_test.to(dtype)), y_test)

    def repeat(self, times: int) -> SeedSamples:
        """The training part several times over, for several networks a seed."""
        X, y = self.X.repeat(times, 1, 1), self.y.repeat(times, 1)
        return self._replace(seeds=self.seeds * times, X=X, y=y)


def networks(
    architecture: str, seeds: Sequence[int], dtype: torch.dtype, **options: Any
) -> HamiltonianNetwork:
    """Untrained networks as one ensemble: each seed draws the weights of its own.

    Args:
        architecture: a name of the zoo.
        seeds: one for every network.
        dtype: of the weights.
        options: of `hdnn.network`.
    """
    return hdnn.network(
        architecture,
        features=WIDTH,
        ensemble=len(seeds),
        dtype=dtype,
        generator=[torch.Generator().manual_seed(seed) for seed in seeds],
        **options,
    )


def train(
    network: HamiltonianNetwork,
    data: SeedSamples,
    config: TrainingConfig,
    observer: Observer | None = None,
    may_diverge: bool = True,
) -> np.ndarray:
    """Coordinate descent of all networks, as in appendix B.1.

    Args:
        network: the ensemble, trained in place.
        data: of its members.
        config: of the training.
        observer: watches iterations.
        may_diverge: whether the others go on when a network diverges.

    Returns:
        The output layers ``(seeds, 1, WIDTH + 1)``, fitted on all training data.

    Raises:
        DivergenceError: a network diverged that must not.
    """
    seeds = [ORDER_SEED + seed for seed in data.seeds]
    return train_ensemble(
        network, data.X, data.y, seeds, config, observer=observer, may_diverge=may_diverge
    )


@torch.no_grad()
def measure(
    network: HamiltonianNetwork, V: np.ndarray, X: Tensor, y: Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy and cross-entropy of every network; where one diverged, every sample is wrong.

    Args:
        network, V: the ensemble and its output layers.
        X, y: ``(seeds, samples, WIDTH)`` and ``(seeds, samples)``.

    Returns:
        Both ``(seeds,)``.
    """
    logits = np.einsum("esk,ek->es", with_ones(network(X)), V[:, 0])
    signs = 2.0 * y.numpy() - 1.0
    margins = np.where(np.isfinite(logits), signs * logits, -np.inf)
    return (margins > 0).mean(1), np.logaddexp(0.0, -margins).mean(1)


def results(
    network: HamiltonianNetwork, V: np.ndarray, data: SeedSamples, begin: float
) -> list[Record]:
    """The last fields of the records, for every seed: accuracies, seconds and version.

    Args:
        network, V: the trained ensemble and its output layers.
        data: what it was trained and is tested on.
        begin: `time.perf_counter` before the training.
    """
    train_accuracy, _ = measure(network, V, data.X, data.y)
    test_accuracy, _ = measure(network, V, data.X_test, data.y_test)
    seconds = round((time.perf_counter() - begin) / len(data.seeds), 4)
    return [
        {
            "train_accuracy": float(train),
            "test_accuracy": float(test),
            "seconds": seconds,
            "version": hdnn.__version__,
        }
        for train, test in zip(train_accuracy, test_accuracy, strict=True)
    ]
