"""Several processes train as one does: two real ones, joined by gloo as torchrun joins them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hdnn
from hdnn.cli import app
from hdnn.data.images import load
from hdnn.errors import HdnnError
from hdnn.models import ImageClassifier, ImageConfig, Model
from hdnn.training import Ensemble, Trainer, TrainingConfig, distributed
from hdnn.training.distortion import distort
from hdnn.training.group import SINGLE_PROCESS, Group, joined
from hdnn.training.loops import Batches, JointLoop
from hdnn.training.run_config import RunConfig
from hdnn.training.runs import Run, read_history
from processes import ended, epoch_beats, forked

# The threads of this process (of pytest-xdist, of hdnn's pool) hold no lock that a child needs.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")

JOINT = TrainingConfig(method="joint", learning_rate=0.01, alpha=0.3, alpha_c=0.2, clip=5.0)
BENT = replace(JOINT, shift=1, rotate=20.0, flip=True, erase=2, label_smoothing=0.1)
STAGES: dict[str, Any] = {
    "architecture": "H1",
    "widths": (4, 8),
    "layers": (2, 2),
    "step": 0.1,
    "kernel": 3,
    "head": "pool",
}
BATCHES = (7, 1)
"""Sizes that two processes cannot share evenly; of the last one gets nothing."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A child of fork has none of the threads of torch, so there are none to miss."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- processes ------------------------------------------------------------------------------------


