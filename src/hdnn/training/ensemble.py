"""Networks for two classes, of many seeds side by side, trained by coordinate descent."""

from __future__ import annotations

import math
from collections.abc import Sequence, Sized
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hdnn.backends import choose
from hdnn.config import TrainingConfig
from hdnn.data import Dataset
from hdnn.errors import DivergenceError, HdnnError
from hdnn.fields.hamiltonian import WeightedField
from hdnn.kernels.native import SolverOptions
from hdnn.models import Model
from hdnn.networks import HamiltonianNetwork
from hdnn.training.compiled import CompiledTraining
from hdnn.training.loops import Observer, check_settings
from hdnn.training.output_solver import TOLERANCE, OutputProblem, solve, with_ones
from hdnn.training.samples import Samples
from hdnn.training.trainer import Trainer

FINAL_ITERATIONS = 50
"""Of the Newton solver, for the output layers on all training data: solved once, to the end."""


def train_ensemble(
    network: HamiltonianNetwork,
    X: Tensor,
    target: Tensor,
    seeds: Sequence[int],
    config: TrainingConfig,
    *,
    observer: Observer | None = None,
    may_diverge: bool = False,
) -> np.ndarray:
    """Train the networks of an ensemble, each as `Trainer` would train it alone.

    The kernels train them side by side; where they cannot serve, one is trained after the other.

    Args:
        network: E networks over features, trained in place.
        X: ``(E, samples, n)``, states of the networks.
        target: ``(E, samples)``, classes 0 and 1.
        seeds: one for every network, for the order of its batches.
        config: coordinate descent with Adam, without weights of classes and validation.
        observer: watches iterations; it changes nothing.
        may_diverge: whether the others go on when one diverges; else that ends the training.

    Returns:
        ``(E, 1, n + 1)``, the output layers (W, mu) in float64, fitted on all samples.

    Raises:
        HdnnError: network, data and settings do not fit together.
        DivergenceError: a network diverged that must not.

    >>> import hdnn
    >>> net = hdnn.network("H1", features=4, layers=3, T=1.0, ensemble=2)
    >>> X, y = torch.randn(2, 50, 4), torch.randint(0, 2, (2, 50))
    >>> train_ensemble(net, X, y, seeds=[0, 1], config=TrainingConfig(epochs=2)).shape
    (2, 1, 5)
    """
    _check(network, X, target, seeds, config)
    batch = X[:, : config.batch_size]
    choice = choose(network.program, network.values(), batch, network.backend)
    if config.loop == "compiled" and not choice.in_stages:
        raise HdnnError(f"loop='compiled' cannot serve: {choice.reason}; use loop='auto'")
    together = config.loop != "autograd" and choice.in_stages
    train = _train_together if together else _train_one_by_one
    V, diverged = train(Task(network, X, target, seeds, config, observer))
    if diverged and not may_diverge:
        raise DivergenceError(f"a network with {network.layers} layers diverged: {diverged[0]}")
    with torch.no_grad():
        Z, options = with_ones(network(X)), SolverOptions("newton", FINAL_ITERATIONS, TOLERANCE)
    weight = np.full(X.shape[1], 1 / X.shape[1])
    for e, classes in enumerate(target.double().unsqueeze(-1).numpy()):
        if np.isfinite(Z[e]).all() and np.isfinite(V[e]).all():  # else it diverged, and V stays
            problem = OutputProblem(Z[e], classes, weight, "logistic", config.alpha_c)
            solve(problem, V[e], options)
    return V


def _check(
    network: HamiltonianNetwork, X: Tensor, y: Tensor, seeds: Sized, config: TrainingConfig
) -> None:
    E, shapes = len(seeds), (tuple(X.shape), tuple(y.shape))
    if network.ensemble != E or shapes != ((E, y.shape[-1], network.features), X.shape[:2]):
        raise HdnnError(
            "an ensemble has E networks over n features, E seeds, X (E, samples, n) and classes "
            f"(E, samples), got {network.ensemble or 'no'} networks over {network.features}, "
            f"{E} seeds, {shapes[0]} and {shapes[1]}"
        )
    usual = (config.method, config.optimizer) == ("coordinate", "Adam")
    plain = config.class_weight is None and not config.validation
    if not usual or not plain or config.device not in ("cpu", "auto"):
        raise HdnnError(
            "an ensemble is trained with method='coordinate' and optimizer='Adam' on the CPU, "
            "without class weights and validation; train its networks one by one with Trainer"
        )
    check_settings(config, "planar")


def _weights(network: HamiltonianNetwork) -> list[nn.Parameter]:
    assert isinstance(network.field, WeightedField)
    return [network.field.weights.theta, network.field.weights.beta]


class Task(NamedTuple):
    """What `train_ensemble` was given, checked."""

    network: HamiltonianNetwork
    X: Tensor
    target: Tensor
    seeds: Sequence[int]
    config: TrainingConfig
    observer: Observer | None


Trained = tuple[np.ndarray, list[str]]
"""The output layers of the last batches, and what is known of networks that diverged."""


def _train_together(task: Task) -> Trained:
    """Side by side, in the kernels."""
    network, X, target, seeds, config, observer = task
    data = Samples(X, target.unsqueeze(-1), torch.ones(target.shape))
    weights, diverged = _weights(network), []
    compiled = CompiledTraining(network, weights, data, config, outputs=1, loss="logistic")
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    for number in range(config.epochs):
        orders = [torch.randperm(X.shape[1], generator=source) for source in generators]
        epochs = compiled.epoch(torch.stack(orders), number, observer)
        if not all(math.isfinite(epoch.penalized) for epoch in epochs):
            diverged.append(f"the loss is not finite in epoch {number + 1}")
    return compiled.V, diverged


def _train_one_by_one(task: Task) -> Trained:
    """Each by the ordinary trainer."""
    network, X, target, seeds, config, observer = task
    V, diverged = np.zeros((len(seeds), 1, X.shape[-1] + 1)), []
    for e, seed in enumerate(seeds):
        model = Model(network.member(e), 1)
        trainer = Trainer(model, config.replace(seed=seed), recorder=observer)
        try:
            trainer.fit(Dataset(X[e], target[e], X[e, :0], target[e, :0], "classification"))
        except DivergenceError as error:
            diverged.append(str(error))
        with torch.no_grad():
            for whole, part in zip(_weights(network), _weights(model.network), strict=True):
                whole[e] = part
            V[e] = torch.cat([model.head.weight, model.head.bias[:, None]], 1).numpy()
    return V, diverged
