"""Long steps tell how far they are."""

from __future__ import annotations

import logging
import sys

import pytest

from hdnn import progress


def test_how_far_a_step_is_goes_to_whoever_listens_else_to_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[tuple[str, int, int]] = []
    with progress.listening(lambda *told: heard.append(told)):
        assert list(progress.track("ab", "reading")) == ["a", "b"]
    assert heard == [("reading", 0, 2), ("reading", 1, 2), ("reading", 2, 2)]
    with caplog.at_level(logging.INFO, "hdnn"):
        list(progress.track("ab", "reading"))
        assert not caplog.messages  # it was over at once
        monkeypatch.setattr(progress, "SECONDS", -1.0)
        list(progress.track("ab", "reading"))
        progress.Meter("rows")(1234, 5678)
    assert caplog.messages == ["reading: 0 of 2", "reading: 1 of 2", "rows: 1,234 of 5,678"]
    assert len(heard) == 3


@pytest.mark.parametrize(("module", "told"), [("ipykernel", True), ("elsewhere", False)])
def test_a_notebook_is_told_where_nobody_has_configured_logging(
    module: str, told: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.setitem(sys.modules, module, progress)
    monkeypatch.setattr(progress, "logger", logging.Logger("of nobody", logging.WARNING))
    progress.note("compiling")
    assert capsys.readouterr().err == ("hdnn: compiling\n" if told else "")
