"""The colors of the playground are those of figures and reports."""

from __future__ import annotations

from hdnn.playground import FOLDER
from hdnn.playground.theme import theme_css
from hdnn.plots import DARK, LIGHT


def test_the_colors_are_those_of_figures_and_reports() -> None:
    made = theme_css()
    assert (FOLDER / "theme.css").read_text(encoding="utf-8") == made, (
        "make it again: python -m hdnn.playground.theme"
    )
    assert made.count(f"--c1: {DARK.color(1)};") == 2
    assert f"--c9: {LIGHT.color(9)};" in made
