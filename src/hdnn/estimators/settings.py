"""The estimators' parameters: what setting each is, and values chosen from the data."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from hdnn.training.schema import OneOf, check_value, record, setting, settings_of
from hdnn.training.settings import ModelConfig, TrainingConfig

MODEL = frozenset(given.name for given in settings_of(ModelConfig))


@record
class Narrowed:
    """Settings of which the estimators allow less than a run does."""

    scale: float = setting(1.0, "As of a run, but not 0.", "Network", gt=0)
    epochs: int = setting(50, "As of a run, but not 0.", "Training", ge=1)
    validation: float = setting(0.1, "As of a run, but not 0.", "Training", gt=0, lt=1)
    early_stopping: int = setting(10, "As of a run, but not none.", "Training", ge=1)
    schedule: Annotated[str, OneOf(("constant", "cosine"))] = setting(
        "constant", "Those of a run that need no other parameter.", "Training"
    )


class Parameter(NamedTuple):
    """What setting of a run a parameter is.

    Args:
        setting: its name in `ModelConfig` or `TrainingConfig`.
        record: what checks it.
        auto: whether "auto" chooses it from the data.
        why: the reason, where its default is not the setting's.
    """

    setting: str
    record: type = TrainingConfig
    auto: bool = False
    why: str = ""


TABLES = "chosen for tables, see docs/estimators.md; so has a run on a table"
PARAMETERS = {
    "architecture": Parameter("architecture", ModelConfig),
    "layers": Parameter("layers", ModelConfig, why=TABLES),
    "width": Parameter("width", ModelConfig),
    "T": Parameter("T", ModelConfig, True, "chosen from architecture and task"),
    "step": Parameter("step", ModelConfig),
    "augmentation": Parameter("augmentation", ModelConfig),
    "activation": Parameter("activation", ModelConfig),
    "time_invariant": Parameter("time_invariant", ModelConfig),
    "init_scale": Parameter("scale", Narrowed, True, "chosen from the width"),
    "standardize": Parameter("standardize", ModelConfig, why="a run does so for tables too"),
    "dtype": Parameter("dtype", ModelConfig, True, "chosen from the rows"),
    "device": Parameter("device"),
    "method": Parameter("method", auto=True, why="chosen for tables"),
    "solver": Parameter("solver"),
    "max_iter": Parameter("epochs", Narrowed),
    "batch_size": Parameter("batch_size", auto=True, why="chosen from the rows"),
    "learning_rate": Parameter("learning_rate", auto=True, why="chosen from the width"),
    "schedule": Parameter("schedule", Narrowed, True, "chosen from the method"),
    "alpha": Parameter("alpha", why=TABLES),
    "alpha_c": Parameter("alpha_c", why=TABLES),
    "n_iter_no_change": Parameter(
        "early_stopping", Narrowed, why="counts with early_stopping=True only"
    ),
    "validation_fraction": Parameter(
        "validation", Narrowed, why="counts with early_stopping=True only"
    ),
    "class_weight": Parameter("class_weight"),
    "random_state": Parameter("seed", why="None draws another one each time, as in scikit-learn"),
}
"""All but those that only scikit-learn has: early_stopping (a switch), warm_start, verbose."""


def plain(value: Any) -> Any:
    """A numpy scalar, as grid searches give them, as Python's; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def checked(name: str, value: Any) -> Any:
    """The value of a parameter, checked by the record of its setting.

    Raises:
        HdnnError: it is not allowed.
    """
    given = PARAMETERS[name]
    besides = "auto" if given.auto else None
    return check_value(given.record, given.setting, plain(value), name, besides)


def asked_for(estimator: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings that an estimator's parameters give, of model and of training.

    Those that the data choose are not among them, nor architecture, class weights and seed, which
    scikit-learn's conventions make more than a setting.

    Raises:
        HdnnError: a value is not allowed.
    """
    stopping = ("validation_fraction", "n_iter_no_change")
    besides = ("architecture", "class_weight", "random_state")
    found: dict[str, dict[str, Any]] = {"model": {}, "training": {}}
    for name, given in PARAMETERS.items():
        if name in besides or (name in stopping and not estimator.early_stopping):
            continue
        value = checked(name, getattr(estimator, name))
        if value is not None and value != "auto":
            table = "model" if given.setting in MODEL else "training"
            found[table][given.setting] = value
    return found["model"], found["training"]
