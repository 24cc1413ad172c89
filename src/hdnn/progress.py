"""Long steps are announced before they begin, and tell how far they are.

Both go through `logging`; the command line shows them, with a bar where there is a terminal. In a
log file: ``logging.basicConfig(level=logging.INFO)``. Where nobody has configured logging, a line
on standard error tells whoever looks at a terminal or a notebook.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

logger = logging.getLogger("hdnn")

T = TypeVar("T")
Listener = Callable[[str, int, int], None]
"""Takes what is done, how much of it is done, and how much there is (0: nobody knows)."""

SECONDS = 10.0
"""Between two lines on how far a step is."""

_listeners: list[Listener] = []


def track(items: Sequence[T], text: str) -> Iterator[T]:
    """Go through items, and tell how far that is.

    Args:
        items: what a step consists of.
        text: what is done, as "reading images".

    Yields:
        The items.
    """
    meter = Meter(text)
    for done, item in enumerate(items):
        meter(done, len(items))
        yield item
    meter(len(items), len(items))


class Meter:
    """Tells how far a step is: whoever listens at once, else the log every few seconds.

    Args:
        text: what is done.
    """

    def __init__(self, text: str) -> None:
        self.text, self.last = text, time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """So much is done, of so much in all (0: nobody knows)."""
        if _listeners:
            _listeners[-1](self.text, done, total)
        elif done != total and time.monotonic() - self.last > SECONDS:
            self.last = time.monotonic()
            note(f"{self.text}: {done:,} of {total:,}" if total else f"{self.text}: {done:,}")


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let a function be told of every step inside, instead of the log.

    Args:
        listener: such as one that draws a bar; of several, the innermost is told.
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def note(text: str) -> None:
    """A line at level INFO.

    Args:
        text: the line.
    """
    logger.info(text)
    unconfigured = not logger.hasHandlers() and not logger.isEnabledFor(logging.INFO)
    if unconfigured and (sys.stderr.isatty() or "ipykernel" in sys.modules):
        sys.stderr.write(f"hdnn: {text}\n")
