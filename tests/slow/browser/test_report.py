"""A report in a real browser, opened from disk."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hdnn
from hdnn.plots import flow

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.slow
Page = tuple[hdnn.Model, torch.Tensor, Path]
"""A model, the data of its report, and the file."""


def made(layers: int = 12, **options: Any) -> tuple[hdnn.Model, torch.Tensor, str]:
    """H1 with 12 layers, beside a ResNet."""
    torch.manual_seed(0)
    depths = {"H1": 12, "ResNet": layers}
    nets = [hdnn.network(name, features=4, layers=depth, T=2.0) for name, depth in depths.items()]
    stem = hdnn.Padding(2, 4)
    model, beside = (hdnn.Model(net, 1, stem, classes=["<b>in", "out"]) for net in nets)
    for each in (model, beside):
        torch.nn.init.normal_(each.head.weight)
    X = torch.randn(60, 2)
    labels = ["<b>in" if x > 0 else "out" for x in X[:, 0]]
    page = hdnn.report(model, X, labels, beside=beside, name="<script>roll", **options)
    return model, X, page.html


class Opened:
    """A page, what it asked for and what it complained of."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.page = browser.new_context(**options).new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def drawn(self) -> np.ndarray:
        return np.array(self.page.evaluate("hdnnReport.drawn(0)")).reshape(-1, 2)

    def ask(self, expression: str) -> Any:
        return self.page.evaluate(expression)


@pytest.fixture
def page(tmp_path: Path) -> Page:
    model, X, text = made()
    path = tmp_path / "a report's page.html"
    path.write_text(text, encoding="utf-8")
    return model, X, path


def test_the_slider_moves_the_points_along_the_trajectory(browser: Any, page: Page) -> None:
    model, X, path = page
    opened = Opened(browser, path)
    moving = flow(model, X)
    slider = opened.page.locator("#layer")
    slider.focus()
    for key, depth in (("Home", 0), ("ArrowRight", 1), ("End", 12)):
        opened.page.keyboard.press(key)
        assert opened.ask("hdnnReport.depth()") == depth
        assert opened.page.locator("#depth").inner_text() == f"layer {depth} of 12"
        assert slider.get_attribute("aria-valuetext") == f"layer {depth} of 12"
        np.testing.assert_allclose(opened.drawn(), moving.points[depth], rtol=1e-5, atol=1e-5)
    # The pixel under the first point has a color: it is drawn at that place.
    slider.fill("5")
    np.testing.assert_allclose(opened.drawn(), moving.points[5], rtol=1e-5, atol=1e-5)
    left, right, bottom, top = moving.box()
    x, y = moving.points[5][0]
    place = [float((x - left) / (right - left)), float(1 - (y - bottom) / (top - bottom))]
    pixel = opened.ask(
        f"(() => {{ const c = document.querySelector('canvas[data-kind=state]');"
        f"return [...c.getContext('2d').getImageData({place[0]} * c.width, {place[1]} * c.height,"
        "1, 1).data]; })()"
    )
    assert max(pixel[:3]) - min(pixel[:3]) > 60
    assert opened.complaints == []
    assert opened.requests == [path.as_uri()]


def test_two_networks_are_side_by_side_and_a_lead_plays(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "lead.html"
    path.write_text(made(lead=("A claim", "So it is."))[2], encoding="utf-8")
    opened = Opened(browser, path, viewport={"width": 1280, "height": 800})
    states = opened.page.locator("canvas[data-kind=state]")
    left, right = (states.nth(k).bounding_box() for k in range(2))
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] < right["x"]
    assert left["y"] + left["height"] <= 800  # seen without scrolling
    assert opened.page.locator("#play").inner_text() == "Pause"
    still = Opened(browser, path, reduced_motion="reduce")
    assert still.page.locator("#depth").inner_text() == "layer 12 of 12"


def test_networks_of_different_depths_move_together(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "depths.html"
    path.write_text(made(layers=3)[2], encoding="utf-8")
    opened = Opened(browser, path)
    scene = "JSON.parse(document.getElementById('scene').textContent)"
    points = base64.b64decode(opened.ask(f"{scene}.flows[1].points"))
    states = np.frombuffer(points, "<f4").reshape(4, 60, 2)
    for frame, depth in ((0, 0), (4, 1), (12, 3)):
        opened.page.locator("#layer").fill(str(frame))
        drawn = np.array(opened.ask("hdnnReport.drawn(1)")).reshape(-1, 2)
        np.testing.assert_allclose(drawn, states[depth], rtol=1e-5, atol=1e-5)
        text = f"layer {frame} of 12, layer {depth} of 3"
        assert opened.page.locator("#depth").inner_text() == text
    assert opened.complaints == []


def test_paper_shows_four_depths_instead_of_the_slider(browser: Any, page: Page) -> None:
    without_script = Opened(browser, page[2], java_script_enabled=False)
    assert without_script.page.locator(".still").is_visible()
    opened = Opened(browser, page[2])
    assert not opened.page.locator(".still").is_visible()
    opened.page.emulate_media(media="print")
    assert opened.page.locator(".still").is_visible()
    assert not opened.page.locator("#layer").is_visible()
    assert opened.page.locator(".still text").filter(has_text="input").count() == 2
