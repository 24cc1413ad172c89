"""The playground's speed in chromium, as the page itself measures it.

Run it:  python benchmarks/playground.py            (needs playwright and chromium)
"""

from __future__ import annotations

import json
import os
import shutil
import threading

from hdnn.playground import make_server

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def main() -> None:
    from playwright.sync_api import sync_playwright

    with make_server() as server, sync_playwright() as playwright:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=ARGUMENTS
        )
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        page.goto(server.url)
        page.wait_for_selector(".network canvas")
        found = page.evaluate("playground.measure()")
        print(json.dumps({"load": os.getloadavg(), "browser": browser.version, **found}, indent=1))
        browser.close()
        server.shutdown()
        thread.join()


if __name__ == "__main__":
    main()
