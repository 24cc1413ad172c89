"""The same bits for any number of threads, in children of every kind, and from many at once."""

from __future__ import annotations

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
from catalogue import build
from skips import needs_kernels
from twins import Net, Results, derivatives

pytestmark = needs_kernels

CASES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "rows": ({"name": "H1", "features": 4, "layers": 64}, (2101, 4)),
    "wide rows": ({"name": "MS2", "features": 34, "layers": 5}, (1331, 34)),
    "images": ({"name": "H2", "channels": 8, "layers": 8}, (5, 8, 31, 33)),
    "ensemble": ({"name": "MS3", "features": 4, "layers": 64, "ensemble": 3}, (3, 501, 4)),
    "deep": ({"name": "MS1", "features": 8, "layers": 900}, (200, 8)),
    "split": ({"name": "HS", "features": 4, "layers": 64}, (2057, 4)),
}
"""All large enough to be shared among threads."""


def case(name: str, dtype: torch.dtype) -> tuple[Net, Tensor, Tensor]:
    options, shape = CASES[name]
    torch.manual_seed(5)
    net = build(**options, T=1.0, scale=0.4, dtype=dtype, backend="fused")
    return net, torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)


def everything(name: str, dtype: torch.dtype = torch.float32) -> Results:
    net, y, weight = case(name, dtype)
    found = derivatives(net, y, weight)
    return found | {"sensitivities": hdnn.analysis.sensitivities(net, y)}


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def identical(a: Results, b: Results) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_for_any_number_of_threads(name: str, dtype: torch.dtype) -> None:
    with threads(1):
        alone = everything(name, dtype)
    for count in (2, 3, 16):
        with threads(count):
            identical(everything(name, dtype), alone)
            assert torch.get_num_threads() == count


def test_four_threads_at_once() -> None:
    """Each with a network of its own and, at the same time, all with the same network."""
    names = [name for name in CASES if name != "deep"]
    expected = {name: derivatives(*case(name, torch.float32)) for name in names}
    shared = {name: case(name, torch.float32) for name in names}
    jobs = [(name, copied) for _ in range(4) for name in names for copied in (False, True)]
    own = {job: case(job[0], torch.float32) for job in jobs}
    barrier = threading.Barrier(4)

    def run(job: tuple[str, bool]) -> Results:
        name, copied = job
        return derivatives(*(own[job] if copied else shared[name]))

    with threads(2), ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: barrier.wait(timeout=30), range(4)))  # all four are there
        for (name, _), found in zip(jobs, pool.map(run, jobs), strict=True):
            identical(found, expected[name])


# --- children -------------------------------------------------------------------------------------

CHILDREN = """
import json, multiprocessing, sys, zlib
sys.path[:0] = sys.argv[1:]
import torch
from test_threads import CASES, everything

torch.set_num_threads(2)
torch.set_default_dtype(torch.float64)

def bits(_=None):
    found = {}
    for name in CASES:
        for key, tensor in everything(name).items():
            found[f"{name} {key}"] = zlib.crc32(tensor.numpy().tobytes())
    return found

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return bits()  # on one thread, as torch has it for workers

if __name__ == "__main__":
    here = bits()
    found = {"here": here}
    for kind in ("fork", "spawn"):
        count = 1 if kind == "fork" else 2  # torch's own threads do not survive a fork
        context = multiprocessing.get_context(kind)
        with context.Pool(1, torch.set_num_threads, (count,)) as pool:
            found[kind] = pool.map(bits, [0, 1])
    loader = torch.utils.data.DataLoader(Data(), num_workers=1, batch_size=None)
    found["loader"] = list(loader)
    found["after"] = bits()
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Digests of everything, in a process that has used its pool, and in its children."""
    here, script = Path(__file__).parent, tmp_path_factory.mktemp("children") / "children.py"
    script.write_text(CHILDREN)
    run = subprocess.run(
        [sys.executable, str(script), str(here), str(here.parent / "helpers")],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@pytest.mark.parametrize("kind", ["fork", "spawn", "loader"])
def test_the_same_bits_in_a_child(kind: str, children: dict[str, Any]) -> None:
    for found in children[kind]:
        assert found == children["here"]


def test_the_parent_goes_on_as_before(children: dict[str, Any]) -> None:
    assert children["after"] == children["here"]
    assert len(children["here"]) > 20
