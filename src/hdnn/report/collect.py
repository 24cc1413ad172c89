"""What a report is made of: the only place of this room that reads run folders and trains."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hdnn.data import Dataset, load
from hdnn.errors import FileFormatError, HdnnError
from hdnn.models import Model
from hdnn.report import words
from hdnn.report.measure import EVALUATED
from hdnn.training.evaluation import evaluate
from hdnn.training.prepare import PreparedRun, build
from hdnn.training.recorder import Recording, read_recordings
from hdnn.training.run_config import RunConfig
from hdnn.training.runs import Run, read_history
from hdnn.training.settings import ModelConfig
from hdnn.training.trainer import Trainer

BUDGET = 3e9
"""Multiplications up to which a plain network is trained for comparison: a few seconds."""


@dataclass(frozen=True)
class Material:
    """A trained model, its data and what is known of its training.

    Args:
        name: of the data, for the title.
        model: None where a run has none yet.
        X, y: data that the model has not been trained on, where there are such.
        metrics: by part of the data ("train", "test").
        plain: a plain network of the same size, trained on the same data.
        history: records by epoch.
        record: recordings of gradients during training.
        config, command: the run config as TOML, and the command that repeats the run.
        run: its folder.
        notices: what a reader must know first.
        lead: title and sentence of a page that begins with the slider.
    """

    name: str
    model: Model | None = None
    X: Tensor = field(default_factory=lambda: torch.empty(0))
    y: Tensor = field(default_factory=lambda: torch.empty(0))
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    plain: Model | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    record: Sequence[Recording] = ()
    config: str | None = None
    command: str | None = None
    run: str | None = None
    notices: tuple[str, ...] = ()
    lead: tuple[str, str] | None = None

    @property
    def models(self) -> dict[str, Model]:
        """The networks to show side by side, by title."""
        found = {} if self.model is None else {words.network_name(self.model): self.model}
        return found if self.plain is None else {**found, "plain network": self.plain}


def of_model(
    model: Model,
    X: Any,
    y: Any,
    name: str,
    plain: Model | None = None,
    lead: tuple[str, str] | None = None,
) -> Material:
    """What is known of a model and data alone; ``plain`` is a trained plain network."""
    dtype = model.head.weight.dtype
    inputs = torch.as_tensor(X)
    if not (model.stem.takes_images and inputs.dtype == torch.uint8):
        inputs = inputs.to(dtype)
    model.check(inputs)
    target = _targets(model, y, dtype)
    if len(target) != len(inputs) or not len(inputs):
        raise HdnnError(f"X has {len(inputs)} samples and y has {len(target)}: give as many")
    metrics = {"data": evaluate(model, inputs, target)}
    return Material(name, model, inputs, target, metrics, plain, lead=lead)


def _targets(model: Model, y: Any, dtype: torch.dtype) -> Tensor:
    """Class numbers, also of labels by name; values for a regression."""
    if model.task == "regression":
        return torch.as_tensor(y).to(dtype)
    values = y.tolist() if hasattr(y, "tolist") else list(y)
    numbers = {label: number for number, label in enumerate(model.labels)}
    unknown = next((value for value in values if value not in numbers), None)
    if unknown is not None:
        raise HdnnError(f"y has the label {unknown!r:.60}, which the model does not know")
    return torch.tensor([numbers[value] for value in values])


# --- runs -----------------------------------------------------------------------------------------


def of_run(folder: str | Path) -> Material:
    """What a run folder tells, finished or not."""
    run = Run.open(folder)
    config = run.read_config()
    history = read_history(run.history) if run.history.exists() else []
    source, place = (shlex.quote(str(p)) for p in (config.data.source, run.config))
    known = Material(
        Path(config.data.source).stem,
        history=history,
        record=read_recordings(run.gradients),
        config=config.to_toml(),
        command=f"hdnn train {source} --config {place} --out again",
        run=str(run.folder),
        notices=() if run.finished else _unfinished(run, len(history), config.training.epochs),
    )
    if run.finished:
        return _of_finished(run, config, known)
    return _of_checkpoint(run, config, known) if run.checkpoint.exists() else known


def _unfinished(run: Run, done: int, total: int) -> tuple[str, ...]:
    if run.failure:
        return (f"The training diverged after {done} of {total} epochs: {run.failure}",)
    go_on = f"hdnn train --resume {shlex.quote(str(run.folder))}"
    return (f"This run is not finished: {done} of {total} epochs. Continue it with: {go_on}",)


def _of_finished(run: Run, config: RunConfig, known: Material) -> Material:
    model, exact = run.load_model(), load(config.data)
    data = exact.to(model.head.weight.dtype)
    metrics = json.loads(run.metrics.read_text()) if run.metrics.exists() else {}
    found = replace(_with_data(known, model, data), metrics=metrics)
    return replace(found, plain=_train_plain(config, exact, model))


def _of_checkpoint(run: Run, config: RunConfig, known: Material) -> Material:
    """What an unfinished run shows: its model as of the last checkpoint."""
    try:
        prepared = PreparedRun.of(config)
        model = run.load_checkpoint(prepared)
    except FileFormatError as error:
        return replace(known, notices=(*known.notices, str(error)))
    if model is None or not all(p.isfinite().all() for p in model.parameters()):
        return known
    found = _with_data(known, model, prepared.data)
    part = "test" if len(prepared.data.X_test) else "train"
    metrics = {part: evaluate(model, found.X[:EVALUATED], found.y[:EVALUATED])}
    notice = "Everything below describes the model at its last checkpoint."
    return replace(found, metrics=metrics, notices=(*found.notices, notice))


def _with_data(known: Material, model: Model, data: Dataset) -> Material:
    """With a model and what was held out, or else what it was trained on."""
    if len(data.X_test):
        return replace(known, model=model, X=data.X_test, y=data.y_test)
    notice = "No data were held out: everything here was measured on the training data."
    notices = (*known.notices, notice)
    return replace(known, model=model, X=data.X, y=data.y, notices=notices)


def _train_plain(config: RunConfig, data: Dataset, model: Model) -> Model | None:
    """A plain network trained as the model was, where that takes seconds."""
    given = config.model
    if not isinstance(given, ModelConfig) or given.architecture == "FCNN" or not given.layers:
        return None
    width = model.network.features or 1
    work = config.training.epochs * len(data.X) * given.layers * width**2
    if model.task != "classification" or work > BUDGET:
        return None
    chosen = replace(given, architecture="FCNN", T=None, step=None, activation="tanh")
    try:
        plain = build(replace(config, model=chosen), data)
        Trainer(plain, config.training).fit(data)
    except HdnnError:  # it diverges, or its settings do not suit a plain network
        return None
    return plain
