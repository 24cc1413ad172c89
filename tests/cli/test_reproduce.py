"""`hdnn reproduce` writes the committed pages from the committed records, and trains nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

from commands import done

RESULTS = Path(__file__).parents[2] / "results"


def test_committed_records_give_the_committed_figures() -> None:
    """The tables are in tests/paper."""
    Path("figure2").mkdir()
    shutil.copy(RESULTS / "figure2" / "records.jsonl", "figure2")
    shown = done("reproduce", "figure2", "--out", "figure2").stdout
    assert "340 records, tables and figures" in shown
    for name in ("records.jsonl", "figure2.md"):
        assert Path("figure2", name).read_bytes() == (RESULTS / "figure2" / name).read_bytes()
    assert {path.name for path in Path("figure2").glob("*.svg")} == {"figure2.svg", "claims.svg"}
