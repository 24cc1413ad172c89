"""How far a long step is, on a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hdnn.progress import listening

SOON = 0.5
"""Seconds after which a step gets a bar."""


class StepBar:
    """A listener of `hdnn.progress` that draws a bar for the step under way, if it takes a while.

    Args:
        console: a terminal.
    """

    def __init__(self, console: Console) -> None:
        self.console, self.text, self.began = console, "", 0.0
        self.bar: Progress | None = None

    def __call__(self, text: str, done: int, total: int) -> None:
        """Show it; a step that is complete, or another one, ends the bar."""
        if text != self.text or (total and done >= total):
            self.close()
            self.text, self.began = text, time.monotonic()
        if (total and done >= total) or time.monotonic() - self.began < SOON:
            return
        if self.bar is None:
            columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            self.bar = Progress(
                TextColumn("{task.description}"), *columns, console=self.console, transient=True
            )
            self.bar.start()
            self.bar.add_task(text)
        self.bar.update(self.bar.task_ids[0], completed=done, total=total or None)

    def close(self) -> None:
        """Take the bar away."""
        if self.bar is not None:
            self.bar.stop()
        self.bar, self.text = None, ""


@contextmanager
def step_bars(console: Console) -> Iterator[None]:
    """Show bars on a terminal; elsewhere steps tell the log."""
    if not console.is_terminal:
        yield
        return
    bar = StepBar(console)
    try:
        with listening(bar):
            yield
    finally:
        bar.close()


@contextmanager
def working(console: Console, text: str) -> Iterator[None]:
    """Say what is done while nobody knows how long it takes; on a terminal, it moves."""
    with listening(lambda *_: None), console.status(text):
        yield
