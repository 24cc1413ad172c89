"""Interleaved measurements: every round runs every peer, so that noise meets all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Timing:
    """Seconds a call: median and the quartiles over the rounds."""

    median: float
    low: float
    high: float
    rounds: int


BURST = 0.02
"""Seconds that a peer runs in one go: long enough that caches and threads are its own."""


def interleave(
    works: Mapping[str, Callable[[], Any]],
    *,
    seconds: float = 2.0,
    least: int = 7,
    most: int = 300,
) -> dict[str, Timing]:
    """Time functions side by side: in every round each runs a burst of calls, after one to warm up.

    Args:
        works: by name; each is called a few times before measuring, to compile and to find out how
            many calls make a burst.
        seconds: how long to go on, once every one has been measured `least` times.
        least, most: bounds on the number of rounds.
    """
    bursts = {name: _calls(work) for name, work in works.items()}
    samples: dict[str, list[float]] = {name: [] for name in works}
    begin = time.perf_counter()
    for done in range(most):
        if done >= least and time.perf_counter() - begin > seconds:
            break
        for name, work in works.items():
            work()
            start = time.perf_counter()
            for _ in range(bursts[name]):
                work()
            samples[name].append((time.perf_counter() - start) / bursts[name])
    return {name: _summary(times) for name, times in samples.items()}


def _calls(work: Callable[[], Any]) -> int:
    """How many calls make a burst."""
    work()
    work()
    start = time.perf_counter()
    work()
    took = time.perf_counter() - start
    return max(1, min(200, round(BURST / max(took, 1e-7))))


def _summary(times: list[float]) -> Timing:
    low, median, high = statistics.quantiles(times, n=4)
    return Timing(median, low, high, len(times))
