"""Peak extra memory of forward and backward, each in a process of its own (Linux)."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from speed.cases import Case
from speed.timing import Work
from speed.worker import Record, Worker, serve

SETTINGS = (
    ("fused", "fast", 8, 78400, (16, 64, 256, 1024)),
    ("reference", "fast", 8, 78400, (16, 64, 256)),
    ("reference", "lean", 8, 78400, (16, 64, 256, 1024)),
    ("fused", "fast", 256, 4096, (16, 64, 256)),
    ("reference", "fast", 256, 4096, (16, 64)),
    ("reference", "lean", 256, 4096, (16, 64, 256)),
)
"""Backend, memory, width, rows, depths."""


def _status(field: str) -> float:
    """A number of megabytes that Linux tells of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def peak(work: Callable[[], Any]) -> float:
    """Megabytes that a call takes at most, beyond what the process has before it."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _status("VmRSS")
    work()
    return _status("VmHWM") - before


def prepare(request: Record) -> tuple[Work, Record]:
    """Measure in a worker; there is nothing to call again, as the allocator keeps what it has."""
    options = {"backend": request["backend"], "memory": request["memory"]}
    case = Case("memory", "H1", request["width"], request["layers"], request["rows"])
    net, y, g = case.network(**options), case.state().requires_grad_(), case.state(seed=2)
    small = Case("memory", "H1", case.width, 1, 64)
    small.network(**options)(y[:64]).backward(g[:64])  # loads the kernels
    y.grad = None
    megabytes = peak(lambda: net(y).backward(g))
    gradients = sum(p.grad.nbytes for p in net.parameters()) / 2**20
    return lambda calls: 0.0, {"megabytes": megabytes - gradients}


def megabytes(**setting: object) -> float:
    """Beyond parameters and their gradients, for a backend, memory, width, rows and layers.

    glibc hardly uses freed blocks of torch's alignment again, unless they are mapped one by one.
    """
    with Worker(sys.executable, "speed.memory", MALLOC_MMAP_THRESHOLD_="262144") as worker:
        return worker.ask(setting)["megabytes"]


def measure_memory() -> list[Record]:
    """A record for every setting and depth."""
    records = []
    for backend, memory, width, rows, depths in SETTINGS:
        for layers in depths:
            setting = dict(backend=backend, memory=memory, width=width, rows=rows, layers=layers)
            records.append({**setting, "megabytes": megabytes(**setting)})
            print(f"memory: {records[-1]}", file=sys.stderr)
    return records


if __name__ == "__main__":
    serve(prepare)
