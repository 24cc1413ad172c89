"""Fewer layers for a trained model: which depth keeps its accuracy, and a run of that depth."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hdnn.errors import HdnnError
from hdnn.files import atomic
from hdnn.models import Model, save
from hdnn.refinement import coarsen
from hdnn.training.evaluation import evaluate
from hdnn.training.loops import solve_output
from hdnn.training.prepare import Prepared
from hdnn.training.run_config import RunConfig
from hdnn.training.runs import Run, standardized_target
from hdnn.training.settings import ImageModelConfig, TrainingConfig

FACTS = "coarsened.json"
"""The file of a coarsened run that says where it comes from."""
SOLVER_ITERATIONS = 50
REPEATS = 3
"""Of a prediction whose time is measured; the shortest counts."""


@dataclass(frozen=True)
class DepthScore:
    """What a model reaches at a depth.

    Args:
        layers: of the deepest network.
        score: accuracy, or R^2, on held-out data.
        seconds: of one prediction of these data.
    """

    layers: int
    score: float
    seconds: float


class Coarsening:
    """A trained model at other depths, scored on held-out data.

    Args:
        model: trained.
        data: what it was trained on, and the part held out.
        training: how it was trained; where that solved the output layer given the others, this is
            done again at every depth.

    Raises:
        HdnnError: nothing was held out, or the model has no depth.
    """

    def __init__(self, model: Model, data: Prepared, training: TrainingConfig) -> None:
        if not len(data.X_test):
            raise HdnnError("the run held out no data to compare depths on: train with --test 0.2")
        if not model.networks:
            raise HdnnError("the model has no Hamiltonian block, so no depth to change")
        self.model, self.data, self.training = model, data, training
        self.depths = [net.layers for net in model.networks]

    @property
    def layers(self) -> int:
        """The present depth; of several networks that of the deepest."""
        return max(self.depths)

    def at(self, layers: int) -> Model:
        """The model at a depth; several networks follow in proportion.

        Args:
            layers: of the deepest network, at most the present ones.
        """
        depths = [max(1, round(n * layers / self.layers)) for n in self.depths]
        model = coarsen(self.model, depths)
        if self.training.solves_output and layers < self.layers:
            self._solve_output(model)
        return model

    @torch.no_grad()
    def _solve_output(self, model: Model) -> None:
        target, undo = standardized_target(self.data)
        nn.init.zeros_(model.head.weight)
        nn.init.zeros_(model.head.bias)
        X = self.data.X_train
        out = model.stages(model.stem(model.prepare(X)))
        if model.task == "regression":
            target = target.to(out.dtype).reshape(len(X), -1)
        exact = replace(self.training, solver="newton", solver_iterations=SOLVER_ITERATIONS)
        solve_output(model, out, target, out.new_ones(len(X)), exact)
        undo(model)

    def score(self, model: Model) -> DepthScore:
        """What a model reaches on the held-out data, and how long that takes."""
        X, target = self.data.X_test, self.data.y_test
        times, figures = [], {}
        for _ in range(REPEATS):
            begin = time.perf_counter()
            figures = evaluate(model, X, target)
            times.append(time.perf_counter() - begin)
        layers = max(net.layers for net in model.networks)
        return DepthScore(layers, figures.get("accuracy", figures.get("r2", 0.0)), min(times))

    def table(self) -> list[DepthScore]:
        """The depths 1, 2, 4, ... and the present one."""
        depths = [2**k for k in range((self.layers - 1).bit_length())]
        return [*(self.score(self.at(n)) for n in depths), self.score(self.model)]

    def smallest(self, tolerance: float) -> Model:
        """The model at the smallest depth that loses at most so many points.

        Args:
            tolerance: points: hundredths of accuracy or of R^2.
        """
        if not tolerance >= 0:
            raise HdnnError(f"tolerance is a number of points of at least 0, got {tolerance}")
        least = self.score(self.model).score - tolerance / 100 - 1e-12
        for layers in range(1, self.layers):
            model = self.at(layers)
            if self.score(model).score >= least:
                return model
        return self.model


def write_run(run: Run, coarsening: Coarsening, model: Model, folder: Path) -> dict[str, Any]:
    """A finished run of the coarsened model, to predict with and to evaluate as any other.

    Args:
        run: where it comes from.
        coarsening: of that run's model.
        model: one of `Coarsening.at`.
        folder: a new one.

    Returns:
        The metrics on the training part and on the part held out.

    Raises:
        HdnnError: the folder is there already, or cannot be written.
    """
    data, before = coarsening.data, run.read_config()
    metrics = {
        "train": evaluate(model, data.X_train, data.y_train),
        "test": evaluate(model, data.X_test, data.y_test),
    }
    made = Run.create(folder, _config(before, model))
    if made.history.exists() or made.finished:
        raise HdnnError(f"{folder} holds a run already; choose another folder")
    facts = {
        "run": run.folder.name,
        "layers": coarsening.layers,
        "before": asdict(coarsening.score(coarsening.model)),
        "after": asdict(coarsening.score(model)),
    }
    shutil.copyfile(run.history, made.history)
    for path, content in ((made.folder / FACTS, facts), (made.metrics, metrics)):
        with atomic(path) as temporary:
            temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    save(model, made.model_file)
    return metrics


def _config(config: RunConfig, model: Model) -> RunConfig:
    """The run config with the new depth, at the same final time."""
    training = replace(config.training, levels=None, level_epochs=None)
    if isinstance(config.model, ImageModelConfig):
        assert model.config is not None
        stages = replace(config.model, layers=model.config.layers, step=model.config.step)
        return replace(config, model=stages, training=training)
    net, given = model.network, config.model
    step = None if given.step is None else net.T / net.layers
    described = replace(given, layers=net.layers, step=step)
    return replace(config, model=described, training=training, record=None)
