"""The playground in chromium: its controls, links and sizes, as a visitor meets them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hdnn
from hdnn.playground import make_page, make_server

pytestmark = pytest.mark.slow
SMALL = "#v=1&l=4&T=1&n=50"
SLOWEST = 60_000  # ms: a busy machine may take its time, a hung page not forever


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with make_server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.url
        server.shutdown()
        thread.join()


@pytest.fixture
def context(browser: Any, url: str) -> Iterator[Any]:
    """A context whose pages must not complain, nor ask anybody else for anything."""
    complaints: list[str] = []
    opened = browser.new_context(viewport={"width": 1280, "height": 720}, reduced_motion="reduce")
    opened.grant_permissions(["clipboard-read", "clipboard-write"])
    opened.set_default_timeout(SLOWEST)
    opened.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    opened.on("weberror", lambda error: complaints.append(str(error.error)))
    own = (url, "blob:", "data:")
    opened.on("request", lambda r: None if r.url.startswith(own) else complaints.append(r.url))
    yield opened
    opened.close()
    assert complaints == []


@pytest.fixture
def page(context: Any, url: str) -> Any:
    return visit(context, url + SMALL)


def visit(context: Any, address: str) -> Any:
    page = context.new_page()
    page.goto(address)
    ready(page)
    return page


def until(page: Any, condition: str) -> None:
    """Wait for a JavaScript expression; Playwright's own way needs eval, which the page forbids."""
    page.evaluate(
        f"""(async () => {{
            for (const end = performance.now() + {SLOWEST}; !({condition}); ) {{
                if (performance.now() > end) throw new Error("timeout");
                await new Promise((resolve) => setTimeout(resolve, 10));
            }}
        }})()"""
    )


def ready(page: Any) -> None:
    until(page, "playground.app.shown().every((view) => view.snapshot)")


def reach(page: Any, count: int, index: int = 0) -> None:
    until(page, f"(playground.app.views[{index}].snapshot?.iteration ?? 0) >= {count}")


def step(page: Any) -> None:
    page.click("#step")
    until(page, "playground.app.views[0].snapshot?.iteration === 1")


def state(page: Any) -> dict[str, Any]:
    settings: dict[str, Any] = page.evaluate("playground.app.state")
    return settings


def message(page: Any) -> str:
    until(page, "!document.getElementById('message').hidden")
    return str(page.inner_text("#message span"))


def test_train_pause_reset_step(page: Any) -> None:
    page.click("#play")
    reach(page, 20)
    reach(page, 20, 1)
    assert page.inner_text("#play b") == "Pause"
    page.click("#play")
    assert re.fullmatch(r"\d+\.\d %", page.inner_text(".accuracy >> nth=0"))
    page.click("#reset")
    until(page, "playground.app.views[0].snapshot?.iteration === 0")
    step(page)


def test_it_opens_with_h1_training_and_a_plain_network_that_collapses(
    context: Any, url: str
) -> None:
    page = context.new_page()
    page.emulate_media(reduced_motion="no-preference")
    page.goto(url)
    assert (state(page)["first"], state(page)["layers"]) == ("H1", 64)
    until(page, "playground.app.views[0].snapshot?.test.accuracy > 0.95")
    until(page, "!playground.app.playing")  # what began by itself ends by itself
    assert 1500 <= page.evaluate("playground.app.views[1].snapshot.iteration") < 2000
    norms = "Math.min(...playground.app.views[{}].snapshot.norms)"
    assert page.evaluate(norms.format(0)) > 1 - 1e-9
    assert page.evaluate(norms.format(1)) < 1e-6
    assert page.evaluate("playground.app.views[1].snapshot.test.accuracy") < 0.7
    verdict = page.inner_text(".verdict >> nth=1")
    assert "The gradient vanishes" in verdict
    assert "All points end in one place" in verdict


