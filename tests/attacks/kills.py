"""Killed, interrupted or terminated at any moment, a run goes on to what it would have reached.

Promised: weights, metrics, history and recordings are those of the run that nothing happened to, to
the bit, and no other file is left in the folder.
"""

from __future__ import annotations

import functools
import io
import json
import os
import signal
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
from PIL import Image

from attacks.children import judged, new_folder
from attacks.tally import HELD, Tally, tally
from hdnn.cli import app
from hdnn.training.runs import Run
from processes import ended, forked

SIGNALS = 5 * [signal.SIGKILL] + 2 * [signal.SIGINT] + 2 * [signal.SIGTERM]


@dataclass(frozen=True)
class Outcome:
    """What must not depend on interruptions."""

    model: bytes
    metrics: bytes
    history: tuple[str, ...]
    gradients: bytes
    files: frozenset[str]

    @classmethod
    def of(cls, folder: Path) -> Outcome:
        run = Run(folder)
        entries = [json.loads(line) for line in run.history.read_text().splitlines()]
        history = (json.dumps({**entry, "seconds": None}) for entry in entries)
        recorded = run.gradients.read_bytes() if run.gradients.exists() else b""
        files = frozenset(str(path.relative_to(folder)) for path in folder.rglob("*"))
        return cls(
            run.model_file.read_bytes(), run.metrics.read_bytes(), tuple(history), recorded, files
        )

    def difference(self, expected: Outcome) -> str:
        """The verdict on a run that should have come to this."""
        for name in ("model", "metrics", "history", "gradients"):
            mine, other = getattr(self, name), getattr(expected, name)
            if mine != other:
                return f"other {name}: {len(mine)} bytes or lines, expected {len(other)}"
        extra = sorted(self.files - expected.files)
        return f"files left behind: {', '.join(extra)}" if extra else HELD


# --- settings -------------------------------------------------------------------------------------


@functools.cache
def table() -> Path:
    """A table with a label and a value to predict, categories, dates and gaps."""
    path, points = new_folder() / "table.csv", np.random.default_rng(0).normal(size=(120, 3))
    rows = [
        f"{a},{b if b < 2 else ''},{c},{'red' if c > 0 else 'blue'},2020-01-{number % 28 + 1:02},"
        f"{'yes' if a > b else 'no'},{a * b}"
        for number, (a, b, c) in enumerate(points)
    ]
    path.write_text("\n".join(["a,b,c,color,day,label,value", *rows, ""]))
    return path


@functools.cache
def images() -> Path:
    """A folder of images of two classes."""
    folder, rng = new_folder(), np.random.default_rng(0)
    for name, shade in (("dark", 0), ("light", 128)):
        (folder / name).mkdir()
        for number in range(20):
            pixels = shade + rng.integers(0, 128, (6, 6), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


@functools.cache
def settings() -> list[list[str]]:
    """Arguments of ``hdnn train``."""
    planar = "swiss-roll --size 400 --layers 4 --epochs 12"
    label = f"{table()} --target label --layers 3 --epochs 12 --batch-size 20"
    value = f"{table()} --target value --drop label --layers 2 --epochs 12"
    image = f"{images()} --layers 2 --width 2 --epochs 6 --batch-size 8"
    joint, stopping = "--method joint --lr 0.01", "--validation 0.2 --early-stopping 4"
    lines = [
        planar,
        f"{planar} --record 3",
        f"{planar} {joint} --record 2 --set training.schedule=cosine",
        f"{planar} {stopping}",
        f"{label} {stopping} --record 1",
        f"{label} {joint} --set model.time_invariant=true --architecture MS3",
        f"{label} --balanced --set training.clip=0.1 --set training.solver=adam",
        f"{value} --record 5",
        f"{value} {joint} {stopping}",
        f"{label} --width 4 --set model.projection=on",
        image,
        f"{image} --set model.kernel=3 --set training.averaging=0.9 {stopping}",
    ]
    return [line.split() for line in lines]


def train(arguments: list[str], log: Path) -> int:
    """Start ``hdnn train`` with these arguments, its output to a file; the process."""

    def work() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        app(["train", *arguments])

    return forked(work)


@functools.cache
def _whole(number: int) -> tuple[Outcome, float]:
    """What uninterrupted training with these settings comes to, and in how many seconds.

    It is trained here first, so that the processes to come have all they need loaded.
    """
    folder = new_folder()
    arguments = [*settings()[number], "--checkpoint-seconds", "0", "--out"]
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        app(["train", *arguments, str(folder / "here")], standalone_mode=False)
    start = time.perf_counter()
    ended(train([*arguments, str(folder / "there")], folder / "log"))
    return Outcome.of(folder / "there"), time.perf_counter() - start


# --- interruptions --------------------------------------------------------------------------------


def judge(number: int, folder: Path, *, seed: int, chosen: Sequence[int]) -> str:
    """Interrupt a training once or more, moving the run about, and let it go on to the end."""
    rng = Random(f"{seed} {number}")
    setting, kind = rng.choice(chosen), SIGNALS[number % len(SIGNALS)]
    expected, seconds = _whole(setting)
    interval = rng.choice(["0", "0", "0.02", "5"])
    place, log = folder / f"{number}-0", folder / f"{number}.txt"
    for attempt in range(rng.choice((1, 1, 2, 3))):
        child = train(_arguments(place, setting, rng, interval), log)
        time.sleep(rng.uniform(0, 1.1 * seconds))
        os.kill(child, kind)  # not waited for yet, so it is there, if only as a zombie
        ended(child)
        if place.exists() and rng.random() < 0.3:
            place = place.rename(folder / f"{number}-{attempt + 1}")
    code = ended(train(_arguments(place, setting, rng, interval), log))
    if code != 0:
        return f"cannot go on: {kind.name}, exit {code}, {log.read_text()[-200:]}"
    found = Outcome.of(place).difference(expected)
    return found and f"{found} ({kind.name}; {' '.join(settings()[setting])})"


def _arguments(place: Path, setting: int, rng: Random, interval: str) -> list[str]:
    """Begin a run, or go on with it, in one of both ways."""
    again = (place / "config.toml").exists() and (Run(place).finished or rng.random() < 0.7)
    words = ["--resume", str(place)] if again else [*settings()[setting], "--out", str(place)]
    return [*words, "--checkpoint-seconds", interval]


def run(count: int, seed: int, start: int = 0, chosen: Sequence[int] | None = None) -> Tally:
    """Kills (5 of 9), interrupts (2 of 9) and terminations (2 of 9), with all settings or some."""
    torch.set_num_threads(1)
    chosen = range(len(settings())) if chosen is None else chosen
    for setting in chosen:
        _whole(setting)
    attack = functools.partial(judge, seed=seed, chosen=chosen)
    return tally("killed and resumed", judged(attack, range(start, start + count), batch=50))
