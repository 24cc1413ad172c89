"""Every campaign of the standing attack, small: the promises of docs/reliability.md hold."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from attacks import children, estimators, faults, interrupts, kills, readers, storms
from attacks.__main__ import table
from attacks.tally import Tally, tally

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """As the campaigns expect it: torch's default precision, one thread of torch's."""
    before = torch.get_num_threads()
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


CAMPAIGNS: dict[str, Callable[[], Tally]] = {
    **{
        f"mutated {name}": lambda name=name: readers.run(name, 60 if name == "model" else 15, 1)
        for name in readers.READERS
    },
    "interrupted passes": lambda: interrupts.run(300, seed=1),
    "killed runs": lambda: kills.run(9, seed=1, chosen=(1, 4)),
    "failing writes": lambda: faults.run(30, seed=1),
    "threads and forks": lambda: storms.run(1, seed=1),
    "estimators": lambda: estimators.run(8, seed=1),
}


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_a_small_campaign_finds_nothing(name: str) -> None:
    found = CAMPAIGNS[name]()
    assert found.tried > 0
    assert found.failures == ()


def test_crashes_hangs_and_errors_are_counted_and_the_rest_goes_on() -> None:
    def judge(number: int, folder: Path) -> str:
        match number:
            case 1:
                os.kill(os.getpid(), signal.SIGSEGV)
            case 2:
                signal.pause()
            case 3:
                raise RuntimeError("ours")
            case 4:
                return "kind: detail"
        return ""

    found = tally("ours", children.judged(judge, range(6), seconds=1.0))
    assert found.tried == 6
    kinds = {failure.kind: failure.first for failure in found.failures}
    assert kinds == {"crash (SIGSEGV)": 1, "hang": 2, "crash (exit 1)": 3, "kind": 4}
    assert "kind (1; 4: 'detail')" in table([found])


@pytest.mark.parametrize(
    ("read", "kind"),
    [
        (lambda path: 1 / 0, "foreign ZeroDivisionError"),
        (lambda path: bytearray(200 * 2**20).replace(b"x", b"y"), "allocation"),
        (lambda path: bytearray(2**40), "foreign MemoryError"),
    ],
    ids=["foreign", "memory", "too much memory"],
)
def test_foreign_exceptions_and_memory_are_detected(
    read: object, kind: str, tmp_path: Path
) -> None:
    reader = readers.Reader("file", list, read)  # type: ignore[arg-type]
    assert readers.verdict_on(reader, b"", tmp_path).startswith(kind)
