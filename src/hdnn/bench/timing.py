"""Interleaved measurements: every round runs every peer once, so that noise meets all alike."""

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


def interleave(
    works: Mapping[str, Callable[[], Any]],
    *,
    seconds: float = 2.0,
    least: int = 7,
    most: int = 300,
) -> dict[str, Timing]:
    """Time functions side by side.

    Args:
        works: by name; each is called twice before measuring, to compile and to warm up.
        seconds: how long to go on, once every one has been measured `least` times.
        least, most: bounds on the number of rounds.
    """
    for work in works.values():
        work()
        work()
    samples: dict[str, list[float]] = {name: [] for name in works}
    begin = time.perf_counter()
    for done in range(most):
        if done >= least and time.perf_counter() - begin > seconds:
            break
        for name, work in works.items():
            start = time.perf_counter()
            work()
            samples[name].append(time.perf_counter() - start)
    return {name: _summary(times) for name, times in samples.items()}


def _summary(times: list[float]) -> Timing:
    low, median, high = statistics.quantiles(times, n=4)
    return Timing(median, low, high, len(times))
