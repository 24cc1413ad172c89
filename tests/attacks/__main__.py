"""``python -m attacks``: all campaigns, and one table of what they found."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from attacks import estimators, faults, fuzz, interrupts, kills, readers, storms
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
FUZZED = 5_000
DOCS = Path(__file__).parents[2] / "docs" / "reliability.md"
MARKS = "<!-- attack -->\n", "<!-- end of attack -->"

Run = Callable[..., Tally]


@dataclass(frozen=True)
class Campaign:
    """A campaign, and how many inputs a whole attack tries."""

    run: Run
    count: int


CAMPAIGNS: dict[str, Campaign] = {
    **{f"mutated {name}": Campaign(partial(readers.run, name), n) for name, n in MUTATED.items()},
    **{f"fuzzed {name}": Campaign(partial(fuzz.run, name), FUZZED) for name in MUTATED},
    "interrupts": Campaign(interrupts.run, 20_000),
    "bytecodes": Campaign(interrupts.run_bytecodes, 100_000),  # as many as there are
    "kills": Campaign(kills.run, 900),
    "faults": Campaign(faults.run, 100_000),  # as many as there are
    "storms": Campaign(storms.run, 40),
    "estimators": Campaign(estimators.run, 1_000),
}


def main() -> int:
    """Run the campaigns; 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m attacks", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of inputs")
    parser.add_argument("--only", action="append", help="campaigns whose names begin so; repeats")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first input")
    parser.add_argument("--count", type=int, help="inputs of each campaign, instead of --scale")
    parser.add_argument("--json", type=Path, help="also write the tallies here")
    parser.add_argument("--write-docs", action="store_true", help=f"the table into {DOCS.name}")
    given = parser.parse_args()
    names = [n for n in CAMPAIGNS if not given.only or any(map(n.startswith, given.only))]
    console, tallies = Console(), []
    for name in names:
        start, campaign = time.monotonic(), CAMPAIGNS[name]
        count = max(1, round(given.scale * campaign.count)) if given.count is None else given.count
        found = campaign.run(count, given.seed, start=given.start)
        tallies.append(found)
        counts = f"{found.failed} of {found.tried} failed, {time.monotonic() - start:.0f} s"
        console.print(f"{found.what}: {counts} {found.note}", highlight=False)
    console.print(table(tallies))
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(found) for found in tallies], indent=1) + "\n")
    if given.write_docs:
        write_docs(tallies, given.seed)
    return int(any(found.failures for found in tallies))


def table(tallies: list[Tally]) -> Table:
    """What was tried and what failed, for a terminal."""
    shown = Table("attack", "inputs", "failed", "kind (count; number of the first input)")
    for found in tallies:
        kinds = [f"{f.kind} ({f.count}; {f.first}) {f.detail[:160]!r}" for f in found.failures]
        shown.add_row(
            found.what, f"{found.tried:,}", str(found.failed), "\n".join(kinds) or found.note
        )
    return shown


def write_docs(tallies: list[Tally], seed: int, path: Path = DOCS) -> None:
    """Put the table into the page, between its marks."""
    rows = [
        f"| {found.what} | {found.tried:,} | {found.failed} "
        f"| {', '.join(f'{f.kind} ({f.count})' for f in found.failures) or found.note} |"
        for found in tallies
    ]
    total = f"| all | {sum(t.tried for t in tallies):,} | {sum(t.failed for t in tallies)} | |"
    head = [
        f"Seed {seed}.",
        "",
        "| attack | inputs | failed | kinds |",
        "| --- | ---: | ---: | --- |",
    ]
    before, rest = path.read_text().split(MARKS[0])
    _, after = rest.split(MARKS[1])
    text = "\n".join([*head, *rows, total, ""])
    path.write_text(before + MARKS[0] + text + MARKS[1] + after)


if __name__ == "__main__":
    raise SystemExit(main())
