"""Runs under attack: interrupted anywhere, moved, with broken files, on a disk that loses power."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from hdnn.training import Entry, Trainer, TrainingConfig
from hdnn.training.recipe import DataRecipe, ModelRecipe, Recipe
from hdnn.training.recorder import RecordConfig
from hdnn.training.runs import Run

TINY = Recipe(DataRecipe(size=40), ModelRecipe(layers=2), TrainingConfig(epochs=4, batch_size=10))
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

ATTACKED = (
    "trainer.py", "runs.py", "recorder.py", "epochlog.py", "checkpoint.py", "files.py",
)  # fmt: skip
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
        if Path(frame.f_code.co_filename).name not in ATTACKED:
            return None
        frame.f_trace_opcodes = True
        return self.trace

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        if self.active and event == "opcode":
            self.count += 1
            if self.count == self.at:
                raise KeyboardInterrupt
        return self.trace

    def callback(self, trainer: Trainer, entry: Entry) -> None:
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
