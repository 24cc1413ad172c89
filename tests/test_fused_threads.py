"""The same bits for any number of threads, in children of every kind, and from many at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from torch import Tensor

import hdnn
from catalogue import build
from hdnn.backends import fused, threads
from hdnn.errors import HdnnError
from twins import Net, Results, derivatives

CASES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "rows": ({"name": "H1", "features": 4, "layers": 20}, (700, 4)),
    "wide rows": ({"name": "MS2", "features": 34, "layers": 5}, (331, 34)),
    "images": ({"name": "H2", "channels": 8, "layers": 3}, (5, 8, 11, 13)),
    "ensemble": ({"name": "MS3", "features": 4, "layers": 9, "ensemble": 3}, (3, 101, 4)),
    "deep": ({"name": "MS1", "features": 8, "layers": 900}, (200, 8)),
    "learned": ({"name": "HS", "features": 4, "layers": 9, "learn_steps": True, "X": "learned"},
                (257, 4)),
}  # fmt: skip


def case(name: str, dtype: torch.dtype) -> tuple[Net, Tensor, Tensor]:
    options, shape = CASES[name]
    torch.manual_seed(5)
    net = build(**options, T=1.0, scale=0.4, dtype=dtype, backend="fused")
    return net, torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)


def everything(name: str, dtype: torch.dtype = torch.float32) -> Results:
    net, y, weight = case(name, dtype)
    found = derivatives(net, y, weight)
    return found | {"sensitivities": hdnn.analysis.sensitivities(net, y)}


def identical(a: Results, b: Results) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The threads that kernels run on; every call is large enough to be shared."""
    seen: set[int] = set()
    room, caller, joined = fused._room, threading.get_ident(), threading.Event()

    def recorded(form: Any) -> Any:
        seen.add(threading.get_ident())
        if threading.get_ident() != caller:
            joined.set()
        elif fused.thread_count() > 1:  # else it may have done all the work before another wakes
            joined.wait(timeout=1.0)
        return room(form)

    monkeypatch.setattr(fused, "SERIAL_FLOPS", 0.0)
    monkeypatch.setattr(fused, "_room", recorded)
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_for_any_number_of_threads(
    name: str, dtype: torch.dtype, workers: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HDNN_NUM_THREADS", "1")
    alone = everything(name, dtype)
    assert workers == {threading.get_ident()}
    for count in (2, 3, 16):
        monkeypatch.setenv("HDNN_NUM_THREADS", str(count))
        identical(everything(name, dtype), alone)
    assert len(workers) > 1


def test_as_many_threads_as_torch_uses(workers: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HDNN_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = everything("rows")
        assert len(workers) == 1
        torch.set_num_threads(2)
        identical(everything("rows"), alone)
        assert len(workers) == 2
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_chunks_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "SERIAL_FLOPS", 0.0)
    counts: dict[str, list[int]] = {}

    def spy(work: Any, count: int, workers: int) -> None:
        counts.setdefault(str(workers), []).append(count)
        threads.share(work, count, workers)

    monkeypatch.setattr(fused, "share", spy)
    for number in ("1", "2", "5"):
        monkeypatch.setenv("HDNN_NUM_THREADS", number)
        for name in CASES:
            everything(name)
    assert counts["1"] == counts["2"] == counts["5"]
    assert max(counts["1"]) > 1


def test_small_work_stays_on_the_callers_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setenv("HDNN_NUM_THREADS", "2")
    monkeypatch.setattr(fused, "share", never)
    net, y = build("H1", backend="fused"), torch.randn(9, 4)
    derivatives(net, y, y)
    with pytest.raises(AssertionError):
        everything("deep")


@pytest.mark.parametrize("given", ["0", "-1", "two", "", "1.5"])
def test_a_number_of_threads_that_is_none(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HDNN_NUM_THREADS", given)
    with pytest.raises(HdnnError, match="HDNN_NUM_THREADS"):
        threads.thread_count()


@pytest.mark.parametrize("breaks", ["caller", "helper"])
def test_an_error_is_raised_when_all_have_stopped_and_the_helpers_go_on(breaks: str) -> None:
    caller, both, busy = threading.get_ident(), threading.Barrier(2), []

    def work(first: int, last: int) -> None:
        busy.append(first)
        both.wait(timeout=30)  # both threads are at work
        if (threading.get_ident() == caller) == (breaks == "caller"):
            raise ValueError("broken")
        time.sleep(0.05)
        busy.remove(first)

    with pytest.raises(ValueError, match="broken"):
        threads.share(work, 2, 2)
    assert len(busy) == 1  # the one that broke: the other was waited for
    done: list[int] = []
    threads.share(lambda first, last: done.extend(range(first, last)), 5, 3)
    assert sorted(done) == list(range(5))


def test_after_an_error_no_further_piece_is_begun() -> None:
    begun: list[int] = []

    def work(first: int, last: int) -> None:
        begun.append(first)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        threads.share(work, 1000, 2)
    assert len(begun) <= 2


def test_four_threads_at_once(workers: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with a network of its own and, at the same time, all with the same network."""
    monkeypatch.setenv("HDNN_NUM_THREADS", "2")
    names = [name for name in CASES if name != "deep"]
    expected = {name: derivatives(*case(name, torch.float32)) for name in names}
    shared = {name: case(name, torch.float32) for name in names}
    jobs = [(name, copied) for _ in range(4) for name in names for copied in (False, True)]
    own = {job: case(job[0], torch.float32) for job in jobs}
    barrier = threading.Barrier(4)

    def run(job: tuple[str, bool]) -> Results:
        name, copied = job
        return derivatives(*(own[job] if copied else shared[name]))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: barrier.wait(timeout=30), range(4)))  # all four are there
        for (name, _), found in zip(jobs, pool.map(run, jobs), strict=True):
            identical(found, expected[name])
    assert len(workers) > 2


# --- children -------------------------------------------------------------------------------------

CHILDREN = """
import json, multiprocessing, sys, zlib
sys.path.insert(0, sys.argv[1])
import torch
from hdnn.backends import fused
from test_fused_threads import CASES, everything

fused.SERIAL_FLOPS = 0.0
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
        fused.SERIAL_FLOPS = 0.0
        return bits()

if __name__ == "__main__":
    from hdnn.backends import threads
    here = bits()
    assert threads._queue is not None
    found = {"here": here}
    for kind in ("fork", "spawn"):
        with multiprocessing.get_context(kind).Pool(1) as pool:
            found[kind] = pool.map(bits, [0, 1])
    loader = torch.utils.data.DataLoader(Data(), num_workers=1, batch_size=None)
    found["loader"] = list(loader)
    found["after"] = bits()
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Digests of everything, in a process that has used its pool, and in its children."""
    script: Path = tmp_path_factory.mktemp("children") / "children.py"
    script.write_text(CHILDREN)
    environment = os.environ | {"HDNN_NUM_THREADS": "2", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, str(script), str(Path(__file__).parent)],
        check=False, capture_output=True, text=True, timeout=300, env=environment,
    )  # fmt: skip
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


@pytest.mark.parametrize("count", [1, 2, 5, 16])
@pytest.mark.parametrize("workers", [1, 2, 3, 16])
def test_work_is_shared_without_rest(count: int, workers: int) -> None:
    done: list[int] = []
    threads.share(lambda first, last: done.extend(range(first, last)), count, workers)
    assert sorted(done) == list(range(count))


def test_the_caller_does_what_nobody_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody: SimpleQueue[Any] = SimpleQueue()
    monkeypatch.setattr(threads, "_queue", nobody)
    who: list[int] = []

    def work(first: int, last: int) -> None:
        who.extend([threading.get_ident()] * (last - first))

    threads.share(work, 8, 2)
    assert who == [threading.get_ident()] * 8
    nobody.get().use()  # a helper that comes too late does nothing
    assert len(who) == 8
