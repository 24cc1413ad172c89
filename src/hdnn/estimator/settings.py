"""Settings that are chosen from the data where they are left open, and checks of the others."""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hdnn.errors import HdnnError, unknown_name
from hdnn.models import Scaler
from hdnn.training.loops import MOST_UNKNOWNS

SMALL = 1000
"""Up to so many rows, "auto" computes in float64."""

FULL_BATCH = {"coordinate": 500, "joint": 200}
"""Up to so many rows, "auto" takes them in one batch, ..."""

BATCH = 200
"""... and beyond in batches of so many."""

DTYPES = {"float32": torch.float32, "float64": torch.float64}
METHODS = ("auto", "coordinate", "joint")

# How these were found is told in docs/estimators.md: on synthetic data, for every width at once.
RATES = {"constant": 0.2, "cosine": 0.3}
NARROW = 32
WIDE = 64


def plain(value: Any) -> Any:
    """A numpy scalar, as grid searches give them, as Python's; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def integer(name: str, value: Any, low: int = 1, word: str | None = None) -> int:
    """A checked integer; `word` is what may stand in its place."""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        other = "" if word is None else f", or {word}"
        raise HdnnError(f"{name} is an integer of at least {low}{other}; got {value!r}")
    return value


def number(name: str, value: Any, word: str | None = None, below: float = math.inf) -> float:
    """A checked positive number."""
    value = plain(value)
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not 0 < value < below or value > sys.float_info.max:
        other = "" if word is None else f", or {word}"
        bound = "above 0" if below == math.inf else f"between 0 and {below:g}"
        raise HdnnError(f"{name} is a number {bound}{other}; got {value!r}")
    return float(value)


def choose_width(width: Any, features: int) -> int:
    """The width of the network: twice the features, 8 to 128, and never below the features."""
    if width is None:
        chosen = max(8, min(2 * features, 2 * WIDE), features)
        return chosen + chosen % 2
    return integer("width", width, word="None to choose it from the data")


def choose_method(method: Any, width: int, outputs: int) -> str:
    """Coordinate descent for narrow networks; beyond, solving for a batch would overfit it."""
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    if method != "auto":
        return str(method)
    narrow = width <= NARROW and outputs * (width + 1) <= MOST_UNKNOWNS
    return "coordinate" if narrow else "joint"


def choose_batch(batch_size: Any, rows: int, method: str) -> int:
    """How many rows an iteration sees."""
    if isinstance(batch_size, str) and batch_size == "auto":
        return rows if rows <= FULL_BATCH[method] else BATCH
    return min(rows, integer("batch_size", batch_size, word="'auto'"))


def choose_schedule(schedule: Any, method: str, partial: bool) -> str:
    """The learning rate over epochs: joint descent ends at 0, unless more epochs may follow."""
    if schedule not in ("auto", "constant", "cosine"):
        raise unknown_name("schedule", schedule, ("auto", "constant", "cosine"))
    if partial or (schedule == "auto" and method == "coordinate"):
        return "constant"
    return "cosine" if schedule == "auto" else str(schedule)


def choose_rate(learning_rate: Any, width: int, schedule: str) -> float:
    """A step of Adam moves every entry of K alike, so its norm by width times the rate."""
    if isinstance(learning_rate, str) and learning_rate == "auto":
        return RATES[schedule] / width
    return number("learning_rate", learning_rate, word="'auto'")


def choose_scale(init_scale: Any, width: int) -> float:
    """The initial size of K; 1 / sqrt(width) keeps K y as large as y."""
    if isinstance(init_scale, str) and init_scale == "auto":
        return float(width**-0.5)
    return number("init_scale", init_scale, word="'auto'")


def choose_dtype(dtype: Any, rows: int, columns: Sequence[Scaler]) -> torch.dtype:
    """float64 for few rows, or where a column's mean would swallow its spread in float32."""
    if isinstance(dtype, str) and dtype == "auto":
        offset = any(bool((s.mean.abs() > 1e3 * s.scale).any()) for s in columns)
        return torch.float64 if rows <= SMALL or offset else torch.float32
    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, ("auto", *DTYPES))
    return DTYPES[dtype]
