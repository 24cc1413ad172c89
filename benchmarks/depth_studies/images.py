"""Studies on MNIST: multilevel training, and the coarsening of networks of Table 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

import hdnn
from depth_studies.training import Case, Curve, Result, curve_of
from hdnn.data.images import load
from hdnn.paper import table2 as paper
from hdnn.training import Trainer, TrainingConfig
from hdnn.training.coarsening import Coarsening
from hdnn.training.prepare import PreparedRun

IMAGES, TEST_IMAGES, EPOCHS = 6000, 2000, 6
TABLE2_EPOCHS = 5
"""Of the 40 of the protocol: learning rates go through the whole cycle in them."""
TABLE2: dict[str, dict[str, Any]] = {
    "16": {},
    "16, alpha = 1": {"alpha": 1.0},
    "4,16": {"levels": (4, 16)},
}
"""alpha is 0.001 where it is not given."""


# --- multilevel training --------------------------------------------------------------------------


def mnist() -> Iterator[Case]:
    for seed in range(3):
        for kernel in (1, 3):
            for way in ("16", "4,16"):
                yield {"data": "mnist", "kernel": kernel, "way": way, "seed": seed}


def measure_mnist(case: Case) -> Result:
    return _multilevel(case, IMAGES, TEST_IMAGES)


def mnist_full() -> Iterator[Case]:
    for seed in range(3):
        for way in ("16", "4,16"):
            yield {"data": "mnist", "kernel": 1, "way": way, "seed": seed}


def measure_mnist_full(case: Case) -> Result:
    return _multilevel(case, 60_000, 10_000)


def _multilevel(case: Case, images: int, test_images: int) -> Result:
    data = load("mnist")
    config = hdnn.ImageConfig(
        architecture="MS1", layers=16, T=1.6, kernel=case["kernel"], mean=(0.13,), std=(0.31,)
    )
    draw = torch.Generator().manual_seed(case["seed"])
    model = hdnn.ImageClassifier(config, generator=draw, dtype=torch.float32)
    curve = Curve(data.test[:test_images], data.test_labels[:test_images])
    options = {"levels": (4, 16)} if case["way"] == "4,16" else {}
    settings = TrainingConfig(
        method="joint",
        epochs=EPOCHS,
        batch_size=100,
        learning_rate=0.01,
        schedule="cosine",
        seed=case["seed"],
        **options,
    )
    Trainer(model, settings, [curve]).fit(data.train[:images], data.train_labels[:images])
    return curve_of(curve)


# --- coarsening -----------------------------------------------------------------------------------


def table2() -> Iterator[Case]:
    for way in TABLE2:
        for name in ("MS1", "H2"):
            yield {"data": "mnist", "architecture": name, "layers": 16, "way": way, "seed": 0}


def measure_table2(case: Case) -> Result:
    """A network of Table 2, protocol "tuned" but for the epochs, at every depth up to its own."""
    (cell,) = paper.select([case["architecture"]], [case["layers"]])
    wanted = paper.run_config(cell, paper.protocol("tuned"), case["seed"], epochs=TABLE2_EPOCHS)
    wanted = replace(wanted, training=replace(wanted.training, **TABLE2[case["way"]]))
    prepared = PreparedRun.of(wanted)
    data, model = prepared.data, prepared.model
    history = Trainer(model, wanted.training).fit(data.X_train, data.y_train)
    coarsening = Coarsening(model, data, wanted.training)
    scores = coarsening.table()
    return {
        "epochs": TABLE2_EPOCHS,
        "seconds": history[-1].seconds,
        "depths": [score.layers for score in scores],
        "accuracies": [score.score for score in scores],
        "speed": [scores[-1].seconds / score.seconds for score in scores],
        "smallest": coarsening.smallest(0.1).network.layers,
    }
