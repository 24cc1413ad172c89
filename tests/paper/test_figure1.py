"""Figure 1: decision regions of trained networks."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import done
from hdnn.paper import figure1


def test_figure1_shows_both_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure1, "PANELS", (("swiss-roll", 4), ("double-moons", 1)))
    done("reproduce", "figure1", "--out", tmp_path / "figure1.svg")
    assert (tmp_path / "figure1.svg").read_text().startswith("<?xml")
    assert "Swiss roll, H1, 4 layers" in figure1.figure1().axes[0].get_title()
