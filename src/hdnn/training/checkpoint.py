"""What a training writes to the folder of its run: logs after every epoch, checkpoints in between.

A checkpoint is the state after an epoch in one file, checked when it is read.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from hdnn.errors import FileFormatError, StorageError
from hdnn.files import atomic, sync
from hdnn.models import Model
from hdnn.training.epochlog import EpochLog
from hdnn.training.recorder import GradientLog, Recorder
from hdnn.training.run_config import RunConfig
from hdnn.training.trainer import EpochRecord, Snapshot, Trainer

FORMAT, OLD_FORMATS = "3", ("1", "2")
"""Of the file. Old ones have no config, only its digest; the first counted the path of the data."""


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
        self.saved: Snapshot | None = None

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
        if snapshot is self.saved:
            return
        self.append(snapshot)
        self.sync()
        self.write_checkpoint(snapshot)
        self.saved = snapshot

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


def write_checkpoint(path: Path, config: RunConfig, snapshot: Snapshot) -> None:
    """Write a state; a reader sees the old one or the new one, whole, also after a power loss.

    Args:
        path: the file, in a folder of its own.
        config: what is trained.
        snapshot: the state.

    Raises:
        StorageError: it cannot be written; what was there is still there.
    """
    tensors = {name: tensor.contiguous() for name, tensor in snapshot.tensors.items()}
    belongs = {"data": asdict(config.identity.data), "model": asdict(config.model)}
    facts = {
        "format": FORMAT,
        "epoch": snapshot.epoch,
        "seconds": snapshot.seconds,
        "config": belongs,
        "digest": _digest(_dumps(belongs, snapshot.epoch), tensors),
    }
    content = save(tensors, metadata={"hdnn": json.dumps(facts)})
    folder = path.parent
    try:
        folder.mkdir(exist_ok=True)
        sync(folder.parent)
        with atomic(path) as temporary:
            temporary.write_bytes(content)
    except (OSError, StorageError) as error:
        raise StorageError(f"cannot write the checkpoint of {folder.parent}: {error}") from error


def read_checkpoint(path: Path, config: RunConfig, model: Model) -> Snapshot | None:
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
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("hdnn", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        snapshot = Snapshot(int(about["epoch"]), float(about["seconds"]), tensors)
        if about["digest"] != _digest(_belongs(about, config, snapshot.epoch), tensors):
            raise ValueError("it is damaged, or of another run")
        found = {k: v.shape for k, v in tensors.items() if k.startswith("model.")}
        if found != {f"model.{name}": t.shape for name, t in model.state_dict().items()}:
            raise ValueError("it is of another model")
        if snapshot.epoch < 0 or not 0 <= snapshot.seconds < math.inf:
            raise ValueError("its epoch or time is no nonnegative number")
    except Exception as error:  # whatever a reader of any bytes may meet
        raise FileFormatError(
            f"the checkpoint {path} cannot be used: {str(error)[:200]}; nothing was changed. "
            f"To start again, remove {path.parent}"
        ) from error
    return snapshot


def epoch_of(path: Path) -> int | None:
    """The epoch that a checkpoint says it is of; None where there is none that can be read."""
    try:
        with safe_open(path, framework="pt") as file:
            return int(json.loads((file.metadata() or {}).get("hdnn", "null"))["epoch"])
    except Exception:  # whatever a reader of any bytes may meet
        return None


def _belongs(about: dict[str, Any], config: RunConfig, epoch: int) -> str:
    """What the digest of a file that belongs to a run was made of, beside the tensors.

    A setting that was added since is not in the file: there it had what is its default now.
    """
    if about["format"] in OLD_FORMATS:
        data = config.data if about["format"] == "1" else config.identity.data
        return repr((data, config.model, epoch))
    if about["format"] != FORMAT:
        raise ValueError(f"format {str(about['format'])[:20]!r}")
    kept = about["config"]
    data, model = type(config.data)(**kept["data"]), type(config.model)(**kept["model"])
    if (data, model) != (config.identity.data, config.model):
        raise ValueError("it is of another run")
    return _dumps(kept, epoch)


def _dumps(config: object, epoch: int) -> str:
    return json.dumps([config, epoch], sort_keys=True)


def _digest(belongs: str, tensors: dict[str, Tensor]) -> str:
    """A checksum of a state and of the data and model it belongs to."""
    whole = hashlib.sha256(belongs.encode())
    for name in sorted(tensors):
        whole.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        whole.update(tensors[name].contiguous().view(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest()
