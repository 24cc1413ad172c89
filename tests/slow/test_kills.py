"""Killed, interrupted or terminated at any moment, a run resumes to the same bits."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from commands import done
from hdnn.cli import app
from hdnn.config import Config
from hdnn.training.runs import LOCK, Run, prepare
from processes import ended, forked
from stress import inputs, one_thread, outcome, write_images, write_table

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
]
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
PLANAR = "swiss-roll --size 400 --layers 4 --epochs 12"
LABEL = "table.csv --target label --layers 3 --epochs 12 --batch-size 20"
VALUE = "table.csv --target value --drop label --layers 2 --epochs 12"
IMAGES = "images --layers 2 --width 2 --epochs 6 --batch-size 8"
JOINT, STOPPING = "--method joint --lr 0.01", "--validation 0.2 --early-stopping 4"
SETTINGS = {
    "planar": f"{PLANAR} --record 3",
    "planar, joint": f"{PLANAR} {JOINT} --record 2 --set training.schedule=cosine",
    "table, early stopping": f"{LABEL} {STOPPING} --record 1",
    "table, shared weights": f"{LABEL} {JOINT} --set model.time_invariant=true --architecture MS3",
    "regression": f"{VALUE} --record 5",
    "images": f"{IMAGES} --set model.kernel=3 --set training.averaging=0.9 {STOPPING}",
}


def start(*words: object) -> int:
    """``hdnn train`` in a process of its own; its id."""

    def work() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        app(["train", *map(str, words)])

    return forked(work)


def begin_or_resume(rng: Random, folder: Path, options: list[str]) -> list[object]:
    """A run that exists goes on by --resume, or by the command that began it."""
    exists = (folder / "config.toml").exists()
    resume = exists and (Run(folder).finished or rng.random() < 0.7)
    return ["--resume", folder] if resume else [*options, "--out", folder]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_resumes_to_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signals at random moments of the training, up to three times; the folder moves about."""
    one_thread()
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "table.csv")
    write_images(tmp_path / "images")
    options, whole = SETTINGS[name].split(), tmp_path / "whole"
    done("train", *options, "--checkpoint-seconds", 0, "--out", whole)
    clock = time.perf_counter()
    assert ended(start(*options, "--out", tmp_path / "again")) == 0
    seconds = time.perf_counter() - clock
    for number, rng in enumerate(inputs(name, 3)):
        folder, interval = tmp_path / f"run-{number}", rng.choice(["0", "0.02", "5"])
        for attempt in range(rng.choice((1, 2, 3))):
            words = begin_or_resume(rng, folder, options)
            child = start(*words, "--checkpoint-seconds", interval)
            time.sleep(rng.uniform(0, 1.1 * seconds))
            os.kill(child, rng.choice(SIGNALS))  # not waited for yet, so it is there
            ended(child)
            if folder.exists() and rng.random() < 0.3:
                folder = folder.rename(tmp_path / f"moved-{number}-{attempt}")
        done("train", *begin_or_resume(rng, folder, options))
        resumed, expected = outcome(folder), outcome(whole)
        for part in ("model", "metrics", "history", "gradients"):
            assert resumed[part] == expected[part], (number, part)
        # A process that is killed at its very end leaves the file, but not the lock.
        assert set(resumed["files"]) <= {*expected["files"], LOCK}, number


# --- at every touch of a file ---------------------------------------------------------------------

TOUCHES = {"open", "os.chmod", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.scandir"}


def touching(folder: Path, number: int | None, work: Callable[[], object]) -> int:
    """Do some work in a child that dies just before touching a file below a folder for the n-th
    time; how often it touched one."""
    reader, writer = os.pipe()
    count = 0

    def hook(event: str, values: tuple[Any, ...]) -> None:
        nonlocal count
        if event not in TOUCHES or not any(str(folder) in str(value) for value in values[:2]):
            return
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1
        os.write(writer, b".")

    def watched() -> None:
        sys.addaudithook(hook)
        work()

    child = forked(watched)
    os.close(writer)
    with open(reader, "rb") as file:
        touches = len(file.read())
    assert ended(child) == (0 if number is None else -signal.SIGKILL)
    return touches


def test_killed_whenever_a_file_is_touched(tmp_path: Path) -> None:
    """While a run is made, trained and overwritten: the bits are the same, and no litter stays."""
    one_thread()
    short = prepare(Config(data={"size": 40}, model={"layers": 3}, training={"epochs": 2})).config
    other = short.replace(model=short.model.replace(layers=2))

    def work(folder: Path) -> None:
        Run.create(folder, other).train(checkpoint_seconds=0)
        Run.create(folder, short, overwrite=True).train(checkpoint_seconds=0)

    dry = Run(tmp_path / "dry")
    touches = touching(dry.folder, None, lambda: work(dry.folder))
    expected = outcome(dry.folder)
    assert touches > 40
    for number in range(0, touches, 3):
        run = Run(tmp_path / str(number))
        touching(run.folder, number, lambda run=run: work(run.folder))
        stale = run.config_file.is_file() and run.config != short
        if stale or not run.finished:
            Run.create(run.folder, short, overwrite=stale).train(checkpoint_seconds=0)
        (run.folder / LOCK).unlink(missing_ok=True)  # the file of a process killed at its very end
        assert outcome(run.folder) == expected, number
