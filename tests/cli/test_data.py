"""`hdnn data`: the names that hdnn knows."""

from __future__ import annotations

from commands import done, fails, record


def test_every_data_set_is_listed_once_and_trains_by_name() -> None:
    listed = [line.split()[0] for line in done("data").stdout.splitlines()]
    assert len(listed) == len(set(listed))
    assert {"swiss-roll", "iris", "digits", "mnist"} <= set(listed)
    assert [entry["name"] for entry in record("data", "list")] == listed
    assert record("info")["data sets"] == listed


def test_only_remote_data_sets_are_fetched() -> None:
    fails(2, ("data", "fetch", "digits"), "data set to fetch", "mnist")
    fails(2, ("data", "fetch", "mnits"), "did you mean 'mnist'")
