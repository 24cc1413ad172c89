"""scikit-learn's own checks of the estimators, over a grid of their parameters."""

from __future__ import annotations

import warnings
from random import Random
from typing import Any
from unittest import SkipTest

import torch
from sklearn.utils.estimator_checks import estimator_checks_generator

import hdnn
from attacks.children import judged
from attacks.tally import HELD, Tally, tally

GRID: dict[str, tuple[Any, ...]] = {
    "architecture": ("H1", "H2", "MS1", "MS2", "MS3", "HS"),
    "layers": (1, 3),
    "width": (None, 40),
    "augmentation": ("append", "spread"),
    "time_invariant": (False, True),
    "method": (None, "coordinate", "joint"),
    "batch_size": (None, 10_000),
    "schedule": (None, "cosine"),
    "standardize": (True, False),
    "dtype": (None, "float64"),
}


def judge(seed: int, number: int) -> str:
    """One of the checks of an estimator with parameters of the grid."""
    rng = Random(f"{seed} {number}")
    kind = rng.choice((hdnn.HDNNClassifier, hdnn.HDNNRegressor))
    parameters = {name: rng.choice(values) for name, values in GRID.items()}
    checks = list(estimator_checks_generator(kind(max_iter=100, **parameters)))
    estimator, check = rng.choice(checks)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check(estimator)
    except SkipTest:
        pass
    except Exception as error:
        return f"{check.func.__name__}: {kind.__name__}, {parameters}: {error}"
    return HELD


def run(count: int, seed: int, start: int = 0) -> Tally:
    """Checks of estimators with random parameters of the grid.

    Mini-batches and early stopping are not in it: which rows they see depends on how many there
    are, so that a weight of 2 cannot be the same as a row that is there twice. Nor is float32: the
    checks compare to seven digits.
    """
    torch.set_num_threads(1)
    numbers = range(start, start + count)
    verdicts = judged(lambda number, folder: judge(seed, number), numbers, batch=50, seconds=600)
    return tally("check_estimator", verdicts)
