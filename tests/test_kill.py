"""Killed at any moment, a run goes on to the very bits that it would have reached."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hdnn.cli import app
from hdnn.errors import HdnnError
from hdnn.training import TrainingConfig
from hdnn.training.checkpoint import epoch_of
from hdnn.training.run_config import RunConfig
from hdnn.training.runs import LOCK, TEMPORARY, Run
from hdnn.training.settings import DataConfig, ModelConfig
from processes import ended, epoch_beats, forked

# The threads of this process (of pytest-xdist, of hdnn's pool) hold no lock that a child needs.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")

LONG = RunConfig(DataConfig(), ModelConfig(layers=64), TrainingConfig(epochs=40))
SMALL = RunConfig(DataConfig(size=400), ModelConfig(layers=4), TrainingConfig(epochs=40))
SHORT = RunConfig(DataConfig(size=100), ModelConfig(layers=2), TrainingConfig(epochs=3))
OTHERS = {
    "early stopping": replace(
        SMALL, training=TrainingConfig(epochs=300, validation=0.2, early_stopping=20)
    ),
    "joint": replace(SMALL, training=TrainingConfig(method="joint", epochs=40, learning_rate=0.01)),
    "autograd": replace(SMALL, training=TrainingConfig(epochs=40, loop="autograd")),
    "adam solver, clipped, cosine": replace(
        SMALL, training=TrainingConfig(epochs=40, solver="adam", clip=0.1, schedule="cosine")
    ),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A child of fork has none of the threads of torch, so there are none to miss."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- processes ------------------------------------------------------------------------------------


def train(
    folder: Path, recipe: RunConfig, interval: float = 0.0, callbacks: Sequence[Any] = ()
) -> None:
    """Begin a run or go on with it."""
    Run.create(folder, recipe).train(callbacks, checkpoint_seconds=interval)


def kill(
    folder: Path, recipe: RunConfig, epochs: int, seconds: float, interval: float = 0.0
) -> bool:
    """Kill a run some epochs and a moment after it began or went on; was it unfinished then?"""
    left = itertools.count(epochs - 1, -1)

    def wind(*_: object) -> None:
        """Once the checkpoint of the last of these epochs is written, set an alarm, which kills."""
        if next(left) == 0:
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))

    def work() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        train(folder, recipe, interval, [wind])

    code = ended(forked(work))
    assert code in (0, -signal.SIGALRM)
    return code != 0 and not Run(folder).finished


@dataclass(frozen=True)
class Outcome:
    """What must not depend on kills."""

    model: bytes
    metrics: bytes
    history: list[dict[str, float]]

    @classmethod
    def of(cls, folder: Path) -> Outcome:
        run = Run(folder)
        entries = [json.loads(line) for line in run.history.read_text().splitlines()]
        history = [{k: v for k, v in entry.items() if k != "seconds"} for entry in entries]
        return cls(run.model_file.read_bytes(), run.metrics.read_bytes(), history)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def checkpoint_epoch(run: Run) -> int:
    epoch = epoch_of(run.checkpoint)
    assert epoch is not None
    return epoch


# --- random moments -------------------------------------------------------------------------------


def test_killed_at_20_random_moments(tmp_path: Path) -> None:
    train(tmp_path / "warm", SHORT)
    start = time.perf_counter()
    train(tmp_path / "whole", LONG)
    epoch = (time.perf_counter() - start) / LONG.training.epochs
    expected = Outcome.of(tmp_path / "whole")
    assert len(expected.history) == LONG.training.epochs
    moments, hits = random.Random(0), 0
    for number in range(20):
        folder = tmp_path / str(number)
        epochs = moments.randrange(1, LONG.training.epochs - 4)
        interval = 0.0 if number % 2 else 4 * epoch
        hit = kill(folder, LONG, epochs, moments.uniform(0, 2 * epoch), interval)
        hits += hit
        if hit:
            # No work is lost but that since the last checkpoint.
            assert interval or checkpoint_epoch(Run(folder)) >= epochs
            assert ended(forked(lambda folder=folder: train(folder, LONG))) == 0
        assert Outcome.of(folder) == expected
    assert hits >= 15


@pytest.mark.parametrize("case", OTHERS)
def test_killed_again_and_again(case: str, tmp_path: Path) -> None:
    recipe = OTHERS[case]
    train(tmp_path / "whole", recipe)
    expected = Outcome.of(tmp_path / "whole")
    count = len(expected.history)
    assert count > 20
    assert (count < recipe.training.epochs) == (case == "early stopping")
    moments, folder, hits = random.Random(1), tmp_path / "run", 0
    for _ in range(4):
        hits += kill(folder, recipe, moments.randrange(1, count // 8), moments.uniform(0, 0.003))
    assert hits >= 2
    if not Run(folder).finished:
        train(folder, recipe)
    assert Outcome.of(folder) == expected


def test_killed_where_early_stopping_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last checkpoint is of the epoch in which patience was over: there is none after it."""
    patient = TrainingConfig(epochs=400, validation=0.2, early_stopping=5)
    recipe = replace(SMALL, training=patient)
    train(tmp_path / "whole", recipe)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "_finish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(tmp_path / "run", recipe)
    train(tmp_path / "run", recipe)
    assert Outcome.of(tmp_path / "run") == Outcome.of(tmp_path / "whole")


# --- every moment at which a file is touched ------------------------------------------------------

TOUCHES = {
    "open",
    "os.chmod",
    "os.listdir",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.scandir",
    "shutil.rmtree",
    "tempfile.mkstemp",
}


