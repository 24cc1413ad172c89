"""The same bits for any number of threads, in children of every kind, and from many at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
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
from hdnn.kernels.team import GATE, JOINED, NOT_YET, OPEN, first_piece, next_piece
from twins import Net, Results, derivatives

CASES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "rows": ({"name": "H1", "features": 4, "layers": 20}, (700, 4)),
    "wide rows": ({"name": "MS2", "features": 34, "layers": 5}, (331, 34)),
    "images": ({"name": "H2", "channels": 8, "layers": 3}, (5, 8, 11, 13)),
    "ensemble": ({"name": "MS3", "features": 4, "layers": 9, "ensemble": 3}, (3, 101, 4)),
    "deep": ({"name": "MS1", "features": 8, "layers": 900}, (200, 8)),
    "learned": (
        {"name": "HS", "features": 4, "layers": 9, "learn_steps": True, "X": "learned"},
        (257, 4),
    ),
}


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


def wait_until(happened: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened() and time.monotonic() < deadline:
        time.sleep(1e-5)  # lets the other thread have the interpreter


class Teams:
    """What `parallel_for` was asked for, and how many helpers took part in all."""

    def __init__(self) -> None:
        self.teams: list[Any] = []
        self.pieces: list[int] = []

    def parallel_for(self, work: threads.Work, pieces: int, count: int) -> None:
        """As it is, but a helper is at work before the caller begins, however busy the machine."""

        def seen(team: Any, caller: bool) -> None:
            if caller:
                self.teams.append(team)
                if count > 1 and pieces > 1:
                    team[GATE] = OPEN  # safe: this caller is on its way in and nothing stops it
                    wait_until(lambda: team[JOINED] > 0)
            else:
                wait_until(lambda: team[GATE] != NOT_YET)
            work(team, caller)

        self.pieces.append(pieces)
        threads.parallel_for(seen, pieces, count)

    @property
    def joined(self) -> int:
        return sum(int(team[JOINED]) for team in self.teams)


@pytest.fixture
def teams(monkeypatch: pytest.MonkeyPatch) -> Teams:
    """Every call is large enough to be shared, and is noted here."""
    found = Teams()
    monkeypatch.setattr(fused, "SERIAL_FLOPS", 0.0)
    monkeypatch.setattr(fused, "parallel_for", found.parallel_for)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_for_any_number_of_threads(
    name: str, dtype: torch.dtype, teams: Teams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HDNN_NUM_THREADS", "1")
    alone = everything(name, dtype)
    assert teams.joined == 0
    for count in (2, 3, 16):
        monkeypatch.setenv("HDNN_NUM_THREADS", str(count))
        identical(everything(name, dtype), alone)
        assert teams.joined
        teams.teams.clear()


def test_as_many_threads_as_torch_uses(teams: Teams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HDNN_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert threads.thread_count() == 1
        torch.set_num_threads(2)
        assert threads.thread_count() == 2
        everything("rows")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_chunks_do_not_depend_on_threads(teams: Teams, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {}
    for number in ("1", "2", "5"):
        monkeypatch.setenv("HDNN_NUM_THREADS", number)
        for name in CASES:
            everything(name)
        counts[number] = teams.pieces.copy()
        teams.pieces.clear()
    assert counts["1"] == counts["2"] == counts["5"]
    assert max(counts["1"]) > 1


def test_small_work_stays_on_the_callers_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setenv("HDNN_NUM_THREADS", "2")
    monkeypatch.setattr(fused, "parallel_for", never)
    net, y = build("H1", backend="fused"), torch.randn(9, 4)
    derivatives(net, y, y)
    with pytest.raises(AssertionError):
        everything("deep")


@pytest.mark.parametrize("given", ["0", "-1", "two", "", "1.5"])
def test_a_number_of_threads_that_is_none(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HDNN_NUM_THREADS", given)
    with pytest.raises(HdnnError, match="HDNN_NUM_THREADS"):
        threads.thread_count()


def pieces_of(team: Any, caller: bool) -> Iterator[int]:
    """The pieces that a thread takes, as a kernel takes them."""
    piece = first_piece(team, caller)
    while piece >= 0:
        yield piece
        piece = next_piece(team, caller)


@pytest.mark.parametrize("breaks", ["caller", "helper"])
def test_an_error_of_a_kernel_is_raised_when_all_have_stopped(breaks: str) -> None:
    """As where there is no memory: the other thread is waited for, and takes no further piece."""
    both, entered, busy, begun = threading.Barrier(2), threading.Event(), [], []

    def work(team: Any, caller: bool) -> None:
        if not caller:
            entered.wait(timeout=30)  # a helper that comes too early gives up
        for piece in pieces_of(team, caller):
            entered.set()
            begun.append(piece)
            busy.append(piece)
            if len(begun) <= 2:
                both.wait(timeout=30)  # both threads are at work
            if caller == (breaks == "caller"):
                raise MemoryError("broken")
            busy.remove(piece)

    count = 10**9 if breaks == "caller" else 2
    with pytest.raises(MemoryError, match="broken"):
        threads.parallel_for(work, count, 2)
    assert len(busy) == 1  # the one that broke: the other was waited for
    assert len(begun) < count or breaks == "helper"
    everyone_helps()


def everyone_helps() -> None:
    done: list[int] = []

    def work(team: Any, caller: bool) -> None:
        done.extend(pieces_of(team, caller))

    threads.parallel_for(work, 5, 3)
    assert sorted(done) == list(range(5))


def test_four_threads_at_once(teams: Teams, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert len(teams.teams) > len(jobs)


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
    assert threads._started > 0
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
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
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


@pytest.mark.parametrize("count", [1, 2, 5, 16])
@pytest.mark.parametrize("workers", [1, 2, 3, 16])
def test_work_is_shared_without_rest(count: int, workers: int) -> None:
    done: list[int] = []
    threads.parallel_for(lambda *one: done.extend(pieces_of(*one)), count, workers)
    assert sorted(done) == list(range(count))


def test_the_caller_does_what_nobody_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody: SimpleQueue[Any] = SimpleQueue()
    monkeypatch.setattr(threads, "_queue", nobody)
    monkeypatch.setattr(threads, "_started", 1)
    who: list[bool] = []

    def work(team: Any, caller: bool) -> None:
        who.extend(caller for _ in pieces_of(team, caller))

    threads.parallel_for(work, 8, 2)
    assert who == [True] * 8
    nobody.get().use()  # a helper that comes too late does nothing
    assert len(who) == 8


def test_helpers_of_a_call_that_never_began_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after Ctrl-C between calling the helpers and the kernel."""
    nobody: SimpleQueue[Any] = SimpleQueue()
    monkeypatch.setattr(threads, "_queue", nobody)
    monkeypatch.setattr(threads, "_started", 1)
    who: list[bool] = []

    def work(team: Any, caller: bool) -> None:
        if caller:
            raise KeyboardInterrupt
        who.extend(caller for _ in pieces_of(team, caller))

    with pytest.raises(KeyboardInterrupt):
        threads.parallel_for(work, 8, 2)
    nobody.get().use()
    assert who == []
