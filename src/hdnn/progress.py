"""Long steps are announced before they begin, through `logging`; the command line shows them.

In a log file: ``logging.basicConfig(level=logging.INFO)``. Where nobody has configured logging, a
line on standard error tells whoever looks at a terminal or a notebook.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("hdnn")


@contextmanager
def announce(text: str) -> Iterator[None]:
    """Say what is about to take long, and (at level DEBUG) how long it took.

    Args:
        text: what is done, as "reading digits.csv".
    """
    note(f"{text} ...")
    start = time.perf_counter()
    yield
    logger.debug("%s: %.1f s", text, time.perf_counter() - start)


def note(text: str) -> None:
    """A line at level INFO.

    Args:
        text: the line.
    """
    logger.info(text)
    unconfigured = not logger.hasHandlers() and not logger.isEnabledFor(logging.INFO)
    if unconfigured and (sys.stderr.isatty() or "ipykernel" in sys.modules):
        sys.stderr.write(f"hdnn: {text}\n")