def start(work: Callable[[], object], folder: Path, size: int = 2) -> list[int]:
    """Processes with the variables that torchrun sets; each writes to out0, err0, out1, ..."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(size):
        variables = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "MASTER_PORT": port}
        children.append(forked(lambda own=variables: _as_rank(own, work, folder)))
    return children


def _as_rank(variables: dict[str, int], work: Callable[[], object], folder: Path) -> None:
    os.environ |= {name: str(value) for name, value in variables.items()}
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    rank = variables["RANK"]
    sys.stdout = open(folder / f"out{rank}", "w")  # noqa: SIM115 - for the rest of its life
    sys.stderr = open(folder / f"err{rank}", "w")  # noqa: SIM115
    work()


def said(folder: Path, name: str, rank: int) -> str:
    return " ".join((folder / f"{name}{rank}").read_text().split())


# --- what is trained ------------------------------------------------------------------------------


def images(dtype: torch.dtype = torch.float64, **options: Any) -> tuple[Model, Batches]:
    found = load("digits")
    config = ImageConfig(**({"size": (8, 8), "layers": (2,)} | options))
    model = ImageClassifier(config, generator=torch.Generator().manual_seed(0), dtype=dtype)
    weight = torch.linspace(0.5, 2, 20, dtype=dtype)
    return model, Batches(found.train[:20], found.train_labels[:20], weight)


def table(dtype: torch.dtype, outputs: int, task: str) -> tuple[hdnn.Model, Batches]:
    draw = torch.Generator().manual_seed(0)
    net = hdnn.network("H1", features=4, layers=8, T=1.0, dtype=dtype, generator=draw)
    model = hdnn.Model(net, outputs, task=task)
    with torch.no_grad():
        model.head.weight.normal_(generator=draw)
    X = torch.randn(20, 4, generator=draw, dtype=dtype)
    target = X[:, :outputs] * 2 if task == "regression" else (X[:, 0] > 0).long()
    return model, Batches(X, target, torch.ones(20, dtype=dtype))


CASES: dict[str, tuple[Callable[[], tuple[Any, Batches]], TrainingConfig]] = {
    "paper": (lambda: images(architecture="MS1"), BENT),
    "single precision": (lambda: images(torch.float32, architecture="H2"), replace(BENT, clip=1)),
    "groups": (lambda: images(**STAGES, norm="group"), BENT),
    "batch normalization": (lambda: images(**STAGES, norm="batch"), BENT),
    "table": (lambda: table(torch.float64, 1, "classification"), JOINT),
    "regression": (lambda: table(torch.float64, 2, "regression"), JOINT),
    "fused, single precision": (lambda: table(torch.float32, 1, "classification"), JOINT),
}


def gradients(case: str, group: Group) -> dict[str, Tensor]:
    """Gradients and figures of batches, and the buffers that they leave behind."""
    make, config = CASES[case]
    model, data = make()
    model.train()
    loop = JointLoop(model, data, config, group)
    found = {}
    for place, size in enumerate(BATCHES):
        figures = loop.gradients(torch.arange(size) + 3 * place, 2, place)
        grads = [p.grad.flatten().double() for p in model.parameters() if p.grad is not None]
        found[f"gradient {size}"] = torch.cat(grads)
        found[f"figures {size}"] = torch.tensor(figures)
    return found | {name: t.double() for name, t in model.named_buffers()}


FIT = replace(
    JOINT,
    epochs=4,
    batch_size=33,
    averaging=0.9,
    validation=0.21,
    early_stopping=3,
    shift=1,
    optimizer="AdamW",
    weight_decay=0.01,
)


def fitted(group: Group) -> tuple[list[dict[str, float]], dict[str, Tensor]]:
    """History and weights of a training whose batches and last batch are uneven."""
    found = load("digits")
    model, _ = images(**STAGES, norm="batch")
    history = Trainer(model, FIT, group=group).fit(found.train[:201], found.train_labels[:201])
    return [entry.to_dict() for entry in history], model.state_dict()


RECIPE = RunConfig.from_tables(
    {
        "data": {"source": "digits"},
        "model": {"layers": 1, "dtype": "float64"},
        "training": {"epochs": 4, "batch_size": 199, "validation": 0.1},
    }
)


class EnoughError(HdnnError):
    pass


def enough(trainer: Trainer, entry: Any) -> None:
    """A training that is interrupted after two epochs."""
    if entry.epoch == 2:
        raise EnoughError("two epochs")


def interrupted(folder: Path, group: Group) -> None:
    run = group.rank_zero(lambda: Run.create(folder, RECIPE))
    with pytest.raises(EnoughError):
        run.train([enough], group=group)


def refused(work: Callable[[], object]) -> str:
    """The error of some work, with its type."""
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def fail(error: Exception) -> None:
    raise error


def failures(group: Group) -> dict[str, str]:
    """What processes raise when one of them fails."""
    lost = RuntimeError("[third_party/gloo/buffer.cc:78] Timed out waiting 1000ms for recv")
    model, data = table(torch.float64, 1, "classification")
    networks = hdnn.network("H1", features=data.states.shape[1], layers=2, T=1.0, ensemble=2)

    def guarded(error: Exception) -> None:
        with group.guard():
            fail(error)

    return {
        "leader": refused(lambda: group.rank_zero(lambda: fail(HdnnError("no folder")))),
        "leader, unforeseen": refused(lambda: group.rank_zero(lambda: fail(OSError("no disk")))),
        "one": refused(
            lambda: group.all_ranks(lambda: fail(HdnnError("no data")) if group.rank else 1)
        ),
        "all": refused(lambda: group.all_ranks(lambda: fail(HdnnError("no data")))),
        "silent": refused(lambda: guarded(lost)),
        "defect": refused(lambda: guarded(RuntimeError("shapes"))),
        "coordinate": refused(lambda: Trainer(model, group=group).fit(data.states, data.target)),
        "ensemble": refused(
            lambda: Trainer(Ensemble(networks, range(2))).fit(
                data.states.expand(2, -1, -1), data.target.expand(2, -1)
            )
        ),
        "alone": refused(lambda: Trainer(model, JOINT).fit(data.states, data.target)),
        "estimator": refused(
            lambda: hdnn.HDNNClassifier(max_iter=1).fit(data.states.numpy(), data.target.numpy())
        ),
    }


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The folder of two processes, and what each of them found."""
    folder = tmp_path_factory.mktemp("two")
    interrupted(folder / "one, then two", SINGLE_PROCESS)

    def work() -> None:
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(1)
        with joined() as group:
            found: dict[str, Any] = {case: gradients(case, group) for case in CASES}
            found["fit"] = fitted(group)
            interrupted(folder / "two, then one", group)
            # Only rank 0 may look into the folder, so the other one may have a wrong idea of it.
            run = Run(folder / ("nowhere" if group.rank else "one, then two"))
            found["metrics"] = run.train(group=group)
            found["failures"] = failures(group)
            torch.save(found, folder / f"found{group.rank}")

    codes = [ended(child) for child in start(work, folder)]
    assert codes == [0, 0], said(folder, "err", 0) + said(folder, "err", 1)
    return folder, [torch.load(folder / f"found{rank}", weights_only=False) for rank in (0, 1)]


