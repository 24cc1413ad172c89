"""The same bits for any number of threads, in children of every kind, and from many at once."""

from __future__ import annotations

import copy
import json
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
    return derivatives(net, y, weight) | {"M": hdnn.analysis.sensitivities(net, y)}


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
