"""Every campaign of the standing attack, small: the promises of docs/reliability.md hold."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from attacks import children, estimators, faults, fuzz, interrupts, kills, readers, storms
from attacks.__main__ import MARKS, write_docs
from attacks.tally import Failure, Tally, tally


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """As the campaigns expect it: torch's default precision, one thread of torch's."""
    before = torch.get_num_threads()
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def holds(found: Tally) -> None:
    assert found.tried > 0
    assert found.failures == ()


@pytest.mark.parametrize("name", readers.READERS)
def test_mutated_files_are_errors_or_right(name: str) -> None:
    holds(readers.run(name, 15 if "resumed" in name or name == "checkpoint" else 60, seed=1))


def test_interrupts_leave_nothing_behind() -> None:
    holds(interrupts.run(300, seed=1))


def test_an_epoch_may_be_interrupted_at_any_bytecode() -> None:
    holds(interrupts.run_bytecodes(20, seed=1))


def test_killed_runs_go_on_to_the_same_bits() -> None:
    holds(kills.run(9, seed=1, chosen=(1, 4)))


def test_failing_writes_are_clear_and_lose_nothing() -> None:
    holds(faults.run(30, seed=1))


def test_threads_and_forks_at_once() -> None:
    holds(storms.run(1, seed=1))


def test_scikit_learn_s_checks() -> None:
    holds(estimators.run(8, seed=1))


def test_fuzzing() -> None:
    pytest.importorskip("atheris")
    holds(fuzz.run("model", 500, seed=1))


# --- the attack itself notices --------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("read", "kind"),
    [
        (lambda path: 1 / 0, "foreign ZeroDivisionError"),
        (lambda path: bytearray(200 * 2**20).replace(b"x", b"y"), "allocation"),
        (lambda path: bytearray(2**40), "foreign MemoryError"),
    ],
    ids=["foreign", "memory", "too much memory"],
)
def test_foreign_exceptions_and_memory_are_noticed(read: object, kind: str, tmp_path: Path) -> None:
    reader = readers.Reader("file", list, read)  # type: ignore[arg-type]
    assert readers.verdict_on(reader, b"", tmp_path).startswith(kind)


def test_the_table_is_written_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{MARKS[0]}old\n{MARKS[1]}\n\nafter\n")
    write_docs([Tally("x", 1200, (Failure("crash", 2, 7, "why"),))], seed=3, path=page)
    text = page.read_text()
    assert "| x | 1,200 | 2 | crash (2) |" in text
    assert "old" not in text
    assert text.startswith("before")
    assert text.endswith("after\n")
