"""`hdnn identify` killed, on a full disk, or twice in a folder; and what it exports."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commands import command, done, fails, write_rows
from hdnn.cli import app
from hdnn.identification.runs import IdentificationRun
from hdnn.training.runs import locked
from processes import ended, forked
from stress import inputs, one_thread

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
]
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
SIZES = ("--states", "1,2", "--units", 3, "--restarts", 1)
WORDS = ("identify", "data.csv", "--input", "u", "--output", "y", *SIZES)


@pytest.fixture(autouse=True)
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A saturated first-order system, in units that are not those of the network."""
    one_thread()
    monkeypatch.chdir(tmp_path)
    u, x, y = np.repeat(np.random.default_rng(0).normal(size=30), 10), 0.0, []
    for v in u:
        y.append(20 + 3 * x)
        x += 0.2 * (np.tanh(v) - x)
    write_rows(Path("data.csv"), u=300 + 40 * u, y=np.array(y))


def outcome(folder: Path) -> dict[str, Any]:
    """What must not depend on interruptions: models and numbers, but for the times."""
    about = json.loads((folder / "identification.json").read_text())
    about["seconds"] = None
    for candidate in about["candidates"]:
        candidate["seconds"] = None
    models = [(folder / f"{name}.safetensors").read_bytes() for name in ("model", "linear")]
    return {"about": about, "models": models}


def start(*words: object) -> int:
    """A command in a process of its own; its id."""

    def work() -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        app([str(word) for word in words])

    return forked(work)


def candidates(folder: Path) -> list[str]:
    """The finished candidates; with their seconds, so that one fitted again is another."""
    file = folder / "candidates.jsonl"
    return file.read_text().splitlines() if file.exists() else []


def test_a_killed_run_resumes_to_the_same_numbers() -> None:
    """SIGKILL after so many finished candidates, which are not fitted again."""
    done(*WORDS, "--out", "whole")
    expected = outcome(Path("whole"))
    for count in range(4):
        folder = Path(f"run-{count}")
        child = start(*WORDS, "--out", folder)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if (folder / "identify.toml").exists() and len(candidates(folder)) >= count:
                break
            time.sleep(0.001)
        os.kill(child, signal.SIGKILL)  # not waited for yet, so it is there
        ended(child)
        before = candidates(folder)
        assert len(before) >= count
        done("identify", "--resume", folder)
        assert candidates(folder)[: len(before)] == before
        assert outcome(folder) == expected, count


def test_a_full_disk_loses_nothing_that_is_finished() -> None:
    """The error is one, with exit code 1, and the run goes on to the same numbers."""
    done(*WORDS, "--out", "whole")
    expected, failures, kept = outcome(Path("whole")), 0, 0
    size = (Path("whole") / "candidates.jsonl").stat().st_size
    for number, rng in enumerate(inputs("identify", 6)):
        folder, room = Path(f"run-{number}"), int(size * rng.uniform(0.01, 1))

        def identify(folder: Path = folder, room: int = room) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
            result = command(*WORDS, "--out", folder)
            assert result.exit_code in (0, 1), result.output
            if result.exit_code:
                assert "cannot write" in result.stderr
                assert isinstance(result.exception, SystemExit)
                raise SystemExit(1)

        status = ended(forked(identify))
        assert status in (0, 1)
        failures += status
        finished = candidates(folder)
        kept += len(finished) if status else 0
        if not IdentificationRun(folder).finished:
            done(*WORDS, "--out", folder)
        assert candidates(folder)[: len(finished)] == finished
        assert outcome(folder) == expected, (number, room)
    assert failures
    assert kept


def test_two_processes_in_a_folder() -> None:
    """The second one gets an error; when the first is killed, the folder is free."""
    done(*WORDS, "--out", "run")
    run = IdentificationRun.open("run")
    run.model_file.unlink()  # as if it had been killed before the end
    reader, writer = os.pipe()

    def hold() -> None:
        with locked(run.folder):
            os.write(writer, b".")
            signal.pause()

    child = forked(hold)
    try:
        os.read(reader, 1)
        fails(2, ("identify", "--resume", "run"), "another process is working in run")
        fails(2, (*WORDS, "--out", "run", "--overwrite"), "another process is working in run")
    finally:
        os.kill(child, signal.SIGKILL)
        ended(child)
        os.close(reader)
        os.close(writer)
    done("identify", "--resume", "run")
    assert run.finished


def test_exports_compute_in_the_units_of_the_data() -> None:
    """ONNX and C against the model, on inputs beyond those of the recording."""
    done(*WORDS, "--out", "run")
    model = IdentificationRun.open("run").load().model
    u = torch.tensor(300 + 80 * np.random.default_rng(1).normal(size=(200, 1)))
    with torch.no_grad():
        expected = model(u)[0].numpy()
    assert abs(expected.mean() - 20) < 5  # in the units of the data
    if COMPILER is not None:
        done("export", "run", "--out", "model.c")
        flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
        subprocess.run([COMPILER, *flags, "model.c", "-o", "model.so", "-lm"], check=True)
        library = ctypes.CDLL(str(Path("model.so").resolve()))
        real = ctypes.c_double
        state = (real * model.states)(*(real * model.states).in_dll(library, "hdnn_x0"))
        y, found = (real * 1)(), []
        for value in u[:, 0].tolist():
            library.hdnn_step(state, (real * 1)(value), y)
            found.append(list(y))
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    onnxruntime = pytest.importorskip("onnxruntime")
    done("export", "run", "--out", "model.onnx")
    session = onnxruntime.InferenceSession("model.onnx")
    kinds = {each.name: each.type for each in session.get_inputs()}
    assert set(kinds.values()) == {"tensor(double)"}
    given = {"u": u.numpy()[None], "x0": model.x0.detach().numpy()[None]}
    answer = session.run(None, given)[0]
    np.testing.assert_allclose(answer[0], expected, rtol=1e-6)
