"""Progress of long steps."""

from __future__ import annotations

import logging

import pytest

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
        *("reading: 0 of 2", "reading: 1 of 2"),
        r"rows\x1b[2J: 1,234 of 5,678",
    ]
    assert len(calls) == 3
