"""Runs: which folder may be trained in, what goes on, and what survives every failure."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

import hdnn
from hdnn.cli import app
from hdnn.errors import FileFormatError, HdnnError
from hdnn.models import Model
from hdnn.training import DivergenceError, EpochRecord, Trainer, TrainingConfig, checkpoint
from hdnn.training.prepare import PreparedRun
from hdnn.config import Config
from hdnn.training.runs import Run, read_history
from hdnn.config import DataConfig, ModelConfig
from skips import needs_kernels

RECIPE = RunConfig(DataConfig(size=200), ModelConfig(layers=3), TrainingConfig(epochs=6))
FLAGS = (
    *("swiss-roll", "--size", 200, "--layers", 3, "--epochs", 6),
    *("--protocol", "paper", "--T", 1.2),
)
DIVERGING = replace(
    RECIPE,
    training=TrainingConfig(epochs=6, batch_size=20, schedule="exponential", decay=1e36),
)


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def command(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def changed(*change: object) -> list[object]:
    """`FLAGS` with other values; an option is given once."""
    given = dict(zip(FLAGS[1::2], FLAGS[2::2], strict=True)) | dict(
        zip(change[::2], change[1::2], strict=True)
    )
    return [FLAGS[0], *(word for pair in given.items() for word in pair)]


def refused(result: Result, code: int, *words: str) -> None:
    """One message, no traceback, nothing on standard output."""
    assert result.exit_code == code, (result.output, result.exception)
    assert isinstance(result.exception, SystemExit)
    assert result.stderr.startswith("error: ")
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def stop_after(epoch: int, error: type[BaseException] = KeyboardInterrupt) -> Any:
    def callback(trainer: Trainer, entry: EpochRecord) -> None:
        if entry.epoch == epoch:
            raise error

    return callback


def unfinished(folder: Path, recipe: RunConfig = RECIPE, epoch: int = 2) -> Run:
    """A run that was interrupted after an epoch."""
    run = Run.create(folder, recipe)
    with pytest.raises(KeyboardInterrupt):
        run.train([stop_after(epoch)], checkpoint_seconds=1e9)
    assert not run.finished
    return run


def epochs(run: Run) -> list[int]:
    return [json.loads(line)["epoch"] for line in run.history.read_text().splitlines()]


def about(run: Run) -> dict[str, Any]:
    return checkpoint._read(run.checkpoint)["state"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run.create(tmp_path_factory.mktemp("runs") / "whole", RECIPE)
    run.train(checkpoint_seconds=0)
    return run


# --- the folder -----------------------------------------------------------------------------------


def test_what_a_run_leaves(whole: Run) -> None:
    assert sorted(contents(whole.folder)) == [
        "checkpoint/state.pt",
        "config.toml",
        "history.jsonl",
        "metrics.json",
        "model.safetensors",
    ]
    assert whole.read_config() == RECIPE
    assert epochs(whole) == [1, 2, 3, 4, 5, 6]
    entry = json.loads(whole.history.read_text().splitlines()[0])
    assert set(entry) == {"epoch", "loss", "penalized", "accuracy", "learning_rate", "seconds"}
    assert entry["penalized"] > entry["loss"] > 0
    metrics = json.loads(whole.metrics.read_text())
    assert set(metrics) == {"train", "test"}
    assert set(metrics["test"]) == {"samples", "loss", "accuracy"}
    assert metrics["test"]["samples"] == 100
    model = whole.load_model()
    assert isinstance(model, hdnn.Model)
    assert model.network.layers == 3
    assert model.classes == [0, 1]


def test_a_run_is_the_same_every_time(whole: Run, tmp_path: Path) -> None:
    again = Run.create(tmp_path / "again", RECIPE)
    again.train()
    assert again.model_file.read_bytes() == whole.model_file.read_bytes()
    assert again.metrics.read_bytes() == whole.metrics.read_bytes()


def test_the_checkpoint_interval_changes_nothing(whole: Run, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", RECIPE)
    epochs: list[bool] = []
    watch = [lambda *_: epochs.append(run.checkpoint.exists())]
    run.train(watch, checkpoint_seconds=1e9)
    assert epochs == 6 * [False]
    assert run.model_file.read_bytes() == whole.model_file.read_bytes()


def test_a_checkpoint_is_written_when_it_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    written: list[int] = []
    monkeypatch.setattr(
        Run, "write_checkpoint", lambda _, __, state: written.append(state["epoch"])
    )
    Run.create(tmp_path / "run", RECIPE).train(checkpoint_seconds=2)
    assert written == [2, 4, 6]


def test_what_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(HdnnError, match=r"is not a run: there is no config\.toml"):
        Run.open(tmp_path)
    (tmp_path / "note.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(HdnnError, match="exists and is not a run"):
            Run.create(tmp_path, RECIPE, overwrite)
        with pytest.raises(HdnnError, match="exists and is not a run"):
            Run.create(tmp_path / "note.txt", RECIPE, overwrite)
    assert contents(tmp_path) == {"note.txt": b"mine"}


def test_an_unfinished_run_has_no_model(tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run")
    with pytest.raises(HdnnError, match="is not finished; go on with: hdnn train --resume"):
        run.load_model()
    for words in (("evaluate", run.folder), ("predict", run.folder, "x.csv", "--out", "y.csv")):
        refused(command(*words), 2, "hdnn train --resume")


# --- the state machine, by exit codes -------------------------------------------------------------


def test_out_on_an_unfinished_run_goes_on_with_it(whole: Run, tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run", epoch=4)
    first = run.history.read_text().splitlines()[:4]
    assert command("train", *FLAGS, "--out", run.folder).exit_code == 0
    assert run.history.read_text().splitlines()[:4] == first
    assert run.model_file.read_bytes() == whole.model_file.read_bytes()


def test_resume_goes_on(whole: Run, tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run")
    result = command("train", "--resume", run.folder)
    assert result.exit_code == 0
    assert "epoch 3/6" in result.stdout
    assert "epoch 2/6" not in result.stdout
    assert run.model_file.read_bytes() == whole.model_file.read_bytes()


@pytest.mark.parametrize("change", [("--layers", 4), ("--seed", 1), ("--lr", 0.1), ("--size", 202)])
def test_out_on_another_config_is_refused(change: tuple[object, ...], tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run")
    before = contents(run.folder)
    result = command("train", *changed(*change), "--out", run.folder)
    refused(result, 2, "another config", "--overwrite")
    assert contents(run.folder) == before
    result = command("train", *changed(*change), "--out", run.folder, "--overwrite")
    assert result.exit_code == 0
    assert run.finished
    assert epochs(run) == [1, 2, 3, 4, 5, 6]


def test_out_on_a_finished_run_is_refused(whole: Run, tmp_path: Path) -> None:
    folder = shutil.copytree(whole.folder, tmp_path / "run")
    before = contents(folder)
    refused(command("train", *FLAGS, "--out", folder), 2, "finished run", "--overwrite")
    assert contents(folder) == before
    assert command("train", *FLAGS, "--out", folder, "--overwrite").exit_code == 0
    assert Run(folder).model_file.read_bytes() == whole.model_file.read_bytes()
    assert contents(folder)["history.jsonl"] != before["history.jsonl"]  # its seconds


def test_resume_of_a_finished_run_does_nothing(whole: Run) -> None:
    before = contents(whole.folder)
    result = command("train", "--resume", whole.folder)
    assert result.exit_code == 0
    assert "finished" in result.stdout
    result = command("train", "--resume", whole.folder, "--json")
    assert json.loads(result.stdout)["finished"] is True
    assert contents(whole.folder) == before


def test_resume_of_what_is_no_run(tmp_path: Path) -> None:
    refused(command("train", "--resume", tmp_path / "none"), 2, "not a run")
    refused(command("train", "--resume", tmp_path), 2, "not a run", "config.toml")


@pytest.mark.parametrize(
    "more",
    [
        ("swiss-roll",),
        ("--layers", 3),
        ("--seed", 0),
        ("--epochs", 12, "--seed", 0),
        ("--protocol", "paper"),
        ("--balanced",),
        ("--out", "other"),
        ("--config", "a.toml"),
        ("--drop", "x"),
        ("--no-standardize",),
        ("--overwrite",),
    ],
    ids=lambda more: more[-2] if len(more) > 2 else more[0],
)
def test_resume_takes_no_other_settings(more: tuple[object, ...], tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", RECIPE)
    refused(command("train", "--resume", run.folder, *more), 2, "--resume")
    assert list(contents(run.folder)) == ["config.toml"]


def test_a_finished_run_of_a_constant_rate_goes_on_as_if_it_had_never_ended(
    whole: Run, tmp_path: Path
) -> None:
    run = Run(shutil.copytree(whole.folder, tmp_path / "run"))
    first = run.model_file.read_bytes()
    result = command("train", "--resume", run.folder, "--epochs", 9)
    assert result.exit_code == 0, result.output
    longer = Run.create(
        tmp_path / "longer", replace(RECIPE, training=replace(RECIPE.training, epochs=9))
    )
    longer.train()
    assert run.model_file.read_bytes() == longer.model_file.read_bytes()
    assert [r["epoch"] for r in read_history(run.history)] == list(range(1, 10))
    assert (run.folder / "model-6.safetensors").read_bytes() == first
    assert run.read_config().training.epochs == 9
    assert command("train", *FLAGS, "--out", run.folder, "--overwrite").exit_code == 0
    assert not (run.folder / "model-6.safetensors").exists()


def test_an_unfinished_run_can_become_longer(whole: Run, tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run")
    assert command("train", "--resume", run.folder, "--epochs", 7).exit_code == 0
    assert len(read_history(run.history)) == 7


def test_runs_that_cannot_go_on_are_left_alone(whole: Run, tmp_path: Path) -> None:
    run = Run(shutil.copytree(whole.folder, tmp_path / "run"))
    before = contents(run.folder)
    for epochs in (3, 6):
        refused(command("train", "--resume", run.folder, "--epochs", epochs), 2, "6 epochs", "12")
    assert contents(run.folder) == before
    shutil.rmtree(run.checkpoint.parent)
    refused(command("train", "--resume", run.folder, "--epochs", 9), 2, "no checkpoint")
    assert run.finished

    training = replace(RECIPE.training, validation=0.2, early_stopping=1, learning_rate=1.0)
    run = Run.create(tmp_path / "early", replace(RECIPE, training=replace(training, epochs=50)))
    run.train()
    refused(command("train", "--resume", run.folder, "--epochs", 90), 2, "stopped early")
    assert run.finished


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), ("cosine", 0.1, 1.0, "spread")),  # the cell of Table 1, as `hdnn.paper` trains it
        (("--layers", 30), ("cosine", 0.1, 1.0, "spread")),  # the nearest one
        (("--T", 0.3, "--lr", 0.01), ("cosine", 0.01, 0.3, "spread")),
        (("--protocol", "paper"), ("constant", 0.05, 0.6, "append")),
        (("--method", "joint"), ("constant", 0.05, 1.2, "append")),
    ],
)
def test_a_planar_problem_has_the_settings_of_table_1(
    flags: tuple[object, ...], expected: tuple[object, ...], tmp_path: Path
) -> None:
    depth = () if "--layers" in flags else ("--layers", 32)
    words = ("swiss-roll", "--size", 20, *depth, "--epochs", 0, *flags)
    done = command("train", *words, "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    config = Run.open(tmp_path / "run").read_config()
    training, model = config.training, config.model
    assert isinstance(model, ModelConfig)
    assert (training.schedule, training.learning_rate, model.T, model.augmentation) == expected


def test_protocols_are_of_planar_problems_and_tables() -> None:
    refused(command("train", "swiss-roll", "--protocol", "papre"), 2, "paper", "tuned")
    refused(command("train", "mnist", "--protocol", "paper"), 2, "--preset")


@pytest.mark.parametrize("text", [b"not toml", b"[model]\nlayer = 3\n", b'name = "\xff"\n'])
def test_a_damaged_config_is_refused(text: bytes, tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run")
    run.config.write_bytes(text)
    before = contents(run.folder)
    for words in (("--resume", run.folder), (*FLAGS, "--out", run.folder)):
        refused(command("train", *words), 2, "config.toml")
    assert contents(run.folder) == before


UNBUILDABLE = [
    ("--T", 1, "--step", 0.1),
    ("--width", 1, "--projection", "off"),
    ("--width", 0),
    ("--optimizer", "Adamm"),
    ("--T", -1),
    ("--activation", "tan"),
    ("--augmentation", "x"),
    ("--layers", -1),
    ("--architecture", "FCNN", "--T", 1),
]


@pytest.mark.parametrize("wrong", UNBUILDABLE, ids=str)
def test_settings_that_cannot_be_built_leave_no_folder(
    wrong: tuple[object, ...], tmp_path: Path
) -> None:
    """Else the same command, corrected, would find "a run of another config" there."""
    refused(command("train", *changed(*wrong), "--out", tmp_path / "run"), 2)
    assert not (tmp_path / "run").exists()


# --- one process at a time ------------------------------------------------------------------------


def test_a_second_trainer_is_refused_while_the_first_holds_the_lock(tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run")
    with run.locked():
        before = contents(run.folder)
        for words in (
            ("--resume", run.folder),
            (*FLAGS, "--out", run.folder),
            (*FLAGS, "--out", run.folder, "--overwrite"),
        ):
            result = command("train", *words)
            refused(result, result.exit_code, "another process is training in", str(run.folder))
        assert contents(run.folder) == before
    assert command("train", "--resume", run.folder).exit_code == 0


def test_a_failure_releases_the_lock(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", RECIPE)
    for epoch, error in enumerate((KeyboardInterrupt, HdnnError, ZeroDivisionError), start=1):
        with pytest.raises(error):
            run.train([stop_after(epoch, error)])
        with run.locked():
            pass


# --- interruption and history ---------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, HdnnError])
def test_an_interruption_writes_a_checkpoint_of_the_last_epoch(
    error: type[BaseException], tmp_path: Path
) -> None:
    run = Run.create(tmp_path / "run", RECIPE)
    with pytest.raises(error):
        run.train([stop_after(3, error)], checkpoint_seconds=1e9)
    assert about(run)["epoch"] == 3
    assert epochs(run) == [1, 2, 3]


CONFIGS = {
    "compiled": {"loop": "compiled"},
    "autograd": {"loop": "autograd"},
    "joint": {"method": "joint", "weight_decay": 1e-3, "schedule": "cosine"},
    "adam solver": {"solver": "adam", "clip": 0.1},
    "validation": {"validation": 0.2, "early_stopping": 3},
    **{
        name: {"optimizer": name, "loop": "autograd", "learning_rate": 0.01}
        for name in ("SGD", "AdamW", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adamax", "Rprop")
    },
}


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=needs_kernels if c == "compiled" else ()) for c in CONFIGS]
)
def test_interrupted_after_any_epoch_the_bits_are_the_same(case: str, tmp_path: Path) -> None:
    recipe = replace(RECIPE, training=TrainingConfig(epochs=6, **CONFIGS[case]))
    whole = Run.create(tmp_path / "whole", recipe)
    whole.train()
    run = Run.create(tmp_path / "run", recipe)
    for epoch in (1, 2, 3, 5):
        if epoch < len(epochs(whole)):
            with pytest.raises(KeyboardInterrupt):
                run.train([stop_after(epoch)])
    run.train()
    assert run.model_file.read_bytes() == whole.model_file.read_bytes()
    assert epochs(run) == epochs(whole)


@pytest.mark.parametrize(
    "more", ['{"epoch": 3, "loss": 0.1}\n{"epoch": 4, "loss": 0.1}\n', '{"epoch": 3, "lo', "{"]
)
def test_history_is_cut_back_to_the_checkpoint(more: str, whole: Run, tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run", epoch=2)
    kept = run.history.read_text()
    with open(run.history, "a") as file:
        file.write(more)
    run.train()
    assert epochs(run) == [1, 2, 3, 4, 5, 6]
    assert run.history.read_text().startswith(kept)
    entries = [json.loads(line)["loss"] for line in run.history.read_text().splitlines()]
    expected = [json.loads(line)["loss"] for line in whole.history.read_text().splitlines()]
    assert entries == expected


def test_without_a_checkpoint_the_run_starts_again(whole: Run, tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run", epoch=2)
    shutil.rmtree(run.checkpoint.parent)
    run.train()
    assert epochs(run) == [1, 2, 3, 4, 5, 6]
    assert run.model_file.read_bytes() == whole.model_file.read_bytes()


def test_seconds_add_up_over_interruptions(tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run", epoch=2)
    run.train()
    seconds = [json.loads(line)["seconds"] for line in run.history.read_text().splitlines()]
    assert seconds == sorted(seconds)


def test_a_network_that_trains_nothing(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", replace(RECIPE, training=TrainingConfig(epochs=0)))
    metrics = run.train()
    assert run.finished
    assert metrics["train"]["loss"] == pytest.approx(0.6931, abs=1e-4)  # log 2: it knows nothing


# --- checkpoints that cannot be used --------------------------------------------------------------

Damage = Callable[[Run], None]


def rewrite(run: Run, change: Callable[[dict[str, Any]], object]) -> None:
    state = about(run)
    change(state)
    checkpoint.write_checkpoint(run.checkpoint, run.read_config(), state)


def checkpoint_of(recipe: RunConfig) -> Damage:
    def replace_checkpoint(run: Run) -> None:
        other = unfinished(run.folder.parent / "other", recipe)
        shutil.copy(other.checkpoint, run.checkpoint)

    return replace_checkpoint


def in_place_of(make: Callable[[Path], object]) -> Damage:
    def damage(run: Run) -> None:
        run.checkpoint.unlink()
        make(run.checkpoint)

    return damage


def halve(run: Run) -> None:
    whole = run.checkpoint.read_bytes()
    run.checkpoint.write_bytes(whole[: len(whole) // 2])


def flip(run: Run) -> None:
    whole = bytearray(run.checkpoint.read_bytes())
    whole[10] ^= 0xFF
    run.checkpoint.write_bytes(whole)


DAMAGES: dict[str, Damage] = {
    "cut in half": halve,
    "flipped bits in the header": flip,
    "empty": in_place_of(Path.touch),
    "a folder": in_place_of(Path.mkdir),
    "text": in_place_of(lambda path: path.write_text("epoch,loss\n1,0.3\n")),
    "foreign": in_place_of(lambda path: torch.save({"x": torch.ones(3)}, path)),
    "no epoch": lambda run: rewrite(run, lambda state: state.pop("epoch")),
    "an epoch before the first": lambda run: rewrite(run, lambda state: state.update(epoch=-1)),
    "no generator": lambda run: rewrite(run, lambda state: state.pop("generator")),
    "another generator": lambda run: rewrite(
        run, lambda state: state.update(generator=torch.zeros(3, dtype=torch.uint8))
    ),
    "no weights": lambda run: rewrite(run, lambda state: state["model"].pop("head.weight")),
    "no moments": lambda run: rewrite(run, lambda state: state["loop"].pop("first")),
    "other moments": lambda run: rewrite(
        run, lambda state: state["loop"].update(first=torch.zeros(7))
    ),
    "another depth": checkpoint_of(replace(RECIPE, model=ModelConfig(layers=4))),
    "another width": checkpoint_of(replace(RECIPE, model=ModelConfig(layers=3, width=6))),
    "another architecture": checkpoint_of(replace(RECIPE, model=ModelConfig("MS1", layers=3))),
    "another precision": checkpoint_of(
        replace(RECIPE, model=ModelConfig(layers=3, dtype="float64"))
    ),
    "another method": checkpoint_of(
        replace(RECIPE, training=TrainingConfig(epochs=6, method="joint"))
    ),
    "another loop": checkpoint_of(
        replace(RECIPE, training=TrainingConfig(epochs=6, loop="autograd"))
    ),
}


KERNEL_DAMAGES = ("no moments", "other moments", "another loop")  # of a run that they train


@pytest.mark.parametrize(
    "name", [pytest.param(d, marks=needs_kernels if d in KERNEL_DAMAGES else ()) for d in DAMAGES]
)
def test_a_damaged_or_foreign_checkpoint_is_refused(name: str, tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run")
    DAMAGES[name](run)
    before = contents(run.folder)
    with pytest.raises(FileFormatError, match="checkpoint"):
        run.train()
    assert contents(run.folder) == before


def test_a_checkpoint_cut_anywhere_is_refused_with_exit_code_1(tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run")
    whole = run.checkpoint.read_bytes()
    for end in range(0, len(whole), len(whole) // 7):
        run.checkpoint.write_bytes(whole[:end])
        before = contents(run.folder)
        refused(command("train", "--resume", run.folder), 1, "nothing was changed", "remove")
        assert contents(run.folder) == before
    run.checkpoint.write_bytes(whole)
    assert command("train", "--resume", run.folder).exit_code == 0


@pytest.mark.parametrize("name", ["cut", "foreign"])
def test_a_damaged_model_is_refused(name: str, whole: Run, tmp_path: Path) -> None:
    run = Run(shutil.copytree(whole.folder, tmp_path / "run"))
    if name == "cut":
        run.model_file.write_bytes(run.model_file.read_bytes()[:-9])
    else:
        hdnn.save(hdnn.network("H1", features=4, layers=3, T=1.0), run.model_file)
    with pytest.raises(FileFormatError):
        run.load_model()
    refused(command("evaluate", run.folder), 1, "model.safetensors")


# --- disks that are full or closed ----------------------------------------------------------------


def in_child(work: Callable[[], object], bytes_a_file: int) -> str:
    """What happens in a process that cannot write files larger than this."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        outcome = "no error"
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_a_file, bytes_a_file))
            work()
        except BaseException as error:
            if not isinstance(error, HdnnError):
                traceback.print_exc(file=sys.stderr)
            outcome = f"{type(error).__name__}: {error}"
        finally:
            os.write(writer, outcome.encode())
            os._exit(0)
    os.close(writer)
    with open(reader) as file:
        outcome = file.read()
    os.waitpid(child, 0)
    return outcome


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize(
    ("room", "interval", "what"),
    [
        (20, 0, "config.toml|history.jsonl"),
        (300, 0, "history.jsonl"),
        (4000, 0, "checkpoint"),
        (1000, 1e9, "model.safetensors"),
    ],
    ids=str,
)
def test_a_full_disk_leaves_what_was_there(
    room: int, interval: float, what: str, whole: Run, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    run = unfinished(tmp_path / "run", epoch=2)
    if interval:
        run.history.write_text("")
    before = contents(run.folder)
    outcome = in_child(lambda: run.train(checkpoint_seconds=interval), room)
    assert outcome.startswith("StorageError: cannot write"), outcome
    assert any(word in outcome for word in (*what.split("|"), "checkpoint"))
    after = contents(run.folder)
    assert set(after) - {"metrics.json"} == set(before)  # no temporary files
    for name in ("config.toml", "checkpoint/state.pt"):
        assert after[name] == before[name]
    run.train()
    assert run.model_file.read_bytes() == whole.model_file.read_bytes()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_full_disk_is_a_failure_not_a_misuse(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    run = unfinished(tmp_path / "run")

    def resume() -> None:
        result = command("train", "--resume", run.folder, "--checkpoint-seconds", 0)
        raise HdnnError(f"exit {result.exit_code}, {result.stderr}")

    outcome = in_child(resume, 4000)
    assert outcome.startswith("HdnnError: exit 1, error: cannot write the checkpoint"), outcome


def test_a_new_run_on_a_full_disk_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(HdnnError, match=r"cannot write .*config\.toml: No space left on device"):
        Run.create(tmp_path / "run", RECIPE)
    assert contents(tmp_path) == {}


def test_the_first_checkpoint_on_a_full_disk_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    run = Run.create(tmp_path / "run", RECIPE)
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(HdnnError, match=r"cannot write .* No space left on device"):
        run.train(checkpoint_seconds=0)
    files = [path.name for path in run.folder.rglob("*") if path.is_file()]
    assert sorted(files) == ["config.toml", "history.jsonl"]


def test_places_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/run")):
        refused(command("train", *FLAGS, "--out", out), 2, str(out))
    assert contents(tmp_path) == {"file": b"mine"}


# --- data that change -----------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    points = torch.randn(60, 2)
    rows = [f"{a:.4f},{b:.4f},{'yes' if a > b else 'no'}" for a, b in points.tolist()]
    path.write_text("a,b,label\n" + "\n".join(rows) + "\n")
    return path


def test_a_changed_table_is_noticed(table: Path, tmp_path: Path) -> None:
    words = (table, "--target", "label", "--epochs", 2, "--layers", 2, "--out", tmp_path / "run")
    assert command("train", *words).exit_code == 0
    run = Run(tmp_path / "run")
    recipe = run.read_config()
    assert recipe.data.source == str(table.resolve())
    assert len(recipe.data.digest or "") == 64
    run.model_file.unlink()
    table.write_text(table.read_text() + "0,1,no\n")
    before = contents(run.folder)
    refused(command("train", "--resume", run.folder), 2, "has changed", "table.csv")
    refused(command("train", *words), 2, "another config")
    assert contents(run.folder) == before
    assert command("train", *words, "--overwrite").exit_code == 0
    table.write_text(table.read_text() + "0,1,no\n")
    refused(command("evaluate", run.folder), 2, "has changed")
    assert command("evaluate", run.folder, table).exit_code == 0


def test_a_table_that_is_gone_is_named(table: Path, tmp_path: Path) -> None:
    recipe = replace(RECIPE, data=DataConfig(str(table), target="label"))
    recipe = PreparedRun.of(recipe).config
    run = Run.create(tmp_path / "run", recipe)
    table.unlink()
    refused(command("train", "--resume", run.folder), 2, "no such file", "table.csv")


# --- divergence -----------------------------------------------------------------------------------


def test_divergence_names_layer_and_step_and_keeps_the_last_good_state(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", DIVERGING)
    with pytest.raises(DivergenceError) as caught:
        run.train()
    message = str(caught.value)
    assert "step h = 0.4" in message
    assert "layer " in message
    assert "of 3" in message
    good = epochs(run)
    assert 1 <= len(good) < 6
    assert f"in epoch {len(good) + 1}" in message
    assert about(run)["epoch"] == len(good)
    state = about(run)["model"]
    assert all(torch.isfinite(value).all() for value in state.values())
    assert not run.finished

    before = contents(run.folder)
    refused(command("train", "--resume", run.folder), 1, message)
    assert contents(run.folder).keys() == before.keys()
    assert epochs(run) == good
    again = about(run)["model"]
    assert all(torch.equal(again[name], state[name]) for name in state)

    gentle = replace(DIVERGING, training=replace(DIVERGING.training, decay=1.0))
    run.config.write_text(gentle.to_toml())
    run.train()
    assert run.finished
    assert epochs(run) == [1, 2, 3, 4, 5, 6]


def test_divergence_in_the_first_epoch(tmp_path: Path) -> None:
    for method in ("coordinate", "joint"):
        words = (*FLAGS[:-2], "--step", 3e38, "--method", method, "--out", tmp_path / method)
        refused(command("train", *words), 1, "epoch 1: with step h = 3e+38, layer 1")
        assert about(Run(tmp_path / method))["epoch"] == 0


@needs_kernels  # torch's Adam raises for a learning rate beyond float32
def test_divergence_in_the_last_step_of_an_epoch(tmp_path: Path) -> None:
    """The loss of an epoch is measured before its last step; what is kept is finite even so."""
    for count in (2, 3):  # the second epoch diverges: it is the last one, or there is one more
        training = TrainingConfig(epochs=count, schedule="exponential", decay=1e40)
        run = Run.create(tmp_path / str(count), replace(RECIPE, training=training))
        with pytest.raises(DivergenceError):
            run.train(checkpoint_seconds=0)
        assert all(torch.isfinite(value).all() for value in about(run)["model"].values())
        assert not run.finished


# --- one walk from the file to the run folder -----------------------------------------------------


def test_a_training_reads_its_data_and_builds_its_model_once(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted: openings of the data, models that are made, and readings of config.toml."""
    opened: list[tuple[str, str]] = []
    counting = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if counting and event == "open":
            opened.append((Path(str(arguments[0])).name, str(arguments[1])))

    built: list[Model] = []
    init = Model.__init__

    def counted(self: Model, *args: Any, **options: Any) -> None:
        if torch.get_default_device().type != "meta":  # on which a file is checked
            built.append(self)
        init(self, *args, **options)

    monkeypatch.setattr(Model, "__init__", counted)
    sys.addaudithook(hook)  # for the life of the process, hence `counting`
    try:
        flags = ("--target", "label", "--epochs", 4, "--checkpoint-seconds", 0)
        result = command("train", table, *flags, "--out", tmp_path / "run")
    finally:
        counting = False
    assert result.exit_code == 0, result.output
    assert [name for name, _ in opened].count("table.csv") == 1
    assert sum(name == "config.toml" and "r" in mode for name, mode in opened) == 1
    assert len(built) == 1
    assert Run.open(tmp_path / "run").checkpoint.exists()


def test_a_prepared_run_goes_with_the_folder_of_its_config(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", RECIPE)
    other = replace(RECIPE, training=replace(RECIPE.training, epochs=1))
    with pytest.raises(HdnnError, match="another config by now"):
        run.train(prepared=PreparedRun.of(other))
    run.train(prepared=PreparedRun.of(RECIPE))
    twin = Run.create(tmp_path / "twin", RECIPE)
    twin.train()
    assert run.model_file.read_bytes() == twin.model_file.read_bytes()
