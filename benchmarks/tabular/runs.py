"""Fits and their records: 5 folds, several seeds, models in turn within a fold."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import sklearn
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold, StratifiedKFold

import hdnn
from hdnn.errors import HdnnError
from hdnn.paper.records import Key, Record
from tabular.models import HDNN, make
from tabular.sources import Table, read

FOLDS, SEEDS = 5, range(3)
KEY = ("table", "model", "fold")
"""With the seed, what a record is of."""


def folds(table: Table, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Training and test rows of every fold, the same for all models."""
    kind = StratifiedKFold if table.task == "classification" else KFold
    return list(kind(FOLDS, shuffle=True, random_state=seed).split(table.X, table.y))


def fit(table: Table, model: str, seed: int, fold: int, **settings: Any) -> Record:
    """Fit once: accuracy and log loss, or R2, on the fold; wall-clock and CPU seconds of `fit`.

    A training that diverges has no score, and says why.
    """
    train, test = folds(table, seed)[fold]
    estimator = make(model, table.task, seed, **settings)
    record: Record = {"table": table.name, "model": model, "seed": seed, "fold": fold}
    version = hdnn.__version__ if model == HDNN else sklearn.__version__
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        # That scikit-learn's perceptron has not converged in its 200 epochs is one of its defaults.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            estimator.fit(table.X.iloc[train], table.y[train])
    except HdnnError as error:
        return record | {"score": None, "error": str(error)[:100], "version": version}
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    X, y = table.X.iloc[test], table.y[test]
    record["score"] = round(float(estimator.score(X, y)), 5)
    if table.task == "classification":
        loss = log_loss(y, estimator.predict_proba(X), labels=estimator.classes_)
        record["log_loss"] = round(float(loss), 5)
    return record | {"seconds": round(wall, 4), "cpu": round(cpu, 4), "version": version}


def run(
    tables: Sequence[str],
    models: Sequence[str],
    seeds: Sequence[int],
    finished: Collection[Key],
    **settings: Any,
) -> Iterator[Record]:
    """The fits that are not finished: seed by seed, so that a part of a run has all tables."""
    for seed, name in itertools.product(seeds, tables):
        fits = itertools.product(range(FOLDS), models)
        missing = [
            (fold, model) for fold, model in fits if (name, model, fold, seed) not in finished
        ]
        if missing:
            table = read(name)
            for fold, model in missing:
                yield fit(table, model, seed, fold, **settings)
