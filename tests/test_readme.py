"""Every number in the README is that of a committed record."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from tabular import page, runs
from tabular.models import HDNN
from tabular.sources import COMPARISON

from hdnn.paper import table1, table2
from hdnn.paper.experiment import KEY
from hdnn.paper.records import Records

ROOT = Path(__file__).parents[1]
README = " ".join((ROOT / "README.md").read_text().split())


def reached(module: object, table: str, protocol: str) -> tuple[int, int]:
    """In how many cells, and of how many, the mean reaches the published value."""
    records = Records(ROOT / "results" / table, KEY).read().values()
    rows = module.summary(module.cells(protocol), records)  # type: ignore[attr-defined]
    return int((rows.reached == "yes").sum()), len(rows)


def test_how_many_cells_of_the_paper_are_reached() -> None:
    (tuned, cells), (paper, _) = (reached(table1, "table1", p) for p in ("tuned", "paper"))
    (tuned2, cells2), (paper2, _) = (reached(table2, "table2", p) for p in ("tuned", "paper"))
    assert (
        f"in its Table 1 we reach the published value in {tuned} of {cells} cells with tuned "
        f"settings and in {paper} with the paper's own, in Table 2 in {tuned2} and in {paper2} of "
        f"{cells2}."
    ) in README


def test_convolutional_networks() -> None:
    records = pd.read_json(ROOT / "results" / "convolutional" / "records.jsonl", lines=True)
    means = 100 * records.groupby("data").test_accuracy.mean()
    assert (records.parameters < 100_000).all()
    assert (
        f"with fewer than 100,000 parameters reach {means['mnist']:.2f} % on MNIST and "
        f"{means['fashion-mnist']:.2f} % on Fashion-MNIST"
    ) in README


def test_public_tables() -> None:
    """Mean accuracy, mean rank and mean log loss on the tables for classification."""
    tables = [name for name, source in COMPARISON.items() if source.task == "classification"]
    records = Records(ROOT / "results" / "tables", runs.KEY).read().values()
    means = page.table_means(list(records)).loc[tables]
    ranks = means["score"].round(5).rank(axis=1, ascending=False).mean()
    accuracy, loss = 100 * means["score", HDNN].mean(), means["log_loss", HDNN].mean()
    rank = ranks[HDNN]
    assert (
        f"on {len(tables)} public tables, the mean accuracy is {accuracy:.1f} %, the mean rank "
        f"among five models {rank:.1f} and the mean log loss {loss:.2f}"
    ) in README
