"""Whatever bytes a file of a model or a run holds, there is a result or a short `HdnnError`.

Never another exception, a crash, a hang, or (configs apart) more memory than ten times the file
and 64 MB. Tables and images: tests/data/test_any_bytes.py; descriptions of models:
tests/models/test_files.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

import hdnn
from commands import done
from hdnn.config import Config
from hdnn.errors import printable
from hdnn.paper.records import Records
from hdnn.training.recorder import read_recordings
from hdnn.training.runs import Run, prepare, read_history
from processes import ended, forked, memory_growth
from stress import inputs, mutate, one_thread

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
]
ROOM, FACTOR, LONGEST, SECONDS = 64 * 2**20, 10, 1000, 60
NUMBERS = (0, 1, -1, 7, 2**31, 2**63, 2**64, 10**9, 10**400, 0.5, 1e-300, 1e308, float("nan"))
VALUES = (None, True, "", "x", "\0", "\ud800", "9" * 5000, [], {}, [[]], [10**9] * 4, {"": 0})


# --- mutations ------------------------------------------------------------------------------------


def mutate_value(node: Any, rng: Random) -> Any:
    """A copy of a JSON value with one place changed or lost."""
    if not isinstance(node, dict | list) or not node or rng.random() < 0.1:
        near = [node + 1, -node, node * 1000] if isinstance(node, int | float) else []
        return rng.choice([*near, *VALUES, *NUMBERS])
    copied: Any = node.copy()
    place = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
    if rng.random() < 0.1:
        del copied[place]
    else:
        copied[place] = mutate_value(node[place], rng)
    return copied


def mutate_lines(data: bytes, rng: Random) -> bytes:
    """JSON lines or TOML: the bytes, or the value of one line."""
    lines = data.splitlines()
    place = rng.randrange(len(lines))
    name, equals, _ = lines[place].partition(b" = ")
    if equals:
        lines[place] = name + equals + json.dumps(mutate_value(0, rng)).encode()
    elif lines[place].startswith(b"{"):
        lines[place] = json.dumps(mutate_value(json.loads(lines[place]), rng)).encode()
    return b"\n".join(lines) + b"\n" if rng.random() < 0.6 else mutate(data, rng)


def mutate_tensors(data: bytes, rng: Random) -> bytes:
    """A safetensors file: its bytes, its header, or the description in the header."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    if rng.random() < 0.7:
        description = json.loads(header["__metadata__"]["hdnn"])
        header["__metadata__"]["hdnn"] = json.dumps(mutate_value(description, rng))
    else:
        header = mutate_value(header, rng)
    text = json.dumps(header).encode()
    changed = len(text).to_bytes(8, "little") + text + data[8 + size :]
    return changed if rng.random() < 0.7 else mutate(data, rng)


# --- readers --------------------------------------------------------------------------------------


