"""Joint descent against scikit-learn's perceptron: seconds an epoch, and to equal accuracy.

    python benchmarks/joint.py [--rows 1.0] [--repeats 3] [shape ...]

Both train on the same synthetic tables of five shapes, in turns, in one process. The perceptron is
MLPClassifier with its defaults; its fit gives the time and the held-out accuracy to be reached.
HDNN trains with one-cycle AdamW for a few epochs, chosen by shape only (see `Plan`); with the epoch
after which its held-out accuracy is that of the perceptron.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import make_classification
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

import hdnn
from hdnn.models import Augmentation, Model, Projection
from hdnn.training import Trainer, TrainingConfig


class Shape(NamedTuple):
    """A table: rows, features, how many of these inform, classes, one-hot columns or numbers."""

    rows: int
    features: int
    informative: int
    classes: int = 2
    binary: bool = False


SHAPES = {
    "10000x20": Shape(10_000, 20, 12),
    "100000x50": Shape(100_000, 50, 20),
    "8000x117": Shape(8_000, 117, 30, binary=True),
    "2000x500": Shape(2_000, 500, 30),
    "6435x36": Shape(6_435, 36, 16, classes=6),
}


class Plan(NamedTuple):
    """How HDNN is trained: by shape only."""

    width: int
    layers: int
    batch: int
    epochs: int
    learning_rate: float


def plan(rows: int) -> Plan:
    """Width 64, padded or projected to, and four layers; batches and epochs by rows."""
    batch = 128 if rows < 10_000 else 256
    epochs = int(np.clip(200_000 / rows, 8, 25))
    return Plan(64, 4, batch, epochs, 0.4 / 64)


def table(shape: Shape, share: float, seed: int = 0) -> list[np.ndarray]:
    """X_train, X_test, y_train, y_test, standardized."""
    X, y = make_classification(
        int(shape.rows * share),
        shape.features,
        n_informative=shape.informative,
        n_redundant=0,
        n_classes=shape.classes,
        n_clusters_per_class=4,
        flip_y=0.02,
        random_state=seed,
    )
    X = (X > 0).astype(float) if shape.binary else X
    parts = train_test_split(X, y, test_size=0.2, random_state=seed)
    scaler = StandardScaler().fit(parts[0])
    return [scaler.transform(part) for part in parts[:2]] + parts[2:]


def fit_mlp(parts: list[np.ndarray], seed: int) -> tuple[float, float, int]:
    """Seconds, held-out accuracy and epochs of the perceptron."""
    X, X_test, y, y_test = parts
    begin = time.perf_counter()
    mlp = MLPClassifier(random_state=seed).fit(X, y)
    return time.perf_counter() - begin, mlp.score(X_test, y_test), mlp.n_iter_


def fit_hdnn(
    parts: list[np.ndarray], seed: int, how: Plan, loop: str = "auto"
) -> tuple[float, list[tuple[float, float]]]:
    """Seconds; and after every epoch the seconds so far, with the held-out accuracy."""
    X, X_test, y, y_test = (torch.tensor(part) for part in parts)
    X, X_test, features = X.float(), X_test.float(), X.shape[1]
    outputs = 1 if int(y.max()) == 1 else int(y.max()) + 1
    generator, watched = torch.Generator().manual_seed(seed), [0.0]
    begin = time.perf_counter()
    network = hdnn.network(
        "H1",
        features=how.width,
        layers=how.layers,
        T=1.0,
        dtype=torch.float32,
        generator=generator,
        scale=1 / how.width**0.5,
    )
    if features > how.width:
        stem = {"projection": Projection(features, how.width, generator, torch.float32)}
    else:
        stem = {"augmentation": Augmentation(features, how.width)}
    model = Model(network, outputs, **stem)
    config = TrainingConfig(
        method="joint",
        optimizer="AdamW",
        epochs=how.epochs,
        batch_size=how.batch,
        learning_rate=how.learning_rate,
        schedule="one-cycle",
        warmup=1.0,
        weight_decay=0.01,
        alpha=1e-3,
        alpha_c=1e-4,
        loop=loop,
        seed=seed,
    )
    curve: list[tuple[float, float]] = []

    def look(trainer: Trainer, entry: object) -> None:
        now = time.perf_counter()
        accuracy = float((model.predict(X_test) == y_test).double().mean())
        curve.append((now - begin - watched[0], accuracy))
        watched[0] += time.perf_counter() - now  # looking is no part of the training

    Trainer(model, config, [look]).fit(X, y)
    return curve[-1][0], curve


def compare(name: str, share: float, repeats: int) -> str:
    """A line of the table: medians over the repeats, in turns."""
    shape = SHAPES[name]
    how, found = plan(int(shape.rows * share * 0.8)), []
    for seed in range(repeats):
        parts = table(shape, share, seed)
        seconds, accuracy, epochs = fit_mlp(parts, seed)
        ours, curve = fit_hdnn(parts, seed, how)
        reached = [at for at, score in curve if score >= accuracy]
        first = reached[0] if reached else float("nan")
        found.append(
            (
                seconds / epochs,
                ours / how.epochs,
                seconds,
                ours,
                first,
                100 * accuracy,
                100 * curve[-1][1],
            )
        )
    middle = [statistics.median(column) for column in zip(*found, strict=True)]
    numbers = "  ".join(f"{number:9.4g}" for number in middle)
    return f"{name:10} w{how.width} b{how.batch} e{how.epochs:<3} {numbers}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--rows", type=float, default=1.0, help="share of the rows")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    heads = ("MLP s/ep", "HDNN s/ep", "MLP s", "HDNN s", "to equal", "MLP %", "HDNN %")
    print(f"{'shape':25}" + "  ".join(f"{head:>9}" for head in heads))
    for name in given.shapes:
        print(compare(name, given.rows, given.repeats), flush=True)


if __name__ == "__main__":
    main()
