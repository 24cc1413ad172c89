"""Peak extra memory of forward and backward, each in a process of its own (Linux)."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from speed.measure import Report, silent

_SCRIPT = """
import ctypes, sys, torch, hdnn
backend, memory = sys.argv[1:3]
width, rows, layers = map(int, sys.argv[3:])
def status(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(field))
def network(layers):
    return hdnn.network("H1", features=width, layers=layers, T=1.2, backend=backend, memory=memory,
                        scale=width ** -0.5, dtype=torch.float32)
net = network(layers)
y, g = torch.randn(rows, width, requires_grad=True), torch.randn(rows, width)
network(1)(y[:64]).backward(g[:64])  # loads the kernels
y.grad = None
ctypes.CDLL(None).malloc_trim(0)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # forget the peak so far
before = status("VmRSS")
net(y).backward(g)
gradients = sum(p.grad.nbytes for p in net.parameters()) / 2**20
print(status("VmHWM") - before - gradients)
"""
SETTINGS = (
    ("fused", "fast", 8, 78400, (16, 64, 256, 1024)),
    ("reference", "fast", 8, 78400, (16, 64, 256)),
    ("reference", "lean", 8, 78400, (16, 64, 256, 1024)),
    ("auto", "fast", 256, 4096, (16, 64)),
    ("auto", "lean", 256, 4096, (16, 64, 256)),
)
"""Backend, memory, width, rows, depths."""


def megabytes(python: str, *setting: object) -> float:
    """Beyond parameters and their gradients, for a backend, memory, width, rows and layers."""
    run = [python, "-c", _SCRIPT, *map(str, setting)]
    return float(subprocess.run(run, stdout=subprocess.PIPE, text=True, check=True).stdout)


def measure_memory(report: Report = silent) -> list[dict[str, Any]]:
    """A record for every setting and depth."""
    records = []
    for *setting, depths in SETTINGS:
        for layers in depths:
            peak = megabytes(sys.executable, *setting, layers)
            report(f"memory: {', '.join(map(str, setting))}, {layers} layers: {peak:.1f} MB")
            names = ("backend", "memory", "width", "rows", "layers", "megabytes")
            records.append(dict(zip(names, (*setting, layers, peak), strict=True)))
    return records
