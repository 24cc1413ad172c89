"""`hdnn demo`: a table, a figure and a page about networks on the Swiss roll."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import fails, record
from hdnn.cli import demo


def test_the_demo_compares_writes_and_reports() -> None:
    found = record("demo", "--epochs", 1, "--seed", 3)
    networks = [(each["architecture"], each["layers"]) for each in found["networks"]]
    assert networks == list(demo.CELLS)
    assert {name for name, _ in networks} == {"H1", "MS1", "ResNet", "FCNN"}
    published = {each["layers"]: each["paper"] for each in found["networks"][:3]}
    assert published == {4: 93.6, 16: 99.8, 64: 99.8}  # H1 in Table 1
    assert all(0 <= each["accuracy"] <= 1 for each in found["networks"])
    assert Path(found["figure"]).read_bytes().startswith(b"\x89PNG")
    assert Path("demo.html").read_text().startswith("<!doctype html>")


def test_a_figure_that_cannot_be_written_is_an_error_before_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demo, "_train", lambda *_: pytest.fail("it began to train"))
    fails(2, ("demo", "--out", "demo.xyz"), "xyz")
    fails(2, ("demo", "--out", "nowhere/demo.png"), "nowhere")


def test_the_demo_is_described_alike_everywhere() -> None:
    root = Path(__file__).parents[2]
    words = "Train Hamiltonian networks and ResNets on the Swiss roll, and draw what they learn"
    assert words in (demo.demo.__doc__ or "")
    assert words.lower() in " ".join((root / "README.md").read_text().lower().split())
    assert words.lower() in (root / "Makefile").read_text().lower()
