"""Runs: a folder that a training can be killed in, resumed in, and used from.

config.toml         all settings
history.jsonl       a record for every epoch
gradients.jsonl     recordings of gradients, where they are asked for; see `hdnn.training.recorder`
checkpoint          the state after an epoch, replaced atomically
model.safetensors   the trained model; it is there when the run is finished
metrics.json        what it reaches on the training data and on the held-out data

History and recordings of an epoch are on the disk before a checkpoint that counts them in, and are
cut back to the checkpoint when a resumed run writes to them: so it gives the same bits as one that
was never interrupted.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from filelock import FileLock, Timeout

from hdnn.config import TABLES, Config
from hdnn.data import Dataset, load
from hdnn.data.loading import data_digest
from hdnn.errors import FileFormatError, HdnnError, StorageError
from hdnn.files import atomic, finite, read_json_lines, sync
from hdnn.models import Model, save
from hdnn.models import load as load_model
from hdnn.training.build import build
from hdnn.training.evaluation import evaluate
from hdnn.training.recorder import Recorder, Recording, read_recordings
from hdnn.training.resolve import resolve
from hdnn.training.trainer import Callback, EpochRecord, State, Trainer, load_state

LOCK = ".lock"
"""The file that a process holds while it trains; it is no part of a run."""
TEMPORARY = ".*.tmp"
"""What `hdnn.files.atomic` calls its files; killed processes leave them."""


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
        """The settings, with the place where the data are now."""
        config = Config.from_toml(self.config_file)
        if config.data.digest is None:
            return config
        place = os.path.normpath(self.folder.resolve() / config.data.source)
        return replace(config, data=replace(config.data, source=place))

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Run:
        """An existing run.

        Raises:
            HdnnError: there is none.
        """
        run = cls(folder)
        with _storage(folder):
            if not run.config_file.is_file():
                raise HdnnError(f"{folder} is not a run: there is no config.toml in it")
        return run

    @classmethod
    def create(cls, folder: str | os.PathLike[str], config: Config, overwrite: bool = False) -> Run:
        """A new run, or an unfinished one of the same config to be continued.

        Args:
            folder: a new or empty one, or that of a run.
            config: what to train.
            overwrite: whether a run that is there is replaced.

        Raises:
            HdnnError: something else is there, or the folder cannot be written to.
        """
        run = cls(folder)
        with _storage(folder):
            if overwrite and run.config_file.is_file():
                with run.locked():
                    run._clear()
                    (run.folder / "report.html").unlink(missing_ok=True)  # it describes the old run
                    run._write_config(config)
                return run
            if run.config_file.is_file():
                run._check_same(config)
                return run
            if run.folder.exists() and (not run.folder.is_dir() or run._has_content()):
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
        if "device" in config.training.given:
            self.update(device=config.training.device)

    def _has_content(self) -> bool:
        left = {*self.folder.glob(LOCK), *self.folder.glob(TEMPORARY)}
        return any(path not in left for path in self.folder.iterdir())

    def _clear(self) -> None:
        """Remove what a training wrote, the config last."""
        earlier = (*self.folder.glob("model-*.safetensors"), *self.folder.glob("metrics-*.json"))
        files = self.checkpoint, self.model_file, self.metrics, self.gradients, self.history
        for path in (*earlier, *files, self.config_file):
            path.unlink(missing_ok=True)

    def _write_config(self, config: Config) -> None:
        """Write the settings; data that have a digest by their path relative to the folder."""
        data = config.data
        if data.digest is not None:
            try:
                source = os.path.relpath(data.source, self.folder.resolve())
            except ValueError:  # two drives of Windows
                source = data.source
            data = replace(data, source=Path(source).as_posix())
        with atomic(self.config_file) as temporary:
            temporary.write_text(replace(config, data=data).to_toml(), encoding="utf-8")

    def update(
        self,
        data: str | os.PathLike[str] | None = None,
        epochs: int | None = None,
        device: str | None = None,
    ) -> None:
        """Change what may change of a run before it is continued.

        The model and metrics of a finished run that is extended are kept under the number of their
        epochs.

        Args:
            data: where the table or folder is now, whose contents are the same.
            epochs: in all; the schedule of the learning rate is that of so many epochs.
            device: where to train.

        Raises:
            HdnnError: the data differ, or there are no more epochs to train.
        """
        config = before = self.config
        training = config.training
        if data is not None:
            config = replace(config, data=replace(config.data, source=self._moved(config, data)))
        if device is not None:
            training = replace(training, device=device)
        if epochs is not None:
            self._check_longer(training.epochs, epochs)
            training = replace(training, epochs=epochs)
        config = replace(config, training=training)
        if config == before and data is None:
            return
        with self.locked():
            if epochs is not None and self.finished:
                for path in (self.metrics, self.model_file):  # the model, which says finished, last
                    if path.exists():
                        path.replace(path.with_stem(f"{path.stem}-{before.training.epochs}"))
            self._write_config(config)

    def _moved(self, config: Config, path: str | os.PathLike[str]) -> str:
        place = Path(path).expanduser().resolve()
        if config.data.digest is None:
            raise HdnnError(f"the data of {self.folder} are not a file or folder that could move")
        if data_digest(place) != config.data.digest:
            raise HdnnError(f"{path} is not what {self.folder} was trained on: contents differ")
        return str(place)

    def _check_longer(self, before: int, epochs: int) -> None:
        if epochs < before or (epochs == before and self.finished):
            raise HdnnError(
                f"{self.folder} is a run of {before} epochs; to extend it, pass more: "
                f"--epochs {2 * before}"
            )
        state = self._read_checkpoint()
        if self.finished and (state is None or state["epoch"] != before):
            raise HdnnError(
                f"{self.folder} has no checkpoint of epoch {before} to go on from: it stopped "
                "early, or the checkpoint was removed; train again"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process trains in a folder; a killed process leaves no lock."""
        lock = FileLock(self.folder / LOCK)
        try:
            lock.acquire(blocking=False)
        except Timeout as error:
            raise HdnnError(f"another process is training in {self.folder}; wait for it") from error
        except OSError as error:
            raise HdnnError(f"cannot lock {self.folder}: {error.strerror or error}") from error
        try:
            yield
        finally:
            if os.name != "nt":  # Windows removes no open files, and filelock does it there
                (self.folder / LOCK).unlink(missing_ok=True)
            lock.release()

    def load_model(self) -> Model:
        """The trained model.

        Raises:
            HdnnError: the run is not finished.
        """
        if not self.finished:
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
        """The recordings of gradients, as plain values; none where they were not asked for."""
        return read_recordings(self.gradients)

    def load_checkpoint(self, prepared: Prepared) -> Model | None:
        """The model as of the last checkpoint; None where there is no checkpoint.

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

        Interrupted by KeyboardInterrupt, it first writes all of the last whole epoch.

        Args:
            callbacks: called after every epoch, when the history is written.
            checkpoint_seconds: between checkpoints.
            prepared: of this run, where the caller has it already; the model is trained in place.

        Returns:
            The metrics on the training part and, where there is one, on the test part.

        Raises:
            HdnnError: another process trains here, the data have changed, or the disk is full.
        """
        with self.locked(), _storage(self.folder, StorageError):
            for stale in self.folder.glob(TEMPORARY):  # what a killed process left half-written
                stale.unlink(missing_ok=True)
            config = self.config
            if prepared is None:
                prepared = prepare(config)
                if prepared.config.to_toml() != config.to_toml():
                    self._write_config(prepared.config)
            elif not _agrees(config, prepared.config):
                raise HdnnError(f"{self.folder} holds a run of another config by now; begin again")
            return self._train(prepared, callbacks, checkpoint_seconds)

    def _train(
        self, prepared: Prepared, callbacks: Sequence[Callback], seconds: float
    ) -> dict[str, Any]:
        config, data, model = prepared
        asked = config.record
        recorder = None if asked is None else Recorder(asked.every, asked.depths, asked.samples)
        state = self._read_checkpoint()
        log = _Log(self, recorder, seconds, 0 if state is None else state["epoch"])
        trainer = Trainer(model, config.training, [log, *callbacks], recorder)
        try:
            trainer.fit(data, resume=state)
            log.save(trainer)  # more epochs can continue from it
        except FileFormatError as error:
            raise self._unusable(error) from error
        except (KeyboardInterrupt, HdnnError) as error:
            if not isinstance(error, StorageError):
                log.save(trainer)
            raise
        metrics: dict[str, Any] = {"train": evaluate(model, data.X, data.y)}
        if len(data.X_test):
            metrics["test"] = evaluate(model, data.X_test, data.y_test)
        with atomic(self.metrics) as temporary:
            temporary.write_text(json.dumps(finite(metrics), indent=1) + "\n")
        save(model, self.model_file)  # last: it says that the run is finished
        return metrics

    def _read_checkpoint(self) -> State | None:
        """The state after an epoch; None where there is none."""
        if not self.checkpoint.exists():
            return None
        try:
            state: State = torch.load(self.checkpoint, weights_only=True)
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
    """Writes history, recordings and checkpoints of a training: a callback of the trainer.

    Both files only grow, from the line that belongs to the checkpoint on: what a killed process
    wrote beyond it is cut off by the first line that is appended. So is what an interrupted
    `append` wrote, as its new ends are noted at last, in one assignment.

    Args:
        run: where to write.
        recorder: of the training, if any.
        seconds: between checkpoints.
        epoch: of the checkpoint that the training goes on from, or 0.
    """

    def __init__(self, run: Run, recorder: Recorder | None, seconds: float, epoch: int) -> None:
        self.run, self.recorder, self.interval = run, recorder, seconds
        self.last = time.monotonic()
        files = [run.history, *([] if recorder is None else [run.gradients])]
        # By file: records of this training that are written, and where the next one begins.
        self.ends = {path: (0, _end_of_epoch(path, epoch)) for path in files}

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        self.append(trainer)
        if time.monotonic() - self.last >= self.interval:
            self.checkpoint(trainer)

    def save(self, trainer: Trainer) -> None:
        """Write all of the last whole epoch, wherever the training was interrupted."""
        if trainer.state is not None:
            self.append(trainer)
            self.checkpoint(trainer)

    def append(self, trainer: Trainer) -> None:
        """Append what is new, up to the last whole epoch."""
        assert trainer.state is not None
        recordings = [] if self.recorder is None else self.recorder.recordings
        ends = {}
        written: list[Sequence[EpochRecord | Recording]] = [trainer.history, recordings]
        for path, records in zip(self.ends, written, strict=False):
            count, end = self.ends[path]
            new = [r.to_dict() for r in records[count:] if r.epoch <= trainer.state["epoch"]]
            lines = "".join(json.dumps(line) + "\n" for line in new).encode()
            with open(path, "ab") as file:
                file.truncate(end)
                file.write(lines)
            ends[path] = count + len(new), end + len(lines)
        self.ends = ends

    def checkpoint(self, trainer: Trainer) -> None:
        """Write the state; what it counts in is on the disk before it."""
        for path in self.ends:
            sync(path)
        content = io.BytesIO()  # of which a full disk makes an OSError
        torch.save(trainer.state, content)
        with atomic(self.run.checkpoint) as temporary:
            temporary.write_bytes(content.getbuffer())
        self.last = time.monotonic()