def touching(folder: Path, number: int | None, work: Callable[[], object]) -> list[str]:
    """Do some work in a child that dies just before touching a file below a folder for the n-th
    time; the touches before it."""
    reader, writer = os.pipe()
    seen = 0

    def hook(event: str, values: tuple[Any, ...]) -> None:
        nonlocal seen
        if event not in TOUCHES or not any(str(folder) in str(value) for value in values[:2]):
            return
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1
        os.write(writer, f"{event}\n".encode())

    def watched() -> None:
        sys.addaudithook(hook)
        work()

    child = forked(watched)
    os.close(writer)
    with open(reader) as file:
        touches = file.read().splitlines()
    assert ended(child) == (0 if number is None else -signal.SIGKILL)
    return touches


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[bool, list[str]]]:
    """For every touch at which a training was killed: is what it came to the same; the files."""
    torch.set_num_threads(1)
    base = tmp_path_factory.mktemp("crashes")

    def prepared(name: str) -> Path:
        Run.create(base / name, SHORT)
        return base / name

    train(base / "whole", SHORT)
    expected = Outcome.of(base / "whole")
    dry = prepared("dry")
    touches = touching(dry, None, lambda: train(dry, SHORT))
    found = {-1: (Outcome.of(dry) == expected, names(dry))}
    for number in range(len(touches)):
        folder = prepared(str(number))
        touching(folder, number, lambda folder=folder: train(folder, SHORT))
        if not Run(folder).finished:
            train(folder, SHORT)
        found[number] = (Outcome.of(folder) == expected, names(folder))
    assert len(found) > 30
    return found


def test_killed_at_every_touch_of_a_file(crashes: dict[int, tuple[bool, list[str]]]) -> None:
    assert [number for number, (same, _) in crashes.items() if not same] == []


def test_a_killed_run_leaves_no_litter(crashes: dict[int, tuple[bool, list[str]]]) -> None:
    clean = [*crashes[-1][1], LOCK]  # a lock that nobody holds is no part of a run
    litter = {number: sorted(set(files) - set(clean)) for number, (_, files) in crashes.items()}
    assert {number: files for number, files in litter.items() if files} == {}


def test_killed_while_the_run_is_made(tmp_path: Path) -> None:
    touches = touching(tmp_path / "dry", None, lambda: Run.create(tmp_path / "dry", SHORT))
    assert touches
    for number in range(len(touches)):
        folder = tmp_path / str(number)
        touching(folder, number, lambda folder=folder: Run.create(folder, SHORT))
        assert Run.create(folder, SHORT).read_config() == SHORT
        left = {path.name for path in folder.glob(TEMPORARY)}  # until it is trained
        assert set(names(folder)) - left == {"config.toml"}


def test_killed_while_a_run_is_overwritten(tmp_path: Path) -> None:
    """The folder is still a run: the old one, perhaps to be trained again, or the new one."""
    other = replace(SHORT, model=ModelConfig(layers=3))

    def overwrite(folder: Path) -> None:
        Run.create(folder, other, overwrite=True).train(checkpoint_seconds=0)

    train(tmp_path / "dry", SHORT)
    touches = touching(tmp_path / "dry", None, lambda: overwrite(tmp_path / "dry"))
    for number in range(min(len(touches), 25)):
        folder = tmp_path / str(number)
        train(folder, SHORT)
        touching(folder, number, lambda folder=folder: overwrite(folder))
        overwrite(folder)
        assert Outcome.of(folder) == Outcome.of(tmp_path / "dry")


# --- locks ----------------------------------------------------------------------------------------


def test_one_process_at_a_time_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", SHORT)
    reader, writer = os.pipe()

    def hold() -> None:
        with run.locked():
            os.write(writer, b".")
            signal.pause()

    child = forked(hold)
    try:
        os.read(reader, 1)
        before = names(run.folder)
        with pytest.raises(HdnnError, match="another process is training in"):
            run.train()
        with pytest.raises(HdnnError, match="another process"):
            Run.create(run.folder, SHORT, overwrite=True)
        assert names(run.folder) == before
    finally:
        os.kill(child, signal.SIGKILL)
        ended(child)
        os.close(reader)
        os.close(writer)
    run.train()
    assert run.finished


# --- interruptions of the command -----------------------------------------------------------------

SIZE = ["swiss-roll", "--size", "2000", "--layers", "16", "--epochs", "600"]


def test_ctrl_c_and_termination_leave_a_checkpoint(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    run = Run(folder)
    command = [sys.executable, "-m", "hdnn", "train", *SIZE, "--out", str(folder)]
    # A shell's background job ignores Ctrl-C, and so would its children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
    ) as process:
        signal.signal(signal.SIGINT, before)
        assert process.stdout is not None
        assert any(line.startswith("epoch") for line in process.stdout)  # waits for the first
        process.send_signal(signal.SIGINT)
        _, message = process.communicate()
    assert process.returncode == 130
    assert f"hdnn train --resume {folder}" in message
    assert "Traceback" not in message
    first = checkpoint_epoch(run)
    assert 1 <= first < 600

    with epoch_beats() as beats:
        child = forked(lambda: app(["train", "--resume", str(folder)]))
        beats.wait(2)
    os.kill(child, signal.SIGTERM)
    assert ended(child) == 130
    assert f"hdnn train --resume {folder}" in capfd.readouterr().err
    assert first < checkpoint_epoch(run) < 600

    assert ended(forked(lambda: app(["train", "--resume", str(folder)]))) == 0
    Run.create(tmp_path / "whole", run.read_config()).train()
    assert run.model_file.read_bytes() == Run(tmp_path / "whole").model_file.read_bytes()
