"""`hdnn reproduce` writes the committed pages from the committed records, and trains nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from commands import done

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize(
    ("words", "page", "line"),
    [
        (("table1", "--protocol", "tuned"), "table1-tuned-paper.md", "in 35 of 40 cells"),
        (("table2", "--protocol", "paper"), "README.md", "Table 2, protocol paper"),
        (("figure2",), "figure2.md", "340 records, tables and figures"),
    ],
)
def test_committed_records_give_the_committed_page(
    words: tuple[str, ...], page: str, line: str
) -> None:
    folder = Path(words[0])
    folder.mkdir()
    shutil.copy(RESULTS / folder / "records.jsonl", folder)
    assert line in done("reproduce", *words, "--out", folder).stdout
    for name in ("records.jsonl", page):
        assert (folder / name).read_bytes() == (RESULTS / folder / name).read_bytes()
    svgs = {path.name for path in folder.glob("*.svg")}
    assert svgs == ({"figure2.svg", "claims.svg"} if words[0] == "figure2" else set())
