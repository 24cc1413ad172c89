"""The smoothness penalty treated exactly: alpha to infinity is the time-invariant network.

Adam divides every entry of a gradient by its size. Where a large alpha dominates the gradient, it
so divides the step on the data loss by alpha as well, and training stops instead of going over to
the time-invariant network. Here the weights of all layers are written in cosines over depth,

    K_j = c_0 + sqrt(2 / N) sum_k c_k cos(pi k (j + 1/2) / N),

which diagonalize the penalty (eigenvalues 2 - 2 cos(pi k / N)). Adam moves the c_k along the data
loss, and the penalty follows as an implicit step with the same learning rate eta,

    c_k /= 1 + eta alpha h (2 - 2 cos(pi k / N)).

For alpha = infinity only c_0 is left, and it moves as the weights of the time-invariant network do.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hdnn.fields.hamiltonian import WeightedField
from hdnn.networks import HamiltonianNetwork
from hdnn.training import Ensemble, TrainingConfig
from hdnn.training.ensemble import solve_outputs, with_ones
from hdnn.training.loops import Batches, Epoch, Loop
from hdnn.training.optimizers import flatten_optimizer, restore_optimizer


def cosines(layers: int) -> tuple[Tensor, Tensor]:
    """The basis ``(N, N)``, one column for every k, and the eigenvalues of the penalty."""
    k, j = torch.arange(layers, dtype=torch.float64), torch.arange(layers, dtype=torch.float64)
    basis = math.sqrt(2 / layers) * torch.cos(math.pi * k * (j[:, None] + 0.5) / layers)
    basis[:, 0] = 1.0
    return basis, 2 - 2 * torch.cos(math.pi * k / layers)


class CoupledLoop(Loop):
    """Coordinate descent on the coefficients c_k, from weights that all layers share.

    Args:
        alpha: weight of the smoothness penalty.
        shared: the time-invariant networks that the training begins with.
        model: trained in place.
        data: of its members.
        config: of the training, in which alpha is 0.
    """

    def __init__(
        self,
        alpha: float,
        shared: HamiltonianNetwork,
        model: Ensemble,
        data: Batches,
        config: TrainingConfig,
    ) -> None:
        field, h = model.network.field, model.network.h
        assert isinstance(field, WeightedField)
        assert isinstance(h, float)
        self.loss, self.observer = "logistic", None
        self.ensemble, self.data, self.config = model, data, config
        self.parameters = [field.weights.theta, field.weights.beta]
        self.basis, eigenvalues = cosines(model.network.layers)
        self.shrink = 1 / (1 + config.learning_rate * alpha * h * eigenvalues)
        self.coefficients = [torch.zeros_like(p, requires_grad=True) for p in self.parameters]
        with torch.no_grad():
            for c, p in zip(self.coefficients, shared.parameters(), strict=True):
                c[:, :1] = p
        self.optimizer = torch.optim.Adam(self.coefficients, config.learning_rate, config.betas)

    def epoch(self, order: Tensor, number: int) -> Epoch:
        batches = order.split(self.config.batch_size, 1)
        losses = []
        for i, batch in enumerate(batches):
            iteration = number * len(batches) + i
            self._assemble()
            observed = self.observer is not None and self.observer.observes(iteration)
            if observed and self.observer is not None:
                self.observer.before_step(iteration, batch)
            losses.append(self._gradients(batch))
            for c, p in zip(self.coefficients, self.parameters, strict=True):
                c.grad = None if p.grad is None else self.basis.T @ p.grad
            if observed and self.observer is not None:
                self.observer.after_gradients(_gradient_norms(self.parameters))
            self.optimizer.step()
            with torch.no_grad():
                for c in self.coefficients:
                    c.mul_(self.shrink[:, None])
        self._assemble()
        loss = float(np.mean(losses))
        return Epoch(loss, loss, None)

    @torch.no_grad()
    def _assemble(self) -> None:
        """Set the weights of all layers by the coefficients."""
        for p, c in zip(self.parameters, self.coefficients, strict=True):
            p.copy_(self.basis @ c)
            p.grad = None

    def _gradients(self, batch: Tensor) -> float:
        """Solve for the output layers; then the gradients of the data loss, and their mean loss."""
        states, labels = (
            torch.stack([part[samples] for part, samples in zip(parts, batch, strict=True)])
            for parts in (self.data.states, self.data.target)
        )
        out, V, config = self.ensemble.network(states), self.ensemble.V, self.config
        Z = with_ones(out)
        solve_outputs(Z, labels, V.numpy(), config.alpha_c, config.solver_iterations)
        logits = (out @ V[:, 0, :-1, None])[..., 0] + V[:, 0, -1:]
        target = labels.to(logits.dtype)
        loss = F.binary_cross_entropy_with_logits(logits, target, reduction="none").mean(1).sum()
        loss.backward()
        return float(loss.detach()) / len(V)

    def state(self) -> dict[str, Tensor]:
        parts = {f"c{k}": c.detach().clone() for k, c in enumerate(self.coefficients)}
        return parts | {f"adam.{k}": v for k, v in flatten_optimizer(self.optimizer).items()}

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        for k, c in enumerate(self.coefficients):
            c.copy_(state[f"c{k}"])
        own = {k.removeprefix("adam."): v for k, v in state.items() if k.startswith("adam.")}
        restore_optimizer(self.optimizer, own)


def _gradient_norms(parameters: list[nn.Parameter]) -> np.ndarray:
    """Of the data loss, ``(seeds, layers)``."""
    squares = [p.grad.square().sum(-1) for p in parameters if p.grad is not None]
    norms: np.ndarray = torch.stack(squares).sum(0).sqrt().numpy()
    return norms
