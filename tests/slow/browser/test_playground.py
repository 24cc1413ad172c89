"""The playground in chromium: every control, link and size that a visitor can meet."""

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
import torch

import hdnn
from hdnn.data import swiss_roll
from hdnn.playground import make_server

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
    found: list[str] = []
    opened = browser.new_context(viewport={"width": 1280, "height": 720}, reduced_motion="reduce")
    opened.grant_permissions(["clipboard-read", "clipboard-write"])
    opened.set_default_timeout(SLOWEST)
    opened.on("console", lambda message: found.append(f"{message.type}: {message.text}"))
    opened.on("weberror", lambda error: found.append(str(error.error)))
    own = (url, "blob:", "data:")
    opened.on("request", lambda r: None if r.url.startswith(own) else found.append(r.url))
    opened.on("requestfailed", lambda r: found.append(f"failed: {r.url}"))
    yield opened
    opened.close()
    assert found == []


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


def iteration(page: Any, index: int = 0) -> int:
    return int(page.evaluate(f"playground.app.views[{index}].snapshot?.iteration ?? 0"))


def reach(page: Any, count: int, index: int = 0) -> None:
    until(page, f"(playground.app.views[{index}].snapshot?.iteration ?? 0) >= {count}")


def state(page: Any) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate("playground.app.state")
    return found


def message(page: Any) -> str:
    until(page, "!document.getElementById('message').hidden")
    return str(page.inner_text("#message span"))


def drop(page: Any, name: str, content: str) -> None:
    page.evaluate(
        """([name, content]) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([content], name));
            const options = { dataTransfer: transfer, bubbles: true, cancelable: true };
            document.body.dispatchEvent(new DragEvent("dragover", options));
            document.body.dispatchEvent(new DragEvent("drop", options));
        }""",
        [name, content],
    )


def test_train_pause_step_reset(page: Any) -> None:
    assert page.inner_text(".accuracy >> nth=0") == "\N{EN DASH}"
    page.click("#play")
    reach(page, 20)
    reach(page, 20, 1)
    assert page.inner_text("#play b") == "Pause"
    page.click("#play")
    until(page, "document.getElementById('status').textContent.includes('accuracy')")
    assert re.fullmatch(r"\d+\.\d %", page.inner_text(".accuracy >> nth=0"))
    page.click("#reset")
    until(page, "playground.app.views[0].snapshot?.iteration === 0")
    page.click("#step")
    until(page, "playground.app.views[0].snapshot?.iteration === 1")


def test_the_default_learns_and_keeps_it_for_a_minute(context: Any, url: str) -> None:
    """At least 95 % at every moment from 3 s to 60 s after Play, in real time."""
    page = visit(context, url)
    assert (state(page)["first"], state(page)["second"], state(page)["layers"]) == (
        "H1",
        "ResNet",
        64,
    )
    page.click("#play")
    lowest = page.evaluate(
        """(async () => {
            const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
            await wait(3000);
            let lowest = 1;
            for (const end = performance.now() + 57000; performance.now() < end; await wait(20))
                lowest = Math.min(lowest, playground.app.views[0].snapshot.test.accuracy);
            return lowest;
        })()"""
    )
    assert lowest >= 0.95
    assert iteration(page) > 1000


def test_a_plain_network_collapses_and_the_page_says_so(context: Any, url: str) -> None:
    page = visit(context, f"{url}#v=1&b=FCNN")
    page.click("#play")
    until(page, "playground.app.views[0].snapshot?.test.accuracy > 0.95")
    norms = "Math.min(...playground.app.views[{}].snapshot.norms)"
    assert page.evaluate(norms.format(0)) > 1 - 1e-9
    assert page.evaluate(norms.format(1)) < 1e-6
    assert page.evaluate("playground.app.views[1].snapshot.test.accuracy") < 0.7
    words = page.inner_text(".verdict >> nth=1")
    assert "The gradient vanishes" in words
    assert "All points end in one place" in words
    assert "Plain network" in page.locator(".architecture").nth(1).inner_text()


def test_the_flow_is_scrubbed_and_plays_by_itself(page: Any) -> None:
    slider = page.locator(".flow input").first
    slider.fill("0")
    slider.dispatch_event("input")
    until(page, "document.querySelector('.flow canvas').ariaLabel.includes('layer 0 of 4')")
    assert page.locator(".flow input").nth(1).input_value() == "0"
    page.locator(".flow .auto").first.click()
    until(page, "playground.app.views[1].depth > 0.1")


def test_other_networks_are_compared(page: Any) -> None:
    for name in ("MS1", "MS2", "MS3", "H2", "HS", "FCNN"):
        page.select_option(".architecture >> nth=1", name)
        until(
            page,
            f"playground.app.views[1].given.architecture === '{name}'"
            " && playground.app.views[1].snapshot",
        )
    page.select_option(".architecture >> nth=1", "none")
    assert not page.is_visible(".network >> nth=1 >> canvas >> nth=0")
    page.click("#step")
    until(page, "playground.app.views[0].snapshot?.iteration === 1")


