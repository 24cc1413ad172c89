"""Runs: a folder that a training can be killed in, resumed in, and used from.

config.toml         all settings
history.jsonl       a record for every epoch; if the training diverged, a last line that says why
gradients.jsonl     recordings of gradients, if asked for; see `hdnn.training.recorder`
checkpoint          the state after an epoch, replaced atomically
model.safetensors   the trained model; it is there when the run is finished
metrics.json        its metrics on the training data and on the held-out data

A resumed run gives the same bits as one that was never interrupted: history and recordings are
written before the checkpoint that includes them, and lines beyond the checkpoint are dropped when
the run resumes.
"""

from __future__ import annotations

import io
import json
import os
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from filelock import FileLock, Timeout

from hdnn.config import TABLES, Config
from hdnn.data import Dataset, load
from hdnn.errors import DivergenceError, FileFormatError, HdnnError, StorageError
from hdnn.files import atomic, finite, read_bytes, read_json_lines, write_json_lines
from hdnn.models import Model, save
from hdnn.models import load as load_model
from hdnn.training.build import build
from hdnn.training.evaluation import evaluate, summary
from hdnn.training.recorder import Recorder, read_recordings
from hdnn.training.resolve import resolve
from hdnn.training.trainer import Callback, EpochRecord, State, Trainer, load_state

LOCK = ".lock"
"""The file that a process holds while it trains."""
TEMPORARY = ".*.tmp"
"""How `hdnn.files.atomic` names its files; a killed process leaves one."""


class Prepared(NamedTuple):
    """What a training begins with: all settings, the data, the untrained model."""

    config: Config
    data: Dataset
    model: Model


def prepare(config: Config) -> Prepared:
    """Read the data of a config, choose what it leaves open, and build its model.

    Args:
        config: of a run; where it has the digest of its data, they must still have it.

    Raises:
        HdnnError: the data cannot be read, have changed, or cannot be trained on as it says.
    """
    data = load(config.data)
    config = resolve(config, data)
    model = build(config.model, data)
    return Prepared(config, data.to(model.head.weight.dtype), model)


