"""The estimators' parameters: what setting each is, and values chosen from the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch

from hdnn.models import Scaler
from hdnn.training import defaults
from hdnn.training.schema import OneOf, check_value, record, setting
from hdnn.training.settings import DTYPES, ModelConfig, TrainingConfig


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
    "levels": Parameter("levels"),
    "width": Parameter("width", ModelConfig),
    "T": Parameter("T", ModelConfig, why="a run takes 1.2 too where step is not given"),
    "step": Parameter("step", ModelConfig),
    "augmentation": Parameter("augmentation", ModelConfig),
    "activation": Parameter("activation", ModelConfig),
    "time_invariant": Parameter("time_invariant", ModelConfig),
    "init_scale": Parameter("scale", Narrowed, True, "of K only, chosen from the width"),
    "standardize": Parameter("standardize", ModelConfig, why="a run does so for tables too"),
    "dtype": Parameter("dtype", ModelConfig, True, "chosen from the rows"),
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


def choose_layers(layers: Any, levels: Any) -> int:
    """The depth of the network: that of the last level, where there are any."""
    depths: tuple[int, ...] | None = checked("levels", levels)
    depth: int = checked("layers", layers)
    return depth if depths is None else depths[-1]


def choose_width(width: Any, features: int) -> int:
    """The width of the network."""
    given: int | None = checked("width", width)
    if given is not None:
        return given
    return defaults.width(features)


def choose_method(method: Any) -> str:
    """How the network is trained."""
    given: str = checked("method", method)
    return defaults.METHOD if given == "auto" else given


def choose_batch(batch_size: Any, rows: int, method: str) -> int:
    """How many rows an iteration sees."""
    given: int | str = checked("batch_size", batch_size)
    return defaults.batch_size(rows, method) if isinstance(given, str) else min(rows, given)


def choose_schedule(schedule: Any, method: str, partial: bool) -> str:
    """The learning rate over epochs; it stays where more epochs may follow."""
    given: str = checked("schedule", schedule)
    if partial:
        return "constant"
    return defaults.schedule(method) if given == "auto" else given


def choose_learning_rate(learning_rate: Any, width: int, schedule: str, task: str) -> float:
    """The learning rate of the first step."""
    given: float | str = checked("learning_rate", learning_rate)
    return defaults.learning_rate(width, schedule, task) if isinstance(given, str) else given


def choose_scale(init_scale: Any, width: int) -> float:
    """The initial size of K."""
    given: float | str = checked("init_scale", init_scale)
    return defaults.scale(width) if isinstance(given, str) else given


def choose_dtype(dtype: Any, rows: int, columns: Sequence[Scaler]) -> torch.dtype:
    """The dtype of data and weights."""
    given: str = checked("dtype", dtype)
    return DTYPES[defaults.dtype(rows, columns) if given == "auto" else given]
