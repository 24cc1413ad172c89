"""``python -m attacks``: all campaigns, and a table (Markdown) of what they found."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial

from attacks import estimators, faults, interrupts, kills, readers, storms
from attacks.tally import Tally

MUTATED = {
    "model": 40_000,
    "config": 8_000,
    "history": 8_000,
    "gradients": 4_000,
    "checkpoint": 3_000,
    "history, resumed": 2_000,
    "gradients, resumed": 2_000,
}
CAMPAIGNS: dict[str, tuple[Callable[..., Tally], int]] = {
    **{f"mutated {name}": (partial(readers.run, name), n) for name, n in MUTATED.items()},
    "interrupts": (interrupts.run, 20_000),
    "kills": (kills.run, 900),
    "faults": (faults.run, 100_000),  # as many as there are
    "storms": (storms.run, 40),
    "estimators": (estimators.run, 1_000),
}
"""Every campaign, and how many inputs a whole attack tries."""


def main() -> int:
    """Run the campaigns; 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m attacks", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of inputs")
    parser.add_argument("--only", action="append", help="campaigns whose names begin so; repeats")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first input")
    parser.add_argument("--count", type=int, help="inputs of each campaign, instead of --scale")
    given = parser.parse_args()
    tallies = []
    for name, (run, most) in CAMPAIGNS.items():
        if given.only and not name.startswith(tuple(given.only)):
            continue
        start = time.monotonic()
        count = max(1, round(given.scale * most)) if given.count is None else given.count
        tallies.append(run(count, given.seed, start=given.start))
        sys.stderr.write(f"{name}: {time.monotonic() - start:.0f} s\n")
    sys.stdout.write(table(tallies))
    return int(any(found.failures for found in tallies))


def table(tallies: list[Tally]) -> str:
    """What was tried and what failed, of each kind with the number of the first input."""
    lines = ["| attack | inputs | failed | kinds |", "| --- | ---: | ---: | --- |"]
    for found in tallies:
        kinds = [f"{f.kind} ({f.count}; {f.first}: {f.detail[:160]!r})" for f in found.failures]
        lines.append(f"| {found.what} | {found.tried:,} | {found.failed} | {', '.join(kinds)} |")
    tried, failed = sum(t.tried for t in tallies), sum(t.failed for t in tallies)
    return "\n".join([*lines, f"| all | {tried:,} | {failed} | |", ""])


if __name__ == "__main__":
    raise SystemExit(main())