def read_all(
    name: str, count: int, data: bytes, mutation: Any, read: Callable[[bytes], Any], bounded: bool
) -> None:
    """Read mutated files in a process of its own, so that a crash or a hang is found."""

    def work() -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        warnings.simplefilter("ignore")
        read(data)  # imports what it needs
        for number, rng in enumerate(inputs(name, count)):
            changed, messages = mutation(data, rng), [""]

            def attempt(changed: bytes = changed, messages: list[str] = messages) -> None:
                try:
                    read(changed)
                except hdnn.HdnnError as error:
                    messages.append(str(error))

            signal.alarm(SECONDS)  # which ends the process
            growth = memory_growth(attempt)
            assert len(messages[-1]) <= LONGEST, (number, messages)
            assert messages[-1] == printable(messages[-1]), number
            assert not bounded or growth <= FACTOR * len(changed) + ROOM, (number, growth)

    assert ended(forked(work)) == 0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run that was stopped after its last epoch; its model is beside it."""
    folder = tmp_path_factory.mktemp("mutated") / "run"
    words = ("swiss-roll", "--size", 40, "--layers", 1, "--epochs", 3, "--record", 1)
    done("train", *words, "--checkpoint-seconds", 0, "--out", folder)
    (folder / "model.safetensors").rename(folder.with_name("expected"))
    return folder


NETWORKS: dict[str, Callable[[], Any]] = {
    "network": lambda: hdnn.network(
        "HS", features=4, layers=3, T=1.0, X="learned", learn_steps=True
    ),
    "table": lambda: hdnn.Model(
        hdnn.network("H1", features=6, layers=2, T=1.0),
        3,
        hdnn.Padding(3, 6),
        classes=["a", "b", "é"],
        feature_names=["u", "v", "w"],
    ),
    "images": lambda: hdnn.image_model(
        channels=1, size=(8, 8), classes=3, widths=(2, 4), layers=(1, 2), kernel=3, norm="batch"
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_models(name: str, tmp_path: Path) -> None:
    one_thread()
    path = tmp_path / "model"
    hdnn.save(NETWORKS[name](), path)

    def read(data: bytes) -> None:
        path.write_bytes(data)
        hdnn.load(path)

    read_all(name, 200, path.read_bytes(), mutate_tensors, read, bounded=True)


def test_models_take_memory_in_proportion_to_the_file(tmp_path: Path) -> None:
    """The worst case: few numbers in few bytes, of which hdnn makes a table of all entries of K."""
    path, code = tmp_path / "wide", "import sys, hdnn; from processes import memory_growth as g; "
    net = hdnn.network("MS1", features=1000, layers=1, T=1.0, dtype=torch.float16)
    hdnn.save(hdnn.network("MS1", features=4, layers=1, T=1.0), tmp_path / "small")
    hdnn.save(net, path)
    code += "small, wide = sys.argv[1:]; hdnn.load(small); print(g(lambda: hdnn.load(wide)))"
    # In a process of its own: here, memory that was freed would be used again.
    call = [sys.executable, "-c", code, str(tmp_path / "small"), str(path)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "helpers")}
    growth = int(subprocess.run(call, env=env, capture_output=True, check=True).stdout)
    assert 10 * path.stat().st_size < growth < 200 * path.stat().st_size + ROOM


def test_configs(tmp_path: Path) -> None:
    """Memory and time are not bounded here: a config may ask for a large network, or much data."""
    one_thread()
    stopping = {"epochs": 1, "validation": 0.2, "early_stopping": 3}
    config = Config(data={"size": 40}, model={"layers": 2, "step": 0.1}, training=stopping)

    def read(data: bytes) -> None:
        (tmp_path / "config.toml").write_bytes(data)
        config = Run.open(tmp_path).config
        if config.data.size < 10**6:
            prepare(config)

    read_all("config", 100, config.to_toml().encode(), mutate_lines, read, bounded=False)


@pytest.mark.parametrize(
    ("name", "reader"), [("history.jsonl", read_history), ("gradients.jsonl", read_recordings)]
)
def test_histories(name: str, reader: Callable[[Path], object], run: Path, tmp_path: Path) -> None:
    def read(data: bytes) -> None:
        (tmp_path / name).write_bytes(data)
        reader(tmp_path / name)

    read_all(name, 100, (run / name).read_bytes(), mutate_lines, read, bounded=True)


def test_records(tmp_path: Path) -> None:
    """Reading them, and adding to them."""
    key = ("data", "layers", "split")
    new = {"data": "peaks", "layers": 8, "split": "paper", "seed": 5, "seconds": 1.5}
    records = [{**new, "layers": layers, "seed": seed} for layers in (4, 8) for seed in range(3)]
    Records(tmp_path, key).add(records)

    def read(data: bytes) -> None:
        (tmp_path / "records.jsonl").write_bytes(data)
        known = Records(tmp_path, key).read()
        Records(tmp_path, key).add([new])
        assert known.keys() | {("peaks", 8, "paper", 5)} == Records(tmp_path, key).read().keys()

    data = (tmp_path / "records.jsonl").read_bytes()
    read_all("records", 300, data, mutate_lines, read, bounded=True)


@pytest.mark.parametrize("name", ["checkpoint", "history.jsonl", "gradients.jsonl"])
def test_resumed_runs(name: str, run: Path, tmp_path: Path) -> None:
    """Damage to a file of a run is an error, or does not change the model."""
    one_thread()
    files = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    expected = run.with_name("expected").read_bytes()

    def read(data: bytes) -> None:
        for other, whole in {**files, name: data}.items():
            (tmp_path / other).write_bytes(whole)
        (tmp_path / "model.safetensors").unlink(missing_ok=True)
        Run.open(tmp_path).train()
        assert (tmp_path / "model.safetensors").read_bytes() == expected

    mutation = mutate if name == "checkpoint" else mutate_lines
    read_all(f"{name}, resumed", 30, files[name], mutation, read, bounded=True)
