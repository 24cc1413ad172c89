"""Convolutional Hamiltonian networks of fewer than 100,000 parameters on MNIST and Fashion-MNIST.

    python benchmarks/convolutional.py --data mnist --data fashion-mnist

trains each data set with seeds 0, 1 and 2 and writes results/convolutional/records.jsonl, a line
when a training ends: accuracies of the last epoch. A training that is interrupted goes on from its
last epoch; one that has a record is not repeated.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import hdnn
from hdnn.config import Config
from hdnn.paper.experiment import KEY
from hdnn.paper.records import Record, Records
from hdnn.paper.table2 import SPLIT
from hdnn.training.runs import Run, prepare, read_history

SEEDS = (0, 1, 2)
PROTOCOLS = {"mnist": "convolutional", "fashion-mnist": "convolutional-flipped"}
OUT = Path(__file__).parent.parent / "results" / "convolutional"


WORDS = """# Convolutional Hamiltonian networks: records

    python benchmarks/convolutional.py

trains the protocols `convolutional` (MNIST) and `convolutional-flipped` (Fashion-MNIST) of
`hdnn train` with seeds 0, 1, 2: 3x3 convolution to 16 channels, then stages of 32 channels at
14 x 14 and 64 channels at 7 x 7 whose MS1 blocks have K = 3x3 convolutions (h = 0.5), joined by
strided convolutions with batch normalization and relu, and a linear output layer. AdamW, one-cycle
learning rate up to 0.005, averaged weights. Training images are shifted, rotated and resized a
little (MNIST), or shifted and mirrored (Fashion-MNIST). Settings follow a few runs on 10,000 of
the training images (docs/images.md); accuracies are of the last epoch. Seconds are wall time of
one thread, beside whatever else the machine did.
"""


def run_config(data: str, seed: int) -> Config:
    """The protocol for a data set, with a seed for weights, batches and distortions."""
    return Config(
        data={"source": data},
        model={"seed": seed},
        training={"seed": seed},
        protocol=PROTOCOLS[data],
    )


def train(data: str, seed: int, folder: Path) -> Record:
    """Train one seed, or continue its training."""
    prepared, run = prepare(run_config(data, seed)), Run(folder)
    stale = run.config_file.is_file() and run.config != prepared.config
    if not run.finished or stale:
        run = Run.create(folder, prepared.config, overwrite=stale)
        run.train(checkpoint_seconds=0.0, prepared=prepared)
    metrics, entries = json.loads(run.metrics.read_text()), read_history(run.history)
    model, seconds = prepared.config.model, entries[-1]["seconds"]
    return {
        "data": data,
        "architecture": model.architecture,
        "layers": sum(model.layers),
        "protocol": PROTOCOLS[data],
        "split": SPLIT,
        "seed": seed,
        "T": model.step * sum(model.layers),
        "train_accuracy": metrics["train"]["accuracy"],
        "test_accuracy": metrics["test"]["accuracy"],
        "seconds": round(seconds, 1),
        "version": hdnn.__version__,
        "epochs": len(entries),
        "epoch_seconds": round(seconds / len(entries), 3),
        "parameters": sum(p.numel() for p in run.load_model().parameters()),
    }


def page(records: list[Record]) -> str:
    """The page beside the records."""
    lines = [WORDS]
    for data in PROTOCOLS:
        found = [record for record in records if record["data"] == data]
        if not found:
            continue
        mean = 100 * sum(record["test_accuracy"] for record in found) / len(found)
        lines += [
            f"## {data}: {mean:.2f} % on the test set, {found[0]['parameters']:,} parameters",
            "",
            "| seed | train, % | test, % | epochs | minutes |",
            "| --- | --- | --- | --- | --- |",
        ]
        lines += [
            f"| {r['seed']} | {100 * r['train_accuracy']:.2f} | {100 * r['test_accuracy']:.2f} "
            f"| {r['epochs']} | {r['seconds'] / 60:.1f} |"
            for r in found
        ]
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", action="append", choices=list(PROTOCOLS))
    parser.add_argument("--seed", action="append", type=int)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    store = Records(given.out, KEY)
    for data in given.data or PROTOCOLS:
        for seed in given.seed or SEEDS:
            if any((r["data"], r["seed"]) == (data, seed) for r in store.read().values()):
                continue
            folder = given.out.with_name("convolutional.unfinished") / f"{data}-{seed}"
            record = train(data, seed, folder)
            store.add([record])
            shutil.rmtree(folder)
            print(f"{data}, seed {seed}: test {100 * record['test_accuracy']:.2f} %")
    records = list(store.read().values())
    (given.out / "README.md").write_text(page(records))


if __name__ == "__main__":
    main()
