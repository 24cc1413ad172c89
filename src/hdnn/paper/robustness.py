"""Section 4.1 on Figure 1: "the datapoints do not lie close to the decision boundary", measured."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
import torch

from hdnn.analysis import robustness as measure
from hdnn.data import split
from hdnn.paper.experiment import Cell, Experiment, frame
from hdnn.paper.figure1 import PANELS
from hdnn.paper.records import Record
from hdnn.paper.table1 import cells, trained_model

RADII = (0.02, 0.05, 0.1)
LEVELS = (0.01, 0.05, 0.5)
KEY = ("data", "architecture", "layers")
NARROW = ("data", "architecture", "layers", "accuracy, %", "margin: 1, 5, 50 %")
"""Columns that fit on a terminal of 80 columns."""


def run(samples: int, cell: Cell, seeds: Sequence[int]) -> list[Record]:
    """The records of a cell.

    Each has the test ``accuracy``, a fraction; quantiles at `LEVELS` of the ``margins`` (distances
    to the decision boundary, negative where a sample is classified wrongly) and of ``room``, half
    the distance to the nearest sample of the other class (no classifier has larger margins on
    both samples); and the accuracy under ``random`` and under the ``worst`` perturbations of the
    lengths `RADII`.
    """
    records, levels = [], torch.tensor(LEVELS, dtype=torch.float64)
    for seed in seeds:
        model, accuracy = trained_model(cell, seed)
        data = split(cell.data, cell.split, seed=seed)
        X, y = data.X_test[:samples].double(), data.y_test[:samples]
        found = measure(model, X, y, RADII, seed=seed)
        distances = torch.cdist(X, data.X_test.double())
        room = distances.masked_fill(y[:, None] == data.y_test, torch.inf).amin(1) / 2
        record: Record = {name: getattr(cell, name) for name in KEY}
        record |= {"seed": seed, "accuracy": accuracy}
        record |= {"margins": found.margins.quantile(levels).tolist()}
        record |= {"room": room.quantile(levels).tolist()}
        record |= {"random": list(found.random), "worst": list(found.worst)}
        records.append(record)
    return records


def robustness(samples: int = 500) -> Experiment[Cell]:
    """The experiment: all networks of Table 1 with the data and depths of Figure 1.

    Args:
        samples: of the test part that are measured.
    """
    wanted = [cell for data, layers in PANELS for cell in cells(data=[data], layers=[layers])]
    return Experiment(wanted, KEY, functools.partial(run, samples))


def summary(records: Iterable[Record]) -> pd.DataFrame:
    """Means over seeds, as texts: quantiles of margins, and accuracies in per cent."""
    rows = []
    for key, part in frame(robustness().cells, KEY, records).groupby([*KEY], sort=False):

        def mean(name: str, scale: float, form: str, part: pd.DataFrame = part) -> str:
            return ", ".join(format(scale * x, form) for x in np.mean([*part[name]], axis=0))

        radii = ", ".join(f"{radius:g}" for radius in RADII)
        rows.append(
            {
                **dict(zip(KEY, map(str, key), strict=True)),
                "seeds": str(len(part)),
                "accuracy, %": f"{100 * part.accuracy.mean():.2f}",
                "margin: 1, 5, 50 %": mean("margins", 1, ".3f"),
                "half the class distance": mean("room", 1, ".3f"),
                f"random {radii}, %": mean("random", 100, ".1f"),
                f"worst {radii}, %": mean("worst", 100, ".1f"),
            }
        )
    return pd.DataFrame(rows)
