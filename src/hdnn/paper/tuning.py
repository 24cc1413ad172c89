"""Choosing what a protocol leaves open, on a validation part of the training data.

    python -m hdnn.paper.tuning --protocol tuned

trains every cell for every choice on 80 % of the training part for a few seeds (100 to 103, which
no reported record uses), and keeps the choice with the lowest mean cross-entropy on the other 20 %
among those whose accuracy there is the best (within 0.02 points). The test set is never used.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import numpy as np

from hdnn.paper.experiment import Protocol, find
from hdnn.paper.render import write
from hdnn.paper.table1 import PROTOCOLS, Cell, Settings, cells, train
from hdnn.training import toml

SEEDS = tuple(range(100, 104))


def candidates(chosen: Protocol) -> list[Settings]:
    """All choices of a protocol."""
    names = list(chosen.choices)
    products = itertools.product(*chosen.choices.values())
    return [Settings(**dict(zip(names, values, strict=True))) for values in products]


def tune(cell: Cell, chosen: Protocol) -> tuple[Settings, list[dict[str, object]]]:
    """The settings of a cell, and what every choice gave."""
    tried: list[dict[str, object]] = []
    scores: list[tuple[float, float, Settings]] = []
    for given in candidates(chosen):
        found = train(cell, chosen, given, "paper", SEEDS, held_out=True)
        accuracy = float(np.mean(found.test_accuracy))
        loss = float(np.nan_to_num(np.mean(found.test_loss), nan=np.inf))
        scores.append((accuracy, loss, given))
        tried.append({**given.__dict__, "accuracy": accuracy, "loss": loss})
    best = max(accuracy for accuracy, _, _ in scores)
    good = [score for score in scores if score[0] >= best - 2e-4]
    return min(good, key=lambda score: score[1])[2], tried


def main() -> None:
    """Tune all cells of a protocol, resumable cell by cell; then write settings.toml."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", default="tuned")
    parser.add_argument("--log", type=Path, default=Path("tuning.jsonl"))
    arguments = parser.parse_args()
    chosen = find("protocol", arguments.protocol, PROTOCOLS)
    done = {}
    if arguments.log.exists():
        for line in arguments.log.read_text().splitlines():
            entry = json.loads(line)
            if entry["protocol"] == chosen.name:
                done[entry["cell"]] = entry["settings"]
    for cell in cells():
        if cell.name in done:
            continue
        found, tried = tune(cell, chosen)
        done[cell.name] = found.__dict__
        entry = {"protocol": chosen.name, "cell": cell.name, "settings": found.__dict__}
        with open(arguments.log, "a") as file:
            file.write(json.dumps({**entry, "tried": tried}) + "\n")
    write_settings(chosen.name, done)


def write_settings(name: str, done: dict[str, dict[str, object]]) -> None:
    """Put the settings of a protocol into settings.toml, leaving the others."""
    path = Path(__file__).with_name("settings.toml")
    text = path.read_text() if path.exists() else ""
    kept = [
        block for block in text.split("\n\n") if block and not block.startswith(f"[{name}.cells.")
    ]
    blocks = [
        toml.dumps({f'{name}.cells."{key}"': values}).rstrip() for key, values in done.items()
    ]
    write(path, "\n\n".join([*kept, *blocks]) + "\n")


if __name__ == "__main__":
    main()