class Run:
    """A run folder.

    Args:
        folder: where it is, or will be.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.config_file = self.folder / "config.toml"
        self.history = self.folder / "history.jsonl"
        self.gradients = self.folder / "gradients.jsonl"
        self.checkpoint = self.folder / "checkpoint"
        self.model_file = self.folder / "model.safetensors"
        self.metrics = self.folder / "metrics.json"

    @property
    def finished(self) -> bool:
        """Whether the trained model is there."""
        return self.model_file.exists()

    @property
    def config(self) -> Config:
        """The settings."""
        return Config.from_toml(self.config_file)

    @property
    def failure(self) -> str | None:
        """Why the training diverged; None if it did not."""
        lines = read_json_lines(self.history, _with_epoch)
        return lines[-1].get("error") if lines else None

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Run:
        """An existing run.

        Raises:
            HdnnError: there is none.
        """
        run = cls(folder)
        with storage(folder):
            if not run.config_file.is_file():
                raise HdnnError(f"{folder} is not a run: there is no config.toml in it")
        return run

    @classmethod
    def create(cls, folder: str | os.PathLike[str], config: Config, overwrite: bool = False) -> Run:
        """A new run, or an unfinished one of the same config to be continued.

        Args:
            folder: a new or empty one, or that of a run.
            config: what to train.
            overwrite: whether to replace a run that is there.

        Raises:
            HdnnError: something else is there, or the folder cannot be written to.
        """
        run = cls(folder)
        with storage(folder):
            if overwrite and run.config_file.is_file():
                with run.locked():
                    run._clear()
                    (run.folder / "report.html").unlink(missing_ok=True)  # it describes the old run
                    run._write_config(config)
                return run
            if run.config_file.is_file():
                run._check_same(config)
                return run
            # Hidden files may be what a killed process left: its lock, a half-written file.
            if run.folder.exists() and any(p.name[0] != "." for p in run.folder.iterdir()):
                raise HdnnError(f"{folder} exists and is not a run; choose an empty or new folder")
            run.folder.mkdir(parents=True, exist_ok=True)
            run._write_config(config)
        return run

    def _check_same(self, config: Config) -> None:
        if not _agrees(self.config, config):
            raise HdnnError(
                f"{self.folder} holds a run of another config; choose another folder, or pass "
                "--overwrite to replace it"
            )
        if self.finished:
            raise HdnnError(f"{self.folder} holds a finished run; pass --overwrite to train again")
        if "device" in config.training.model_fields_set:
            self.update(device=config.training.device)

    def _clear(self) -> None:
        """Remove what a training wrote, the config last: without it, the folder is no run."""
        files = self.checkpoint, self.model_file, self.metrics, self.gradients, self.history
        for path in (*files, self.config_file):
            path.unlink(missing_ok=True)

    def _write_config(self, config: Config) -> None:
        # The path of data near the run begins there, so that a project can be moved as a whole;
        # `read_toml` makes it absolute. A digest says that the source is a path.
        source, folder = config.data.source, self.folder.resolve()
        project = folder.parent.parent
        together = project.name and Path(source).is_relative_to(project)  # and not just on a disk
        if config.data.digest is not None and together:
            source = os.path.relpath(source, folder)
            config = config.replace(data=config.data.replace(source=source))
        with atomic(self.config_file) as temporary:
            temporary.write_text(config.to_toml(), encoding="utf-8")

    def update(self, epochs: int | None = None, device: str | None = None) -> None:
        """Change the settings that may change before a run is continued.

        A finished run with more epochs is unfinished again: its checkpoint is where it goes on,
        and its model is removed.

        Args:
            epochs: in all; the schedule of the learning rate is that of so many epochs.
            device: where to train.

        Raises:
            HdnnError: there are no more epochs to train, or the folder cannot be written to.
        """
        config, training = self.config, self.config.training
        if epochs is not None:
            if epochs < training.epochs or (epochs == training.epochs and self.finished):
                raise HdnnError(
                    f"{self.folder} is a run of {training.epochs} epochs; to extend it, pass more: "
                    f"--epochs {2 * training.epochs}"
                )
            training = training.replace(epochs=epochs)
        if device is not None:
            training = training.replace(device=device)
        if training == config.training:
            return
        with storage(self.folder, StorageError), self.locked():
            if training.epochs > config.training.epochs:
                self.model_file.unlink(missing_ok=True)
            self._write_config(config.replace(training=training))

    def locked(self) -> AbstractContextManager[None]:
        """Only one process trains in a folder."""
        return locked(self.folder)

    def load_model(self) -> Model:
        """The trained model.

        Raises:
            HdnnError: the run is not finished, or diverged.
        """
        if not self.finished:
            if self.failure is not None:
                raise HdnnError(
                    f"{self.folder} diverged ({self.failure}); train again with other settings, "
                    f"--out {self.folder} --overwrite"
                )
            raise HdnnError(
                f"{self.folder} is not finished; continue it: hdnn train --resume {self.folder}"
            )
        model = load_model(self.model_file)
        if not isinstance(model, Model):
            raise FileFormatError(f"{self.model_file} holds a network, not a model")
        return model

    def load_data(self) -> Dataset:
        """The data of the run, in the precision of its model."""
        config = self.config
        return load(config.data).to(getattr(torch, config.model.dtype))

    def read_gradients(self) -> list[dict[str, Any]]:
        """The recordings of gradients, as plain values; none if they were not asked for."""
        return read_recordings(self.gradients)

    def load_checkpoint(self, prepared: Prepared) -> Model | None:
        """The model as of the last checkpoint; None if there is no checkpoint.

        Args:
            prepared: of this run; its model gets the weights.

        Raises:
            FileFormatError: the checkpoint cannot be read.
        """
        state = self._read_checkpoint()
        if state is None:
            return None
        try:
            load_state(prepared.model, state)
        except FileFormatError as error:
            raise self._unusable(error) from error
        return prepared.model

    # --- training ---------------------------------------------------------------------------------

    def train(
        self,
        callbacks: Sequence[Callback] = (),
        checkpoint_seconds: float = 5.0,
        prepared: Prepared | None = None,
    ) -> dict[str, Any]:
        """Train to the end, from the checkpoint if there is one.

        KeyboardInterrupt leaves a checkpoint of the last whole epoch.

        Args:
            callbacks: called after every epoch.
            checkpoint_seconds: between checkpoints.
            prepared: of this run, if the caller has it already; the model is trained in place.

        Returns:
            The metrics on the training part and, if there is one, on the test part.

        Raises:
            DivergenceError: the training diverged; the last line of the history says it, too.
            HdnnError: another process trains here, the data have changed, or the disk is full.
        """
        with storage(self.folder, StorageError), self.locked():
            for stale in self.folder.glob(TEMPORARY):
                stale.unlink(missing_ok=True)
            if prepared is None:
                prepared = prepare(self.config)
            self._write_config(prepared.config)  # now with the settings that `resolve` chose
            return self._train(prepared, callbacks, checkpoint_seconds)

    def _train(
        self, prepared: Prepared, callbacks: Sequence[Callback], seconds: float
    ) -> dict[str, Any]:
        config, data, model = prepared
        record = config.record
        recorder = None if record is None else Recorder(record.every, record.depths, record.samples)
        state = self._read_checkpoint()
        log = _Log(self, recorder, seconds, 0 if state is None else state["epoch"])
        trainer = Trainer(model, config.training, [log, *callbacks], recorder)
        try:
            trainer.fit(data, resume=state)
            log.save(trainer)  # a run with more epochs continues from it
        except FileFormatError as error:
            raise self._unusable(error) from error
        except StorageError:  # writing more would fail again
            raise
        except (KeyboardInterrupt, HdnnError) as error:
            log.save(trainer, str(error) if isinstance(error, DivergenceError) else None)
            raise
        metrics: dict[str, Any] = {"train": summary(evaluate(model, data.X, data.y))}
        if len(data.X_test):
            metrics["test"] = summary(evaluate(model, data.X_test, data.y_test))
        with atomic(self.metrics) as temporary:
            temporary.write_text(json.dumps(finite(metrics), indent=1) + "\n")
        save(model, self.model_file)  # last: it says that the run is finished
        return metrics

    def _read_checkpoint(self) -> State | None:
        """The state after an epoch; None if there is none."""
        if not self.checkpoint.exists():
            return None
        try:
            content = io.BytesIO(read_bytes(self.checkpoint))
            with zipfile.ZipFile(content) as archive:
                if archive.testzip() is not None:  # torch.load does not look at the checksums
                    raise ValueError("its checksum is wrong")
            content.seek(0)
            state: State = torch.load(content, weights_only=True)
            if type(state["epoch"]) is not int or state["epoch"] < 0:
                raise ValueError("its epoch is not a number")
        except Exception as error:  # whatever torch raises for a file that is none of its own
            raise self._unusable(error) from error
        return state

    def _unusable(self, error: Exception) -> FileFormatError:
        reason = str(error).partition("\n")[0][:200]
        return FileFormatError(
            f"the checkpoint {self.checkpoint} cannot be used: {reason}; nothing was changed. To "
            "start again, remove it"
        )


class _Log:
    """Writes history, recordings and checkpoint, every few seconds: a callback of the trainer.

    All three are replaced as a whole. To append lines would be cheaper, but what a killed process
    half wrote would have to be found and cut off; a history has some kilobytes.

    Args:
        run: where to write.
        recorder: of the training, if any.
        seconds: between checkpoints.
        epoch: of the checkpoint that the training goes on from, or 0.
    """

    def __init__(self, run: Run, recorder: Recorder | None, seconds: float, epoch: int) -> None:
        self.run, self.recorder, self.interval = run, recorder, seconds
        self.last = time.monotonic()
        self.history, self.recordings = (
            [line for line in lines if line["epoch"] <= epoch]
            for lines in (read_history(run.history), run.read_gradients())
        )

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        if time.monotonic() - self.last >= self.interval:
            self.save(trainer)

    def save(self, trainer: Trainer, failure: str | None = None) -> None:
        """Write all of the last whole epoch, wherever the training was interrupted.

        Args:
            trainer: of the run.
            failure: why the epoch after it diverged.
        """
        if trainer.state is None:
            return
        epoch = trainer.state["epoch"]
        history = [r.to_dict() for r in trainer.history if r.epoch <= epoch]
        error = [] if failure is None else [{"epoch": epoch + 1, "error": failure}]
        write_json_lines(self.run.history, [*self.history, *history, *error])
        if self.recorder is not None:
            new = [r.to_dict() for r in self.recorder.recordings if r.epoch <= epoch]
            write_json_lines(self.run.gradients, [*self.recordings, *new])
        content = io.BytesIO()  # torch.save turns a full disk into a RuntimeError
        torch.save(trainer.state, content)
        with atomic(self.run.checkpoint) as temporary:
            temporary.write_bytes(content.getbuffer())
        self.last = time.monotonic()


# --- files ----------------------------------------------------------------------------------------


def _with_epoch(line: dict[str, Any]) -> dict[str, Any]:
    """A line, if it says which epoch it belongs to."""
    if type(line.get("epoch")) is not int or line["epoch"] < 1:
        raise ValueError("its epoch is not a positive integer")
    return line


def read_history(path: Path) -> list[dict[str, Any]]:
    """The epoch records of a history; none if there is no file."""
    return [line for line in read_json_lines(path, _with_epoch) if "error" not in line]


def _agrees(stored: Config, wanted: Config) -> bool:
    """Whether the settings that were set in ``wanted`` are those of a stored config.

    Where the data are and where to train does not count: the digest says what the data are, and
    the device changes no more than rounding.
    """
    places = {"device"} | ({"source"} if wanted.data.digest is not None else set())
    for name in TABLES:
        mine, other = getattr(stored, name), getattr(wanted, name)
        if mine is None or other is None:
            if mine is not other:
                return False
        elif any(
            getattr(mine, key) != getattr(other, key) for key in other.model_fields_set - places
        ):
            return False
    return True


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Only one process works in a folder; the system unlocks what a killed process held.

    Args:
        folder: of a run.

    Raises:
        HdnnError: another process works there.
    """
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise HdnnError(f"another process is working in {folder}; wait for it") from error
    try:
        yield
    finally:
        if os.name != "nt":  # Windows removes no open files, and filelock does it there
            (folder / LOCK).unlink(missing_ok=True)
        lock.release()


@contextmanager
def storage(folder: str | os.PathLike[str], kind: type[HdnnError] = HdnnError) -> Iterator[None]:
    """A folder that cannot be used, or a disk that is full or gone, is one error.

    Args:
        folder: of a run.
        kind: of the error.

    Raises:
        HdnnError: it cannot be used.
    """
    try:
        yield
    except OSError as error:
        raise kind(
            f"cannot write {folder}: {error.strerror or error}; make room, or choose another folder"
        ) from error
