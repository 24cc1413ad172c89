"""Training cells: many seeds of one cell side by side, through the compiled epochs."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

import hdnn
from hdnn.data import Split, split, validation
from hdnn.experiments.specs import Cell, Protocol, Settings
from hdnn.fields import Weights
from hdnn.models import Augmentation
from hdnn.network import HamiltonianNetwork
from hdnn.training.config import TrainingConfig
from hdnn.training.ensemble import DirectEnsemble

WIDTH = 4
ORDER_SEED = 1_000_000
"""Added to a seed for the order of batches, so that it is not the stream of the weights."""
RESTART_SEED = 7_000_000
"""Times the number of a restart, added to a seed for its initial weights."""


@dataclass(frozen=True)
class Trained:
    """Networks of one cell after training, one for every seed.

    Args:
        network: the ensemble.
        V: ``(seeds, 1, n + 1)``, output layers fitted on all training data.
        train_accuracy, test_accuracy: fractions, one for every seed.
        test_loss: cross-entropy on the test part, one for every seed.
        seconds: wall time a network.
    """

    network: HamiltonianNetwork
    V: np.ndarray
    train_accuracy: list[float]
    test_accuracy: list[float]
    test_loss: list[float]
    seconds: float


def train(
    cell: Cell,
    protocol: Protocol,
    settings: Settings,
    kind: str,
    seeds: Sequence[int],
    held_out: bool = False,
) -> Trained:
    """Train a cell for every seed: the seed draws the data, the weights and the batches.

    Args:
        cell, protocol, settings: what and how.
        kind: "paper" or "independent".
        seeds: one network each.
        held_out: train on 80 % of the training part and take the rest as the test part: for
            choosing settings, which must never see the test set.
    """
    begin = time.perf_counter()
    parts = [_part(cell.data, kind, seed, held_out) for seed in seeds]
    augment = Augmentation(2, WIDTH, settings.augmentation)
    X, X_test = (
        torch.stack([augment(x.to(torch.float32)) for x in xs])
        for xs in ([p.X_train for p in parts], [p.X_test for p in parts])
    )
    y, y_test = torch.stack([p.y_train for p in parts]), torch.stack([p.y_test for p in parts])
    network, V = _descend(cell, protocol, settings, seeds, X, y)
    network, V = _keep_best(network, V, X, y, len(seeds))
    train_accuracy, _ = measure(network, V, X, y)
    test_accuracy, test_loss = measure(network, V, X_test, y_test)
    seconds = (time.perf_counter() - begin) / len(seeds)
    return Trained(network, V, train_accuracy, test_accuracy, test_loss, seconds)


def _keep_best(
    network: HamiltonianNetwork, V: np.ndarray, X: Tensor, y: Tensor, seeds: int
) -> tuple[HamiltonianNetwork, np.ndarray]:
    """Of the restarts of every seed, the one with the lowest loss on the training data."""
    restarts = len(V) // seeds
    if restarts == 1:
        return network, V
    _, losses = measure(network, V, X.repeat(restarts, 1, 1), y.repeat(restarts, 1))
    best = np.nan_to_num(np.array(losses).reshape(restarts, seeds), nan=np.inf).argmin(0)
    chosen = best * seeds + np.arange(seeds)
    kept = copy.deepcopy(network)
    weights = kept.field.weights
    assert isinstance(weights, Weights)
    weights.theta = nn.Parameter(weights.theta[chosen].detach())
    weights.beta = nn.Parameter(weights.beta[chosen].detach())
    layout = replace(weights.layout, ensemble=seeds)
    weights.layout = kept.field.layout = layout
    return kept, V[chosen]


def _part(data: str, kind: str, seed: int, held_out: bool) -> Split:
    whole = split(data, kind, seed=seed)
    if not held_out:
        return whole
    kept, (X, y) = validation(whole, 0.2, seed=seed)
    return Split(
        kept.X_train,
        kept.y_train,
        X,
        y,
        whole.name,
        whole.kind,
        whole.seed,
        whole.noise,
        whole.classes,
    )


def _descend(
    cell: Cell, protocol: Protocol, settings: Settings, seeds: Sequence[int], X: Tensor, y: Tensor
) -> tuple[HamiltonianNetwork, np.ndarray]:
    """Coordinate descent of every restart of every seed, side by side."""
    config = protocol.config(settings)
    members = [(seed, restart) for restart in range(protocol.restarts) for seed in seeds]
    network = hdnn.network(
        cell.architecture,
        features=WIDTH,
        layers=cell.layers,
        T=settings.T,
        ensemble=len(members),
        scale=settings.scale,
        dtype=torch.float32,
        generator=[torch.Generator().manual_seed(s + RESTART_SEED * r) for s, r in members],
    )
    X, y = (t.repeat(protocol.restarts, *(1,) * (t.ndim - 1)) for t in (X, y))
    ensemble = DirectEnsemble(
        network, X, y.unsqueeze(-1), torch.ones(y.shape), config, outputs=1, loss="logistic"
    )
    orders = [torch.Generator().manual_seed(ORDER_SEED + seed) for seed, _ in members]
    for number in range(config.epochs):
        order = torch.stack([torch.randperm(y.shape[1], generator=g) for g in orders])
        ensemble.epoch(order, number)
    return network, final_output(network, ensemble.V, X, y, config)


@torch.no_grad()
def _features(network: HamiltonianNetwork, X: Tensor) -> np.ndarray:
    out = network(X).double().numpy()
    return np.concatenate([out, np.ones((*out.shape[:2], 1))], axis=2)


def final_output(
    network: HamiltonianNetwork, V: np.ndarray, X: Tensor, y: Tensor, config: TrainingConfig
) -> np.ndarray:
    """The output layers, fitted on all training data."""
    from hdnn.kernels import output_layer  # loads numba

    Z, V, solve = _features(network, X), V.copy(), output_layer.kernel("newton")
    weight = np.full(y.shape[1], 1 / y.shape[1])
    for e in range(len(V)):
        target = np.ascontiguousarray(y[e].double().numpy()[:, None])
        finite = bool(np.isfinite(Z[e]).all() and np.isfinite(V[e]).all())
        if finite:
            solve(Z[e], target, weight, V[e], output_layer.LOGISTIC, config.alpha_c, 50, 1e-9)
    return V


def measure(
    network: HamiltonianNetwork, V: np.ndarray, X: Tensor, y: Tensor
) -> tuple[list[float], list[float]]:
    """Accuracy and cross-entropy of every network; where one diverged, every sample is wrong."""
    logits = np.einsum("esk,ek->es", _features(network, X), V[:, 0])
    signs = 2.0 * y.numpy() - 1.0
    margins = np.where(np.isfinite(logits), signs * logits, -np.inf)
    accuracy = (margins > 0).mean(1)
    loss = np.logaddexp(0.0, -margins).mean(1)
    return accuracy.tolist(), loss.tolist()
