"""Run folders: what is in them, when a run continues, and that resuming gives the same bits."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import hdnn
from commands import command, done, fails
from hdnn.config import Config, RecordConfig
from hdnn.errors import FileFormatError, HdnnError, StorageError
from hdnn.reports.page import inputs_of_run
from hdnn.training import DivergenceError, EpochRecord, Trainer
from hdnn.training.runs import LOCK, Run, prepare, read_history
from processes import ended, forked
from stress import outcome

# The threads of this process (of pytest-xdist, of hdnn's pool) hold no lock that a child needs.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")

CONFIG = prepare(
    Config(
        data={"size": 200}, model={"layers": 3, "T": 1.2}, training={"epochs": 6}, protocol="paper"
    )
).config
FLAGS = (
    *("swiss-roll", "--size", 200, "--layers", 3, "--epochs", 6),
    *("--protocol", "paper", "--T", 1.2),
)


def changed(**training: Any) -> Config:
    return CONFIG.replace(training=CONFIG.training.replace(**training))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A child of fork has none of the threads of torch, so there are none to miss."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def unfinished(folder: Path, config: Config = CONFIG, epoch: int = 2) -> Run:
    """A run that was interrupted after an epoch."""

    def stop(trainer: Trainer, record: EpochRecord) -> None:
        if record.epoch == epoch:
            raise KeyboardInterrupt

    run = Run.create(folder, config)
    with pytest.raises(KeyboardInterrupt):
        run.train([stop], checkpoint_seconds=1e9)
    assert not run.finished
    return run


def epochs(run: Run) -> list[int]:
    return [record["epoch"] for record in read_history(run.history)]


def state(run: Run) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(run.checkpoint, weights_only=True)
    return loaded


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run.create(tmp_path_factory.mktemp("runs") / "whole", CONFIG)
    run.train(checkpoint_seconds=0)
    return run


# --- the folder -----------------------------------------------------------------------------------


def test_contents_of_a_run_folder(whole: Run) -> None:
    names = "checkpoint config.toml history.jsonl metrics.json model.safetensors"
    assert sorted(contents(whole.folder)) == names.split()
    assert whole.config == CONFIG
    assert epochs(whole) == [1, 2, 3, 4, 5, 6]
    record = read_history(whole.history)[0]
    assert set(record) == {"epoch", "loss", "penalized", "accuracy", "learning_rate", "seconds"}
    metrics = json.loads(whole.metrics.read_text())
    assert set(metrics) == {"train", "test"}
    assert set(metrics["test"]) == {"samples", "log_loss", "accuracy"}
    model = whole.load_model()
    assert (model.network.layers, model.classes) == (3, [0, 1])


def test_folder_that_is_not_a_run_raises(tmp_path: Path) -> None:
    with pytest.raises(HdnnError, match=r"is not a run: there is no config\.toml"):
        Run.open(tmp_path)
    (tmp_path / "note.txt").write_text("mine")
    for overwrite in (False, True):
        for place in (tmp_path, tmp_path / "note.txt"):
            with pytest.raises(HdnnError, match=r"exists and is not a run|cannot write"):
                Run.create(place, CONFIG, overwrite)
    fails(2, ("train", *FLAGS, "--out", "/proc/run"), "cannot write /proc/run", "choose another")
    assert contents(tmp_path) == {"note.txt": b"mine"}


# --- which run continues --------------------------------------------------------------------------


def test_out_and_resume_continue_an_unfinished_run(whole: Run, tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run", epoch=4)
    fails(2, ("evaluate", run.folder), "is not finished", "hdnn train --resume")
    first = run.history.read_text().splitlines()[:4]
    done("train", *FLAGS, "--out", run.folder)
    assert run.history.read_text().splitlines()[:4] == first
    assert outcome(run.folder) == outcome(whole.folder)

    run = unfinished(tmp_path / "resumed")
    result = done("train", "--resume", run.folder, "--device", "cpu")
    assert run.config.training.device == "cpu"  # it is no part of what a run trains
    assert "epoch 3/6" in result.stdout
    assert "epoch 2/6" not in result.stdout
    assert outcome(run.folder) == outcome(whole.folder)


def test_out_on_another_config_or_a_finished_run_needs_overwrite(tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run")
    before = contents(run.folder)
    other = ("train", *FLAGS, "--seed", 1, "--out", run.folder)
    fails(2, other, "another config", "--overwrite")
    assert contents(run.folder) == before
    done(*other, "--overwrite")
    assert epochs(run) == [1, 2, 3, 4, 5, 6]
    before = contents(run.folder)
    fails(2, other, "finished run", "--overwrite")
    assert json.loads(done("train", "--resume", run.folder, "--json").stdout)["finished"] is True
    assert contents(run.folder) == before


def test_extended_run_equals_one_with_more_epochs(whole: Run, tmp_path: Path) -> None:
    run = Run(shutil.copytree(whole.folder, tmp_path / "run"))
    for count in (3, 6):
        fails(2, ("train", "--resume", run.folder, "--epochs", count), "6 epochs", "--epochs 12")
    fails(2, ("train", "--resume", run.folder, "--epochs", 9, "--seed", 0), "no other settings")
    done("train", "--resume", run.folder, "--epochs", 9)
    longer = Run.create(tmp_path / "longer", changed(epochs=9))
    longer.train()
    assert outcome(run.folder) == outcome(longer.folder)


def train_on_table(table: Path, folder: Path) -> tuple[Any, ...]:
    """Write a table and train on it; the words of the command."""
    rows = [f"{a:.4f},{b:.4f},{'yes' if a > b else 'no'}" for a, b in torch.randn(60, 2).tolist()]
    table.write_text("a,b,label\n" + "\n".join(rows) + "\n")
    words = ("train", table, "--target", "label", "--epochs", 2, "--out", folder)
    done(*words)
    return words


def test_project_that_was_moved_as_a_whole_resumes(tmp_path: Path) -> None:
    project, moved = tmp_path / "project", tmp_path / "moved"
    project.mkdir()
    train_on_table(project / "table.csv", project / "runs" / "first")
    project.rename(moved)
    run = Run(moved / "runs" / "first")
    done("train", "--resume", run.folder, "--epochs", 3)
    assert run.config.data.source == str(moved / "table.csv")
    assert 'source = "../../table.csv"' in run.config_file.read_text()
    done("train", "--config", run.config_file, "--out", tmp_path / "again")
    far = Run.create(moved / "runs" / "of" / "mine", run.config)
    assert f'source = "{moved / "table.csv"}"' in far.config_file.read_text()


def test_changed_data_raise(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    words = train_on_table(table, tmp_path / "run")
    run = Run(tmp_path / "run")
    run.model_file.unlink()
    table.write_text(table.read_text() + "0,1,no\n")
    fails(2, ("train", "--resume", run.folder), "has changed", "table.csv")
    fails(2, words, "another config")
    table.unlink()
    fails(2, ("train", "--resume", run.folder), "table.csv", "correct the source in the config")


def test_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    reader, writer = os.pipe()

    def hold() -> None:
        with run.locked():
            os.write(writer, b".")
            signal.pause()

    child = forked(hold)
    try:
        os.read(reader, 1)
        for words in (("--resume", run.folder), (*FLAGS, "--out", run.folder, "--overwrite")):
            fails(2, ("train", *words), "another process is working in")
    finally:
        os.kill(child, signal.SIGKILL)
        ended(child)
        os.close(reader)
        os.close(writer)
    run.train()
    assert not (run.folder / LOCK).exists()


# --- interruptions and kills ----------------------------------------------------------------------


def test_interrupted_run_with_recordings_gives_the_same_bits(tmp_path: Path) -> None:
    """`test_trainer.py` resumes every loop after every epoch; this is about the files."""
    training = changed(validation=0.2, early_stopping=3, schedule="cosine")
    config = training.replace(record=RecordConfig(every=2))
    whole = Run.create(tmp_path / "whole", config)
    whole.train()
    for epoch in (1, 3):
        run = unfinished(tmp_path / "run", config, epoch)
        assert state(run)["epoch"] == epoch
    run.train()
    assert outcome(run.folder) == outcome(whole.folder)
    seconds = [record["seconds"] for record in read_history(run.history)]
    assert seconds == sorted(seconds)  # they add up over interruptions


def test_termination_leaves_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C does; `tests/slow/test_kills.py` sends both at random moments."""

    def terminate(trainer: Trainer) -> tuple[float, float]:
        assert trainer.state is not None
        if trainer.state["epoch"] == 3:
            signal.raise_signal(signal.SIGTERM)
        return 0.0, 0.0

    monkeypatch.setattr(Trainer, "evaluate_now", terminate)  # the command calls it every epoch
    run = Run(tmp_path / "run")
    result = command("train", *FLAGS, "--out", run.folder)
    assert result.exit_code == 130
    assert f"hdnn train --resume {run.folder}" in result.stderr
    assert state(run)["epoch"] == 3
    assert epochs(run) == [1, 2, 3]


