"""What a training writes to the folder of its run: logs after every epoch, checkpoints in between.

A checkpoint is the state after an epoch in one file, with a checksum in front.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from hdnn.errors import FileFormatError, StorageError
from hdnn.files import atomic, sync
from hdnn.models import Model
from hdnn.training.epochlog import EpochLog
from hdnn.training.recorder import Recorder
from hdnn.training.run_config import RunConfig
from hdnn.training.trainer import EpochRecord, State, Trainer

DIGEST = hashlib.sha256().digest_size


class Journal:
    """Writes what a training tells: after every epoch, and its state now and then.

    History and recordings of an epoch are on the disk before a checkpoint that counts them in. All
    three come from one state, and what is written already is not written again; so after an
    interruption anywhere, `save` has only to be called once more.

    Args:
        history, gradients: the files, in the folder of a run.
        write_checkpoint: writes the state after an epoch.
        seconds: between checkpoints.
    """

    def __init__(
        self,
        history: Path,
        gradients: Path,
        write_checkpoint: Callable[[State], None],
        seconds: float,
    ) -> None:
        self.history, self.gradients = EpochLog(history), EpochLog(gradients)
        self.write_checkpoint, self.interval = write_checkpoint, seconds
        self.recorder: Recorder | None = None
        self.last = time.monotonic()
        self.saved: State | None = None

    def begin(self, epoch: int, recorder: Recorder | None) -> None:
        """Cut the files back to the end of an epoch, to go on from there."""
        self.recorder = recorder
        if recorder is not None:
            self.gradients.cut(epoch)
            self.gradients.path.touch()
        self.history.cut(epoch)

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        self.append(trainer)
        now = time.monotonic()
        if now - self.last >= self.interval:
            self.save(trainer)
            self.last = now

    def append(self, trainer: Trainer) -> None:
        """Write history and recordings of whole epochs."""
        assert trainer.state is not None
        for record in trainer.history:
            if record.epoch <= trainer.state["epoch"]:
                self.history.extend(record.epoch, json.dumps(record.to_dict()) + "\n")
                if self.recorder is not None:
                    made = [r for r in self.recorder.recordings if r.epoch == record.epoch]
                    lines = "".join(json.dumps(each.to_dict()) + "\n" for each in made)
                    self.gradients.extend(record.epoch, lines)

    def save(self, trainer: Trainer) -> None:
        """Write the last whole epoch and its checkpoint, which survive a loss of power."""
        if trainer.state is None or trainer.state is self.saved:
            return
        self.append(trainer)
        self.sync()
        self.write_checkpoint(trainer.state)
        self.saved = trainer.state

    def sync(self) -> None:
        """Wait until the disk has history and recordings."""
        folder = self.history.path.parent
        logs = [log.path for log in (self.history, self.gradients) if log.path.exists()]
        try:
            for path in logs:
                sync(path)
            sync(folder)
        except OSError as error:
            raise StorageError(f"cannot write {folder}: {error.strerror or error}") from error


def write_checkpoint(path: Path, config: RunConfig, state: State) -> None:
    """Write a state; a reader sees the old one or the new one, whole, also after a power loss.

    Args:
        path: the file, in a folder of its own.
        config: what is trained.
        state: the state.

    Raises:
        StorageError: it cannot be written; what was there is still there.
    """
    stream = io.BytesIO()
    torch.save({"config": _identity(config), "state": state}, stream)
    content = stream.getvalue()
    folder = path.parent
    try:
        folder.mkdir(exist_ok=True)
        sync(folder.parent)
        with atomic(path) as temporary:
            temporary.write_bytes(hashlib.sha256(content).digest() + content)
    except (OSError, StorageError) as error:
        raise StorageError(f"cannot write the checkpoint of {folder.parent}: {error}") from error


def read_checkpoint(path: Path, config: RunConfig, model: Model) -> State | None:
    """The state in a file, or None where there is no file.

    Args:
        path: the file.
        config: what is trained.
        model: what is trained.

    Raises:
        FileFormatError: the file is damaged, or not of this run.
    """
    if not path.exists():
        return None
    try:
        saved = _read(path)
        if saved["config"] != _identity(config):
            raise ValueError("it is of another run")
        state: State = saved["state"]
        found = {name: t.shape for name, t in state["model"].items()}
        if found != {name: t.shape for name, t in model.state_dict().items()}:
            raise ValueError("it is of another model")
        if state["epoch"] < 0 or not 0 <= state["seconds"] < float("inf"):
            raise ValueError("its epoch or time is no nonnegative number")
    except Exception as error:  # whatever a reader of any bytes may meet
        raise FileFormatError(
            f"the checkpoint {path} cannot be used: {str(error)[:200]}; nothing was changed. "
            f"To start again, remove {path.parent}"
        ) from error
    return state


def epoch_of(path: Path) -> int | None:
    """The epoch that a checkpoint says it is of; None where there is none that can be read."""
    try:
        return int(_read(path)["state"]["epoch"])
    except Exception:  # whatever a reader of any bytes may meet
        return None


def _read(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    if hashlib.sha256(content[DIGEST:]).digest() != content[:DIGEST]:
        raise ValueError("it is damaged")
    saved: dict[str, Any] = torch.load(io.BytesIO(content[DIGEST:]), weights_only=True)
    return saved


def _identity(config: RunConfig) -> str:
    """The data and model that a state belongs to."""
    belongs = {"data": asdict(config.identity.data), "model": asdict(config.model)}
    return json.dumps(belongs, sort_keys=True)
