"""Ensembles: networks side by side, each with an output layer of its own, trained as one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from hdnn.errors import HdnnError
from hdnn.networks import HamiltonianNetwork
from hdnn.training.ensemble import TOLERANCE, CompiledEnsemble, Epoch
from hdnn.training.loops import Batches, Loop
from hdnn.training.settings import TrainingConfig

FINAL_ITERATIONS = 50
"""Of the Newton solver, for the output layers on all training data."""


class Ensemble(nn.Module):
    """E networks for two classes, and their output layers; `Trainer` trains them together.

    Args:
        network: the networks.
        seeds: one a network, for the order of its batches.
        may_diverge: whether the others go on when one diverges; else that ends the training.

    Attributes:
        V: ``(E, 1, n + 1)``, the output layers (W, mu) in float64.

    Raises:
        HdnnError: there is not one seed a network.
    """

    V: Tensor

    def __init__(
        self, network: HamiltonianNetwork, seeds: Sequence[int], may_diverge: bool = False
    ) -> None:
        super().__init__()
        if network.ensemble != len(seeds) or network.features is None:
            raise HdnnError(
                f"an ensemble has one seed a network, got {len(seeds)} seeds for "
                f"{network.ensemble or 'no'} networks over features"
            )
        self.network, self.seeds, self.may_diverge = network, list(seeds), may_diverge
        V = torch.zeros(len(seeds), 1, network.features + 1, dtype=torch.float64)
        self.register_buffer("V", V)

    def batches(self, X: Tensor, target: Tensor) -> Batches:
        """The training data of all networks.

        Args:
            X: ``(E, samples, n)``, states of the networks.
            target: ``(E, samples)``, classes 0 and 1.

        Returns:
            The same with weights of 1.

        Raises:
            HdnnError: the shapes do not fit.
        """
        expected = (len(self.seeds), target.shape[-1], self.V.shape[-1] - 1)
        if tuple(X.shape) != expected or target.shape != X.shape[:2] or not target.numel():
            raise HdnnError(
                f"an ensemble of {expected[0]} networks is trained on X (E, samples, n) and "
                f"classes (E, samples), got {tuple(X.shape)} and {tuple(target.shape)}"
            )
        return Batches(X, target, torch.ones(target.shape))

    @torch.no_grad()
    def fit_outputs(self, X: Tensor, target: Tensor, alpha_c: float) -> None:
        """Fit the output layers to all samples; that of a network which diverged stays.

        Args:
            X: ``(E, samples, n)``.
            target: ``(E, samples)``.
            alpha_c: weight decay.
        """
        Z = with_ones(self.network(X))
        solve_outputs(Z, target, self.V.numpy(), alpha_c, FINAL_ITERATIONS)


class EnsembleLoop(Loop):
    """Coordinate descent of an ensemble in compiled kernels.

    Args:
        model: trained in place.
        data: of its members.
        config: coordinate descent with Adam.

    Raises:
        HdnnError: the kernels know no such training.
    """

    def __init__(self, model: Ensemble, data: Batches, config: TrainingConfig) -> None:
        if config.method != "coordinate" or config.optimizer.lower() != "adam":
            raise HdnnError("an ensemble is trained with method='coordinate', optimizer='adam'")
        self.loss, self.observer = "logistic", None
        self.compiled = CompiledEnsemble(
            model.network,
            data.states,
            data.target.unsqueeze(-1),
            data.weight,
            config,
            outputs=1,
            loss=self.loss,
        )
        self.compiled.V = model.V.numpy()  # shared: what the kernel solves is the model's

    def epoch(self, order: Tensor, number: int) -> Epoch:
        return mean_of(self.compiled.epoch(order, number, self.observer))

    def state(self) -> dict[str, Tensor]:
        return self.compiled.state()

    def restore(self, state: dict[str, Tensor]) -> None:
        self.compiled.restore(state)


def mean_of(epochs: Sequence[Epoch]) -> Epoch:
    """The mean over the networks; not a number where one of them diverged."""
    accuracies = [epoch.accuracy for epoch in epochs if epoch.accuracy is not None]
    return Epoch(
        float(np.mean([epoch.loss for epoch in epochs])),
        float(np.mean([epoch.penalized for epoch in epochs])),
        float(np.mean(accuracies)) if accuracies else None,
    )


def solve_outputs(
    Z: np.ndarray, target: Tensor, V: np.ndarray, alpha_c: float, iterations: int
) -> None:
    """Fit output layers in place; that of a network which diverged stays.

    Args:
        Z: ``(E, samples, n + 1)``, outputs of the networks and a column of ones.
        target: ``(E, samples)``, classes.
        V: ``(E, 1, n + 1)``.
        alpha_c: weight decay.
        iterations: at most.
    """
    from hdnn.kernels import output_layer  # loads numba

    solve, count = output_layer.kernel("newton"), target.shape[1]
    weight, code = np.full(count, 1 / count), output_layer.LOGISTIC
    for e in range(len(V)):
        classes = np.ascontiguousarray(target[e].double().numpy()[:, None])
        if np.isfinite(Z[e]).all() and np.isfinite(V[e]).all():
            solve(Z[e], classes, weight, V[e], code, alpha_c, iterations, TOLERANCE)


def with_ones(states: Tensor) -> np.ndarray:
    """States in float64 and a column of ones, ``(E, samples, n + 1)``."""
    out = states.detach().double().numpy()
    return np.concatenate([out, np.ones((*out.shape[:2], 1))], axis=2)
