"""The objective of section 3.3, against the sums written out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import hdnn
from catalog import NAMES, build
from hdnn.fields import EnergyField
from hdnn.kernels.native import LOSSES
from hdnn.training import TrainingConfig
from hdnn.training.objective import data_loss, penalty, smoothness

WEIGHT = torch.tensor([1.0, 3.0, 0.0, 2.0, 0.5])
BINARY = torch.tensor([0, 1, 1, 0, 1])
THREE = torch.tensor([2, 0, 1, 1, 2])


def _problem(loss: str) -> tuple[Tensor, Tensor]:
    outputs = {"logistic": 1, "softmax": 3, "squared": 2}[loss]
    values = 2 * torch.randn(5, outputs)
    target = {"logistic": BINARY, "softmax": THREE, "squared": torch.randn(5, 2)}[loss]
    return values, target


def _longhand(values: Tensor, target: Tensor, weight: Tensor, loss: str) -> float:
    """sum_i w_i loss_i / sum_i w_i, number by number."""
    total = 0.0
    for z, t, w in zip(values.tolist(), target.tolist(), weight.tolist(), strict=True):
        if loss == "logistic":
            p = 1 / (1 + math.exp(-z[0]))
            total -= w * math.log(p if t == 1 else 1 - p)
        elif loss == "softmax":
            total -= w * math.log(math.exp(z[t]) / sum(math.exp(u) for u in z))
        else:
            total += w * sum((v - u) ** 2 for v, u in zip(z, t, strict=True)) / 2
    return total / sum(weight.tolist())


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weight", [torch.ones(5), WEIGHT], ids=["equal", "weighted"])
def test_data_loss_longhand(loss: str, weight: Tensor) -> None:
    values, target = _problem(loss)
    exact = _longhand(values, target, weight, loss)
    assert float(data_loss(values, target, weight, loss)) == pytest.approx(exact, rel=1e-13)


def test_penalty_is_both_with_their_factors() -> None:
    net = hdnn.Model(build("H1", layers=4), 2)
    W, mu = torch.randn(2, 4), torch.randn(2)
    config = TrainingConfig(alpha=0.3, alpha_c=0.2)
    squares = W.square().sum() + mu.square().sum()
    expected = 0.3 * smoothness(net.network) + 0.2 * squares
    torch.testing.assert_close(penalty(net, W, mu, config), expected)
    nothing = penalty(net, W, mu, TrainingConfig(alpha=0.0, alpha_c=0.0))
    assert float(nothing) == 0


# --- smoothness, equation (13) --------------------------------------------------------------------


def _longhand_smoothness(net: hdnn.HamiltonianNetwork) -> float:
    """The double loop over the assembled weights."""
    K, b = net.K.detach().numpy(), net.b.detach().numpy()
    h = np.broadcast_to(net.h if isinstance(net.h, float) else net.h.detach().numpy(), net.layers)
    total = 0.0
    for j in range(1, net.layers):
        for i in range(K.shape[1]):
            total += h[j] / 2 * (b[j, i] - b[j - 1, i]) ** 2
            for k in range(K.shape[2]):
                total += h[j] / 2 * (K[j, i, k] - K[j - 1, i, k]) ** 2
    return total


STEPS = {"step": [0.1, 0.4, 0.2, 0.7]}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in NAMES if name != "FCNN"),
        ("MS1", STEPS),
        ("MS1", STEPS | {"learn_steps": True}),
    ],
    ids=str,
)
def test_smoothness_longhand(name: str, options: dict[str, Any]) -> None:
    net = build(name, layers=4, **options)
    assert float(smoothness(net).detach()) == pytest.approx(_longhand_smoothness(net), rel=1e-12)


def test_smoothness_of_an_ensemble_is_the_sum_of_its_members() -> None:
    steps = torch.tensor([[0.1, 0.4, 0.2], [0.5, 0.3, 0.9]])
    whole = build("MS1", ensemble=2, step=steps)
    total = 0.0
    for e in range(2):
        alone = build("MS1", step=steps[e].tolist())
        with torch.no_grad():
            alone.field.weights.theta.copy_(whole.field.weights.theta[e])
            alone.field.weights.beta.copy_(whole.field.weights.beta[e])
        total += float(smoothness(alone).detach())
    assert float(smoothness(whole).detach()) == pytest.approx(total, rel=1e-13)


@pytest.mark.parametrize(
    "net",
    [
        lambda: build("FCNN", layers=4),
        lambda: build("H1", layers=4, time_invariant=True),
        lambda: build("H1", layers=1),
        lambda: hdnn.HamiltonianNetwork(
            EnergyField("J1", lambda x, t: x.square().sum(-1), features=2), layers=3, T=1.0
        ),
    ],
    ids=["FCNN", "time-invariant", "one layer", "energy"],
)
def test_nothing_to_be_smooth(net: object) -> None:
    assert float(smoothness(net()).detach()) == 0.0
