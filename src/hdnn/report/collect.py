"""What a report is made of: the only place of this room that reads run folders and trains."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hdnn.errors import HdnnError
from hdnn.models import Model
from hdnn.training.evaluation import evaluate
from hdnn.training.prepare import build, prepare
from hdnn.training.recorder import GradientLog
from hdnn.training.run_config import RunConfig
from hdnn.training.runs import Run, read_history
from hdnn.training.settings import ModelConfig
from hdnn.training.trainer import Trainer
from hdnn.zoo import network

BUDGET = 3e9
"""Multiplications up to which a plain network is trained for comparison: a few seconds."""


@dataclass(frozen=True)
class Material:
    """A trained model, its data and what is known of its training.

    Args:
        name: of the data, for the title.
        model: None where a run is not finished.
        X, y: data that the model has not been trained on, where there are such.
        held_out: whether they are.
        metrics: by part of the data ("train", "test").
        plain: a plain network of the same size.
        plain_trained: whether it was trained as the model was.
        history: entries by epoch.
        epochs: how many the run was to have.
        record: depths and recordings of gradients during training.
        config, command: the run config as TOML, and the command that repeats the run.
        run: its folder.
        failure: why the training stopped early.
        notices: what a reader must know first.
    """

    name: str
    model: Model | None
    X: Tensor
    y: Tensor
    held_out: bool = False
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    plain: Model | None = None
    plain_trained: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)
    epochs: int | None = None
    record: tuple[tuple[int, ...], list[dict[str, Any]]] | None = None
    config: str | None = None
    command: str | None = None
    run: str | None = None
    failure: str | None = None
    notices: tuple[str, ...] = ()


def of_model(model: Model, X: Any, y: Any, name: str, plain: Model | None = None) -> Material:
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
    beside = _untrained_plain(model) if plain is None else plain
    trained = plain is not None
    return Material(
        name, model, inputs, target, metrics=metrics, plain=beside, plain_trained=trained
    )


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


def of_run(folder: str | Path, data: Any = None) -> Material:
    """What a run folder tells.

    Args:
        folder: of the run, finished or not.
        data: its data, where the caller has them prepared already.
    """
    run = Run.open(folder)
    config = run.read_config()
    history = read_history(run.history) if run.history.exists() else []
    known: dict[str, Any] = {
        "name": Path(config.data.source).stem,
        "run": str(run.folder),
        "history": history,
        "epochs": config.training.epochs,
        "config": config.to_toml(),
        "command": f"hdnn train {_quoted(config.data.source)} "
        f"--config {_quoted(str(run.config))} --out again",
        "failure": run.failure,
    }
    record = None
    if run.gradients.exists():
        header, entries = GradientLog(run.gradients).read()
        record = (header.depths, entries) if entries else None
    if not run.finished:
        empty = torch.empty(0)
        return Material(
            model=None, X=empty, y=empty, record=record, notices=_unfinished(run, known), **known
        )
    model = run.load_model()
    prepared = prepare(config) if data is None else data
    held_out = len(prepared.X_test) > 0
    X, y = (prepared.X_test, prepared.y_test) if held_out else (prepared.X_train, prepared.y_train)
    metrics = json.loads(run.metrics.read_text()) if run.metrics.exists() else {}
    plain, trained = _plain_alike(config, prepared, model)
    return Material(
        model=model,
        X=X,
        y=y,
        held_out=held_out,
        metrics=metrics,
        plain=plain,
        plain_trained=trained,
        record=record,
        notices=() if held_out else ("No data were held out: all figures are of training data.",),
        **known,
    )


def _quoted(text: str) -> str:
    import shlex

    return shlex.quote(text)


def _unfinished(run: Run, known: dict[str, Any]) -> tuple[str, ...]:
    done, total = len(known["history"]), known["epochs"]
    if known["failure"]:
        return (f"The training diverged after {done} of {total} epochs: {known['failure']}",)
    go_on = f"hdnn train --resume {_quoted(str(run.folder))}"
    return (f"This run is not finished: {done} of {total} epochs. Go on with: {go_on}",)


# --- the plain network of the same size -----------------------------------------------------------


def _plain_alike(config: RunConfig, data: Any, model: Model) -> tuple[Model | None, bool]:
    """A plain network trained as the model was, where that takes seconds; else untrained."""
    given = config.model
    if not isinstance(given, ModelConfig):
        return None, False
    if given.architecture == "FCNN" or not given.layers:
        return None, False
    width = model.network.features or 1
    work = config.training.epochs * len(data.X_train) * given.layers * width**2
    if model.task == "classification" and work <= BUDGET:
        chosen = replace(given, architecture="FCNN", T=None, step=None, activation="tanh")
        try:
            plain = build(replace(config, model=chosen), data)
            Trainer(plain, config.training).fit(data.X_train, data.y_train)
            return plain, True
        except HdnnError:  # it diverges, or its settings do not suit a plain network
            pass
    return _untrained_plain(model), False


def _untrained_plain(model: Model) -> Model | None:
    if model.stem.takes_images or len(model.networks) != 1:
        return None
    net = model.network
    if net.name == "FCNN" or net.features is None or not net.layers:
        return None
    draw = torch.Generator().manual_seed(0)
    dtype = model.head.weight.dtype
    plain = network("FCNN", features=net.features, layers=net.layers, generator=draw, dtype=dtype)
    return Model(plain, 1, model.augmentation, model.scaler)
