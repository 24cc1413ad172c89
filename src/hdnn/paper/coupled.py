"""The smoothness penalty treated exactly: alpha to infinity is the time-invariant network.

Adam divides every entry of a gradient by its size. Where a large alpha dominates the gradient, it
so divides the step on the data loss by alpha as well, and training stops instead of going over to
the time-invariant network. Here the weights of all layers are written in cosines over depth,

    K_j = c_0 + sqrt(2 / N) sum_k c_k cos(pi k (j + 1/2) / N),

which diagonalize the penalty (eigenvalues 2 - 2 cos(pi k / N)). Adam moves the c_k along the data
loss, and the penalty follows as an implicit step, c_k /= 1 + rate alpha h (2 - 2 cos(pi k / N)).
For alpha = infinity only c_0 is left, and it moves as the weights of the time-invariant network do.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hdnn.fields.hamiltonian import WeightedField
from hdnn.networks import HamiltonianNetwork
from hdnn.paper import planar
from hdnn.paper.figure2 import Case, Looks
from hdnn.training import TrainingConfig
from hdnn.training.ensemble import TOLERANCE


def cosines(layers: int) -> tuple[Tensor, Tensor]:
    """The basis ``(N, N)``, one column for every k, and the eigenvalues of the penalty."""
    k, j = torch.arange(layers, dtype=torch.float64), torch.arange(layers, dtype=torch.float64)
    basis = math.sqrt(2 / layers) * torch.cos(math.pi * k * (j[:, None] + 0.5) / layers)
    basis[:, 0] = 1.0
    return basis, 2 - 2 * torch.cos(math.pi * k / layers)


def descend(case: Case, network: HamiltonianNetwork, data: planar.Data, looks: Looks) -> np.ndarray:
    """Coordinate descent from the initial weights of the time-invariant network of every seed.

    Args:
        case: what is trained.
        network: the ensemble; its parameters are trained in place.
        data: of its members.
        looks: observes the iterations.

    Returns:
        The output layers ``(seeds, 1, n + 1)``.
    """
    config, field, h = case.config, network.field, network.h
    assert isinstance(field, WeightedField)
    assert isinstance(h, float)
    parameters = [field.weights.theta, field.weights.beta]
    basis, eigenvalues = cosines(network.layers)
    shrink = 1 / (1 + config.learning_rate * case.alpha * h * eigenvalues)
    moved = [torch.zeros_like(p, requires_grad=True) for p in parameters]
    shared = replace(case, network="H1 invariant").build(data.seeds)
    with torch.no_grad():
        for c, p in zip(moved, shared.parameters(), strict=True):
            c[:, :1] = p
    optimizer = torch.optim.Adam(moved, config.learning_rate, config.betas)
    V = np.zeros((len(data.seeds), 1, data.X.shape[-1] + 1))
    batches = (b for order in data.orders(config.epochs) for b in order.split(config.batch_size, 1))
    for iteration, batch in enumerate(batches):
        _assemble(parameters, moved, basis)
        if looks.due(iteration):
            looks.before(iteration, batch)
        _gradients(network, V, data, batch, config)
        for c, p in zip(moved, parameters, strict=True):
            c.grad = None if p.grad is None else basis.T @ p.grad
        if looks.due(iteration):
            looks.after(_gradient_norms(parameters))
        optimizer.step()
        with torch.no_grad():
            for c in moved:
                c.mul_(shrink[:, None])
    _assemble(parameters, moved, basis)
    return V


@torch.no_grad()
def _assemble(parameters: list[nn.Parameter], moved: list[Tensor], basis: Tensor) -> None:
    for p, c in zip(parameters, moved, strict=True):
        p.copy_(basis @ c)
        p.grad = None


def _gradient_norms(parameters: list[nn.Parameter]) -> np.ndarray:
    """Of the data loss, ``(seeds, layers)``."""
    squares = [p.grad.square().sum(-1) for p in parameters if p.grad is not None]
    norms: np.ndarray = torch.stack(squares).sum(0).sqrt().numpy()
    return norms


def _gradients(
    network: HamiltonianNetwork,
    V: np.ndarray,
    data: planar.Data,
    batch: Tensor,
    config: TrainingConfig,
) -> None:
    """Solve for the output layers, in place; then the gradients of the data loss of all."""
    states, labels = (
        torch.stack([part[chosen] for part, chosen in zip(parts, batch, strict=True)])
        for parts in (data.X, data.y)
    )
    out = network(states)
    stop = config.solver_iterations, TOLERANCE
    planar.solve_outputs(planar.with_ones(out), labels, V, config.alpha_c, *stop)
    head = torch.from_numpy(V)
    logits = (out @ head[:, 0, :-1, None])[..., 0] + head[:, 0, -1:]
    loss = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none")
    loss.mean(1).sum().backward()
