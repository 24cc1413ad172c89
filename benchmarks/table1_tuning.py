"""Choose what the protocols of Table 1 leave open, on a validation part of the training data.

    python benchmarks/table1_tuning.py --protocol tuned

trains every cell for every choice on 80 % of the training part for a few seeds (100 to 103, which
no reported record uses), and keeps the choice with the lowest mean cross-entropy on the other 20 %
among those whose accuracy there is the best (within 0.02 points). The test set is never used.
It takes hours, continues where it was interrupted, and in the end prints the lines of
src/hdnn/training/protocols.toml.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
from structure import best

from hdnn.data import split
from hdnn.paper import ensembles
from hdnn.paper.experiment import KEY, Cell, Experiment
from hdnn.paper.records import Record, Records
from hdnn.paper.table1 import CellSettings, cells, train

SEEDS = range(100, 104)
CHOICES = {
    "paper": [CellSettings(T, 0.05, "append") for T in (0.3, 0.6, 1.2, 2.4, 4.8, 9.6)],
    "tuned": [
        CellSettings(*choice)
        for choice in itertools.product(
            (0.1, 0.2, 0.4, 1.0, 2.5, 6.0), (0.05, 0.1), ("append", "spread")
        )
    ],
}


def run(choices: Sequence[CellSettings], cell: Cell, seeds: Sequence[int]) -> list[Record]:
    """A record for every seed of a cell, with what every choice gives on its validation part."""
    records = [{**dict(zip(KEY, cell, strict=False)), "seed": seed, "tried": []} for seed in seeds]
    # 20 % of the training part stand in place of the test part.
    parts = [split(cell.data, cell.split, seed=seed).hold_out(0.2, seed) for seed in seeds]
    for choice in choices:
        data = ensembles.SeedSamples.stack(seeds, parts, choice.padding, torch.float32)
        accuracies, losses = ensembles.measure(*train(cell, choice, data), data.X_test, data.y_test)
        for record, accuracy, loss in zip(records, accuracies, losses, strict=True):
            record["tried"].append({"accuracy": float(accuracy), "loss": float(loss)})
    return records


def main() -> None:
    """Try all choices of a protocol, and print the best ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", choices=list(CHOICES), default="tuned")
    parser.add_argument("--out", type=Path, default=Path("tuning"))
    options = parser.parse_args()
    choices, wanted = CHOICES[options.protocol], cells(options.protocol)
    experiment = Experiment(wanted, KEY, functools.partial(run, choices), len(SEEDS))
    records = experiment.sweep(SEEDS, Records(options.out, KEY))
    print(f"[table1.{options.protocol}.cells]")
    for cell in wanted:
        own = [r for r in records if all(r[name] == getattr(cell, name) for name in KEY)]
        means = pd.concat(pd.DataFrame(r["tried"]) for r in own).groupby(level=0).mean()
        T, rate, padding = choices[best(means.accuracy, means.loss)]
        values = f'T = {T}, learning_rate = {rate}, padding = "{padding}"'
        print(f'"{cell.data}/{cell.architecture}/{cell.layers}" = {{ {values} }}')


if __name__ == "__main__":
    main()
