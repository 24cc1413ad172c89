"""Measures speed and memory against peers: ratios of medians in one interleaved run.

python benchmarks/bench.py --json > benchmarks/results.json     the whole table
python benchmarks/bench.py --group small --seconds 6            some rows of it, longer
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from speed import cases


def main(arguments: Sequence[str] | None = None) -> None:
    groups = sorted({case.group for case in cases.CASES})
    parser = argparse.ArgumentParser(description="Compare speed and memory with peers.")
    parser.add_argument("--json", action="store_true", help="print the records as JSON")
    parser.add_argument("--seconds", type=float, default=2.0, help="to measure each work")
    parser.add_argument("--group", action="append", choices=groups, help="only these rows")
    given = parser.parse_args(arguments)

    def report(line: str) -> None:
        if not given.json:
            print(line, flush=True)

    if given.group:
        chosen = [case for case in cases.CASES if case.group in given.group]
        measured = [cases.measure(case, given.seconds, report) for case in chosen]
        found = {"machine": cases.machine(), "cases": measured}
    else:
        found = cases.run_all(seconds=given.seconds, report=report)
    if given.json:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
