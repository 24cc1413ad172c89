"""Small tasks that the tests of the training share: batches, models, data sets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import hdnn
from hdnn.data import Dataset, split
from hdnn.models import Model, Padding
from hdnn.training.samples import Samples

SAMPLES = 50
OUTPUTS = {"logistic": 1, "softmax": 3, "squared": 2}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batches(
    loss: str, width: int = 4, dtype: torch.dtype = torch.float64, seed: int = 0
) -> Samples:
    """Noisy linear problems: two classes, three classes, or two targets."""
    states = torch.randn(SAMPLES, width, generator=seeded(seed), dtype=torch.float64)
    scores = states @ torch.randn(width, 3, generator=seeded(seed + 1), dtype=torch.float64)
    scores += torch.randn(SAMPLES, 3, generator=seeded(seed + 2), dtype=torch.float64)
    target = {
        "logistic": (scores[:, 0] > 0).long(),
        "softmax": scores.argmax(1),
        "squared": scores[:, :2].to(dtype),
    }[loss]
    return Samples(states.to(dtype), target, torch.ones(SAMPLES, dtype=dtype))


def model_for(network: Any, loss: str, **options: Any) -> Model:
    task = "regression" if loss == "squared" else "classification"
    return Model(network, OUTPUTS[loss], task=task, **options)


def dataset(X: Tensor, y: Tensor, weight: Tensor | None = None) -> Dataset:
    """Tensors as they are; class numbers stay class numbers."""
    task = "regression" if y.is_floating_point() else "classification"
    return Dataset(X, y, X[:0], y[:0], task, weight=weight)


def moons(size: int = 50) -> Dataset:
    data = split("double-moons", size=2 * size)
    return dataset(data.X, data.y)


def make(seed: int = 0, name: str = "H1", task: str = "classification", **options: Any) -> Model:
    """A network of three layers for the plane, with one output."""
    settings = {"features": 4, "layers": 3, "T": 1.0, "generator": seeded(seed)} | options
    network = hdnn.network(name, **settings)
    return Model(network, 1, Padding(2, settings["features"]), task=task)


def same(a: nn.Module, b: nn.Module) -> bool:
    one, other = a.state_dict(), b.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


class Stub(nn.Module):
    """y -> gain y; notes how many samples every call has. Its outputs are known by hand."""

    features = 2
    layers = 1
    field = scheme = None

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.0))
        self.calls: list[int] = []

    def forward(self, y: Tensor) -> Tensor:
        self.calls.append(len(y))
        return self.gain * y
