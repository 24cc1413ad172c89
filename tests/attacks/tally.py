"""What a campaign found: how many inputs it tried, and what failed, with an example to repeat."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

HELD = ""
"""The verdict on an input for which every promise held; any other is "kind: detail"."""


@dataclass(frozen=True)
class Failure:
    """One kind of failure: how often it occurred, and the first input that showed it."""

    kind: str
    count: int
    first: int
    detail: str


@dataclass(frozen=True)
class Tally:
    """The result of a campaign.

    Args:
        what: was attacked.
        tried: inputs in all.
        failures: by kind, the most frequent first.
    """

    what: str
    tried: int
    failures: tuple[Failure, ...] = ()

    @property
    def failed(self) -> int:
        return sum(failure.count for failure in self.failures)


def tally(what: str, verdicts: Iterable[tuple[int, str]]) -> Tally:
    """Count the verdicts on numbered inputs."""
    tried, found = 0, dict[str, Failure]()
    for number, verdict in verdicts:
        tried += 1
        if verdict == HELD:
            continue
        kind, _, detail = verdict.partition(": ")
        known = found.setdefault(kind, Failure(kind, 0, number, detail))
        first, detail = min((known.first, known.detail), (number, detail))
        found[kind] = dataclasses.replace(known, count=known.count + 1, first=first, detail=detail)
    failures = sorted(found.values(), key=lambda failure: -failure.count)
    return Tally(what, tried, tuple(failures))
