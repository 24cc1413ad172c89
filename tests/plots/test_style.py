"""Files of figures: whole or not at all, the same bytes every time, light and dark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hdnn import plots
from hdnn.errors import HdnnError


def figure(theme: plots.Theme = plots.LIGHT) -> Any:
    drawn = plots.new_figure(2.0, 2.0, theme)
    drawn.subplots().plot([0, 1], color=theme.color(0))
    return drawn


@pytest.mark.parametrize(
    ("name", "start"),
    [("f.png", b"\x89PNG"), ("f.pdf", b"%PDF"), ("f.svg", b"<?xml")],
)
def test_the_ending_chooses_the_format(name: str, start: bytes, tmp_path: Path) -> None:
    plots.save_figure(figure(), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_unknown_ending_or_folder_raises(tmp_path: Path) -> None:
    with pytest.raises(HdnnError, match=r"(?s)xyz.*png"):
        plots.save_figure(figure(), tmp_path / "f.xyz")
    with pytest.raises(HdnnError, match="there is no folder"):
        plots.save_figure(figure(), tmp_path / "nowhere" / "f.png")
    assert list(tmp_path.iterdir()) == []


def test_a_light_svg_has_a_dark_side(tmp_path: Path) -> None:
    texts = []
    for name in ("one.svg", "two.svg"):
        plots.save_figure(figure(), tmp_path / name)
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    rules = dict(re.findall(r'\[style\*="(\w+: #\w+)"\]\{\w+:(#\w+)!important\}', texts[0]))
    light, dark = plots.LIGHT, plots.DARK
    assert rules[f"stroke: {light.color(0)}"] == dark.color(0)
    assert rules[f"fill: {light.paper}"] == dark.paper
    assert rules[f"fill: {light.ink}"] == rules["stroke: #000000"] == dark.ink
    plots.save_figure(figure(dark), tmp_path / "dark.svg")
    assert "prefers-color-scheme" not in (tmp_path / "dark.svg").read_text()
