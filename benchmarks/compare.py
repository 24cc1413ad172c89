"""Compares two versions of hdnn, each in an environment of its own, whose processes take turns.

    python benchmarks/compare.py --before OLD/.venv/bin/python --after .venv/bin/python --threads 1

Prints milliseconds (medians) of both and their ratio for every case of `speed` that both have, for
predictions and for whole trainings, and the geometric mean of the ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict

from speed.cases import CASES, SWEEP, Case
from speed.timing import interleave
from speed.worker import Record, Worker, WorkerError

SMALL = Case("small", "H1", 4, 64, 125)
COLUMNS = ((2, 4), (30, 60))


def works() -> Iterator[tuple[str, str, Record]]:
    """Group, name and request of all that is compared."""
    seen = set()
    for case in (*CASES, *SWEEP):
        for peer in {"fused", "auto", "fused compiled"}.intersection(case.peers):
            if (case.name, peer) not in seen:
                seen.add((case.name, peer))
                request = {"work": "step", "peer": peer, "case": asdict(case)}
                yield case.group, f"{case.name}, {peer}", request
    for case in CASES:
        if "loop" in case.peers:
            request = {"work": "step", "peer": "reference", "case": asdict(case)}
            yield "reference", f"{case.name}, reference", request
            yield "forward", f"{case.name}, forward", request | {"work": "forward"}
    yield "analysis", "sensitivities", {"work": "sensitivities", "case": asdict(SMALL)}
    for samples in (1, 12, 100, 1000):
        for columns, width in COLUMNS:
            request = {"columns": columns, "width": width, "samples": samples, "work": "predict"}
            yield "predict", f"predict {samples}, n={width}, 16 layers", request
    for method in ("coordinate", "joint"):
        request = {"work": "train", "method": method, "epochs": 50, "members": 1}
        yield "training", f"training, {method}, 50 epochs", request
    request = {"work": "train", "epochs": 50, "members": 16}
    yield "training", "training, coordinate, 50 epochs, 16 networks", request


def main() -> None:
    """Print lines, or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", required=True, metavar="PYTHON", help="the older version")
    parser.add_argument("--after", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--seconds", type=float, default=2.0, help="per case")
    parser.add_argument("--group", action="append", help="only these cases")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    environment = {"OMP_NUM_THREADS": given.threads, "HDNN_NUM_THREADS": given.threads}
    pythons, records = {"before": given.before, "after": given.after}, []
    for group, name, request in works():
        if given.group and group not in given.group:
            continue
        # Fresh processes: what one case leaves behind slows down the next.
        workers = {k: Worker(p, "speed.version", **environment) for k, p in pythons.items()}
        try:
            for worker in workers.values():
                worker.ask(request)
        except WorkerError as error:
            print(f"{name:60} {error}", file=sys.stderr)
            continue
        else:
            timings = interleave({k: w.work for k, w in workers.items()}, seconds=given.seconds)
        finally:
            for worker in workers.values():
                worker.close()
        before, after = (timings[key].median for key in ("before", "after"))
        records.append({"group": group, "name": name, "before": before, "after": after})
        line = f"{group:10} {name:52} {before * 1e3:9.4f} {after * 1e3:9.4f} {after / before:6.3f}"
        print(line, file=sys.stderr if given.json else sys.stdout, flush=True)
    if given.json:
        print(json.dumps({"threads": given.threads, "cases": records}, indent=1))
    if records:
        mean = statistics.geometric_mean(r["after"] / r["before"] for r in records)
        print(f"geometric mean of after / before: {mean:.3f}", file=sys.stderr)


if __name__ == "__main__":
    main()