# --- files ----------------------------------------------------------------------------------------


def _end_of_epoch(path: Path, epoch: int) -> int:
    """The bytes of the lines that belong to epochs up to this one.

    Raises:
        FileFormatError: a line cannot be read.
    """
    kept, end = sum(line["epoch"] <= epoch for line in read_history(path)), 0
    for line in path.read_bytes().splitlines(keepends=True) if kept else ():
        kept -= bool(line.strip())  # blank lines are no records
        if kept < 0:
            break
        end += len(line)
    return end


def _with_epoch(line: dict[str, Any]) -> dict[str, Any]:
    """A line, if it says which epoch it belongs to."""
    if type(line.get("epoch")) is not int or line["epoch"] < 1:
        raise ValueError("its epoch is not a positive integer")
    return line


def read_history(path: Path) -> list[dict[str, Any]]:
    """The epoch records of a history; none where there is no file."""
    return read_json_lines(path, _with_epoch)


def _agrees(stored: Config, wanted: Config) -> bool:
    """Whether all settings that are given in one config are those of a run.

    Where the data are and where it is trained does not count: what the data are, their digest
    says, and the device changes no more than rounding.
    """
    places = {"device"} | ({"source"} if wanted.data.digest is not None else set())
    for name in TABLES:
        mine, other = getattr(stored, name), getattr(wanted, name)
        if (mine is None) != (other is None):
            return False
        given = set() if other is None else other.given - places
        if any(getattr(mine, key) != getattr(other, key) for key in given):
            return False
    return True


@contextmanager
def _storage(folder: str | os.PathLike[str], kind: type[HdnnError] = HdnnError) -> Iterator[None]:
    """A folder that cannot be used, or a disk that is full or gone, is one error."""
    try:
        yield
    except OSError as error:
        raise kind(
            f"cannot write {folder}: {error.strerror or error}; make room, or choose another folder"
        ) from error
