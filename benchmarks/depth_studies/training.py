"""What the studies share: planar trainings with a curve of accuracy against work."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import hdnn
from hdnn.data import split
from hdnn.data.splits import Split
from hdnn.paper.table1 import run_settings
from hdnn.training import EpochRecord, Trainer, TrainingConfig
from hdnn.training.loops import Batches, solve_output
from hdnn.training.objective import Objective

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

    def model(
        self, T: float | None = None, samples: int | None = None, **options: Any
    ) -> hdnn.Model:
        """The untrained model.

        Args:
            T: another final time.
            samples: initial weights are random at so many times, and linear between them.
            options: of `hdnn.network`.
        """
        given = run_settings("tuned", self.data, self.architecture, self.layers)["model"]
        net = hdnn.network(
            self.architecture,
            features=4,
            layers=samples or self.layers,
            T=T or given["T"],
            dtype=torch.float32,
            generator=torch.Generator().manual_seed(self.seed),
            **options,
        )
        net = hdnn.refine(net, self.layers, "linear")
        return hdnn.Model(net, 1, hdnn.Augmentation(2, 4, given["augmentation"]))

    def config(self, **options: Any) -> TrainingConfig:
        given = run_settings("tuned", self.data, self.architecture, self.layers)["training"]
        return TrainingConfig(**{**given, "seed": self.seed, "epochs": 50, **options})


class Curve:
    """A callback: test accuracy, loss, work and seconds after every epoch, its own time apart.

    Seconds are those of the processor, on one thread. Where the training solves the output layer,
    it is solved for all training data before anything is measured, and the objective on all of
    them is told: the same function of the hidden layers, whatever the method.

    Args:
        X_test, y_test: what accuracy is measured on.
        gradients: whether the gradient's norms by layer are measured too.
        every: so many epochs.
    """

    def __init__(
        self, X_test: Tensor, y_test: Tensor, gradients: bool = False, every: int = 1
    ) -> None:
        self.X, self.y, self.gradients, self.every = X_test, y_test, gradients, every
        self.seconds, self.work = 0.0, 0
        self.points: list[dict[str, float]] = []
        self.last = time.process_time()

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        self.seconds += time.process_time() - self.last
        layers = max(net.layers for net in trainer.model.networks)
        self.work += layers * len(trainer.loop.data)
        if record.epoch % self.every == 0:
            self._measure(trainer, record, layers)
        self.last = time.process_time()

    def _measure(self, trainer: Trainer, record: EpochRecord, layers: int) -> None:
        model, data = copy.deepcopy(trainer.model), trainer.loop.data
        point: dict[str, float] = {"layers": layers, "loss": record.loss, "work": self.work}
        if trainer.config.solves_output:
            point["objective"] = _full_objective(model, data, trainer.config)
        point["accuracy"] = accuracy(model, self.X, self.y)
        point["seconds"] = self.seconds
        if self.gradients:
            norms = _gradient_norms(model, data.states[:500], data.target[:500])
            point["smallest"], point["largest"] = float(norms.min()), float(norms.max())
        self.points.append(point)


@torch.no_grad()
def _full_objective(model: hdnn.Model, data: Batches, config: TrainingConfig) -> float:
    """Solve the output layer for all training data; the objective there, with its penalties."""
    exact = replace(config, solver="newton", solver_iterations=50)
    torch.nn.init.zeros_(model.head.weight)
    torch.nn.init.zeros_(model.head.bias)
    solve_output(model, model.stages(model.stem(data.states)), data.target, data.weight, exact)
    parts = Objective(model, config)(data.states, data.target, data.weight, data.weight.sum())
    return float(parts[1] + parts[2])


def curve_of(curve: Curve) -> Result:
    """What a record says of a training."""
    names = curve.points[0].keys()
    return {
        "accuracy": curve.points[-1]["accuracy"],
        "seconds": curve.seconds,
        "work": curve.work,
        "curve": {name: [float(f"{p[name]:.6g}") for p in curve.points] for name in names},
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


def trained(
    case: Planar,
    gradients: bool = False,
    every: int = 1,
    model: hdnn.Model | None = None,
    **options: Any,
) -> tuple[hdnn.Model, Curve]:
    """Train a network; the model and its curve."""
    data, model = case.parts(), case.model() if model is None else model
    curve = Curve(data.X_test.float(), data.y_test, gradients, every)
    Trainer(model, case.config(**options), [curve]).fit(data.X_train.float(), data.y_train)
    return model, curve