@pytest.mark.parametrize("workers", [True, False])
def test_it_trains_as_a_file_also_where_there_are_no_workers(
    browser: Any, tmp_path: Path, workers: bool
) -> None:
    path = tmp_path / "a teacher's page.html"
    path.write_text(make_page().html, encoding="utf-8")
    page = browser.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.add_init_script("" if workers else "globalThis.Worker = undefined")
    page.goto(f"{path.as_uri()}{SMALL}")
    ready(page)
    page.click("#play")
    reach(page, 20)
    reach(page, 20, 1)
    assert len(page.workers) == (2 if workers else 0)
    assert complaints == []


def test_every_network_and_data_set_trains(page: Any) -> None:
    for name in ("MS1", "MS2", "MS3", "H2", "HS", "FCNN"):
        page.select_option(".architecture >> nth=1", name)
        until(page, f"playground.app.views[1].settings.architecture === '{name}'")
        ready(page)
    page.select_option(".architecture >> nth=1", "none")
    assert not page.is_visible(".network >> nth=1 >> canvas >> nth=0")
    for name in ("double-moons", "peaks", "spirals"):
        page.select_option("#setting-data", name)
        ready(page)
        step(page)
    assert page.is_visible("#setting-arms")


def test_points_are_drawn_by_pointer_and_keyboard_and_shared(page: Any) -> None:
    page.select_option("#setting-data", "drawn")
    box = page.locator(".regions canvas").first.bounding_box()
    for label, x in enumerate((box["x"] + 0.3 * box["width"], box["x"] + 0.7 * box["width"])):
        page.locator(".regions .brush").nth(label).click()
        page.mouse.move(x, box["y"] + 0.2 * box["height"])
        page.mouse.down()
        page.mouse.move(x, box["y"] + 0.8 * box["height"], steps=12)
        page.mouse.up()
    page.locator(".regions canvas").first.focus()
    page.keyboard.press("3")
    drawn = page.evaluate("playground.app.drawn")
    assert len(drawn) > 20
    assert {point[2] for point in drawn} == {0, 1, 2}
    until(page, "/&p=.*2$/.test(location.hash)")  # the last point, of the third class
    assert visit(page.context, page.url).evaluate("playground.app.drawn.length") == len(drawn)


def test_links_carry_the_settings(context: Any, url: str) -> None:
    page = visit(context, f"{url}#v=1&d=spirals&k=5&a=MS3&b=none&l=6&s=Leapfrog&f=sin&r=3")
    settings = state(page)
    expected = {"data": "spirals", "arms": 5, "first": "MS3", "second": "none", "layers": 6}
    assert settings == settings | expected
    page.click("#link")
    assert "copied" in message(page)
    link = page.evaluate("navigator.clipboard.readText()")
    assert state(visit(context, link)) == settings


def test_a_bad_link_gives_a_message_and_defaults(context: Any, url: str) -> None:
    for link, expected in {
        "#v=2&l=8": "another version",
        "#v=1&l=5": "does not exist",
        "#v=1&d=drawn&p=abc": "damaged",
        "#<script>window.hacked=1</script>": "does not exist",
    }.items():
        page = visit(context, url + link)
        assert expected in message(page)
        assert state(page)["layers"] == 64
        assert page.evaluate("window.hacked") is None


def test_the_tour_has_five_steps_that_links_reach(context: Any, url: str) -> None:
    page = visit(context, f"{url}#v=1&tour=4")
    for number in (4, 5):
        assert page.inner_text("#tour .step") == f"{number} / 5"
        page.click("#tour .next")
    assert not page.is_visible("#tour")


def test_the_python_code_runs_and_learns(page: Any, tmp_path: Path) -> None:
    page.click("#python")
    code = page.inner_text("#code code")
    page.keyboard.press("r")  # a key of the page, which a dialog covers
    page.click("#code .copy")
    until(page, "document.querySelector('#code .copy').textContent === 'Copied'")
    codes = [page.evaluate("navigator.clipboard.readText()")]
    assert codes[0].strip() == code.strip()
    page.click("#code .close")
    page.select_option("#setting-data", "spirals")
    page.select_option(".architecture >> nth=0", "MS1")
    page.click("#controls summary")
    page.select_option("#setting-scheme", "Leapfrog")
    ready(page)
    codes.append(page.evaluate("playground.app.python()"))
    code = "\n".join(codes).replace("epochs=50", "epochs=2")
    environment = {**os.environ, "PYTHONPATH": str(Path(hdnn.__file__).parents[1])}
    output = subprocess.check_output([sys.executable, "-c", code], env=environment, cwd=tmp_path)
    assert len(re.findall(rb"test accuracy \d", output)) == 4


