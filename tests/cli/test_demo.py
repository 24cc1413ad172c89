"""`hdnn demo`: a table, a figure and a page about networks on the Swiss roll."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import done, fails, record
from hdnn.cli import demo


def test_demo_compares_networks_and_writes_figure_and_page() -> None:
    result = record("demo", "--epochs", 1, "--seed", 3)
    networks = [(each["architecture"], each["layers"]) for each in result["networks"]]
    assert networks == list(demo.CELLS)
    published = {each["layers"]: each["paper"] for each in result["networks"][:3]}
    assert published == {4: 93.6, 16: 99.8, 64: 99.8}  # H1 in Table 1
    assert all(0 <= each["accuracy"] <= 1 for each in result["networks"])
    assert Path(result["figure"]).read_bytes().startswith(b"\x89PNG")
    assert Path("demo.html").read_text().startswith("<!doctype html>")
    table = done("demo", "--epochs", 1, "--seed", 3).stdout
    assert all(f"{100 * each['accuracy']:.1f}%" in table for each in result["networks"])


def test_unknown_file_format_raises_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_train", lambda *_: pytest.fail("it began to train"))
    fails(2, ("demo", "--out", "demo.xyz"), "xyz")
