"""The objective of section 3.3: data loss + alpha R(hidden layers) + alpha_c R_N(output layer)."""

from __future__ import annotations

import torch
from torch import Tensor
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


def data_loss(logits: Tensor, target: Tensor, weight: Tensor, loss: str) -> Tensor:
    """sum_i w_i loss_i / sum_i w_i.

    Args:
        logits: ``(samples, outputs)``, of the output layer.
        target: class numbers ``(samples,)``, or values ``(samples, outputs)``.
        weight: ``(samples,)``.
        loss: "logistic", "softmax" (cross-entropy) or "squared" (half the squared distance).
    """
    if loss == "logistic":
        losses = F.binary_cross_entropy_with_logits(
            logits[:, 0], target.to(logits.dtype), reduction="none"
        )
    elif loss == "softmax":
        losses = F.cross_entropy(logits, target, reduction="none")
    else:
        losses = (logits - target.reshape_as(logits)).square().sum(-1) / 2
    return (weight * losses).sum() / weight.sum()


def count_correct(logits: Tensor, target: Tensor, loss: str) -> int:
    """How many samples are classified correctly; 0 for "squared"."""
    if loss == "squared":
        return 0
    labels = (logits[:, 0] > 0).long() if loss == "logistic" else logits.argmax(-1)
    return int((labels == target).sum())


def penalty(model: Model, weight: Tensor, bias: Tensor, config: TrainingConfig) -> Tensor:
    """alpha sum R(blocks) + alpha_c R_N(W, mu).

    Args:
        model: whose hidden layers are penalized.
        weight, bias: W and mu; coordinate descent gives them detached, as they are solved for.
        config: has the two factors.
    """
    total = weight.new_zeros(())
    if config.alpha:
        for network in model.networks:
            total = total + config.alpha * smoothness(network)
    if config.alpha_c:
        total = total + config.alpha_c * output_penalty(weight, bias)
    return total


def output_penalty(weight: Tensor, bias: Tensor) -> Tensor:
    """R_N = ||W||_F^2 + ||mu||^2."""
    return weight.square().sum() + bias.square().sum()


def smoothness(network: HamiltonianNetwork) -> Tensor:
    """R = h/2 sum_j ||K_j - K_{j-1}||_F^2 + the same for b, equation (13), counted once.

    On the assembled K and b. Zero for networks without a step (FCNN) and with shared weights. Of
    an ensemble it is the sum over its networks.
    """
    field = network.field
    if not isinstance(field, WeightedField) or not network.scheme.uses_step:
        return torch.zeros(())
    K, b = field.weights.K, field.weights.b
    total = K.new_zeros(())
    if field.weights.time_invariant or network.layers < 2:
        return total
    axis, h = len(field.layout.lead), network.h
    for stack in (K, b):
        squares = torch.diff(stack, dim=axis).square().flatten(axis + 1).sum(-1)
        total = total + ((h if isinstance(h, float) else h[..., 1:]) * squares).sum() / 2
    return total
