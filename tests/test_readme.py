"""Every number in the README is that of a committed record."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

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


def test_no_other_number_is_claimed() -> None:
    """What is neither in a code block, a table nor checked by a test has no decimals."""
    prose = re.sub(
        r"```.*?```|<!-- (\w+) -->.*?<!-- end.*?-->",
        "",
        (ROOT / "README.md").read_text(),
        flags=re.S,
    )
    claimed = re.findall(r"\d+\.\d+ %", prose)
    assert len(claimed) == len(re.findall(r"\d+\.\d+ %", numbers_tested_elsewhere(prose)))


def numbers_tested_elsewhere(prose: str) -> str:
    """The sentences on tables (tests/test_tables_benchmark.py) and on convolutional networks."""
    words = " ".join(prose.split())
    return words[words.index("public tables") : words.index("## Speed")]
