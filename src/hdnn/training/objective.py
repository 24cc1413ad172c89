"""The objective of section 3.3: data loss + alpha_c R_N(output layer) + alpha R(hidden layers)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hdnn.config import TrainingConfig
from hdnn.fields.hamiltonian import WeightedField
from hdnn.models import Model
from hdnn.networks import HamiltonianNetwork


def loss_name(task: str, outputs: int) -> str:
    """Return "logistic" for two classes, "softmax" for more, "squared" for regression."""
    if task == "regression":
        return "squared"
    return "logistic" if outputs == 1 else "softmax"


def data_loss(
    values: Tensor,
    target: Tensor,
    weight: Tensor,
    loss: str,
    smoothing: float = 0.0,
    total: Tensor | None = None,
) -> Tensor:
    """sum_i w_i loss_i / sum_i w_i.

    Args:
        values: ``(samples, outputs)``, of the output layer.
        target: class numbers ``(samples,)``, or values ``(samples, outputs)``.
        weight: ``(samples,)``.
        loss: "logistic", "softmax" (cross-entropy) or "squared" (half the squared distance).
        smoothing: share of a label that is spread over all classes, for "softmax".
        total: to divide by instead, where the samples are a part of a batch.
    """
    if loss == "logistic":
        losses = F.binary_cross_entropy_with_logits(
            values[:, 0], target.to(values.dtype), reduction="none"
        )
    elif loss == "softmax":
        losses = F.cross_entropy(values, target, reduction="none", label_smoothing=smoothing)
    else:
        losses = (values - target.reshape_as(values)).square().sum(-1) / 2
    return (weight * losses).sum() / (weight.sum() if total is None else total)


def output_penalty(weight: Tensor, bias: Tensor) -> Tensor:
    """R_N = ||W||_F^2 + ||mu||^2."""
    return weight.square().sum() + bias.square().sum()


def smoothness(network: HamiltonianNetwork) -> Tensor:
    """R = h/2 sum_j ||K_j - K_{j-1}||_F^2 + the same for b, equation (13), counted once.

    On the assembled K and b. Zero for networks without a step (FCNN) and with shared weights. Of
    an ensemble it is the sum over its networks.
    """
    return smoothness_of_members(network).sum()


def smoothness_of_members(network: HamiltonianNetwork) -> Tensor:
    """The same for every network of an ensemble, ``(E,)``; one number where there is only one."""
    field = network.field
    if not isinstance(field, WeightedField) or not network.scheme.uses_step:
        return torch.zeros(())
    K, b = field.weights.K, field.weights.b
    total = K.new_zeros(field.layout.lead)
    if field.weights.time_invariant or network.layers < 2:
        return total
    axis, h = len(field.layout.lead), network.h
    for stack in (K, b):
        squares = torch.diff(stack, dim=axis).square().flatten(axis + 1).sum(-1)
        total = total + ((h if isinstance(h, float) else h[..., 1:]) * squares).sum(-1) / 2
    return total


class Objective(nn.Module):
    """Loss and penalties of a model on a batch, or on a part of it.

        sum_i w_i loss_i / total   and   alpha sum R(blocks) + alpha_c R_N(output layer)

    Args:
        model: whose parameters are trained.
        config: has the weights of the penalties and the label smoothing.
    """

    def __init__(self, model: Model, config: TrainingConfig) -> None:
        super().__init__()
        self.model, self.config = model, config

    def forward(
        self, states: Tensor, target: Tensor, weight: Tensor, total: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The logits ``(samples, outputs)``, the loss and the penalties.

        Args:
            states, target, weight: the samples of the part, as in `hdnn.training.loops.Batches`.
            total: the sum of the weights of the whole batch.
        """
        model, config = self.model, self.config
        logits, head = model.logits(states), model.head
        loss = loss_name(model.task, head.out_features)
        plain = data_loss(logits, target, weight, loss, config.label_smoothing, total)
        penalty = plain.new_zeros(())
        if config.alpha:
            for network in model.networks:
                penalty = penalty + config.alpha * smoothness(network)
        if config.alpha_c:
            penalty = penalty + config.alpha_c * output_penalty(head.weight, head.bias)
        return logits, plain, penalty
