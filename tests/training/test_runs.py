"""Runs: which folder may be trained in, what continues, and what survives every failure."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

import hdnn
from hdnn.cli import app
from hdnn.config import Config
from hdnn.errors import FileFormatError, HdnnError, StorageError
from hdnn.training import DivergenceError, EpochRecord, Trainer
from hdnn.training.runs import LOCK, Run, prepare, read_history
from processes import ended, forked
from skips import needs_kernels

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
    return replace(CONFIG, training=replace(CONFIG.training, **training))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A child of fork has none of the threads of torch, so there are none to miss."""
    before = torch.get_num_threads()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def command(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(result: Result, code: int, *words: str) -> None:
    """One message, no traceback, nothing on standard output."""
    assert result.exit_code == code, (result.output, result.exception)
    assert isinstance(result.exception, SystemExit)
    assert result.stderr.startswith("error: ")
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def stop_after(epoch: int, error: type[BaseException] = KeyboardInterrupt) -> Any:
    def callback(trainer: Trainer, record: EpochRecord) -> None:
        if record.epoch == epoch:
            raise error

    return callback


def unfinished(folder: Path, config: Config = CONFIG, epoch: int = 2) -> Run:
    """A run that was interrupted after an epoch."""
    run = Run.create(folder, config)
    with pytest.raises(KeyboardInterrupt):
        run.train([stop_after(epoch)], checkpoint_seconds=1e9)
    assert not run.finished
    return run


def epochs(run: Run) -> list[int]:
    return [record["epoch"] for record in read_history(run.history)]


def state(run: Run) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(run.checkpoint, weights_only=True)
    return loaded


@dataclass(frozen=True)
class Outcome:
    """What must not depend on interruptions: model, metrics, history but for its times."""

    model: bytes
    metrics: bytes
    history: list[dict[str, Any]]
    gradients: bytes

    @classmethod
    def of(cls, run: Run) -> Outcome:
        history = [{**record, "seconds": None} for record in read_history(run.history)]
        gradients = run.gradients.read_bytes() if run.gradients.exists() else b""
        return cls(run.model_file.read_bytes(), run.metrics.read_bytes(), history, gradients)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run.create(tmp_path_factory.mktemp("runs") / "whole", CONFIG)
    run.train(checkpoint_seconds=0)
    return run


# --- the folder -----------------------------------------------------------------------------------


def test_what_a_run_leaves(whole: Run) -> None:
    assert sorted(contents(whole.folder)) == [
        "checkpoint",
        "config.toml",
        "history.jsonl",
        "metrics.json",
        "model.safetensors",
    ]
    assert whole.config == CONFIG
    assert epochs(whole) == [1, 2, 3, 4, 5, 6]
    record = read_history(whole.history)[0]
    assert set(record) == {"epoch", "loss", "penalized", "accuracy", "learning_rate", "seconds"}
    assert record["penalized"] > record["loss"] > 0
    metrics = json.loads(whole.metrics.read_text())
    assert set(metrics) == {"train", "test"}
    assert set(metrics["test"]) == {"samples", "loss", "accuracy"}
    model = whole.load_model()
    assert (model.network.layers, model.classes) == (3, [0, 1])


def test_what_resolve_chose_is_in_the_config(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Config(data={"size": 40}, training={"epochs": 0}))
    run.train()
    text = run.config_file.read_text()
    assert "layers = 16" in text
    assert "learning_rate = 0.1" in text
    assert Run.create(tmp_path / "again", run.config).config == run.config


def test_what_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(HdnnError, match=r"is not a run: there is no config\.toml"):
        Run.open(tmp_path)
    (tmp_path / "note.txt").write_text("mine")
    for overwrite in (False, True):
        for place in (tmp_path, tmp_path / "note.txt"):
            with pytest.raises(HdnnError, match=r"exists and is not a run|cannot write"):
                Run.create(place, CONFIG, overwrite)
    assert contents(tmp_path) == {"note.txt": b"mine"}


def test_an_unfinished_run_has_no_model(tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run")
    for words in (("evaluate", run.folder), ("predict", run.folder, "x.csv", "--out", "y.csv")):
        refused(command(*words), 2, "is not finished", "hdnn train --resume")


def test_places_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/run")):
        refused(command("train", *FLAGS, "--out", out), 2, str(out))
    assert contents(tmp_path) == {"file": b"mine"}

    def forbidden(*_: object, **__: object) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", forbidden)
    refused(
        command("train", *FLAGS, "--out", "forbidden/x"),
        2,
        "forbidden/x: Permission denied",
        "choose",
    )


# --- the state machine, by exit codes -------------------------------------------------------------


def test_out_and_resume_continue_an_unfinished_run(whole: Run, tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run", epoch=4)
    first = run.history.read_text().splitlines()[:4]
    assert command("train", *FLAGS, "--out", run.folder).exit_code == 0
    assert run.history.read_text().splitlines()[:4] == first
    assert Outcome.of(run) == Outcome.of(whole)

    run = unfinished(tmp_path / "resumed")
    result = command("train", "--resume", run.folder)
    assert "epoch 3/6" in result.stdout
    assert "epoch 2/6" not in result.stdout
    assert Outcome.of(run) == Outcome.of(whole)


def test_out_on_another_config_or_a_finished_run_is_refused(whole: Run, tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run")
    before = contents(run.folder)
    other = (*FLAGS, "--seed", 1, "--out", run.folder)
    refused(command("train", *other), 2, "another config", "--overwrite")
    assert contents(run.folder) == before
    assert command("train", *other, "--overwrite").exit_code == 0
    assert epochs(run) == [1, 2, 3, 4, 5, 6]
    before = contents(run.folder)
    refused(command("train", *other), 2, "finished run", "--overwrite")
    assert contents(run.folder) == before


def test_resume_of_a_finished_run_does_nothing(whole: Run, tmp_path: Path) -> None:
    before = contents(whole.folder)
    result = command("train", "--resume", whole.folder, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["finished"] is True
    assert contents(whole.folder) == before
    refused(command("train", "--resume", tmp_path / "none"), 2, "not a run")


@pytest.mark.parametrize(
    "more",
    [
        *(("swiss-roll",), ("--seed", 0), ("--epochs", 12, "--seed", 0), ("--protocol", "paper")),
        *(("--balanced",), ("--out", "x"), ("--set", "model.scale=1.0"), ("--overwrite",)),
    ],
    ids=str,
)
def test_resume_takes_no_other_settings(more: tuple[object, ...], tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    refused(command("train", "--resume", run.folder, *more), 2, "--resume")
    assert list(contents(run.folder)) == ["config.toml"]


def test_a_finished_run_is_extended_as_if_it_had_never_ended(whole: Run, tmp_path: Path) -> None:
    run = Run(shutil.copytree(whole.folder, tmp_path / "run"))
    first = run.model_file.read_bytes()
    for count in (3, 6):
        refused(command("train", "--resume", run.folder, "--epochs", count), 2, "6 epochs", "12")
    assert command("train", "--resume", run.folder, "--epochs", 9).exit_code == 0
    longer = Run.create(tmp_path / "longer", changed(epochs=9))
    longer.train()
    assert Outcome.of(run) == Outcome.of(longer)
    assert (run.folder / "model-6.safetensors").read_bytes() == first
    assert command("train", *FLAGS, "--out", run.folder, "--overwrite").exit_code == 0
    assert not (run.folder / "model-6.safetensors").exists()
    run.checkpoint.unlink()
    refused(command("train", "--resume", run.folder, "--epochs", 9), 2, "no checkpoint")

    training = {"validation": 0.2, "early_stopping": 1, "learning_rate": 1.0, "epochs": 50}
    run = Run.create(tmp_path / "early", changed(**training))
    run.train()
    refused(command("train", "--resume", run.folder, "--epochs", 90), 2, "stopped early")


@pytest.mark.parametrize("text", [b"not toml", b"[model]\nlayer = 3\n", b'name = "\xff"\n'])
def test_a_damaged_config_is_refused(text: bytes, tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run")
    run.config_file.write_bytes(text)
    before = contents(run.folder)
    for words in (("--resume", run.folder), (*FLAGS, "--out", run.folder)):
        refused(command("train", *words), 2, "config.toml")
    assert contents(run.folder) == before


@pytest.mark.parametrize(
    "wrong",
    [
        ("--step", 0.1),  # and T
        ("--width", 1, "--set", "model.projection=off"),
        ("--activation", "tan"),
        ("--set", "model.augmentation=x"),
        ("--architecture", "FCNN"),  # has no T
    ],
    ids=str,
)
def test_settings_that_cannot_be_built_leave_no_folder(
    wrong: tuple[object, ...], tmp_path: Path
) -> None:
    """Else the same command, corrected, would find "a run of another config" there."""
    refused(command("train", *FLAGS, *wrong, "--out", tmp_path / "run"), 2)
    assert not (tmp_path / "run").exists()


# --- one process at a time ------------------------------------------------------------------------


def test_one_process_at_a_time_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    reader, writer = os.pipe()

    def hold() -> None:
        with run.locked():
            os.write(writer, b".")
            signal.pause()

    child = forked(hold)
    try:
        os.read(reader, 1)
        before = contents(run.folder)
        for words in (("--resume", run.folder), (*FLAGS, "--out", run.folder, "--overwrite")):
            refused(command("train", *words), 2, "another process is training in")
        assert contents(run.folder) == before
    finally:
        os.kill(child, signal.SIGKILL)
        ended(child)
        os.close(reader)
        os.close(writer)
    run.train()
    assert run.finished
    assert not (run.folder / LOCK).exists()


# --- interruptions and kills ----------------------------------------------------------------------

CASES: dict[str, dict[str, Any]] = {
    "compiled": {"loop": "compiled"},
    "autograd": {"loop": "autograd"},
    "joint": {"method": "joint", "weight_decay": 1e-3, "schedule": "cosine"},
    "adam solver": {"solver": "adam", "clip": 0.1},
    "validation": {"validation": 0.2, "early_stopping": 3},
    **{
        name: {"optimizer": name, "loop": "autograd", "learning_rate": 0.01}
        for name in ("SGD", "RAdam", "RMSprop", "Rprop")
    },
}


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=needs_kernels if c == "compiled" else ()) for c in CASES]
)
def test_interrupted_after_any_epoch_the_bits_are_the_same(case: str, tmp_path: Path) -> None:
    config = changed(**CASES[case])
    config = replace(config, record=hdnn.config.RecordConfig(every=2))
    whole = Run.create(tmp_path / "whole", config)
    whole.train()
    run = Run.create(tmp_path / "run", config)
    for epoch in (1, 2, 3, 5):
        if epoch < len(epochs(whole)):
            with pytest.raises(KeyboardInterrupt):
                run.train([stop_after(epoch)])
            assert state(run)["epoch"] == epoch
    run.train()
    assert Outcome.of(run) == Outcome.of(whole)


@pytest.mark.parametrize(
    "more", ['\n{"epoch": 3, "loss": 0.1}\n{"epoch": 4, "loss": 0.1}\n', '{"epoch": 3, "lo', "{"]
)
def test_history_is_cut_back_to_the_checkpoint(more: str, whole: Run, tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run", epoch=2)
    kept = run.history.read_text()
    with open(run.history, "a") as file:
        file.write(more)
    run.train()
    assert run.history.read_text().startswith(kept)
    assert Outcome.of(run) == Outcome.of(whole)
    seconds = [record["seconds"] for record in read_history(run.history)]
    assert seconds == sorted(seconds)  # they add up over interruptions


LONG = replace(CONFIG, data=replace(CONFIG.data, size=400), training=changed(epochs=40).training)


@pytest.mark.parametrize("early", [False, True])
def test_killed_at_random_moments(early: bool, tmp_path: Path) -> None:
    """Three kills; tests/slow/test_kills.py has more."""
    stopping = replace(LONG.training, epochs=300, validation=0.2, early_stopping=20)
    config = replace(LONG, training=stopping) if early else LONG
    whole = Run.create(tmp_path / "whole", config)
    whole.train()
    moments, run, kills = random.Random(0), Run.create(tmp_path / "run", config), 0
    for _ in range(3):
        if run.finished:
            break
        at = moments.randrange(1, 10) + (state(run)["epoch"] if run.checkpoint.exists() else 0)

        def wind(trainer: Trainer, record: EpochRecord, at: int = at) -> None:
            """Once the checkpoint of an epoch is written, set an alarm, which kills."""
            if record.epoch == at:
                signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-6, 0.003))

        def work(wind: Any = wind) -> None:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            run.train([wind], checkpoint_seconds=0)

        kills += ended(forked(work)) == -signal.SIGALRM
    assert kills >= 2
    if not run.finished:
        run.train()
    assert Outcome.of(run) == Outcome.of(whole)


TOUCHES = {"open", "os.chmod", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.scandir"}


def touching(folder: Path, number: int | None, work: Callable[[], object]) -> int:
    """Do some work in a child that dies just before touching a file below a folder for the n-th
    time; how often it touched one."""
    reader, writer = os.pipe()
    seen = 0

    def hook(event: str, values: tuple[Any, ...]) -> None:
        nonlocal seen
        if event not in TOUCHES or not any(str(folder) in str(value) for value in values[:2]):
            return
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1
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
    short = replace(changed(epochs=2), data=replace(CONFIG.data, size=40))
    other = replace(short, model=replace(short.model, layers=2))

    def work(folder: Path) -> None:
        Run.create(folder, other).train(checkpoint_seconds=0)
        Run.create(folder, short, overwrite=True).train(checkpoint_seconds=0)

    dry = Run(tmp_path / "dry")
    touches = touching(dry.folder, None, lambda: work(dry.folder))
    expected, names = Outcome.of(dry), set(contents(dry.folder))
    assert touches > 40
    for number in range(0, touches, 3):
        run = Run(tmp_path / str(number))
        touching(run.folder, number, lambda run=run: work(run.folder))
        stale = run.config_file.is_file() and run.config != short
        if stale or not run.finished:
            Run.create(run.folder, short, overwrite=stale).train(checkpoint_seconds=0)
        assert Outcome.of(run) == expected, number
        assert set(contents(run.folder)) - {LOCK} == names, number


def test_ctrl_c_and_termination_leave_a_checkpoint(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    flags = ["swiss-roll", "--size", "2000", "--layers", "16", "--epochs", "600"]
    begin = [sys.executable, "-m", "hdnn", "train", *flags, "--out", str(run.folder)]
    resume = [sys.executable, "-m", "hdnn", "train", "--resume", str(run.folder)]
    # A shell's background job ignores Ctrl-C, and so would its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    reached = [0]
    for words, number in ((begin, signal.SIGINT), (resume, signal.SIGTERM)):
        with subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        ) as process:
            assert process.stdout is not None
            assert any(line.startswith("epoch") for line in process.stdout)  # waits for the first
            process.send_signal(number)
            _, message = process.communicate()
        assert process.returncode == 130
        assert f"hdnn train --resume {run.folder}" in message
        assert "Traceback" not in message
        reached.append(state(run)["epoch"])
    assert 0 < reached[1] < reached[2] < 600
    assert epochs(run) == list(range(1, reached[2] + 1))


# --- checkpoints that cannot be used --------------------------------------------------------------


def with_state(change: Callable[[dict[str, Any]], object]) -> Callable[[Run], None]:
    def damage(run: Run) -> None:
        found = state(run)
        change(found)
        torch.save(found, run.checkpoint)

    return damage


def instead(make: Callable[[Path], object]) -> Callable[[Run], None]:
    def damage(run: Run) -> None:
        run.checkpoint.unlink()
        make(run.checkpoint)

    return damage


class Evil:
    """Would run code when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("exit 1",)


DAMAGES: dict[str, Callable[[Run], None]] = {
    "empty": instead(Path.touch),
    "a folder": instead(Path.mkdir),
    "text": instead(lambda path: path.write_text("epoch,loss\n1,0.3\n")),
    "code": instead(lambda path: torch.save({"epoch": 1, "x": Evil()}, path)),
    "foreign": instead(lambda path: torch.save({"x": torch.ones(3)}, path)),
    "a list": instead(lambda path: torch.save([1, 2], path)),
    "an epoch before the first": with_state(lambda found: found.update(epoch=-1)),
    "no weights": with_state(lambda found: found["model"].pop("head.weight")),
    "no generator": with_state(lambda found: found.pop("generator")),
    "another depth": lambda run: shutil.copy(
        unfinished(
            run.folder.parent / "other", replace(CONFIG, model=replace(CONFIG.model, layers=4))
        ).checkpoint,
        run.checkpoint,
    ),
    **{
        f"cut at {part} of 5": lambda run, part=part: os.truncate(
            run.checkpoint, part * run.checkpoint.stat().st_size // 5
        )
        for part in range(1, 5)
    },
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_or_foreign_checkpoint_is_refused(name: str, tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run")
    DAMAGES[name](run)
    before = contents(run.folder)
    with pytest.raises(FileFormatError, match="checkpoint"):
        run.train()
    refused(command("train", "--resume", run.folder), 1, "checkpoint")
    assert contents(run.folder) == before


@pytest.mark.parametrize("name", ["cut", "foreign"])
def test_a_damaged_model_is_refused(name: str, whole: Run, tmp_path: Path) -> None:
    run = Run(shutil.copytree(whole.folder, tmp_path / "run"))
    if name == "cut":
        run.model_file.write_bytes(run.model_file.read_bytes()[:-9])
    else:
        hdnn.save(hdnn.network("H1", features=4, layers=3, T=1.0), run.model_file)
    refused(command("evaluate", run.folder), 1, "model.safetensors")


# --- full disks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("room", "seconds"), [(20, 0), (300, 0), (4000, 0), (1000, 1e9)])
def test_a_full_disk_leaves_what_was_there(
    room: int, seconds: float, whole: Run, tmp_path: Path
) -> None:
    run = unfinished(tmp_path / "run", epoch=2)
    before = contents(run.folder)

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        with pytest.raises(StorageError, match="cannot write"):
            run.train(checkpoint_seconds=seconds)
        result = command("train", "--resume", run.folder, "--checkpoint-seconds", seconds)
        refused_without_output = result.exit_code, result.stderr.startswith("error: cannot write")
        assert refused_without_output == (1, True)

    assert ended(forked(work)) == 0
    after = contents(run.folder)
    assert set(after) - {"metrics.json"} == set(before)  # no temporary files
    assert (after["config.toml"], after["checkpoint"]) == (
        before["config.toml"],
        before["checkpoint"],
    )
    run.train()
    assert Outcome.of(run) == Outcome.of(whole)


# --- data that move or change ---------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "project" / "data" / "table.csv"
    path.parent.mkdir(parents=True)
    rows = [f"{a:.4f},{b:.4f},{'yes' if a > b else 'no'}" for a, b in torch.randn(60, 2).tolist()]
    path.write_text("a,b,label\n" + "\n".join(rows) + "\n")
    return path


def table_config(path: Path) -> Config:
    config = Config(data={"source": str(path), "target": "label"}, training={"epochs": 4})
    return prepare(config).config


def test_a_changed_table_is_noticed(table: Path, tmp_path: Path) -> None:
    words = (table, "--target", "label", "--epochs", 2, "--layers", 2, "--out", tmp_path / "run")
    assert command("train", *words).exit_code == 0
    run = Run(tmp_path / "run")
    assert run.config.data.source == str(table.resolve())
    assert len(run.config.data.digest or "") == 64
    run.model_file.unlink()
    table.write_text(table.read_text() + "0,1,no\n")
    before = contents(run.folder)
    refused(command("train", "--resume", run.folder), 2, "has changed", "table.csv")
    refused(command("train", *words), 2, "another config")
    assert contents(run.folder) == before
    assert command("train", *words, "--overwrite").exit_code == 0


def test_a_run_and_its_data_may_move(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they stay together; of a run that moved alone, --data says where its data are."""
    run = unfinished(tmp_path / "project" / "runs" / "one", table_config(table))
    assert 'source = "../../data/table.csv"' in run.config_file.read_text()
    assert all(str(tmp_path).encode() not in content for content in contents(run.folder).values())
    monkeypatch.chdir("/")
    moved = (tmp_path / "project").rename(tmp_path / "elsewhere")
    assert command("train", "--resume", moved / "runs" / "one").exit_code == 0
    expected = Outcome.of(Run(moved / "runs" / "one"))

    data = moved / "data" / "table.csv"
    run = unfinished(tmp_path / "two", table_config(data))
    alone = run.folder.rename(tmp_path / "x" if (tmp_path / "x").mkdir() else tmp_path / "x" / "y")
    result = command("train", "--resume", alone)
    refused(result, 2, "table.csv", "hdnn train --resume RUN --data PATH")
    other = tmp_path / "other.csv"
    other.write_text(data.read_text() + "1,1,no\n")
    refused(command("train", "--resume", alone, "--data", other), 2, "contents differ")
    assert command("train", "--resume", alone, "--data", data).exit_code == 0
    assert Outcome.of(Run(alone)) == expected


def test_a_training_reads_its_data_once(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[object] = []
    load = hdnn.training.runs.load
    monkeypatch.setattr(hdnn.training.runs, "load", lambda data: loads.append(data) or load(data))
    words = (table, "--target", "label", "--epochs", 2)
    assert command("train", *words, "--out", tmp_path / "run").exit_code == 0
    assert len(loads) == 1


def test_a_training_does_not_import_torch_s_compiler(tmp_path: Path) -> None:
    code = (
        "import sys; from hdnn.cli import app\n"
        f"try: app(['train', 'iris', '--epochs', '1', '--out', {str(tmp_path / 'run')!r}])\n"
        "except SystemExit as leaving: assert not leaving.code\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# --- divergence and overfitting -------------------------------------------------------------------

DIVERGING = changed(batch_size=20, schedule="exponential", decay=1e36)


def test_divergence_keeps_the_last_good_state(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", DIVERGING)
    with pytest.raises(DivergenceError) as caught:
        run.train()
    good = epochs(run)
    assert 1 <= len(good) < 6
    assert f"in epoch {len(good) + 1}" in str(caught.value)
    found = state(run)
    assert found["epoch"] == len(good)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in found["model"].values())
    refused(command("train", "--resume", run.folder), 1, str(caught.value))
    assert epochs(run) == good

    gentle = replace(DIVERGING, training=replace(DIVERGING.training, decay=1.0))
    run.config_file.write_text(gentle.to_toml())
    run.train()
    assert epochs(run) == [1, 2, 3, 4, 5, 6]


def test_a_training_that_does_not_converge_says_so(table: Path, tmp_path: Path) -> None:
    words = (table, "--target", "label", "--layers", 64, "--T", 300, "--activation", "relu")
    result = command("train", *words, "--epochs", 5, "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert "the loss exploded" in result.stderr
    assert "use T <= " in result.stderr


def test_overfitting_is_remarked_on(tmp_path: Path) -> None:
    rows = [
        ",".join(f"{x:.4f}" for x in row) + f",{k % 2}"
        for k, row in enumerate(torch.randn(100, 8).tolist())
    ]
    path = tmp_path / "noise.csv"
    path.write_text("a,b,c,d,e,f,g,h,y\n" + "\n".join(rows) + "\n")
    result = command("train", path, "--target", "y", "--out", tmp_path / "run")
    assert "the network overfits; try --validation 0.1 --early-stopping 10" in result.stderr
