"""The study of identification: the page says what the records say."""

from __future__ import annotations

import pandas as pd

import identification
from hdnn.files import read_json_lines

PAGE = identification.OUT / "README.md"
RECORDS = read_json_lines(identification.OUT / "records.jsonl", dict)
ERRORS = pd.DataFrame(
    [(r["data"], r["model"], r["seed"], r["test_network"]["nrmse"]) for r in RECORDS],
    columns=["data", "model", "seed", "nrmse"],
).set_index(["model", "data"])
OTHERS = [name for name in identification.MODELS if name != "state space"]


def test_the_tables_of_the_page_come_from_the_records() -> None:
    text, parts = PAGE.read_text(), identification.pages(RECORDS)
    assert all(f"<!-- {name} -->" in text for name in parts)
    assert identification.fill(text, parts) == text, "run: identification.py --page"


def test_the_sentences_of_the_page_hold() -> None:
    own = ERRORS.loc["state space"].nrmse
    assert (own.groupby("data").size() == identification.SEEDS).all()
    medians, worst = own.groupby("data").median(), own.groupby("data").max()
    assert (worst / medians < 1.07).all()
    found = ERRORS.loc[OTHERS].nrmse.groupby(["model", "data"]).median()
    best = found.groupby("data").min()
    won = medians < best.reindex(medians.index)
    assert [round(best[name], 3) for name in ("two-masses", "robot-arm")] == [0.183, 0.310]
    assert sorted(won.index[won]) == ["robot-arm", "silverbox", "two-masses"]
    spread = ERRORS.nrmse.groupby(["model", "data"]).agg(lambda e: e.max() / e.median())
    assert [round(spread[name, "cascaded-tanks"], 1) for name in ("LSTM", "GRU")] == [1.4, 1.8]
    for name in ("residual", "linear recurrent unit"):
        assert abs(found[name, "heat-exchanger"] / medians["heat-exchanger"] - 1) < 0.05
    assert max(identification._growth(r) for r in RECORDS) < 10
