"""The comparison on tables: disjoint lists, the same folds for all, one record a fit."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import tables
from tabular import page, runs
from tabular.models import HDNN, MODELS
from tabular.sources import COMPARISON, TUNING

from hdnn.paper.records import Record

RECORDS = Path(tables.OUT, "records.jsonl")


def committed() -> list[Record]:
    return [json.loads(line) for line in RECORDS.read_text().splitlines()]


def test_no_table_is_both_tuned_on_and_compared_on() -> None:
    assert len(COMPARISON) >= 30
    assert not set(COMPARISON) & set(TUNING)


def test_committed_records_are_whole_and_unique() -> None:
    records = committed()
    keys = {(r["table"], r["model"], r["fold"], r["seed"]) for r in records}
    assert len(keys) == len(records)
    assert {name for name, *_ in keys} == set(COMPARISON)
    fits = Counter(model for _, model, *_ in keys)
    assert fits == dict.fromkeys(MODELS, len(COMPARISON) * runs.FOLDS * len(runs.SEEDS))
    assert all("log_loss" in r for r in records if COMPARISON[r["table"]].task != "regression")


def test_the_committed_page_is_of_the_committed_records() -> None:
    assert RECORDS.with_name("README.md").read_text() == page.full_page(committed())


def test_a_run_goes_on_where_it_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "full_page", lambda records: f"{len(records)} records")
    words = ["--table", "iris", "--model", "linear", "--seeds", "2", "--out", str(tmp_path)]
    tables.main(words)
    path = tmp_path / "records.jsonl"
    whole = path.read_text().splitlines(keepends=True)
    assert len(whole) == 2 * runs.FOLDS
    path.write_text("".join(whole[:3]))

    fitted: list[int] = []
    fit = runs.fit
    monkeypatch.setattr(runs, "fit", lambda *a, **k: fitted.append(1) or fit(*a, **k))
    tables.main(words)
    assert len(fitted) == 2 * runs.FOLDS - 3

    again = path.read_text().splitlines()
    assert [json.loads(x)["score"] for x in again] == [json.loads(x)["score"] for x in whole]
    assert (tmp_path / "README.md").read_text() == "10 records"


def test_the_comparison_takes_no_settings() -> None:
    with pytest.raises(SystemExit, match="--set goes with --tuning"):
        tables.main(["--set", "layers=4"])
    with pytest.raises(SystemExit, match="iris"):
        tables.main(["--tuning", "--table", "iris"])


def test_hdnn_is_measured_on_a_tuning_table(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--tuning", "--model", HDNN, "--table", "noisy", "--seeds", "1"]
    tables.main([*words, "--set", "max_iter=1", "--set", "layers=2"])
    assert "| noisy | **" in capsys.readouterr().out


def record(table: str, model: str, score: float | None, fold: int = 0) -> Record:
    seconds = {} if score is None else {"cpu": 1.0, "log_loss": 1 - score}
    place = {"table": table, "model": model, "seed": 0, "fold": fold}
    return place | {"score": score, "version": "1", **seconds}


def test_the_page_ranks_by_common_folds_and_names_the_tables_behind() -> None:
    records = [
        *(record("iris", "MLP", 0.9), record("iris", HDNN, 0.95)),
        *(record("wine", "MLP", 0.95), record("wine", HDNN, 0.9)),
        *(record("pima", "MLP", 0.7), record("pima", HDNN, 0.69)),
        record("pima", "MLP", 0.1, fold=1),  # hdnn has not had this fold
        *(record("sonar", "MLP", 0.5), record("sonar", HDNN, None)),
    ]
    text = page.full_page(records)
    assert "| MLP | 1.25 | 76.25 | 0.238 | 1.25 | 1.000 | 3 |" in text
    assert "| HDNN | 1.75 | 63.50 | 0.153 | 1.67 | 1.000 | 1 |" in text
    assert "more than 2 points behind MLP: sonar (-50.0), wine (-5.0)." in text
    assert "1 of 9 fits failed" in text
