"""Several starts of one training: other initial weights and batches, of which the best is kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from hdnn.training.run_config import RunConfig

STRIDE = 7_000_000
"""Between the seeds of two starts; the first has the seed of the training itself."""
SEEDS = 2**31 - 1


def seeds(first: int, count: int) -> list[int]:
    """The seeds of all starts.

    >>> seeds(3, 2)
    [3, 7000003]
    """
    return [first, *((first + k * STRIDE) % SEEDS for k in range(1, count))]


def final_loss(history: Iterable[Mapping[str, Any]]) -> float:
    """By what a start is judged: the best validation loss, else the last penalized loss.

    Args:
        history: records of its epochs, by name.
    """
    records = list(history)
    watched = [r["validation_loss"] for r in records if r.get("validation_loss") is not None]
    found = min(watched) if watched else records[-1]["penalized"] if records else math.inf
    return math.inf if math.isnan(found) else float(found)


def configs(config: RunConfig) -> list[RunConfig]:
    """The config of every start."""
    model, training = config.model, config.training
    return [
        replace(
            config,
            model=replace(model, seed=own),
            training=replace(training, seed=theirs, n_init=1),
        )
        for own, theirs in zip(
            seeds(model.seed, training.n_init), seeds(training.seed, training.n_init), strict=True
        )
    ]
