"""What the studies share: planar trainings with a curve of accuracy against work."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import hdnn
from hdnn.data import split
from hdnn.data.splits import Split
from hdnn.paper.table1 import run_settings
from hdnn.training import EpochRecord, Trainer, TrainingConfig
from hdnn.training.loops import solve_output

Case = dict[str, Any]
Result = dict[str, Any]


@dataclass(frozen=True)
class Planar:
    """A network of Table 1, with the settings of the protocol "tuned"."""

    data: str
    architecture: str
    layers: int
    seed: int

    def parts(self) -> Split:
        return split(self.data, seed=self.seed)

    def model(self, **options: Any) -> hdnn.Model:
        given = run_settings("tuned", self.data, self.architecture, self.layers)["model"]
        net = hdnn.network(
            self.architecture,
            features=4,
            layers=self.layers,
            T=given["T"],
            dtype=torch.float32,
            generator=torch.Generator().manual_seed(self.seed),
            **options,
        )
        return hdnn.Model(net, 1, hdnn.Augmentation(2, 4, given["augmentation"]))

    def config(self, **options: Any) -> TrainingConfig:
        given = run_settings("tuned", self.data, self.architecture, self.layers)["training"]
        return TrainingConfig(**{**given, "seed": self.seed, "epochs": 50, **options})


class Curve:
    """A callback: test accuracy, loss, work and seconds after every epoch, its own time apart.

    Args:
        X_test, y_test: what accuracy is measured on.
        gradients: whether the gradient's norms by layer are measured too.
    """

    def __init__(self, X_test: Tensor, y_test: Tensor, gradients: bool = False) -> None:
        self.X, self.y, self.gradients = X_test, y_test, gradients
        self.seconds, self.work = 0.0, 0
        self.points: list[dict[str, float]] = []
        self.last = time.perf_counter()

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        self.seconds += time.perf_counter() - self.last
        model, data = copy.deepcopy(trainer.model), trainer.loop.data
        layers = max(net.layers for net in model.networks)
        self.work += layers * len(data)
        point: dict[str, float] = {"layers": layers, "loss": record.loss, "work": self.work}
        if trainer.config.solves_output:
            with torch.no_grad():
                out = model.stages(model.stem(data.states))
                solve_output(model, out, data.target, data.weight, trainer.config)
        point["accuracy"] = accuracy(model, self.X, self.y)
        point["seconds"] = self.seconds
        if self.gradients:
            norms = _gradient_norms(model, data.states[:500], data.target[:500])
            point["smallest"], point["largest"] = float(norms.min()), float(norms.max())
        self.points.append(point)
        self.last = time.perf_counter()


def curve_of(curve: Curve) -> Result:
    """What a record says of a training."""
    names = curve.points[0].keys()
    return {
        "accuracy": curve.points[-1]["accuracy"],
        "seconds": curve.seconds,
        "work": curve.work,
        "curve": {name: [round(p[name], 6) for p in curve.points] for name in names},
    }


@torch.no_grad()
def accuracy(model: hdnn.Model, X: Tensor, y: Tensor) -> float:
    """Share of samples classified correctly."""
    parts = zip(X.split(2000), y.split(2000), strict=True)
    return sum(int((model.predict(x) == t).sum()) for x, t in parts) / len(X)


def _gradient_norms(model: hdnn.Model, states: Tensor, target: Tensor) -> Tensor:
    """Of the loss by every layer's weights, times N: as functions of time, so depths compare."""
    theta = model.network.field.weights.theta
    values = model.logits(states)[:, 0]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(values, target.to(values.dtype))
    (gradient,) = torch.autograd.grad(loss, theta)
    return gradient.norm(dim=-1) * len(theta)


def trained(case: Planar, gradients: bool = False, **options: Any) -> tuple[hdnn.Model, Curve]:
    """Train a network; the model and its curve."""
    data, model = case.parts(), case.model()
    curve = Curve(data.X_test.float(), data.y_test, gradients)
    Trainer(model, case.config(**options), [curve]).fit(data.X_train.float(), data.y_train)
    return model, curve
