"""Chromium for the tests of pages; where it is missing they are skipped, but not under HDNN_CI."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None and "HDNN_CI" not in os.environ:
        pytest.skip("no chromium is installed")
    if "HDNN_CI" not in os.environ:
        pytest.importorskip("playwright.sync_api", reason="needs playwright (the dev extra)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield opened
        opened.close()