Two = tuple[Path, list[dict[str, Any]]]

# --- the same as one process ----------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_gradients_and_figures_are_those_of_the_whole_batch(two: Two, case: str) -> None:
    expected, (first, second) = gradients(case, SINGLE_PROCESS), two[1]
    assert first[case].keys() == expected.keys()
    bound = 1e-6 if "single" in case else 1e-12
    for name, value in expected.items():
        assert torch.equal(first[case][name], second[case][name]), name
        error = (first[case][name] - value).norm() / value.norm().clamp_min(1e-300)
        assert float(error) <= bound, (name, float(error))


def without_time(history: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{k: v for k, v in entry.items() if k != "seconds"} for entry in history]


def close(found: list[dict[str, float]], expected: list[dict[str, float]]) -> bool:
    pairs = zip(without_time(found), without_time(expected), strict=True)
    return all(a == pytest.approx(b, rel=1e-8) for a, b in pairs)


def test_a_training_ends_with_the_same_weights(two: Two) -> None:
    history, weights = fitted(SINGLE_PROCESS)
    (found, first), (other, second) = (rank["fit"] for rank in two[1])
    assert len(history) >= 3
    assert close(found, history)
    assert without_time(found) == without_time(other)  # the ranks agree on when to stop
    for name, value in weights.items():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], value, rtol=1e-7, atol=1e-9)


def test_a_run_goes_on_with_another_number_of_processes(two: Two, tmp_path: Path) -> None:
    folder, found = two
    whole, continued = Run.create(tmp_path / "whole", RECIPE), Run(folder / "two, then one")
    metrics = whole.train()
    assert [entry["epoch"] for entry in read_history(continued.history)] == [1, 2]
    continued.train()
    for run in (continued, Run(folder / "one, then two")):
        assert close(read_history(run.history), read_history(whole.history))
        assert run.finished
    assert not (folder / "nowhere").exists()
    for rank in found:
        for part in ("train", "test"):
            assert rank["metrics"][part] == pytest.approx(metrics[part], rel=1e-8)
    written = json.loads((folder / "one, then two" / "metrics.json").read_text())
    assert written == found[0]["metrics"] == found[1]["metrics"]


@pytest.mark.parametrize("config", [BENT, replace(BENT, rotate=0.0), replace(JOINT, erase=3)])
def test_a_part_of_a_batch_is_distorted_as_in_the_whole(config: TrainingConfig) -> None:
    batch = load("digits").train[:9]
    whole = distort(batch, config, 1, 2)
    assert not torch.equal(whole, batch)
    for share in (slice(0, 4), slice(4, 9), slice(4, 4)):
        assert torch.equal(distort(batch, config, 1, 2, share=share), whole[share])


def test_shares_are_a_partition() -> None:
    for count in (0, 1, 5, 100):
        for size in (1, 2, 3, 7):
            ranks = [distributed.Ranks.__new__(distributed.Ranks) for _ in range(size)]
            for rank, group in enumerate(ranks):
                Group.__init__(group, rank, size)
            shares = [range(count)[group.rows(count)] for group in ranks]
            assert [i for share in shares for i in share] == list(range(count))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


