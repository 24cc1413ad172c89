"""Defaults for tables, chosen from rows, features and outputs: the same for every front end.

A planar problem has the paper's settings, and so has a table whose settings are all given. What is
left open for a table is chosen here, by the command line and by the estimators alike; how it was
found is told in docs/estimators.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hdnn.models import Scaler
from hdnn.models.stems import MOST_PADDED, default_width
from hdnn.training.settings import ModelConfig

LAYERS = 8
TIMES = {("H1", "classification"): 3.0}
"""The final time where it is not 1.2, by architecture and task; others were not tried on tables."""

ALPHA = 1e-3
"""Penalty of the smoothness of the weights in time, ..."""
ALPHA_C = 1e-2
"""... and of the output layer."""

MANY = 800
"""From so many rows on, a network may be wider than twice the features."""

SMALL = 1000
"""Up to so many rows, numbers are float64."""

FULL_BATCH = {"coordinate": 500, "joint": 200}
"""Up to so many rows, they are one batch, ..."""

BATCH = 200
"""... and beyond in batches of so many."""

RATES = {"classification": 0.3, "regression": 0.4}
"""Times 1 / width: the learning rate of Adam, which the schedule brings to 0, ..."""

STEADY = 2 / 3
"""... and that part of it where the learning rate stays."""
METHOD = "joint"
"""Solving the output layer for every batch, as the paper does, overfits small noisy tables."""


def width(rows: int, features: int) -> int:
    """Twice the features, from 8 to 64; from 800 rows on four times, from 32 to 64.

    More than 64 features are projected to 64. Up to 64 a whole epoch runs in compiled code, and a
    width of 96 predicts no better.
    """
    least, factor = (8, 2) if rows < MANY else (32, 4)
    return max(least, min(factor * features, MOST_PADDED))


def batch_size(rows: int, method: str) -> int:
    """How many rows an iteration sees."""
    return rows if rows <= FULL_BATCH[method] else BATCH


def schedule(method: str) -> str:
    """The learning rate over epochs: joint descent ends at 0."""
    return "cosine" if method == "joint" else "constant"


def learning_rate(width: int, schedule: str, task: str) -> float:
    """A step of Adam moves every entry of K alike, so its norm by width times the rate."""
    return RATES[task] / width * (STEADY if schedule == "constant" else 1)


def scale(width: int) -> float:
    """The initial size of K; 1 / sqrt(width) keeps K y as large as y."""
    return float(width**-0.5)


def dtype(rows: int, columns: Sequence[Scaler]) -> str:
    """float64 for few rows, or where a column's mean would swallow its spread in float32."""
    offset = any(bool((s.mean.abs() > 1e3 * s.scale).any()) for s in columns)
    return "float64" if rows <= SMALL or offset else "float32"


class TableShape(NamedTuple):
    """What defaults depend on: rows to train on, features after encoding, and the task."""

    rows: int
    features: int
    task: str


def filled(
    model: Mapping[str, Any],
    training: Mapping[str, Any],
    shape: TableShape,
    scalers: Sequence[Scaler],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of model and training, with what they leave open chosen for a table.

    Args:
        model, training: the settings that were asked for, by name.
        shape: of the training data.
        scalers: means and spreads of its columns, and of what a regression predicts.

    Returns:
        The settings for `ModelConfig` and for `TrainingConfig`.
    """
    projects = model.get("projection") != "off"
    usual = width(*shape[:2]) if projects else default_width(shape.features, "off")
    model = {"layers": LAYERS, "width": usual, **_time(model, shape.task), **model}
    wide = model["width"] + model["width"] % 2
    model = {"scale": scale(wide), "dtype": dtype(shape.rows, scalers), **model}
    training = {"method": METHOD, **training}
    training = {"schedule": schedule(training["method"]), **training}
    chosen = {
        "batch_size": batch_size(shape.rows, training["method"]),
        "learning_rate": learning_rate(wide, training["schedule"], shape.task),
        "alpha": ALPHA,
        "alpha_c": ALPHA_C,
    }
    return model, {**chosen, **training}


def _time(model: Mapping[str, Any], task: str) -> dict[str, float]:
    """The final time, where neither it nor the step is given."""
    case = str(model.get("architecture", ModelConfig().architecture)).upper(), task
    given = {"T", "step"} & model.keys()
    return {} if given or case not in TIMES else {"T": TIMES[case]}
