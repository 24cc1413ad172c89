"""`hdnn demo`: three tables, a figure and a page about robots, tanks and the Swiss roll."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import done, fails, record
from hdnn import robots
from hdnn.cli import demo


def test_demo_shows_robots_tanks_and_networks() -> None:
    result = record("demo", "--epochs", 1, "--seed", 3)
    assert (result["seed"], result["epochs"]) == (3, 1)
    stable, other = result["robots"]
    assert (stable["controller"], other["controller"]) == ("state space", "MLP")
    assert stable["stable_for_all_weights"]
    assert not other["stable_for_all_weights"]
    assert stable["cost_10T"] < 1.01 * stable["cost_T"]
    assert other["cost_10T"] > 10 * other["cost_T"]
    assert stable["largest_distance"] < 0.01 < 1 < other["largest_distance"]
    fits = result["tanks"]["fits"]["test"]
    assert fits["network"]["fit"] > fits["linear"]["fit"] > 0.5
    assert result["tanks"]["rate"] < 1
    networks = [(each["architecture"], each["layers"]) for each in result["networks"]]
    assert networks == list(demo.CELLS)
    published = {each["layers"]: each["paper"] for each in result["networks"][:3]}
    assert published == {4: 93.6, 16: 99.8, 64: 99.8}  # H1 in Table 1
    assert all(0 <= each["accuracy"] <= 1 for each in result["networks"])
    assert Path(result["figure"]).read_bytes().startswith(b"\x89PNG")
    check_page(Path(result["report"]).read_text(), result)
    tables = done("demo", "--epochs", 1, "--seed", 3).stdout
    for text in shown(result):
        assert text in tables
    assert all(f"{100 * each['accuracy']:.1f}%" in tables for each in result["networks"])
    assert "proved" in tables


def shown(result: dict[str, Any]) -> Iterator[str]:
    """Numbers as people read them."""
    for each in result["robots"]:
        yield from (f"{each[key]:,.0f}" for key in ("cost_T", "cost_10T"))
    for model in ("network", "linear"):
        yield f"{100 * result['tanks']['fits']['test'][model]['fit']:.1f} %"


def check_page(page: str, result: dict[str, Any]) -> None:
    """The same numbers in order robots, tanks, Swiss roll; nothing from elsewhere."""
    assert page.startswith("<!doctype html>")
    assert [*re.findall(r'<section id="(.*?)"', page)] == [
        *("robots", "tanks", "swiss-roll", "flow", "gradients", "repeat")
    ]
    assert all(f">{text}</td>" in page for text in shown(result))
    assert "hdnn demo --seed 3 --epochs 1 --out demo.png" in page
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
    text = re.search(r'id="robots-scene">(.*?)</script>', page, re.S)
    assert text is not None
    scene = json.loads(text[1])
    for path, controller in zip(scene["paths"], robots.load_controllers().values(), strict=True):
        positions = np.frombuffer(base64.b64decode(path), "<f4").reshape(scene["frames"], 12, 2)
        expected = robots.Drive.of(controller).positions[:: round(scene["step"] / robots.STEP)]
        np.testing.assert_allclose(positions, expected, rtol=1e-5, atol=1e-5)


def test_unknown_file_format_raises_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_train", lambda *_: pytest.fail("it began to train"))
    fails(2, ("demo", "--out", "demo.xyz"), "xyz")
