"""Training on the plane: networks of many seeds side by side, through the compiled epochs.

A seed draws its data, its weights and the order of its batches, so it gives the same network
however seeds are grouped.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from hdnn.data import Split, split, validation
from hdnn.fields import Weights
from hdnn.models import Augmentation
from hdnn.networks import HamiltonianNetwork
from hdnn.training import Trainer, TrainingConfig
from hdnn.training.ensemble import Ensemble, EnsembleLoop, with_ones
from hdnn.training.loops import Observer
from hdnn.training.trainer import LoopOf

WIDTH = 4
ORDER_SEED = 1_000_000
"""Added to a seed for the order of batches, so that it is not the stream of the weights."""


@dataclass(frozen=True)
class SeedData:
    """Augmented data of all seeds.

    Args:
        seeds: one for every member of the ensemble.
        X, y: training part, ``(seeds, samples, WIDTH)`` and ``(seeds, samples)``.
        X_test, y_test: test part.
    """

    seeds: Sequence[int]
    X: Tensor
    y: Tensor
    X_test: Tensor
    y_test: Tensor

    @classmethod
    def of(cls, parts: Sequence[Split], augmentation: str, dtype: torch.dtype) -> SeedData:
        """The data of splits, one for every seed."""
        augment = Augmentation(2, WIDTH, augmentation)
        X, X_test = (
            torch.stack([augment(x.to(dtype)) for x in xs])
            for xs in ([p.X_train for p in parts], [p.X_test for p in parts])
        )
        y, y_test = ([p.y_train for p in parts], [p.y_test for p in parts])
        return cls([p.seed for p in parts], X, torch.stack(y), X_test, torch.stack(y_test))

    def repeated(self, times: int) -> SeedData:
        """All seeds several times: the training part."""
        X, y = self.X.repeat(times, 1, 1), self.y.repeat(times, 1)
        return replace(self, seeds=[*self.seeds] * times, X=X, y=y)


def part(data: str, kind: str, seed: int, held_out: bool = False) -> Split:
    """The data that a seed draws.

    Args:
        data: the problem.
        kind: "paper" or "independent".
        seed: of the data.
        held_out: 20 % of the training part in place of the test part: for choosing settings,
            which must never see the test set.
    """
    whole = split(data, kind, seed=seed)
    if not held_out:
        return whole
    kept, (X, y) = validation(whole, 0.2, seed=seed)
    return replace(kept, X_test=X, y_test=y)


def descend(
    network: HamiltonianNetwork,
    data: SeedData,
    config: TrainingConfig,
    observer: Observer | None = None,
    strict: bool = False,
    loop: LoopOf = EnsembleLoop,
) -> np.ndarray:
    """Coordinate descent of all networks, as in appendix B.1.

    Args:
        network: the ensemble; its parameters are trained in place.
        data: of its members.
        config: of the training.
        observer: watches iterations.
        strict: whether a network that diverges is an error.
        loop: how an epoch is trained.

    Returns:
        The output layers ``(seeds, 1, WIDTH + 1)``, fitted on all training data.

    Raises:
        DivergenceError: a network diverged.
    """
    ensemble = Ensemble(network, [ORDER_SEED + seed for seed in data.seeds], not strict)
    Trainer(ensemble, config, observer=observer, ensemble_loop=loop).fit(data.X, data.y)
    V: np.ndarray = ensemble.V.numpy()
    return V


@torch.no_grad()
def measure(
    network: HamiltonianNetwork, V: np.ndarray, X: Tensor, y: Tensor
) -> tuple[list[float], list[float]]:
    """Accuracy and cross-entropy of every network; where one diverged, every sample is wrong."""
    logits = np.einsum("esk,ek->es", with_ones(network(X)), V[:, 0])
    signs = 2.0 * y.numpy() - 1.0
    margins = np.where(np.isfinite(logits), signs * logits, -np.inf)
    accuracy = (margins > 0).mean(1)
    loss = np.logaddexp(0.0, -margins).mean(1)
    return accuracy.tolist(), loss.tolist()


def keep_best(
    network: HamiltonianNetwork, V: np.ndarray, data: SeedData, seeds: int
) -> tuple[HamiltonianNetwork, np.ndarray]:
    """Of the restarts of every seed, the one with the lowest loss on the training data."""
    restarts = len(V) // seeds
    if restarts == 1:
        return network, V
    _, losses = measure(network, V, data.X, data.y)
    best = np.nan_to_num(np.array(losses).reshape(restarts, seeds), nan=np.inf).argmin(0)
    members = best * seeds + np.arange(seeds)
    kept = copy.deepcopy(network)
    weights = kept.field.weights
    assert isinstance(weights, Weights)
    weights.theta = nn.Parameter(weights.theta[members].detach())
    weights.beta = nn.Parameter(weights.beta[members].detach())
    weights.layout = kept.field.layout = replace(weights.layout, ensemble=seeds)
    return kept, V[members]
