"""Adam on windows: it lowers the error, keeps the best weights, and repeats itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hdnn.data import Recordings
from hdnn.identification import search, windows
from hdnn.identification.search import IdentificationConfig
from hdnn.statespace import StateSpace


def data(*lengths: int) -> Recordings:
    draw = np.random.default_rng(0)
    inputs, outputs = [], []
    for length in lengths:
        u = draw.standard_normal((length, 1))
        y, x = np.empty_like(u), 0.0
        for t, v in enumerate(u[:, 0]):
            y[t], x = x, 0.8 * x + 0.5 * np.tanh(v)
        inputs.append(u)
        outputs.append(y)
    return Recordings(tuple(inputs), tuple(outputs))


def model_of() -> StateSpace:
    draw = torch.Generator().manual_seed(1)
    return StateSpace(inputs=1, outputs=1, states=2, units=4, learn_initial=True, generator=draw)


def error(model: StateSpace) -> float:
    (u,), (y,) = data(400).inputs, data(400).outputs
    with torch.no_grad():
        return float((model(torch.tensor(u))[0] - torch.tensor(y))[50:].square().mean())


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "LENGTH", 60)
    monkeypatch.setattr(windows, "WASHOUT", 20)
    monkeypatch.setattr(windows, "EVERY", 20)


def test_training_lowers_the_error_the_same_each_time() -> None:
    first, second = model_of(), model_of()
    before = error(first)
    results = [windows.train(m, data(500, 30, 300), error, 3, 100, 0.03) for m in (first, second)]
    assert results[0][0] == error(first) < before / 10
    assert results[0] == results[1]
    assert torch.equal(first.weights[0].K, second.weights[0].K)
    assert torch.equal(first.x0, model_of().x0)  # it is no parameter of windows


def test_the_weights_of_the_smallest_score_are_kept() -> None:
    model, scores = model_of(), iter([5.0, 3.0, 4.0, 9.0])
    seen = []

    def score(model: StateSpace) -> float:
        seen.append(model.weights[0].K.detach().clone())
        return next(scores)

    assert windows.train(model, data(200), score, steps=60) == (3.0, 20)
    assert torch.equal(model.weights[0].K, seen[1])
    assert not torch.equal(seen[1], seen[2])


def test_windows_are_for_what_is_longer_than_a_fit_of_segments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def train(
        model: StateSpace, recordings: Recordings, score: object, seed: int
    ) -> tuple[float, int]:
        calls.append(len(recordings))
        return 0.0, 0

    monkeypatch.setattr(windows, "train", train)
    config = IdentificationConfig(states=1, units=1, iterations=1, restarts=1)
    search.identify(data(3000), config)
    assert calls == []
    long = search.identify(data(10_000), config.replace(restarts=2))
    assert calls == [8500]  # of the best network only
    *others, last = long.candidates
    assert (last["validation"], last["windows"]) == (0.0, True)
    assert [each["windows"] for each in others] == [False] * 3
