"""The model that a resolved config is built to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import hdnn
from hdnn.config import Config
from hdnn.data import Dataset
from hdnn.errors import HdnnError
from hdnn.models import Model
from hdnn.schemes import ForwardEuler
from hdnn.training.build import build, statistics
from hdnn.training.resolve import resolve
from hdnn.zoo import Architecture

IMAGES = Dataset.from_arrays(
    np.random.default_rng(0).integers(0, 256, size=(12, 1, 8, 8), dtype=np.uint8),
    np.arange(12) % 3,
    task="classification",
)


def table() -> Dataset:
    X = np.random.default_rng(0).normal(size=(100, 10))
    return Dataset.from_arrays(X, np.arange(100) % 2)


def test_an_image_model_has_the_activation_asked_for() -> None:
    model = build(resolve(Config(model={"activation": "sigmoid"}), IMAGES).model, IMAGES)
    assert [
        block.field.activation.name for block in model.modules() if hasattr(block, "field")
    ] == ["sigmoid"]


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


def test_images_of_floats_are_not_standardized() -> None:
    floats = replace(IMAGES, X=IMAGES.X.double())
    with pytest.raises(HdnnError, match=r"uint8, from 0 to 255, got torch\.float64"):
        built(floats)
    model = built(floats, standardize=False, dtype="float64")
    assert model(floats.X / 255).shape == (12, 3)


def test_statistics_of_images_are_exact() -> None:
    mean, std = statistics(IMAGES.X)
    scaled = IMAGES.X.double() / 255
    assert mean[0] == pytest.approx(float(scaled.mean()), rel=1e-12)
    assert std[0] == pytest.approx(float(scaled.std(correction=0)), rel=1e-12)


def test_images_in_floating_point_are_not_standardized() -> None:
    X = torch.rand(12, 1, 8, 8, dtype=torch.float32)
    data = Dataset.from_arrays(X, np.arange(12) % 3, task="classification")
    with pytest.raises(HdnnError, match=r"uint8, from 0 to 255, got torch\.float32"):
        built(data)
    assert built(data, standardize=False)(X).shape == (12, 3)