def test_full_disk_leaves_the_last_checkpoint(whole: Run, tmp_path: Path) -> None:
    """`tests/slow/test_full_disk.py` does the same with room for fewer or more bytes."""
    run = unfinished(tmp_path / "run", epoch=2)
    before = contents(run.folder)

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
        with pytest.raises(StorageError, match="cannot write"):
            run.train(checkpoint_seconds=0)

    assert ended(forked(work)) == 0
    after = contents(run.folder)
    assert set(after) == set(before)  # no temporary files
    assert after["checkpoint"] == before["checkpoint"]
    run.train()
    assert outcome(run.folder) == outcome(whole.folder)


# --- files that cannot be used --------------------------------------------------------------------


class Evil:
    """Would run code when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("exit 1",)


def with_state(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        loaded = torch.load(path, weights_only=True)
        change(loaded)
        torch.save(loaded, path)

    return damage


def flip(content: bytes) -> bytes:
    """In the matrix J, which nothing but the checksum protects."""
    J = hdnn.network("H1", features=4, layers=1, T=1.0).J.float().numpy().tobytes()
    assert content.count(J) == 1
    return content.replace(J, J[:-2] + b"\x01" + J[-1:])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "text": lambda path: path.write_text("epoch,loss\n1,0.3\n"),
    "code": lambda path: torch.save({"epoch": 1, "x": Evil()}, path),
    "negative epoch": with_state(lambda loaded: loaded.update(epoch=-1)),
    "no weights": with_state(lambda loaded: loaded["model"].pop("head.weight")),
    "no generator": with_state(lambda loaded: loaded.pop("generator")),
    "flipped bit": lambda path: path.write_bytes(flip(path.read_bytes())),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_checkpoint_raises(name: str, tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run")
    DAMAGES[name](run.checkpoint)
    before = contents(run.folder)
    with pytest.raises(FileFormatError, match=r"checkpoint.*To start again, remove it"):
        run.train()
    fails(1, ("train", "--resume", run.folder), "checkpoint")
    assert contents(run.folder) == before


def test_a_folder_that_cannot_be_written_to_is_a_clear_error(
    whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    run = unfinished(tmp_path / "run")
    before = contents(run.folder)
    monkeypatch.setattr("filelock.FileLock.acquire", fail)
    for more in ((), ("--epochs", 50), ("--device", "cpu", "--epochs", 50)):
        fails(1, ("train", "--resume", run.folder, *more), "cannot write", "Read-only file system")
    assert contents(run.folder) == before


def test_damaged_model_and_config_raise(whole: Run, tmp_path: Path) -> None:
    run = Run(shutil.copytree(whole.folder, tmp_path / "run"))
    run.model_file.write_bytes(run.model_file.read_bytes()[:-9])
    fails(1, ("evaluate", run.folder), "model.safetensors")
    run.config_file.write_bytes(b"[model]\nlayer = 3\n")
    for words in (("--resume", run.folder), (*FLAGS, "--out", run.folder)):
        fails(2, ("train", *words), "config.toml")


# --- divergence -----------------------------------------------------------------------------------


def test_divergence_is_in_the_history_and_the_last_good_state_stays(tmp_path: Path) -> None:
    diverging = changed(batch_size=20, schedule="exponential", decay=1e36)
    run = Run.create(tmp_path / "run", diverging)
    with pytest.raises(DivergenceError) as caught:
        run.train()
    good = epochs(run)
    assert 1 <= len(good) < 6
    assert f"in epoch {len(good) + 1}" in str(caught.value)
    last = json.loads(run.history.read_text().splitlines()[-1])
    assert last == {"epoch": len(good) + 1, "error": str(caught.value)}
    assert run.failure == str(caught.value)
    assert inputs_of_run(run.folder).notices[0] == f"This run diverged: {caught.value}."
    fails(2, ("evaluate", run.folder), "diverged (the loss", "--overwrite")
    assert state(run)["epoch"] == len(good)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in state(run)["model"].values())
    fails(1, ("train", "--resume", run.folder), str(caught.value))
    assert epochs(run) == good

    gentle = diverging.replace(training=diverging.training.replace(decay=1.0))
    run.config_file.write_text(gentle.to_toml())
    run.train()
    assert epochs(run) == [1, 2, 3, 4, 5, 6]
    assert run.failure is None
