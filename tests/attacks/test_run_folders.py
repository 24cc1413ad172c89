"""Runs under attack: interrupted anywhere, moved, with broken files, on a disk that loses power."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from hdnn.cli import app
from hdnn.errors import FileFormatError, HdnnError
from hdnn.training import EpochRecord, Trainer, TrainingConfig, run_config
from hdnn.training.prepare import PreparedRun, build, prepare
from hdnn.training.run_config import RunConfig
from hdnn.training.runs import LOCK, Run, read_history
from hdnn.training.settings import DataConfig, ModelConfig, RecordConfig

TINY = RunConfig(
    DataConfig(size=40), ModelConfig(layers=2), TrainingConfig(epochs=4, batch_size=10)
)
RECORD = RecordConfig(1, samples=2)
CASES = {
    "coordinate": TINY,
    "coordinate, recorded, early stopping": replace(
        TINY,
        training=replace(TINY.training, epochs=9, validation=0.2, early_stopping=2),
        record=RECORD,
    ),
    "autograd, recorded": replace(
        TINY, training=replace(TINY.training, loop="autograd"), record=RECORD
    ),
    "joint, averaged, early stopping": replace(
        TINY,
        training=replace(
            TINY.training, method="joint", averaging=0.9, validation=0.2, early_stopping=2
        ),
        record=RECORD,
    ),
}

WRITERS = ("trainer", "runs", "recorder", "epochlog", "checkpoint", "files")
STRIDE = 1 if "HDNN_ATTACK" in os.environ else 211
"""From one interruption to the next, in instructions; all of them take minutes."""


# --- interrupted anywhere -------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What must not depend on interruptions."""

    model: bytes
    metrics: bytes
    history: list[dict[str, Any]]
    recordings: bytes

    @classmethod
    def of(cls, run: Run) -> Outcome:
        entries = [json.loads(line) for line in run.history.read_text().splitlines()]
        return cls(
            run.model_file.read_bytes(),
            run.metrics.read_bytes(),
            [{k: v for k, v in entry.items() if k != "seconds"} for entry in entries],
            run.gradients.read_bytes() if run.gradients.exists() else b"",
        )