# --- failures -------------------------------------------------------------------------------------


def test_an_error_of_one_process_is_raised_in_all(two: Two) -> None:
    first, second = (rank["failures"] for rank in two[1])
    assert first["leader"] == second["leader"] == "HdnnError: no folder"
    assert first["leader, unforeseen"] == "OSError: no disk"
    assert second["leader, unforeseen"] == "LostRankError: rank 0 failed with OSError: no disk"
    assert first["one"] == "HdnnError: rank 1: no data"
    assert second["one"] == "HdnnError: no data"
    assert first["all"] == second["all"] == "HdnnError: no data"
    assert "rank 1 (process" in first["silent"]
    assert "did not answer for 300 s" in first["silent"]
    assert first["defect"] == "RuntimeError: shapes"


def test_what_processes_cannot_share(two: Two) -> None:
    for rank in two[1]:
        assert (
            "2 processes train together with method='joint' only" in rank["failures"]["coordinate"]
        )
        for what in ("alone", "estimator", "ensemble"):
            assert rank["failures"][what].startswith("HdnnError: torchrun started 2 processes")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_dead_rank_ends_the_other_with_a_message(tmp_path: Path, victim: int) -> None:
    run = Run(tmp_path / "run")
    arguments = f"train digits --layers 2 --epochs 10000 --out {run.folder}".split()
    with epoch_beats() as beats:
        children = start(lambda: app(arguments), tmp_path)
        try:
            beats.wait(2)
        finally:
            os.kill(children[victim], signal.SIGKILL)
    assert ended(children[1 - victim]) == 1
    assert ended(children[victim]) == -signal.SIGKILL
    message = f"error: rank {victim} (process {children[victim]} on {socket.gethostname()}) is gone"
    assert message in said(tmp_path, "err", 1 - victim)
    assert "Traceback" not in said(tmp_path, "err", 1 - victim)
    if victim == 1:  # the leader leaves a checkpoint of the last whole epoch
        assert run.checkpoint.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train digits --epochs 5 --out {run}", "holds a run of another config"),
        ("train swiss-roll --epochs 5 --out {new}", "train together with method='joint' only"),
        ("train --resume {new}", "is not a run"),
        ("train digits --epochs five --out {new}", "--epochs"),
        ("reproduce table1 --out {new}", "torchrun started 2 processes"),
    ],
)
def test_misuse_ends_all_with_one_message(tmp_path: Path, arguments: str, message: str) -> None:
    run, new = Run.create(tmp_path / "run", RECIPE), tmp_path / "new"
    words = arguments.format(run=run.folder, new=new).split()
    assert [ended(child) for child in start(lambda: app(words), tmp_path)] == [2, 2]
    assert message in said(tmp_path, "err", 0)
    assert said(tmp_path, "err", 1) == said(tmp_path, "out", 1) == ""
    assert not new.exists()


def test_only_the_leader_talks(tmp_path: Path) -> None:
    arguments = f"train digits --layers 1 --epochs 1 --json --out {tmp_path / 'run'}".split()
    assert [ended(child) for child in start(lambda: app(arguments), tmp_path)] == [0, 0]
    assert json.loads(said(tmp_path, "out", 0))["finished"] is True
    assert said(tmp_path, "out", 1) == said(tmp_path, "err", 1) == ""


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "x"}, "RANK is an integer"),
        ({"RANK": "2"}, "RANK is an integer from 0 to"),
        ({"HDNN_TIMEOUT": "-1"}, "HDNN_TIMEOUT is a number of seconds"),
        ({"MASTER_PORT": ""}, "could not meet the others"),
    ],
)
def test_variables_that_make_no_sense(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    usual = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in (usual | variables).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(HdnnError, match=message), joined():
        pass


def test_one_process_never_loads_it() -> None:
    code = (
        "import sys, hdnn.cli; from hdnn.training.group import joined\n"
        "with joined() as group: assert group.size == 1\n"
        "assert 'hdnn.training.distributed' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
