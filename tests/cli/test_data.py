"""`hdnn data`: the names that hdnn knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import done, fails, record
from hdnn.data.recordings import SIMULATED, SOURCES


def test_every_data_set_is_listed_once_and_trains_by_name() -> None:
    listed = [line.split()[0] for line in done("data").stdout.splitlines()]
    assert len(listed) == len(set(listed))
    assert {"swiss-roll", "iris", "digits", "mnist"} <= set(listed)
    assert [entry["name"] for entry in record("data", "list")] == listed
    assert record("info")["data sets"] == listed


def test_recordings_are_listed_with_their_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated ones are there; of the others, those whose files are below HDNN_DATA."""
    monkeypatch.delenv("HDNN_DATA", raising=False)
    found = {
        entry["name"]: entry for entry in record("data", "list") if entry["kind"] == "recording"
    }
    assert list(found) == [*SIMULATED, *SOURCES]
    assert {found[name]["state"] for name in SIMULATED} == {"ready"}
    for name, source in SOURCES.items():
        assert found[name]["state"] == "missing"
        assert source.url in found[name]["about"]
    assert "HDNN_DATA" in done("data").stderr
    file = Path("here/identification/silverbox.csv")
    file.parent.mkdir(parents=True)
    file.touch()
    monkeypatch.setenv("HDNN_DATA", "here")
    states = {entry["name"]: entry["state"] for entry in record("data", "list")}
    assert (states["silverbox"], states["robot-arm"]) == ("ready", "missing")
    assert "HDNN_DATA" not in done("data").stderr


def test_only_remote_data_sets_are_fetched() -> None:
    fails(2, ("data", "fetch", "digits"), "data set to fetch", "mnist")
    fails(2, ("data", "fetch", "mnits"), "did you mean 'mnist'")