def test_three_panels_come_first_and_the_others_unfold(page: Any) -> None:
    shown = page.locator(".network >> nth=0 >> canvas:visible")
    assert shown.count() == 3
    number = page.evaluate("playground.app.views[0].number")
    page.click("#more")
    assert shown.count() == 7
    assert page.evaluate("playground.app.views[0].number") == number  # the training goes on
    assert state(visit(page.context, page.url))["panels"] == "all"


def test_scrambled_weights_leave_the_mass_on_the_rail_with_the_state_space_network_alone(
    context: Any, url: str
) -> None:
    page = context.new_page()
    page.goto(f"{url}#control")
    assert not page.is_visible("#main")
    scores = page.locator("#loops .accuracy")
    page.click("#scramble-many")
    ours, mlp = (int(text.removesuffix(" of 100")) for text in scores.all_inner_texts())
    assert (ours, mlp) == (100, 11)  # as docs/look.md says
    assert "Proved" in page.inner_text("#loops .verdict >> nth=0")
    page.keyboard.press("r")
    page.keyboard.press("s")
    assert scores.first.inner_text() == "1 of 1"
    page.locator("#setting-scale").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("playground.app.control.values.scale") == 10
    page.click("#python")
    assert "reset_parameters(scale=10)" in page.inner_text("#code code")
    page.click("#code .close")
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        until(page, f"innerWidth === {width}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.is_visible("#setting-force")


def test_tabs_lead_back_to_the_settings(page: Any) -> None:
    page.click(".tabs a >> nth=1")
    assert page.is_visible("#loops canvas >> nth=0")
    page.click(".tabs a >> nth=0")
    ready(page)
    assert state(page)["layers"] == 4
    assert page.get_attribute(".tabs a >> nth=0", "aria-current") == "page"


@pytest.mark.parametrize(("size", "scheme"), [((1280, 720), "light"), ((390, 844), "dark")])
def test_it_fits_the_window(page: Any, size: tuple[int, int], scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": size[0], "height": size[1]})
    until(page, f"innerWidth === {size[0]}")
    page.click("#more")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    canvases = "[...document.querySelectorAll('#main canvas')]"
    until(page, f"{canvases}.every((c) => c.clientWidth > 60 && c.width >= c.clientWidth)")
    # Both networks with their accuracy, regions and flow are on the first screen, phones included.
    for part in (".score", ".regions canvas", ".flow canvas"):
        for box in (page.locator(part).nth(k).bounding_box() for k in (0, 1)):
            assert box["y"] + box["height"] <= size[1]


def test_the_keyboard_alone_is_enough(page: Any) -> None:
    names = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        names.add(page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"play", "step", "reset", "setting-layers", "architecture", "why"} <= names
    page.focus("#setting-layers")
    page.keyboard.press("ArrowRight")
    until(page, "playground.app.state.layers === 6")
    page.keyboard.press("Space")
    reach(page, 5)
    page.keyboard.press("Space")
    assert page.get_attribute("#play", "aria-pressed") == "false"


def test_everything_has_a_name_for_a_screen_reader(page: Any) -> None:
    unnamed = page.evaluate(
        """() => {
            const all = document.querySelectorAll(
                "button, select, input:not([hidden]), canvas, summary");
            const text = (e) => (e.tagName === "SELECT" ? "" : e.textContent.trim());
            const label = (e) => e.labels?.[0]?.textContent.trim();
            const named = (e) => e.ariaLabel || text(e) || label(e);
            return [...all].filter((e) => !named(e)).map((e) => e.outerHTML);
        }"""
    )
    assert unnamed == []
