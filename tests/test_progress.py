"""Progress of long steps."""

from __future__ import annotations

import logging

import pytest
import torch

import hdnn
from hdnn import progress


def test_progress_goes_to_the_listener_else_to_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[tuple[str, int, int]] = []
    with progress.listening(lambda *call: calls.append(call)):
        assert list(progress.track("ab", "reading")) == ["a", "b"]
    assert calls == [("reading", 0, 2), ("reading", 1, 2), ("reading", 2, 2)]
    with caplog.at_level(logging.INFO, "hdnn"):
        list(progress.track("ab", "reading"))
        assert not caplog.messages  # it was over at once
        monkeypatch.setattr(progress, "SECONDS", -1.0)
        list(progress.track("ab", "reading"))
        progress.Meter("rows\x1b[2J")(1234, 5678)
    assert caplog.messages == [
        *("reading: 0 of 2", "reading: 1 of 2, about 0 s left"),
        r"rows\x1b[2J: 1,234 of 5,678",
    ]
    assert len(calls) == 3


def test_the_time_left_is_what_the_rest_takes_at_the_same_speed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    trainings, resumed = progress.Meter("trainings"), progress.Meter("epochs")
    with caplog.at_level(logging.INFO, "hdnn"):
        for clock[0], done in ((0.0, 0), (60.0, 1), (120.0, 3), (3000.0, 39)):
            trainings(done, 40)
        for clock[0], done in ((4000.0, 50), (4020.0, 60)):
            resumed(done, 80)
    assert caplog.messages == [
        "trainings: 1 of 40, about 39 min left",
        "trainings: 3 of 40, about 25 min left",
        "trainings: 39 of 40, about 1 min left",
        "epochs: 50 of 80",
        "epochs: 60 of 80, about 40 s left",
    ]


def test_certificates_and_estimates_say_how_far_they_are() -> None:
    heard: list[tuple[str, int, int]] = []
    with progress.listening(lambda *call: heard.append(call)):
        net = hdnn.network("H1", features=2, layers=2, T=1.0)
        checks = hdnn.analysis.certify(net, torch.ones(3, 2)).checks
        assert heard[-1] == ("checking statements", len(checks) - 1, len(checks) - 1)
        model = torch.nn.Sequential(torch.nn.Linear(9, 9))
        hdnn.analysis.watch(model, limit=1)(torch.ones(3, 9))
    assert heard[-1] == ("measuring layers", 4, 4)
