"""What is measured: the works of the performance table, each with the peers that can do it."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch

import hdnn
from hdnn.errors import HdnnError
from hdnn.networks import HamiltonianNetwork
from speed.peers import PEERS
from speed.timing import Timing, interleave

Record = dict[str, Any]
Report = Callable[[str], None]


@dataclass(frozen=True)
class Case:
    """Forward and backward of one network, with all parameter gradients, in float32.

    Args:
        group: the row of the table it belongs to.
        architecture, width, layers, ensemble: the network; ``channels`` for images.
        batch: samples (of every network of an ensemble); for images also ``pixels``.
        peers: who does it.
    """

    group: str
    architecture: str
    width: int
    layers: int
    batch: int
    ensemble: int | None = None
    pixels: tuple[int, int] | None = None
    peers: tuple[str, ...] = ("fused", "reference", "jax", "jax-checkpoint")

    @property
    def name(self) -> str:
        size = f"n={self.width}, batch {self.batch}, {self.layers} layers"
        if self.pixels:
            size = f"n={self.width}, {self.batch} images, {self.layers} layers"
        return f"{self.architecture}, {size}" + (f", x{self.ensemble}" if self.ensemble else "")

    def network(self) -> HamiltonianNetwork:
        generator = torch.Generator().manual_seed(0)
        return hdnn.network(
            self.architecture,
            features=None if self.pixels else self.width,
            channels=self.width if self.pixels else None,
            layers=self.layers,
            T=1.2,
            ensemble=self.ensemble,
            generator=generator,
            scale=self.width**-0.5,
            dtype=torch.float32,
        )

    def state(self) -> torch.Tensor:
        lead = () if self.ensemble is None else (self.ensemble,)
        generator = torch.Generator().manual_seed(1)
        shape = (*lead, self.batch, self.width, *(self.pixels or ()))
        return torch.randn(shape, generator=generator, dtype=torch.float32)


_WIDE, _COMPILED = ("auto", "reference"), ("fused", "compile")
CASES = (
    *(Case("small", a, 4, 64, 125) for a in ("H1", "MS1", "MS3")),
    *(Case("ensemble", a, 4, 64, 125, ensemble=16) for a in ("H1", "MS1", "MS3")),
    *(Case("images", a, 8, 16, 100, pixels=(28, 28)) for a in ("H2", "MS1")),
    Case("euler", "H1", 4, 64, 125, peers=("fused", "torchdiffeq")),
    Case("wide", "H1", 64, 64, 4096, peers=_WIDE),
    Case("wide", "H1", 256, 16, 4096, peers=_WIDE),
    # Apart: the fewer peers in a round, the closer in time they are measured.
    Case("compiled", "H1", 4, 64, 125, peers=_COMPILED),
    Case("compiled", "H2", 8, 16, 100, pixels=(28, 28), peers=_COMPILED),
)
"""The works of the table; every one is a floor in docs/performance.md."""

SWEEP = (
    *(Case("depth", "H1", 4, d, 125, peers=("fused", "reference")) for d in (4, 16, 64, 256, 1024)),
    *(
        Case("width", "H1", n, 16, 1024, peers=("fused", "reference"))
        for n in (2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
    ),
)
"""Time against depth and width, for the figure and for the crossovers of `auto`."""


def measure(case: Case, seconds: float = 2.0, report: Report = lambda line: None) -> Record:
    """One case: seconds of every peer, interleaved in one run."""
    net, y = case.network(), case.state()
    works, missing = {}, {}
    for peer in case.peers:
        try:
            works[peer] = PEERS[peer](net, y)
            works[peer]()
        except (HdnnError, ImportError) as error:
            works.pop(peer, None)
            missing[peer] = str(error)
    if not works:
        raise HdnnError(f"no peer can do {case.name}: {missing}")
    timings = interleave(works, seconds=seconds)
    first = next(iter(timings))
    for peer, timing in timings.items():
        ratio = timing.median / timings[first].median
        report(f"{case.name:36} {peer:15} {timing.median * 1e3:9.3f} ms   {ratio:6.2f} x {first}")
    return {"case": asdict(case), "seconds": _plain(timings), "missing": missing}


def _plain(timings: dict[str, Timing]) -> Record:
    return {name: asdict(timing) for name, timing in timings.items()}


def sensitivities(seconds: float = 2.0, report: Report = lambda line: None) -> Record:
    """d y_N / d y_l of all layers against n vector-Jacobian products through one graph."""
    case = Case("sensitivities", "H1", 4, 64, 125)
    net, y = case.network(), case.state()
    rows = torch.eye(4).unsqueeze(1).expand(4, 125, 4)
    advance = hdnn.backends.reference.layer_map(net.program())

    def batched() -> Any:
        states = [y.clone().requires_grad_()]
        for layer in range(net.layers):
            states.append(advance(layer, states[-1]))
        return torch.autograd.grad(states[-1], states, rows, is_grads_batched=True)

    from hdnn.analysis import sensitivities as sweep

    timings = interleave({"fused": lambda: sweep(net, y), "batched vjp": batched}, seconds=seconds)
    ratio = timings["batched vjp"].median / timings["fused"].median
    report(f"sensitivities of all layers: batched vjp / fused = {ratio:.1f}")
    return {"case": asdict(case), "seconds": _plain(timings)}


_MEMORY = """
import ctypes, sys, torch, hdnn
layers, backend, memory, width, rows = (
    int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
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


def memory(report: Report = lambda line: None) -> list[Record]:
    """Peak extra memory of forward and backward, beyond parameters and their gradients."""
    records = []
    for backend, kind, width, rows, depths in (
        ("fused", "fast", 8, 78400, (16, 64, 256, 1024)),
        ("reference", "fast", 8, 78400, (16, 64, 256)),
        ("reference", "lean", 8, 78400, (16, 64, 256, 1024)),
        ("auto", "fast", 256, 4096, (16, 64)),
        ("auto", "lean", 256, 4096, (16, 64, 256)),
    ):
        for layers in depths:
            arguments = [str(v) for v in (layers, backend, kind, width, rows)]
            result = subprocess.run(
                [sys.executable, "-c", _MEMORY, *arguments],
                capture_output=True,
                text=True,
                check=True,
            )
            extra = float(result.stdout)
            report(f"memory: {backend}, {kind}, n={width}, {layers} layers: {extra:.0f} MB")
            records.append(
                {
                    "backend": backend,
                    "memory": kind,
                    "width": width,
                    "rows": rows,
                    "layers": layers,
                    "megabytes": extra,
                }
            )
    return records


def lean_cost(seconds: float = 4.0, report: Report = lambda line: None) -> Record:
    """The time that memory='lean' costs at a width where the kernels do not serve."""
    case = Case("lean", "H1", 256, 16, 1024)
    works = {}
    for kind in ("fast", "lean"):
        net = case.network()
        net.memory = kind
        works[kind] = PEERS["auto"](net, case.state())
    timings = interleave(works, seconds=seconds)
    ratio = timings["lean"].median / timings["fast"].median
    report(f"memory='lean' at n=256: {ratio:.2f} x the time of 'fast'")
    return {"case": asdict(case), "seconds": _plain(timings)}


def threads(seconds: float = 2.0, report: Report = lambda line: None) -> Record:
    """One thread against all, for the image network."""
    case = Case("threads", "H2", 8, 16, 100, pixels=(28, 28))
    work = PEERS["fused"](case.network(), case.state())

    def limited(count: int) -> Callable[[], Any]:
        def run() -> Any:
            os.environ["HDNN_NUM_THREADS"] = str(count)
            return work()

        return run

    kept = os.environ.get("HDNN_NUM_THREADS")
    counts = sorted({1, os.cpu_count() or 1})
    timings = interleave({str(count): limited(count) for count in counts}, seconds=seconds)
    os.environ.pop("HDNN_NUM_THREADS")
    if kept is not None:
        os.environ["HDNN_NUM_THREADS"] = kept
    scaling = timings["1"].median / timings[str(counts[-1])].median
    report(f"threads: {counts[-1]} are {scaling:.2f} x as fast as one")
    return {"case": asdict(case), "seconds": _plain(timings)}


def share_of_peak(seconds: float = 2.0, report: Report = lambda line: None) -> Record:
    """The kernels' rate as a share of the machine's sgemm rate.

    Counted are products only: forward 2 m (r + w) a stage and sample, backward with recomputation
    three times as much (recompute, pull back, parameter gradients); no operations for tanh.
    """
    case = Case("peak", "H2", 8, 16, 100, pixels=(28, 28))
    net, y = case.network(), case.state()
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    train = PEERS["fused"](net, y)

    def forward() -> Any:
        with torch.no_grad():
            return net(y)

    timings = interleave(
        {"sgemm": lambda: a @ b, "forward": forward, "both": train}, seconds=seconds
    )
    products = 2 * 8 * 16 * 16 * 78400
    sgemm = 2 * 1024**3 / timings["sgemm"].median
    rates = {
        "sgemm": sgemm,
        "forward": products / timings["forward"].median,
        "both": 4 * products / timings["both"].median,
    }
    report(
        f"sgemm {sgemm / 1e9:.0f} GFLOP/s; forward {rates['forward'] / sgemm:.0%} of it, forward "
        f"and backward {rates['both'] / sgemm:.0%}"
    )
    return {"case": asdict(case), "seconds": _plain(timings), "flops": rates}


_FIRST_CALL = """
import time, torch, hdnn
net = hdnn.network("H1", features=4, layers=64, T=1.2, dtype=torch.float32)
y = torch.randn(125, 4)
start = time.perf_counter()
net(y).sum().backward()
print(time.perf_counter() - start)
"""


def first_call(report: Report = lambda line: None) -> Record:
    """Seconds of the first forward and backward of a process, with the kernels cached on disk."""
    times = []
    for _ in range(4):
        result = subprocess.run(
            [sys.executable, "-c", _FIRST_CALL], capture_output=True, text=True, check=True
        )
        times.append(float(result.stdout))
    seconds = statistics.median(times[1:])
    report(f"first call of a process, kernels cached: {seconds:.2f} s")
    return {"seconds": seconds}


def machine() -> Record:
    """What the numbers were measured on."""
    facts: Record = {"hdnn": hdnn.__version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "numba", "jax", "torchdiffeq"):
        try:
            module = __import__(package)
        except ImportError:
            continue
        facts[package] = getattr(module, "__version__", "present")
    facts["threads"] = torch.get_num_threads()
    facts["cpu"] = _cpu()
    facts["date"] = time.strftime("%Y-%m-%d")
    return facts


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            lines = [line for line in file if line.startswith("model name")]
    except OSError:
        lines = []
    return lines[0].split(":")[1].strip() if lines else platform.processor()


def run_all(
    cases: Iterable[Case] = CASES, seconds: float = 2.0, report: Report = lambda line: None
) -> Record:
    """The whole table: every case, the sweeps, memory, sensitivities, threads and share of peak."""
    return {
        "machine": machine(),
        "cases": [measure(case, seconds, report) for case in cases],
        "sensitivities": sensitivities(seconds, report),
        "threads": threads(seconds, report),
        "peak": share_of_peak(seconds, report),
        "lean": lean_cost(seconds, report),
        "first_call": first_call(report),
        "memory": memory(report),
        "sweep": [measure(case, seconds / 2, report) for case in SWEEP],
    }
