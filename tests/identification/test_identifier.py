"""The estimator: scikit-learn's manners, recordings as lists, and errors that say what to do."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import hdnn
from hdnn.data import load_recordings
from hdnn.errors import HdnnError
from hdnn.identification import SystemIdentifier

TANKS, TEST = load_recordings("two-tanks")
U, Y = TANKS.inputs[0], TANKS.outputs[0]


def quick(**options: Any) -> SystemIdentifier:
    return SystemIdentifier(
        **({"states": 2, "units": 4, "iterations": 8, "restarts": 1, "random_state": 0} | options)
    )


@pytest.fixture(scope="module")
def fitted() -> SystemIdentifier:
    return quick(sampling_time=4.0).fit(U, Y)


def test_it_simulates_and_predicts_in_the_units_of_the_data(fitted: SystemIdentifier) -> None:
    u, y = TEST.inputs[0], TEST.outputs[0]
    assert isinstance(fitted.model_, hdnn.StateSpace)
    assert isinstance(fitted.linear_, hdnn.StateSpace)
    assert fitted.score(u, y) > 0.75
    with torch.no_grad():
        direct = fitted.model_(torch.tensor(u))[0].numpy()
    assert np.array_equal(fitted.simulate(u), direct)
    started = fitted.simulate(u, y[:50])
    error = np.abs(started - y)[:50].mean()
    assert error < np.abs(direct - y)[:50].mean()
    one, ten = (
        np.sqrt(np.square(fitted.predict(u, y, steps) - y)[50:].mean()) for steps in (1, 10)
    )
    free = np.sqrt(np.square(started - y)[50:].mean())
    assert one < ten < 1.05 * free
    assert fitted.result_.sampling_time == fitted.model_.h == 4.0


def test_several_recordings_are_lists(fitted: SystemIdentifier) -> None:
    several = quick().fit([U[:500], U[500:]], [Y[:500], Y[500:]])
    assert several.score([TEST.inputs[0]], [TEST.outputs[0]]) > 0.75
    one, two = fitted.simulate([U[:30], U[30:90]], [Y[:10], Y[30:40]])
    assert np.array_equal(two, fitted.simulate(U[30:90], Y[30:40]))
    assert one.shape == (30, 1)
    assert [p.shape for p in fitted.predict([U[:30], U[:40]], [Y[:30], Y[:40]])] == [
        (30, 1),
        (40, 1),
    ]


def test_clone_pickle_and_seeds(fitted: SystemIdentifier) -> None:
    short = clone(fitted).fit(U[:200], Y[:200])
    again = clone(fitted).fit(U[:200], Y[:200])
    assert np.array_equal(again.simulate(U), short.simulate(U))
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).simulate(U), fitted.simulate(U))
    assert clone(fitted).get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        clone(fitted).simulate(U)
    other = quick(random_state=np.random.RandomState(3), sampling_time=4.0).fit(U[:200], Y[:200])
    assert not np.array_equal(other.simulate(U), short.simulate(U))


def test_it_is_saved_as_a_network(fitted: SystemIdentifier, tmp_path: Any) -> None:
    hdnn.save(fitted, tmp_path / "model")
    with torch.no_grad():
        y = hdnn.load(tmp_path / "model")(torch.tensor(U))[0].numpy()
    assert np.array_equal(y, fitted.simulate(U))
    fitted.save(tmp_path / "folder")
    again = SystemIdentifier.load(tmp_path / "folder")
    assert np.array_equal(again.predict(U, Y, 3), fitted.predict(U, Y, 3))
    assert again.sampling_time == 4.0
    with pytest.raises(HdnnError, match="cannot make"):
        fitted.save(tmp_path / "model" / "below a file")


def test_zero_units_are_a_linear_model() -> None:
    """Outputs of a sum of inputs are the sum of outputs, but for a constant."""
    linear = quick(units=np.int64(0)).fit(U, Y)
    assert linear.model_.units == 0
    rest, one, two, both = (linear.simulate(u) for u in (0 * U, U, U[::-1], U + U[::-1]))
    assert np.allclose(both - rest, one + two - 2 * rest)
    assert 0.5 < linear.score(TEST.inputs[0], TEST.outputs[0]) < 0.8
    ahead = linear.predict(TEST.inputs[0], TEST.outputs[0])
    assert np.abs(ahead - TEST.outputs[0]).mean() < np.abs(Y - Y.mean()).mean() / 5


def test_verbose_prints_a_line_for_every_candidate(capsys: pytest.CaptureFixture[str]) -> None:
    quick(states=1, iterations=1, verbose=True).fit(U, Y)
    linear, network = capsys.readouterr().out.splitlines()
    assert linear.startswith(" 50 % linear model, 1 states")
    assert network.startswith("100 % network")


NAN = Y.copy()
NAN[7] = np.nan


@pytest.mark.parametrize(
    ("u", "y", "message"),
    [
        (U[:, 0], Y, r"U must have the shape \(time, columns\), got \(1024,\); use U.reshape"),
        (U, Y[:, :, None], "Y must have the shape"),
        (U, Y[:-1], "1024 samples and Y has 1023"),
        ([U, U], [Y], "U has 2 recordings and Y has 1"),
        ([U, U], [Y, Y[:9]], "of recording 1 has 1024 samples"),
        (U, NAN, "Y holds nan at time 7, column 0"),
        (U.T, Y.T, "U has 1 samples, of 1024 inputs; .* transpose"),
        (U[:15], Y[:15], "at least 20"),
        (np.ones_like(U), Y, r"the input 'u' is constant \(1\)"),
        (np.where(np.arange(1024) < 900, 7.0, U.T).T, Y, r"the input 'u' is constant \(7\)"),
        (U, np.zeros_like(Y), "the output 'y' is constant"),
        ([U, np.hstack([U, U])], [Y, Y], "1, 2 columns"),
        ("data.csv", Y, "U must hold numbers"),
        ([], [], "U"),
    ],
)
def test_what_is_no_recording_is_named(u: Any, y: Any, message: str) -> None:
    with pytest.raises(HdnnError, match=message):
        quick().fit(u, y)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.simulate(np.hstack([U, U])), "U has 2 columns, but the model was fitted to 1"),
        (lambda m: m.simulate(U[:5], Y[:9]), "Y0 has 9 samples, but U has 5"),
        (lambda m: m.simulate([U, U], [Y]), "U has 2 recordings and Y0 has 1"),
        (lambda m: m.predict(U, Y, 0), "steps must be a positive integer"),
        (lambda m: m.predict(U, Y[:-1]), "belong together"),
        (lambda m: m.score(U[:0], Y[:0]), "U"),
        (lambda m: quick(states=0).fit(U, Y), "states"),
        (lambda m: quick(validation=0.999).fit(U, Y), "too short to hold out"),
        (lambda m: quick(validation=0.0).fit(U, Y), "validation"),
    ],
)
def test_misuse_is_named(fitted: SystemIdentifier, call: Any, message: str) -> None:
    with pytest.raises(HdnnError, match=message):
        call(fitted)
