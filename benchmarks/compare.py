"""Compares two versions of hdnn, each in an environment of its own, whose processes take turns.

    python benchmarks/compare.py --before OLD/.venv/bin/python --after .venv/bin/python --threads 1

Prints milliseconds (medians) of both and their ratio for every case of `speed` that both have and
for a whole training, and the geometric mean of the ratios.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from contextlib import ExitStack
from dataclasses import asdict

from speed.cases import CASES, SWEEP
from speed.timing import interleave
from speed.worker import Worker


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", required=True, metavar="PYTHON", help="the older version")
    parser.add_argument("--after", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--seconds", type=float, default=2.0, help="per case")
    options = parser.parse_args()
    environment = {"OMP_NUM_THREADS": options.threads}
    pythons, ratios = {"before": options.before, "after": options.after}, []
    # By name: the sweep repeats a case.
    requests = {case.name: {"case": asdict(case)} for case in (*CASES, *SWEEP)}
    for name, request in {**requests, "a whole training": {}}.items():
        # Fresh processes: what one case leaves behind slows down the next.
        with ExitStack() as stack:
            works = {}
            try:
                for key, python in pythons.items():
                    worker = stack.enter_context(Worker(python, "speed.version", **environment))
                    worker.ask(request)
                    works[key] = worker.work
                timings = interleave(works, seconds=options.seconds)
            except EOFError as error:
                print(f"{name:60} {error}", file=sys.stderr)
                continue
        before, after = (timings[key].median for key in ("before", "after"))
        ratios.append(after / before)
        print(f"{name:60} {before * 1e3:9.4f} {after * 1e3:9.4f} {after / before:6.3f}", flush=True)
    if ratios:
        print(f"geometric mean of after / before: {statistics.geometric_mean(ratios):.3f}")


if __name__ == "__main__":
    main()
