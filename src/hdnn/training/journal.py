"""What a training tells on its way, written to the folder of its run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from hdnn.errors import StorageError
from hdnn.files import sync, sync_folder
from hdnn.models import Model
from hdnn.training.epochlog import EpochLog
from hdnn.training.recorder import GradientLog, Recorder
from hdnn.training.trainer import EpochRecord, Snapshot, Trainer


class Journal:
    """Writes what a training tells: after every epoch, and its state now and then.

    History and recordings of an epoch are on the disk before a checkpoint that counts them in. All
    three come from one snapshot, and what is written already is not written again; so after an
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
        write_checkpoint: Callable[[Snapshot], None],
        seconds: float,
    ) -> None:
        self.history, self.gradients = EpochLog(history), GradientLog(gradients)
        self.write_checkpoint, self.interval = write_checkpoint, seconds
        self.recorder: Recorder | None = None
        self.last = time.monotonic()

    def begin(self, epoch: int, recorder: Recorder | None, model: Model) -> None:
        """Cut the files back to the end of an epoch, to go on from there."""
        self.recorder = recorder
        if recorder is not None:
            self.gradients.begin(recorder.header(model.networks[0]), epoch)
        self.history.cut(epoch)

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        assert trainer.snapshot is not None
        self.append(trainer.snapshot)
        now = time.monotonic()
        if now - self.last >= self.interval:
            self.save(trainer.snapshot)
            self.last = now

    def append(self, snapshot: Snapshot) -> None:
        """Write history and recordings of an epoch."""
        if snapshot.record is not None:
            self.history.extend(snapshot.epoch, json.dumps(snapshot.record.to_dict()) + "\n")
        if self.recorder is not None:
            self.gradients.append(snapshot.epoch, snapshot.recordings)

    def save(self, snapshot: Snapshot) -> None:
        """Write an epoch and its checkpoint, which survive a loss of power from here on."""
        self.append(snapshot)
        self.sync()
        self.write_checkpoint(snapshot)

    def sync(self) -> None:
        """Wait until the disk has history and recordings."""
        folder = self.history.path.parent
        logs = [log.path for log in (self.history, self.gradients) if log.path.exists()]
        try:
            for path in logs:
                sync(path)
            sync_folder(folder)
        except OSError as error:
            raise StorageError(f"cannot write {folder}: {error.strerror or error}") from error