def test_every_data_set_trains(page: Any) -> None:
    for name in ("double-moons", "double-circles", "peaks", "spirals"):
        page.select_option("#setting-data", name)
        until(page, "playground.app.shown().every((v) => v.snapshot)")
        page.click("#step")
        until(page, "playground.app.views[0].snapshot?.iteration === 1")
    assert page.is_visible("#setting-arms")


def test_points_are_drawn_by_pointer_and_by_keyboard(page: Any) -> None:
    page.select_option("#setting-data", "drawn")
    box = page.locator(".regions canvas").first.bounding_box()
    for label, side in ((0, 0.3), (1, 0.7)):
        page.locator(".regions .brush").nth(label).click()
        page.mouse.move(box["x"] + side * box["width"], box["y"] + 0.2 * box["height"])
        page.mouse.down()
        page.mouse.move(box["x"] + side * box["width"], box["y"] + 0.8 * box["height"], steps=12)
        page.mouse.up()
    drawn = page.evaluate("playground.app.drawn")
    assert len(drawn) > 20
    assert {point[2] for point in drawn} == {0, 1}
    page.locator(".regions canvas").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("3")
    assert page.evaluate("playground.app.drawn.at(-1)") == [0.08, 0, 2]
    until(page, "playground.app.data.classes === 3 && playground.app.views[0].snapshot")
    until(page, "location.hash.includes('&p=')")
    shared = visit(page.context, page.url)
    assert len(shared.evaluate("playground.app.drawn")) == len(drawn) + 1
    page.click("#play")
    reach(page, 20)


GOOD = "width,height,kind\n" + "\n".join(
    f"{i % 7},{i * i % 11},{'long' if i % 7 > 3 else 'short'}" for i in range(60)
)


def test_a_dropped_table_is_trained_on(page: Any) -> None:
    drop(page, "leaves.csv", GOOD)
    until(page, "playground.app.state.data === 'table' && playground.app.views[0].snapshot")
    assert page.evaluate("playground.app.data.names") == ["long", "short"]
    page.click("#play")
    reach(page, 20)
    page.select_option("[name=column-x]", "1")
    assert page.evaluate("playground.app.table.x") == 1
    until(page, "playground.app.views[0].snapshot")


HOSTILE = '<img src=x onerror="window.hacked=1">,b,"=cmd|\' /C calc\'!A0"\n' + "\n".join(
    f"{i},{i % 5},__proto__" if i % 2 else f"{i},{i % 5},</script>" for i in range(20)
)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("malformed.csv", "a,b,c\n1,2,x\n3,4\n5,6,y\n7,8,x\n9,1,y", "line 3 has 2 fields"),
        ("quote.csv", 'a,b,c\n1,2,"x\n', "never closed"),
        ("one.csv", "a\n1\n2\n", "two columns"),
        ("words.csv", "a,b\nx,y\nz,w\nx,w\nz,y\n", "two numeric columns"),
        ("binary.csv", "\0\0\0", "not a text file"),
        ("empty.csv", "", "is empty"),
    ],
)
def test_bad_files_are_explained(page: Any, name: str, content: str, expected: str) -> None:
    drop(page, name, content)
    assert expected in message(page)
    assert state(page)["data"] == "swiss-roll"


def test_a_huge_table_is_declined_at_once(page: Any) -> None:
    page.evaluate(
        """() => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(60e6)], "huge.csv"));
            const options = { dataTransfer: transfer, bubbles: true, cancelable: true };
            document.body.dispatchEvent(new DragEvent("drop", options));
        }"""
    )
    assert "60 MB" in message(page)


def test_a_hostile_table_is_only_text(page: Any) -> None:
    drop(page, "<b>x</b>.csv", HOSTILE)
    until(page, "playground.app.state.data === 'table' && playground.app.views[0].snapshot")
    assert page.evaluate("playground.app.data.names") == ["</script>", "__proto__"]
    assert page.evaluate("window.hacked") is None
    assert page.locator("img, b.x").count() == 0
    code = page.evaluate("playground.app.python()")
    compile(code, "playground", "exec")


def test_links_carry_the_settings(context: Any, url: str) -> None:
    page = visit(context, f"{url}#v=1&d=spirals&k=5&a=MS3&b=none&l=6&s=Leapfrog&f=sin&r=3")
    found = state(page)
    expected = {"data": "spirals", "arms": 5, "first": "MS3", "second": "none", "layers": 6}
    assert {key: found[key] for key in expected} == expected
    page.click("#link")
    assert "copied" in message(page)
    link = page.evaluate("navigator.clipboard.readText()")
    assert state(visit(context, link)) == found


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("#v=2&l=8", "another version"),
        ("#v=1&l=5", "does not exist"),
        ("#v=1&nonsense=1", "does not exist"),
        ("#v=1&d=%E0%A4%A", "damaged"),
        ("#v=x", "another version"),
        ("#v=1&tour=9", "five steps"),
        ("#v=1&d=drawn&p=abc", "damaged"),
        ("#v=1&d=table", "drop it here"),
        ("#<script>window.hacked=1</script>", "does not exist"),
    ],
)
def test_a_bad_link_gives_a_message_and_defaults(
    context: Any, url: str, link: str, expected: str
) -> None:
    page = visit(context, url + link)
    assert expected in message(page)
    assert state(page)["layers"] == 64
    assert page.evaluate("window.hacked") is None


