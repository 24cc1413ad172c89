"""A full disk: the error says so, what was there is intact, and the run goes on to the same bits.

A limit on the size of files stands for the disk: a file that would grow beyond it cannot be
written, whoever writes it.
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import hdnn
from commands import command, done
from hdnn.errors import StorageError
from hdnn.paper.records import Records
from hdnn.training.runs import Run
from processes import ended, forked
from stress import inputs, one_thread, outcome, write_table

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
]


def limited(room: int, work: Callable[[], None]) -> None:
    """Do some work where files have at most so many bytes; a clear error may come of it."""

    def child() -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)  # a device has no limit
        os.dup2(nowhere, 1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        with suppress(StorageError):
            work()

    assert ended(forked(child)) == 0


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def save(folder: Path, layers: int) -> None:
    hdnn.save(hdnn.network("H1", features=4, layers=layers, T=1.0), folder / "net")


def record(folder: Path, seed: int) -> None:
    """A long record of an experiment."""
    Records(folder, ("layers",)).add([{"layers": 4, "seed": seed, "note": 2000 * "x"}])


@pytest.mark.parametrize("write", [save, record])
def test_the_old_file_is_intact(write: Callable[[Path, int], None], tmp_path: Path) -> None:
    one_thread()
    for number, rng in enumerate(inputs(write.__name__, 8)):
        folder = tmp_path / str(number)
        folder.mkdir()
        write(folder, 2)
        before = contents(folder)
        limited(rng.randrange(3000), lambda folder=folder: write(folder, 200))  # type: ignore[misc]
        assert contents(folder) == before, number


def test_a_training_resumes_to_the_same_bits(tmp_path: Path) -> None:
    one_thread()
    table = write_table(tmp_path / "table.csv")
    words = ("train", table, "--target", "label", "--layers", 2, "--epochs", 3, "--record", 2)
    done(*words, "--checkpoint-seconds", 0, "--out", tmp_path / "whole")
    expected = outcome(tmp_path / "whole")
    for number, rng in enumerate(inputs("train", 12)):
        folder, room = tmp_path / f"run-{number}", int(10 ** rng.uniform(0, 4.5))

        def train(folder: Path = folder, clean: bool = False) -> None:
            result = command(*words, "--checkpoint-seconds", 0, "--out", folder)
            failed = result.exit_code == 1 and "cannot" in result.stderr
            assert result.exit_code == 0 or (failed and not clean), result.output

        limited(room, train)
        if not (folder.exists() and Run(folder).finished):
            train(clean=True)
        found = outcome(folder)
        assert found == expected, (number, room)
        shutil.rmtree(folder)


def test_predictions_are_whole_or_those_of_before(tmp_path: Path) -> None:
    one_thread()
    table, run, out = write_table(tmp_path / "table.csv"), tmp_path / "run", tmp_path / "out.csv"
    done("train", table, "--target", "label", "--layers", 2, "--epochs", 2, "--out", run)
    out.write_text("before\n")

    def predict() -> None:
        result = command("predict", run, table, "--out", out)
        assert result.exit_code == 1
        assert "cannot write" in result.stderr

    limited(1000, predict)
    assert out.read_text() == "before\n"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".out", "out.csv."))]