class Interruption:
    """Raises KeyboardInterrupt before the n-th instruction of the second epoch and what follows it.

    Only instructions of what writes and decides count: an interruption of what they call comes out
    of the instruction that calls it.
    """

    def __init__(self, at: int | None) -> None:
        self.at, self.count, self.active = at, 0, False

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if Path(frame.f_code.co_filename).stem not in WRITERS:
            return None
        frame.f_trace_opcodes = True
        return self.trace

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        if self.active and event == "opcode":
            self.count += 1
            if self.count == self.at:
                raise KeyboardInterrupt
        return self.trace

    def callback(self, trainer: Trainer, entry: EpochRecord) -> None:
        """Told of every epoch: one epoch is attacked, from the end of the first to here."""
        self.active = entry.epoch == 1

    def of(self, run: Run, checkpoint_seconds: float) -> int:
        """Train, interrupted; how many instructions there were."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            run.train([self.callback], checkpoint_seconds)
        except KeyboardInterrupt:
            assert self.at is not None
        finally:
            sys.settrace(before)
            torch.set_grad_enabled(True)  # a signal cannot come between two halves of a `with`
        return self.count


# A signal cannot come between two halves of a `with`, as the device here can, and leave files open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("case", CASES)
def test_interrupted_at_any_instruction_of_an_epoch_nothing_is_lost(
    case: str, tmp_path: Path
) -> None:
    """With and without a checkpoint after every epoch."""
    torch.set_num_threads(1)
    whole = Run.create(tmp_path / "whole", CASES[case])
    whole.train()
    expected = Outcome.of(whole)
    for seconds in (0.0, 1e9):
        total = Interruption(None).of(Run.create(tmp_path / f"{seconds}", CASES[case]), seconds)

        for at in range(1, total + 1, STRIDE):
            run = Run.create(tmp_path / "run", CASES[case])
            Interruption(at).of(run, seconds)
            if not run.finished:
                run.train()
            assert Outcome.of(run) == expected, at
            shutil.rmtree(run.folder)


def command(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def raising(epoch: int, error: BaseException) -> Callable[[Trainer, EpochRecord], None]:
    def callback(trainer: Trainer, entry: EpochRecord) -> None:
        if entry.epoch == epoch:
            raise error

    return callback


def interrupted(folder: Path, recipe: RunConfig, epoch: int = 2) -> Run:
    run = Run.create(folder, recipe)
    with pytest.raises(KeyboardInterrupt):
        run.train([raising(epoch, KeyboardInterrupt())])
    return run


def test_a_run_that_died_before_its_first_recording_resumes_recorded(tmp_path: Path) -> None:
    words = ("swiss-roll", "--size", 40, "--layers", 2, "--epochs", 2, "--record", 1)
    whole, run = Run(tmp_path / "whole"), Run(tmp_path / "run")
    assert command("train", *words, "--out", whole.folder).exit_code == 0
    run.folder.mkdir()
    shutil.copy(whole.config, run.config)
    assert command("train", "--resume", run.folder).exit_code == 0
    assert Outcome.of(run) == Outcome.of(whole)
    assert b"iteration" in Outcome.of(run).recordings


# --- moved folders and data -----------------------------------------------------------------------


def table(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [f"{k % 7},{k % 5},{'yes' if k % 3 else 'no'}" for k in range(40)]
    path.write_text("a,b,label\n" + "\n".join(rows) + "\n")
    return path


def table_recipe(path: Path) -> RunConfig:
    config = replace(TINY, data=DataConfig(str(path), target="label"))
    return PreparedRun.of(config).config


def forget() -> None:
    shutil.rmtree(run_config.PLACES, ignore_errors=True)


def test_a_run_tells_nothing_of_the_disk_and_is_resumed_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = table(tmp_path / "secret" / "project" / "data" / "table.csv")
    run = interrupted(tmp_path / "secret" / "project" / "runs" / "one", table_recipe(data))
    assert 'source = "../../data/table.csv"' in run.config.read_text()
    for path in run.folder.rglob("*"):
        assert path.is_dir() or b"secret" not in path.read_bytes(), path
    monkeypatch.chdir("/")
    forget()
    moved = tmp_path / "elsewhere"
    (tmp_path / "secret" / "project").rename(moved)
    assert command("train", "--resume", moved / "runs" / "one").exit_code == 0
    assert command("evaluate", moved / "runs" / "one").exit_code == 0


def test_a_run_that_was_moved_alone_finds_its_data_or_says_how_to_name_them(tmp_path: Path) -> None:
    data = table(tmp_path / "data" / "table.csv")
    whole = Run.create(tmp_path / "whole", table_recipe(data))
    whole.train()
    run = interrupted(tmp_path / "deep" / "run", table_recipe(data))
    moved = run.folder.rename(tmp_path / "run")
    assert Run(moved).read_config().data.source == str(data)  # remembered
    forget()
    result = command("train", "--resume", moved)
    assert result.exit_code == 2
    assert "table.csv" in result.stderr
    assert "hdnn train --resume RUN --data PATH" in result.stderr
    other = table(tmp_path / "other.csv")
    other.write_text(other.read_text() + "1,1,no\n")
    result = command("train", "--resume", moved, "--data", other)
    assert result.exit_code == 2
    assert "contents differ" in result.stderr
    assert command("train", "--resume", moved, "--data", data).exit_code == 0
    assert Outcome.of(Run(moved)) == Outcome.of(whole)
    forget()
    assert command("evaluate", moved).exit_code == 0
    assert str(tmp_path) not in Run(moved).config.read_text()


def test_data_that_share_only_the_disk_with_a_run_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home" / "me"
    monkeypatch.setenv("HOME", str(home))
    data = table(tmp_path / "mount" / "private" / "table.csv")
    run = interrupted(home / "run", table_recipe(data))
    assert 'source = "table.csv"' in run.config.read_text()
    run.train()
    assert run.finished


# --- folders of images --------------------------------------------------------------------------


def images(folder: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    for number in range(12):
        place = folder / ("light" if number % 2 else "dark")
        place.mkdir(parents=True, exist_ok=True)
        image.new("L", (8, 8), 10 * number + 100 * (number % 2)).save(place / f"{number}.png")
    return folder


def traps(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Things named like images from which nothing ever comes."""
    os.mkfifo(folder / "pipe.png")
    monkeypatch.chdir(folder)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.png")


