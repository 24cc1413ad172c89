"""The same bits for any number of threads, in children of every kind, and from many at once."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hdnn
from catalog import build
from skips import needs_kernels
from twins import Net, Results, agree, derivatives

pytestmark = needs_kernels

CASES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "rows": ({"name": "H1", "features": 4, "layers": 64}, (2101, 4)),
    "wide rows": ({"name": "MS2", "features": 34, "layers": 5}, (1331, 34)),
    "images": ({"name": "H2", "channels": 8, "layers": 8}, (5, 8, 31, 33)),
    "ensemble": ({"name": "MS3", "features": 4, "layers": 64, "ensemble": 3}, (3, 501, 4)),
    "wide and deep": ({"name": "H2", "features": 64, "layers": 70}, (300, 64)),
    "time-invariant": (
        {"name": "MS2", "features": 16, "layers": 100, "time_invariant": True},
        (1500, 16),
    ),
    "small images": ({"name": "H1", "channels": 8, "layers": 30}, (700, 8, 2, 2)),
    "few rows": ({"name": "H2", "features": 64, "layers": 64, "ensemble": 32}, (32, 2, 64)),
    "deep": ({"name": "MS1", "features": 8, "layers": 900}, (200, 8)),
}
"""All large enough to be shared among threads."""


def case(name: str, dtype: torch.dtype) -> tuple[Net, Tensor, Tensor]:
    options, shape = CASES[name]
    torch.manual_seed(5)
    net = build(**options, T=1.0, scale=0.4, dtype=dtype, backend="fused")
    return net, torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)


def everything(name: str, dtype: torch.dtype = torch.float32) -> Results:
    net, y, weight = case(name, dtype)
    few = y[:50] if name in ("wide and deep", "time-invariant") else y  # else 300 MB
    return derivatives(net, y, weight) | {"M": hdnn.analysis.sensitivities(net, few)}


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_for_any_number_of_threads(name: str, dtype: torch.dtype) -> None:
    with threads(1):
        alone = everything(name, dtype)
    for count in (2, 3, 16):
        with threads(count):
            agree(everything(name, dtype), alone, 0.0)


def test_four_threads_at_once() -> None:
    """Each with a network of its own and, at the same time, all with the same network."""
    names = [name for name in CASES if name != "deep"]
    shared = {name: case(name, torch.float32) for name in names}
    expected = {name: derivatives(*shared[name]) for name in names}
    jobs = [(name, own) for _ in range(4) for name in names for own in (False, True)]
    barrier = threading.Barrier(4)

    def run(job: tuple[str, bool]) -> Results:
        net, y, weight = shared[job[0]]
        return derivatives(copy.deepcopy(net) if job[1] else net, y, weight)

    with threads(2), ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: barrier.wait(timeout=30), range(4)))  # all four are there
        for (name, _), results in zip(jobs, pool.map(run, jobs), strict=True):
            agree(results, expected[name], 0.0)


def test_one_graph_from_four_threads() -> None:
    """Its kept activations serve those who find them; the others compute them again."""
    net, y, weight = case("rows", torch.float32)
    inputs = [y.requires_grad_(), *net.parameters()]

    def gradients(out: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(out, inputs, weight, retain_graph=True))

    expected = gradients(net(y))
    with threads(2), ThreadPoolExecutor(4) as pool:
        for found in pool.map(gradients, [net(y)] * 8):
            assert all(map(torch.equal, found, expected))


LARGE = """
import os, sys
import torch
import hdnn

def call(name, n, layers, samples, dtype=torch.float32, **options):
    options |= {"features": n, "layers": layers, "T": 1.0, "dtype": dtype, "backend": "fused"}
    net = hdnn.network(name, **options)
    y = torch.randn(samples, n, dtype=dtype, requires_grad=True)
    torch.autograd.grad(net(y).sum(), [y, *net.parameters()])

def memory(key):  # in MB
    (line,) = (line for line in open("/proc/self/status") if line.startswith(key))
    return int(line.split()[1]) / 1024

