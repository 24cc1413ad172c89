"""The networks and trainings of `golden_cases` give what they gave before; see `make_golden`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from golden_cases import (
    CASES,
    SAMPLES,
    TRAINED,
    TRAININGS,
    VALUES,
    data,
    numbers,
    pack,
    train,
    values,
)
from safetensors.numpy import load_file

import hdnn

TOLERANCE = 1e-12
"""Of values and derivatives; relative to the largest of a row where that exceeds 1."""

RECORDED = load_file(VALUES)
RECORDED_TRAININGS = json.loads(TRAININGS.read_text())


@pytest.fixture(scope="module")
def kernels() -> None:
    """Skip where the compiled kernels are not available."""
    net = hdnn.network("H1", features=4, layers=5, T=1.0)
    choice = net.explain_backend(numbers("y", 3, 4).to(net.K.dtype))
    if choice.backend != "fused":
        pytest.skip(f"no kernels: {choice.reason}")


def check_values(name: str, backend: str) -> None:
    found = values(name, backend)
    for key, array in pack(name, found).items():
        recorded = RECORDED[key]
        assert array.shape == recorded.shape, key
        # A digest is a row, and its norm is the scale of its dot products.
        scale = np.maximum(1.0, np.abs(recorded).max(axis=-1, keepdims=True))
        error = np.abs(array - recorded) / scale
        labels = "" if key.endswith("y_N") else f" of {[*found][1:]}"
        assert error.max() <= TOLERANCE, f"{key}{labels}: errors {error.max(axis=-1)}"


@pytest.mark.parametrize("name", CASES)
def test_the_reference_computes_the_recorded_values_and_derivatives(name: str) -> None:
    check_values(name, "reference")


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.kernels])
def test_the_kernels_compute_the_recorded_values_and_derivatives(name: str) -> None:
    check_values(name, "fused")


@pytest.mark.parametrize("name", TRAINED)
def test_a_training_ends_with_the_recorded_losses_and_scores(name: str) -> None:
    training, recorded, found = TRAINED[name], RECORDED_TRAININGS[name], train(name)
    for key in ("loss", "penalized"):
        assert found[key] == pytest.approx(recorded[key], rel=training.tolerance), key
    rows = len(data(training.problem)[0])
    # R^2 is continuous in the predictions; shares of correct answers are not.
    allowed = 10 * training.tolerance if training.problem == "diabetes" else SAMPLES / rows
    for key in ("train", "test"):
        assert abs(found[key] - recorded[key]) <= allowed, key


def test_all_that_is_recorded_is_tested() -> None:
    assert {key.rpartition(": ")[0] for key in RECORDED} == CASES.keys()
    assert RECORDED_TRAININGS.keys() == TRAINED.keys()