def test_a_folder_of_images_is_pinned_and_pipes_in_it_do_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = images(tmp_path / "images")
    traps(folder / "dark", monkeypatch)
    result = command("train", folder, "--epochs", 1, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert command("evaluate", tmp_path / "run").exit_code == 0
    result = command("predict", tmp_path / "run", folder, "--out", tmp_path / "out.csv")
    assert result.exit_code == 0, result.output
    assert "pipe.png" not in (tmp_path / "out.csv").read_text()
    whole = (folder / "dark" / "0.png").read_bytes()
    (folder / "dark" / "0.png").write_bytes((folder / "dark" / "2.png").read_bytes())
    result = command("evaluate", tmp_path / "run")
    assert result.exit_code == 2
    assert "has changed" in result.stderr
    (folder / "dark" / "0.png").write_bytes(whole)
    assert command("evaluate", tmp_path / "run").exit_code == 0
    (folder / "dark" / "2.png").rename(folder / "dark" / "20.png")
    assert command("evaluate", tmp_path / "run").exit_code == 2


# --- batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["coordinate", "autograd, recorded"])
def test_a_batch_is_at_most_the_data(case: str, tmp_path: Path) -> None:
    """And asks for no more room: 2^62 samples would be more than there is."""
    outcomes = []
    for size in (20, 2**62):
        recipe = replace(CASES[case], training=replace(CASES[case].training, batch_size=size))
        run = Run.create(tmp_path / str(size), recipe)
        run.train()
        outcomes.append(Outcome.of(run))
    assert outcomes[0] == outcomes[1]


# --- broken files ---------------------------------------------------------------------------------

BROKEN = [
    b"null",
    b"[1]",
    b"{}",
    b'{"epoch": null}',
    b'{"epoch": true}',
    b'{"epoch": "1"}',
    b"\xff\xfe",
    b"\0" * 40,
    b"[" * 100_000,
    b'{"epoch": 1e999}',
    b"9" * 5000,
]


@pytest.mark.parametrize("line", BROKEN, ids=lambda line: repr(line[:20]))
@pytest.mark.parametrize("name", ["history", "gradients"])
def test_broken_lines_are_named_and_the_run_goes_on_without_them(
    name: str, line: bytes, tmp_path: Path
) -> None:
    recipe = replace(TINY, record=RECORD)
    whole = Run.create(tmp_path / "whole", recipe)
    whole.train()
    run = interrupted(tmp_path / "run", recipe)
    path: Path = getattr(run, name)
    good = path.read_bytes()
    first, *rest = good.splitlines(keepends=True)
    path.write_bytes(b"".join([first, line + b"\n", *rest]))
    with pytest.raises(FileFormatError, match=f"line 2 of .*{path.name}"):
        run.train()
    path.write_bytes(good)
    run.train()
    assert run.model_file.read_bytes() == whole.model_file.read_bytes()
    found, expected = (
        [json.loads(text) for text in getattr(each, name).read_text().splitlines()]
        for each in (run, whole)
    )
    for entry in (*found, *expected):
        entry.pop("seconds", None)
    assert found == expected


def test_recordings_with_missing_parts_are_an_error(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", replace(TINY, record=RECORD))
    run.train()
    with open(run.gradients, "a") as file:
        file.write('{"epoch": 4, "iteration": 9}\n')
    result = command("gradients", run.folder)
    assert result.exit_code == 1
    assert "gradients.jsonl" in result.stderr


TOML = [
    "x = " + "[" * 5000,
    "[data]\nsize = " + "9" * 5000,
    "[data]\nsize = 0x" + "f" * 5000,
    "[data]\nsize = 1000000000000",
    "[data]\nsource = '" + "x" * 10**5 + "'",
    '[data]\nsource = "\\u0000"\ndigest = "x"',
    "[data]\nsource = 'digits'\n[model]\nwidths = [99999]\nlayers = [99999]",
    "[model]\nlayers = 1000000000",
    "[model]\nwidth = 1000000000",
    "[model]\nwidth = 90000\nlayers = 90000",
    "[model]\nseed = 9223372036854775808",
    "[model]\nT = 1" + "0" * 400,
    "[training]\nbatch_size = 99999999999999999999",
    "[training]\nepochs = 0x" + "f" * 4000,
    "[training]\nlearning_rate = 1" + "0" * 400,
    "[record]\nevery = 0",
    "[record]\ndepths = 'x'",
]


@pytest.mark.parametrize("text", TOML, ids=lambda text: repr(text[:30]))
def test_a_config_that_cannot_be_meant_is_a_short_clear_error(text: str, tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.config.write_text(text)

    def whole() -> None:
        recipe = run.read_config()
        build(recipe, prepare(recipe))

    with pytest.raises(HdnnError) as caught:
        whole()
    assert len(str(caught.value)) < 600
    given = run.config.rename(tmp_path / "given.toml")
    result = command("train", "--config", given, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    run = interrupted(tmp_path_factory.mktemp("good") / "run", replace(TINY, record=RECORD))
    names = ("config", "history", "gradients", "checkpoint")
    return {name: getattr(run, name).read_bytes() for name in names}


@settings(max_examples=120)
@given(data=st.data())
def test_any_bytes_in_a_run_are_read_or_refused(
    data: st.DataObject, good: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = Run(tmp_path_factory.mktemp("bytes"))
    run.checkpoint.parent.mkdir()
    name = data.draw(st.sampled_from(sorted(good)))
    content = bytearray(good[name])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    for other, whole in good.items():
        getattr(run, other).write_bytes(content if other == name else whole)
    try:
        recipe = run.read_config()
        if recipe.training.epochs > 50 or recipe.data.size > 1000 or recipe.model.layers > 100:
            return  # as good as any other, but long
        read_history(run.history)
        run.train()
    except HdnnError:
        return
    assert run.finished


def test_the_advice_of_a_training_that_diverged_does_not_fail_itself(tmp_path: Path) -> None:
    words = ("swiss-roll", "--size", 40, "--T", 1e308, "--dtype", "float64")
    result = command("train", *words, "--out", tmp_path / "run")
    assert result.exit_code == 1, (result.output, result.exception)
    assert "the loss is not finite in epoch 1" in result.stderr


# --- power and locks ------------------------------------------------------------------------------


def test_what_was_announced_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files before the rename that shows them, folders after it; the history before all of them."""
    events: list[tuple[str, ...]] = []
    fsync, rename = os.fsync, os.replace

    def noted_fsync(descriptor: int) -> None:
        events.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def noted_rename(source: object, target: object) -> None:
        events.append(("rename", str(source), str(target)))
        rename(source, target)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_rename)
    run = Run.create(tmp_path / "new" / "run", replace(TINY, record=RECORD))
    assert {e[1] for e in events if e[0] == "sync"} >= {
        str(path) for path in (tmp_path, tmp_path / "new", run.folder)
    }
    events.clear()
    ends: list[int] = [0]
    run.train([lambda *_: ends.append(len(events))], checkpoint_seconds=0)

    def around(shown: Path, first: int, last: int) -> tuple[str, set[str], set[str]]:
        """What was renamed to be seen there, and what was synced before and after."""
        part = events[first:last]
        (at,) = (k for k, event in enumerate(part) if event[-1] == str(shown) and len(event) == 3)
        synced = [{e[1] for e in half if e[0] == "sync"} for half in (part[:at], part[at:])]
        return part[at][1], *synced  # type: ignore[return-value]

    logs = {str(run.history), str(run.gradients), str(run.folder)}
    for first, last in itertools.pairwise(ends[:3]):
        file, before, after = around(run.checkpoint, first, last)
        assert {*logs, file} <= before
        assert str(run.checkpoint.parent) in after
    file, before, after = around(run.model_file, ends[-1], len(events))
    assert {*logs, file} <= before
    assert str(run.folder) in after


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    run = interrupted(tmp_path / "run", TINY)
    stale = [run.folder / ".model.safetensors.0123abcd.tmp", run.folder / LOCK]
    stale.append(run.checkpoint.parent / ".state.pt.0123abcd.tmp")
    for path in stale:
        path.touch()
    run.train()
    assert sorted(str(path.relative_to(run.folder)) for path in run.folder.rglob("*")) == [
        "checkpoint",
        "checkpoint/state.pt",
        "config.toml",
        "history.jsonl",
        "metrics.json",
        "model.safetensors",
    ]


def test_a_lock_that_nobody_holds_is_no_content(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    Run.create(tmp_path, TINY).train()
    assert not (tmp_path / LOCK).exists()


def test_runs_need_nothing_that_windows_has_not() -> None:
    code = "import sys; sys.modules['fcntl'] = None; import hdnn.training.runs"
    subprocess.run([sys.executable, "-c", code], check=True)
