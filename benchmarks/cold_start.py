"""What a fresh process waits for: imports and the first call; and what is installed.

    python benchmarks/cold_start.py
    python benchmarks/cold_start.py --python OLD/.venv/bin/python --python .venv/bin/python --json

Every measurement is a process of its own, in turns; medians. The first forward and backward of
H1, n = 4, batch 125, 64 layers, is compared with the second. The installed size is that of hdnn and
of what it requires beyond torch, without extras.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence

from speed.worker import own_environment

_IMPORT = """
import time
start = time.perf_counter()
{statement}
print(time.perf_counter() - start)
"""
_CALLS = """
import time, torch, hdnn
net = hdnn.network("H1", features=4, layers=64, T=1.2, dtype=torch.float32)
y, times = torch.randn(125, 4), []
for _ in range(2):
    start = time.perf_counter()
    net(y).sum().backward()
    times.append(time.perf_counter() - start)
print(*times)
"""
_SIZE = """
import re
from importlib import metadata
from pathlib import Path
import hdnn
def closure(name, found):
    name = re.sub("[-_.]+", "-", name).lower()
    if name in found:
        return found
    try:
        found[name] = metadata.distribution(name)
    except metadata.PackageNotFoundError:  # of another platform
        return found
    for line in found[name].requires or ():
        if "extra ==" not in line:
            closure(re.match("[A-Za-z0-9._-]+", line).group(), found)
    return found
def size(paths):
    return sum(p.stat().st_size for p in paths if p.is_file() and "__pycache__" not in p.parts)
beyond = {n: d for n, d in closure("hdnn", {}).items() if n not in closure("torch", {})}
del beyond["hdnn"]
own = [file for folder in hdnn.__path__ for file in Path(folder).rglob("*")]
others = [Path(d.locate_file(f)) for d in beyond.values() for f in d.files or ()]
print((size(own) + size(others)) / 1e6, len(beyond))
"""
SCRIPTS = {
    "import torch": _IMPORT.format(statement="import torch"),
    "import hdnn": _IMPORT.format(statement="import hdnn; hdnn.network"),  # loaded when used
    "calls": _CALLS,
}
Numbers = list[float]


def run(python: str, script: str) -> Numbers:
    """The numbers that a script prints in a process of its own."""
    command, environment = [python, "-c", script], own_environment()
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [float(number) for number in result.stdout.split()]


def measure(pythons: Sequence[str], repeats: int) -> dict[str, dict[str, float]]:
    """Medians in seconds for every interpreter, and megabytes."""
    samples: dict[tuple[str, str], list[Numbers]] = {}
    for _ in range(repeats):
        for python in pythons:
            for name, script in SCRIPTS.items():
                samples.setdefault((python, name), []).append(run(python, script))
    found = {}
    for python in pythons:
        torch, own, first, second = (
            statistics.median(column)
            for name in SCRIPTS
            for column in zip(*samples[python, name], strict=True)
        )
        megabytes, packages = run(python, _SIZE)
        found[python] = {
            "import torch": torch,
            "import hdnn": own,
            "import ratio": own / torch,
            "first call": first,
            "second call": second,
            "first - second": first - second,
            "MB beyond torch": megabytes,
            "packages beyond torch": packages,
        }
    return found


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", action="append", help="an interpreter; default: this one")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measure(given.python or [sys.executable], given.repeats)
    if given.json:
        print(json.dumps(found, indent=1))
        return
    for python, numbers in found.items():
        print(python)
        for name, number in numbers.items():
            print(f"    {name:24} {number:10.4g}")


if __name__ == "__main__":
    main()
