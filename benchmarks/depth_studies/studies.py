"""The studies: each lists its cases, and measures one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from depth_studies import images
from depth_studies.training import Case, Planar, Result, accuracy, curve_of, trained
from hdnn.analysis import depth_error
from hdnn.training import Trainer
from hdnn.training.coarsening import Coarsening
from hdnn.training.prepare import Prepared
from hdnn.training.settings import DataConfig

LEVELS: dict[str, dict[str, Any]] = {
    "64": {},
    "16,64": {"levels": (16, 64)},
    "4,16,64": {"levels": (4, 16, 64)},
    "4,16,64 (3:2:1)": {"levels": (4, 16, 64), "level_epochs": (3, 2, 1)},
}
SMOOTH: dict[str, dict[str, Any]] = {
    "64, 16 epochs": {"epochs": 16},
    "64, 8 epochs": {"epochs": 8},
    "64, 8 epochs, smooth": {"epochs": 8},
    "8,16,64, 20 epochs (2:2:1), smooth": {
        "epochs": 20,
        "levels": (8, 16, 64),
        "level_epochs": (2, 2, 1),
    },
}
SMOOTH_T = {"H1": 1.0, "MS3": 0.5}
SAMPLES = 4
"""Of smooth initial weights: random at so many times, straight lines between them."""
COARSENED: dict[str, dict[str, Any]] = {
    "64": {},
    "64, alpha = 0.05": {"alpha": 0.05},
    "64, alpha = 0.5": {"alpha": 0.5},
    "64, alpha = 5": {"alpha": 5.0},
    "4,16,64": {"levels": (4, 16, 64)},
}
DEEP: dict[str, dict[str, Any]] = {"1024": {}, "4,...,1024": {"levels": (4, 16, 64, 256, 1024)}}
HARD = (("MS3", 1), ("H1", 1), ("H2", 1), ("MS3", 2))


class Study(NamedTuple):
    """Cases, and what measures one of them."""

    cases: Callable[[], Iterator[Case]]
    measure: Callable[[Case], Result]


def _planar(case: Case) -> Planar:
    return Planar(case["data"], case["architecture"], case["layers"], case["seed"])


# --- multilevel training --------------------------------------------------------------------------


def swiss_roll() -> Iterator[Case]:
    for seed in range(20):
        for name in ("H1", "MS3"):
            for way in LEVELS:
                given = {"data": "swiss-roll", "architecture": name, "layers": 64}
                yield {**given, "way": way, "seed": seed}


def measure_swiss_roll(case: Case) -> Result:
    return curve_of(trained(_planar(case), **LEVELS[case["way"]])[1])


def smooth() -> Iterator[Case]:
    for seed in range(20):
        for name in SMOOTH_T:
            for way in SMOOTH:
                given = {"data": "swiss-roll", "architecture": name, "layers": 64}
                yield {**given, "way": way, "seed": seed}


def measure_smooth(case: Case) -> Result:
    planar, way = _planar(case), case["way"]
    model = planar.model(
        T=SMOOTH_T[case["architecture"]], samples=SAMPLES if "smooth" in way else None
    )
    return curve_of(trained(planar, model=model, **SMOOTH[way])[1])


def deep() -> Iterator[Case]:
    for seed in range(3):
        for way in DEEP:
            given = {"data": "swiss-roll", "architecture": "H1", "layers": 1024}
            yield {**given, "way": way, "seed": seed}


def measure_deep(case: Case) -> Result:
    return curve_of(trained(_planar(case), gradients=True, **DEEP[case["way"]])[1])


# --- coarsening -----------------------------------------------------------------------------------


def coarsened() -> Iterator[Case]:
    for seed in range(3):
        for data in ("swiss-roll", "double-moons"):
            for name in ("MS1", "MS2", "MS3", "H1", "H2"):
                for way in COARSENED:
                    given = {"data": data, "architecture": name, "layers": 64}
                    yield {**given, "way": way, "seed": seed}


def measure_coarsened(case: Case) -> Result:
    planar = _planar(case)
    model, _ = trained(planar, every=50, **COARSENED[case["way"]])
    parts = planar.parts()
    data = Prepared(
        DataConfig(case["data"], seed=case["seed"]),
        parts.X_train.float(),
        parts.y_train,
        parts.X_test.float(),
        parts.y_test,
        "classification",
        [0, 1],
    )
    coarsening = Coarsening(model, data, planar.config())
    scores = coarsening.table()
    error = depth_error(model, data.X_test[:500])
    return {
        "depths": [score.layers for score in scores],
        "accuracies": [score.score for score in scores],
        "speed": [scores[-1].seconds / score.seconds for score in scores],
        "smallest": coarsening.smallest(0.1).network.layers,
        "change": error.changes[0],
        "observed_order": error.observed_order if error.changes[1] > 0 else None,
    }


# --- second order ---------------------------------------------------------------------------------


def varpro() -> Iterator[Case]:
    for seed in range(20):
        for name, layers in HARD:
            for way in ("coordinate", "varpro"):
                given = {"data": "double-moons", "architecture": name, "layers": layers}
                yield {**given, "way": way, "seed": seed}


def measure_varpro(case: Case) -> Result:
    options = {"coordinate": {"epochs": 50, "every": 10}, "varpro": {"epochs": 30}}[case["way"]]
    return curve_of(trained(_planar(case), method=case["way"], **options)[1])


# --- steps ----------------------------------------------------------------------------------------


def steps() -> Iterator[Case]:
    for seed in range(5):
        for data in ("swiss-roll", "double-moons"):
            for name in ("H1", "MS3"):
                for way in ("equal", "learned"):
                    given = {"data": data, "architecture": name, "layers": 4}
                    yield {**given, "way": way, "seed": seed}


def measure_steps(case: Case) -> Result:
    planar = _planar(case)
    data, model = planar.parts(), planar.model(learn_steps=case["way"] == "learned")
    begin = time.perf_counter()
    Trainer(model, planar.config(loop="autograd")).fit(data.X_train.float(), data.y_train)
    seconds = time.perf_counter() - begin
    X = data.X_test.float()
    h, adaptive = torch.as_tensor(model.network.h).detach().reshape(-1), {}
    with torch.no_grad():
        for tolerance in (1e-1, 1e-2, 1e-3, 1e-4):
            solution = model.network.ode().solve(model.preprocess(X), tolerance)
            found = (model.head(solution.y)[:, 0] > 0).long() == data.y_test
            adaptive[str(tolerance)] = [solution.evaluations, float(found.double().mean())]
    return {
        "accuracy": accuracy(model, X, data.y_test),
        "seconds": seconds,
        "ratio": float(h.max() / h.min()),
        "T": float(h.sum()) if len(h) > 1 else model.network.T,
        "adaptive": adaptive,
    }


STUDIES = {
    "swiss-roll": Study(swiss_roll, measure_swiss_roll),
    "smooth": Study(smooth, measure_smooth),
    "varpro": Study(varpro, measure_varpro),
    "coarsened": Study(coarsened, measure_coarsened),
    "deep": Study(deep, measure_deep),
    "steps": Study(steps, measure_steps),
    "mnist": Study(images.mnist, images.measure_mnist),
    "mnist-full": Study(images.mnist_full, images.measure_mnist_full),
    "table2": Study(images.table2, images.measure_table2),
}