call("H1", 4, 2, 5)
"""

needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")


def figures(script: str, *arguments: object) -> list[float]:
    """What a fresh process prints, without a sanitizer, which would keep what is freed."""
    run = [sys.executable, "-c", LARGE + script, *map(str, arguments)]
    sanitizer = ("LD_PRELOAD", "HDNN_LIBRARY")
    environment = {name: os.environ[name] for name in os.environ if name not in sanitizer}
    environment["OMP_NUM_THREADS"] = "1"
    result = subprocess.run(
        run, check=True, capture_output=True, text=True, timeout=300, env=environment
    )
    return [float(number) for number in result.stdout.split()]


@needs_proc
def test_wide_and_deep_networks_use_all_threads() -> None:
    """Each in a forked child, whose pool is new: it starts as many helpers as find work."""
    script = """
torch.get_num_threads = lambda: 16  # of the kernels; torch itself has one
for n, layers in (16, 512), (64, 16), (96, 16), (32, 32), (64, 256):
    if not os.fork():
        before = len(os.listdir("/proc/self/task"))
        call("H1", n, layers, 4096)
        print(len(os.listdir("/proc/self/task")) - before, flush=True)
        os._exit(0)
    os.wait()
"""
    assert figures(script) == [15] * 5


@needs_proc
def test_memory_of_a_time_invariant_network_does_not_grow_with_its_depth() -> None:
    """Its parameters, assembled or not, and their gradients exist once: 75 KB, not 75 MB."""
    script = """
before = memory("VmHWM")
call(sys.argv[1], 96, 1024, 64, torch.float64, time_invariant=True)
print(memory("VmHWM") - before)
"""
    for name in ("H1", "MS2"):
        assert max(figures(script, name)) < 25


@needs_proc
def test_a_thread_keeps_little_memory() -> None:
    """Of a call that takes 70 MB beside its arguments; ordinary calls keep theirs."""
    script = """
before = memory("VmRSS")
call("H1", 64, 1200, 64, torch.float64)
print(memory("VmHWM") - before, memory("VmRSS") - before)
"""
    peak, kept = figures(script)
    assert peak > 100
    assert kept < 25


# --- children -------------------------------------------------------------------------------------

CHILDREN = """
import json, multiprocessing, sys, zlib
sys.path[:0] = sys.argv[1:]
import torch
from test_threads import CASES, everything

torch.set_num_threads(2)
torch.set_default_dtype(torch.float64)

def bits(_=None):
    return {
        f"{name} {key}": zlib.crc32(tensor.numpy().tobytes())
        for name in CASES
        for key, tensor in everything(name).items()
    }

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return bits()  # on one thread, as torch has it for workers

if __name__ == "__main__":
    digests = {"parent": [bits()]}
    for kind in ("fork", "spawn"):
        count = 1 if kind == "fork" else 2  # torch's own threads do not survive a fork
        context = multiprocessing.get_context(kind)
        with context.Pool(1, torch.set_num_threads, (count,)) as pool:
            digests[kind] = pool.map(bits, [0, 1])
    digests["loader"] = list(torch.utils.data.DataLoader(Data(), num_workers=1, batch_size=None))
    digests["parent again"] = [bits()]
    print(json.dumps(digests))
"""


@pytest.mark.slow
def test_the_same_bits_in_children_of_every_kind(tmp_path: Path) -> None:
    """In a process that has used its pool, in its children, and in the process afterwards."""
    here, script = Path(__file__).parent, tmp_path / "children.py"
    script.write_text(CHILDREN)
    command = [sys.executable, str(script), str(here), str(here.parent / "helpers")]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    digests = json.loads(run.stdout)
    (parent,) = digests.pop("parent")
    assert len(parent) > 20
    assert digests.keys() == {"fork", "spawn", "loader", "parent again"}
    for kind, children in digests.items():
        assert all(child == parent for child in children), kind
