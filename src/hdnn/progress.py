"""Progress of long steps, through `logging`; the command line shows a bar on a terminal.

To see it in a script or a notebook: ``logging.basicConfig(level=logging.INFO)``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from hdnn.errors import printable

logger = logging.getLogger("hdnn")

T = TypeVar("T")
Listener = Callable[[str, int, int], None]
"""Takes the name of a step, how much of it is done, and how much there is."""

SECONDS = 10.0
"""Between two log lines of a step."""

_listeners: list[Listener] = []


def track(items: Sequence[T], text: str) -> Iterator[T]:
    """Iterate over items and report progress.

    Args:
        items: the parts of a step.
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
    """Reports the progress of a step: to the listener at once, else to the log now and then.

    Args:
        text: what is done.
    """

    def __init__(self, text: str) -> None:
        self.text, self.last = text, time.monotonic()
        self.start: tuple[int, float] | None = None

    def __call__(self, done: int, total: int) -> None:
        """Report that ``done`` of ``total`` parts are done."""
        now = time.monotonic()
        # What is resumed begins with some parts done.
        first, began = self.start = self.start or (done, now)
        if _listeners:
            _listeners[-1](self.text, done, total)
        elif done != total and now - self.last > SECONDS:
            self.last, text = now, f"{self.text}: {done:,} of {total:,}"
            if done > first:
                left = (now - began) * (total - done) / (done - first)
                text += f", about {duration(left)} left"
            note(text)


def duration(seconds: float) -> str:
    """A rough duration for people.

    >>> duration(7.4), duration(100), duration(5400)
    ('7 s', '2 min', '1.5 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send the progress of every step inside to a function instead of the log.

    Args:
        listener: such as one that draws a bar; of several, the innermost is called.
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def note(text: str) -> None:
    """Log a line at level INFO."""
    logger.info(printable(text))
