"""The first result of a fresh installation: how long three programs take, cold and warm.

    python benchmarks/first_start.py                                  # a table in Markdown
    git archive v1 src | tar -x -C /tmp/v1 && python benchmarks/first_start.py --before /tmp/v1/src

Every run is a process of its own, on a copy of the package beside which nothing is compiled yet.
*Before* is the package of another revision; *one process* compiles everything in the process
itself, as where there is one core; *cold* has a child for part of it; *warm* finds everything.

Of every run: seconds until the result, and in brackets the CPU seconds of the process itself, the
most that it can take where its cores are free. On a machine that others use, compare those.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src"
PROGRAMS = {
    "`hdnn train iris`": """
import contextlib, runpy, sys
sys.argv = ["hdnn", "train", "iris", "--out", "run", "--overwrite"]
with contextlib.suppress(SystemExit):
    runpy.run_module("hdnn", run_name="__main__")
""",
    "`HDNNClassifier().fit(X, y)`": """
from sklearn.datasets import load_iris
import hdnn
hdnn.HDNNClassifier().fit(*load_iris(return_X_y=True))
""",
    '`hdnn.network("H1", features=4, layers=16, T=1.0)(y)`': """
import torch, hdnn
hdnn.network("H1", features=4, layers=16, T=1.0)(torch.randn(100, 4))
""",
    "the same with `.sum().backward()`": """
import torch, hdnn
hdnn.network("H1", features=4, layers=16, T=1.0)(torch.randn(100, 4)).sum().backward()
""",
}
TOLD = """
import resource as _resource, sys as _sys
_used = _resource.getrusage(_resource.RUSAGE_SELF)
_sys.stderr.write(f"\\nCPU {_used.ru_utime + _used.ru_stime}\\n")
"""


def run(code: str, site: Path, cache: Path, **settings: str) -> tuple[float, float]:
    """Seconds of a program until its result, and CPU seconds of its own."""
    with tempfile.TemporaryDirectory() as place:
        start = time.perf_counter()
        result = subprocess.run(
            [sys.executable, "-c", code + TOLD],
            env={**os.environ, "PYTHONPATH": str(site), "NUMBA_CACHE_DIR": str(cache), **settings},
            cwd=place,
            capture_output=True,
            text=True,
            check=True,
        )
        seconds = time.perf_counter() - start
    return seconds, float(result.stderr.rsplit("CPU ", 1)[1])


def ways(code: str, site: Path, before: Path | None, place: Path) -> dict[str, tuple[float, float]]:
    """One run in every way."""
    found = {}
    if before is not None:
        found["before"] = run(code, before, place / "before")
    found["one process"] = run(code, site, place / "one", HDNN_COMPILE_JOBS="1")
    found["cold"] = run(code, site, place / "two", HDNN_COMPILE_JOBS="2")
    found["warm"] = run(code, site, place / "one")
    return found


def copied(source: Path, to: Path) -> Path:
    """A package without anything compiled."""
    shutil.copytree(source / "hdnn", to / "hdnn", ignore=shutil.ignore_patterns("__pycache__"))
    return to


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1, help="of which the medians are told")
    parser.add_argument("--before", type=Path, help="the folder src of another revision")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        site = copied(PACKAGE, place / "site")
        before = None if options.before is None else copied(options.before, place / "old")
        run("import hdnn.training.trainer, hdnn.cli.train, sklearn.datasets", site, place)
        if before is not None:  # so that the bytecode of all is there
            run("import hdnn.training.trainer, hdnn.cli.train", before, place)
        for name, code in PROGRAMS.items():
            folders = [place / f"{k} {len(rows)}" for k in range(options.runs)]
            runs = [ways(code, site, before, folder) for folder in folders]
            medians = {
                way: [statistics.median(one[way][k] for one in runs) for k in range(2)]
                for way in runs[0]
            }
            rows.append((name, medians))
            print(name, medians, file=sys.stderr, flush=True)
    head = list(rows[0][1])
    print("| first result, s (CPU s of the process) |", " | ".join(head), "|")
    print("| --- |", " | ".join("---:" for _ in head), "|")
    for name, medians in rows:
        cells = [f"{seconds:.1f} ({cpu:.1f})" for seconds, cpu in medians.values()]
        print(f"| {name} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