def test_the_tour_has_five_steps_that_links_reach(context: Any, url: str) -> None:
    page = visit(context, url)
    page.click("#tour-open")
    titles = []
    for step in range(1, 6):
        assert page.inner_text("#tour .step") == f"{step} / 5"
        until(page, f"location.hash.includes('tour={step}')")
        titles.append(page.inner_text("#tour h2"))
        page.click("#tour .next")
    assert len(set(titles)) == 5
    assert not page.is_visible("#tour")
    assert visit(context, f"{url}#v=1&tour=3").inner_text("#tour h2") == titles[2]


def test_the_python_code_runs_and_learns(page: Any, tmp_path: Path) -> None:
    page.click("#python")
    assert "copied" in message(page)
    codes = [page.evaluate("navigator.clipboard.readText()")]
    page.select_option("#setting-data", "spirals")
    page.select_option(".architecture >> nth=0", "MS1")
    page.click("#controls summary")
    page.select_option("#setting-scheme", "Leapfrog")
    until(page, "playground.app.views[0].snapshot")
    codes.append(page.evaluate("playground.app.python()"))
    code = "\n".join(codes).replace("epochs=50", "epochs=2")
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(hdnn.__file__).parents[1])},
    )
    assert run.returncode == 0, run.stderr
    assert len(re.findall(r"test accuracy \d", run.stdout)) == 4


@pytest.mark.parametrize(
    ("size", "scheme"),
    [
        ((1280, 720), "light"),
        ((390, 844), "dark"),
        ((760, 600), "light"),
        ((1920, 1080), "dark"),
    ],
)
def test_it_fits_every_window(page: Any, size: tuple[int, int], scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": size[0], "height": size[1]})
    until(page, f"innerWidth === {size[0]}")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    until(
        page,
        "[...document.querySelectorAll('canvas')].every((c) => c.clientWidth > 60"
        " && c.clientHeight > 60 && c.width >= c.clientWidth)",
    )
    if size == (1280, 720):
        assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")
    # Both networks with their accuracy, regions and flow are on the first screen, phones included.
    for part in (".score", ".regions canvas", ".flow canvas") if size != (760, 600) else ():
        for box in (page.locator(part).nth(k).bounding_box() for k in (0, 1)):
            assert box["y"] + box["height"] <= size[1]
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before


def test_the_keyboard_alone_is_enough(page: Any) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    names = []
    for _ in range(60):
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"play", "step", "reset", "setting-layers", "architecture", "why"} <= set(names)
    page.focus("#setting-layers")
    page.keyboard.press("ArrowRight")
    until(page, "playground.app.state.layers === 6")
    assert page.get_attribute("#setting-layers", "aria-valuetext") == "6"
    assert page.inner_text("[data-name=layers] b") == "6"
    page.keyboard.press("Space")
    reach(page, 5)
    page.keyboard.press("Space")
    assert page.get_attribute("#play", "aria-pressed") == "false"
    page.keyboard.press("t")
    assert page.evaluate("document.activeElement.tagName") == "H2"


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
    page.hover(".why >> nth=0")
    page.wait_for_selector("#tip:not([hidden])")
    assert "test points" in page.inner_text("#tip")


def test_it_goes_on_offline_and_in_two_tabs(page: Any, context: Any, url: str) -> None:
    other = visit(context, url + SMALL)
    context.set_offline(True)
    for tab in (page, other):
        tab.click("#play")
        reach(tab, 10)
    page.select_option("#setting-data", "peaks")
    reach(page, 10)
    context.set_offline(False)


def test_a_thousand_layers_keep_the_page_alive(context: Any, url: str) -> None:
    page = visit(context, f"{url}#v=1&l=1000&n=25")
    page.click("#play")
    reach(page, 2)
    page.click("#play")
    assert page.get_attribute("#play", "aria-pressed") == "false"


def test_divergence_is_told(page: Any) -> None:
    page.evaluate("playground.app.set({ activation: 'identity', T: 100, layers: 60, first: 'H1' })")
    until(page, "playground.app.views[0].snapshot")
    page.click("#play")
    until(page, "/diverged|explodes/i.test(document.querySelector('.verdict').textContent)")


def test_the_problems_are_those_of_hdnn(page: Any) -> None:
    """Distances to the nearest of many points of the Swiss roll, drawn by hdnn."""
    points = torch.tensor(page.evaluate("Array.from(playground.app.data.test.points)"))
    labels = torch.tensor(page.evaluate("Array.from(playground.app.data.test.labels)"))
    X, y = swiss_roll(20_000)
    for label in (0, 1):
        distance = torch.cdist(points.reshape(-1, 2)[labels == label], X[y == label])
        assert float(distance.min(1).values.max()) < 0.01
