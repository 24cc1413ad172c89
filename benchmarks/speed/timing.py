"""Interleaved measurements: every round runs every peer, so that noise affects all alike."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Work = Callable[[int], float]
"""Seconds that so many calls take, here or in another process."""
CLOCK = time.process_time if os.environ.get("OMP_NUM_THREADS") == "1" else time.perf_counter
"""On one thread the time of the processor: that of an idle machine, whatever else runs."""
BURST = 0.02
"""Seconds that a peer runs in one go: long enough that caches and threads are its own."""


class Timing(NamedTuple):
    """Seconds per call: median and quartiles over the rounds."""

    median: float
    low: float
    high: float
    rounds: int


def repeat(function: Callable[[], Any], clock: Callable[[], float] = CLOCK) -> Work:
    """The work of calling a function."""

    def work(calls: int) -> float:
        start = clock()
        for _ in range(calls):
            function()
        return clock() - start

    return work


def interleave(
    works: Mapping[str, Work], *, seconds: float = 2.0, least: int = 7, most: int = 300
) -> dict[str, Timing]:
    """Time works side by side: in every round each runs a burst of calls, after a warm-up call.

    Every second round goes backward, as what runs first may find the machine in another state.

    Args:
        works: by name.
        seconds: when to stop, once there are `least` rounds.
        least, most: bounds on the number of rounds.
    """
    bursts = {name: _calls(work) for name, work in works.items()}
    samples: dict[str, list[float]] = {name: [] for name in works}
    begin = time.perf_counter()
    for done in range(most):
        if done >= least and time.perf_counter() - begin > seconds:
            break
        for name, work in list(works.items())[:: 1 if done % 2 == 0 else -1]:
            if bursts[name] > 1:  # a long call warms itself up
                work(1)
            samples[name].append(work(bursts[name]) / bursts[name])
    timings = {}
    for name, times in samples.items():
        low, median, high = statistics.quantiles(times, n=4)
        timings[name] = Timing(median, low, high, len(times))
    return timings


def _calls(work: Work) -> int:
    """How many calls make a burst: at least two, so that there is a warm-up, but of long ones."""
    work(1)
    seconds = max(work(1), 1e-7)
    return max(1 if seconds > 10 * BURST else 2, min(200, round(BURST / seconds)))
