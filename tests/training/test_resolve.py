"""The values of settings that were not set, and the model that is built of them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import hdnn
from hdnn.config import Config
from hdnn.data import Dataset, load
from hdnn.errors import HdnnError
from hdnn.models import Model
from hdnn.schemes import ForwardEuler
from hdnn.training.build import build, statistics
from hdnn.training.resolve import resolve, table_width
from hdnn.zoo import Architecture

MODEL = {"layers", "width", "T", "step", "architecture", "dtype", "projection"}


def table(rows: int = 100, features: int = 10, task: str = "classification") -> Dataset:
    X = np.random.default_rng(0).normal(size=(rows, features))
    return Dataset.from_arrays(X, np.arange(rows) % 2 * 1.0, task=task)


IMAGES = Dataset.from_arrays(
    np.random.default_rng(0).integers(0, 256, size=(12, 1, 8, 8), dtype=np.uint8),
    np.arange(12) % 3,
    task="classification",
)


def settings(data: Dataset, protocol: str | None = None, **values: Any) -> Any:
    """All settings of model and training, by name."""
    model = {name: value for name, value in values.items() if name in MODEL}
    training = {name: value for name, value in values.items() if name not in MODEL}
    config = resolve(Config(model=model, training=training, protocol=protocol), data)
    return SimpleNamespace(**{**vars(config.training), **vars(config.model)})


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "features", "width"),
    [(100, 1, 8), (799, 13, 26), (799, 65, 64), (800, 1, 32), (800, 13, 52), (10**6, 20_000, 64)],
)
def test_width_by_rows_and_features(rows: int, features: int, width: int) -> None:
    assert table_width(rows, features) == width


RULES: list[tuple[Dataset, dict[str, Any], dict[str, Any]]] = [
    (table(), {}, {"method": "joint", "schedule": "cosine", "epochs": 35, "alpha_c": 0.1}),
    (table(), {}, {"layers": 8, "width": 20, "T": 3.0, "step": None, "scale": 20**-0.5}),
    (table(rows=250), {}, {"epochs": 50, "alpha_c": 0.01, "alpha": 1e-3, "standardize": True}),
    (table(task="regression"), {"width": 10}, {"alpha_c": 0.01, "T": 1.2, "learning_rate": 0.04}),
    (table(), {"step": 0.1, "alpha": 0.5}, {"T": None, "alpha": 0.5}),
    (table(), {"architecture": "MS1"}, {"T": 1.2}),
    (table(), {"architecture": "FCNN"}, {"T": None}),
    (table(rows=201), {}, {"batch_size": 200}),
    (table(rows=500), {"method": "coordinate"}, {"batch_size": 500, "schedule": "constant"}),
    (table(rows=501), {"method": "coordinate"}, {"batch_size": 200}),
    (table(), {"width": 9}, {"learning_rate": 0.03}),  # made even
    (table(), {"width": 10, "schedule": "constant"}, {"learning_rate": 0.02}),
    (table(features=100), {"projection": "off"}, {"width": 132}),
    (table(rows=1000), {}, {"dtype": "float64"}),
    (table(rows=1001), {}, {"dtype": "float32"}),
    (replace(table(rows=1001), X=table(rows=1001).X + 1e6), {}, {"dtype": "float64"}),
    (table(), {"protocol": "paper"}, {"method": "coordinate", "layers": 16, "T": 1.2}),
    (table(), {"protocol": "paper"}, {"learning_rate": 0.05, "alpha": 5e-3, "dtype": "float32"}),
    (IMAGES, {}, {"architecture": "H2", "layers": (4,), "width": (8,), "step": 0.05}),
    (IMAGES, {"layers": 2, "width": 4}, {"layers": (2,), "width": (4,), "decay": 0.8}),
    (IMAGES, {"architecture": "MS1"}, {"step": 0.4}),
    (IMAGES, {"architecture": "ResNet", "T": 0.5}, {"step": None}),
    (IMAGES, {"protocol": "convolutional"}, {"architecture": "MS1", "step": 0.5, "rotate": 10.0}),
    (IMAGES, {"protocol": "convolutional", "T": 1.0}, {"step": None}),
    (IMAGES, {"protocol": "convolutional-flipped", "shift": 0}, {"flip": True, "shift": 0}),
]


@pytest.mark.parametrize(("data", "values", "expected"), RULES, ids=lambda v: str(v)[:50])
def test_rules_for_tables_and_images(
    data: Dataset, values: dict[str, Any], expected: dict[str, Any]
) -> None:
    resolved = settings(data, **values)
    for name, value in expected.items():
        exact = pytest.approx(value) if isinstance(value, float) else value
        assert getattr(resolved, name) == exact, name


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"layers": 30}, ("cosine", 0.1, 1.0, "spread")),  # the nearest cell of Table 1
        ({"layers": 32, "T": 0.3, "learning_rate": 0.01}, ("cosine", 0.01, 0.3, "spread")),
        ({"layers": 32, "protocol": "paper"}, ("constant", 0.05, 0.6, "append")),
        ({"layers": 32, "method": "joint"}, ("constant", 0.05, 1.2, "append")),
        ({"layers": 32, "step": 0.1}, ("cosine", 0.1, None, "spread")),
        ({"architecture": "FCNN"}, ("cosine", 0.05, None, "append")),
    ],
)
def test_planar_problems_have_the_settings_of_table_1(
    values: dict[str, Any], expected: tuple[object, ...]
) -> None:
    resolved = settings(load(Config(data={"size": 20}).data), **values)
    names = "schedule", "learning_rate", "T", "augmentation"
    assert tuple(getattr(resolved, name) for name in names) == expected
    assert (resolved.width, resolved.standardize, resolved.dtype) == (4, False, "float32")


def test_settings_for_other_data_raise() -> None:
    with pytest.raises(HdnnError, match=r"unknown protocol for a table 'convolutional'.*tuned"):
        settings(table(), "convolutional")
    with pytest.raises(HdnnError, match="layers is one number here"):
        settings(table(), layers=[2, 2])
    with pytest.raises(HdnnError, match="watch"):
        resolve(Config(record={}), IMAGES)


@pytest.mark.parametrize("data", [table(), IMAGES], ids=["table", "images"])
def test_resolved_config_is_complete_and_stays(data: Dataset) -> None:
    once = resolve(Config(training={"epochs": 3}), data)
    assert resolve(once, data) == once
    assert {"alpha", "schedule", "loop", "epochs"} <= once.training.fields_set
    assert {"layers", "width", "dtype", "kernel"} <= once.model.fields_set


# --- building -------------------------------------------------------------------------------------


def built(data: Dataset, **model: Any) -> Model:
    return build(resolve(Config(model=model), data).model, data)


def test_architecture_of_ones_own() -> None:
    own = Architecture("own", "y += h J K' tanh(K y)", J="J2", scheme=ForwardEuler())
    model = built(table(), architecture=own, layers=2)
    assert (model.network.name, model.network.features) == ("own", 20)


def test_models_that_cannot_be_built_raise() -> None:
    with pytest.raises(HdnnError, match="weights; at most"):
        built(table(), layers=10**6, width=10**4)
    gaps = table()
    gaps.X[0, 0] = torch.nan
    with pytest.raises(HdnnError, match="standardize"):
        built(gaps, standardize=False)
    with pytest.raises(HdnnError, match=r"hdnn\.training\.resolve"):
        build(hdnn.config.ModelConfig(), table())


def test_statistics_of_images_are_exact() -> None:
    mean, std = statistics(IMAGES.X)
    scaled = IMAGES.X.double() / 255
    assert mean[0] == pytest.approx(float(scaled.mean()), rel=1e-12)
    assert std[0] == pytest.approx(float(scaled.std(correction=0)), rel=1e-12)
