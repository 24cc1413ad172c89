"""Runs: a folder that a training can be killed in, resumed in, and used from.

config.toml         the run config
history.jsonl       a record for every epoch
gradients.jsonl     where it is asked for: recordings of gradients, see `hdnn.training.recorder`
checkpoint/         the state after an epoch, replaced atomically
model.safetensors   the trained model; it is there when the run is finished
metrics.json        what it reaches on the held-out data
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from torch import Tensor

from hdnn.data import Dataset
from hdnn.data.loading import data_digest
from hdnn.errors import DivergenceError, FileFormatError, HdnnError, StorageError
from hdnn.files import atomic, finite, read_json_lines, sync
from hdnn.models import Model, load, save
from hdnn.training import checkpoint, targets, toml
from hdnn.training.checkpoint import Journal
from hdnn.training.epochlog import with_epoch
from hdnn.training.evaluation import evaluate
from hdnn.training.prepare import PreparedRun
from hdnn.training.recorder import Recorder
from hdnn.training.run_config import RunConfig, locate_data, portable_path, remember_data
from hdnn.training.trainer import Callback, Snapshot, Trainer

LOCK = ".lock"
"""The file that a process holds while it trains; it is no part of a run."""
TEMPORARY = ".*.tmp"
"""What `hdnn.files.atomic` calls its files; killed processes leave them."""
FAILURE = "failure.txt"
"""Why a training diverged; the next one removes it."""


class Run:
    """A run folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.trained: tuple[Model, Dataset] | None = None  # by this process, when it is finished

    @property
    def config(self) -> Path:
        return self.folder / "config.toml"

    @property
    def history(self) -> Path:
        return self.folder / "history.jsonl"

    @property
    def gradients(self) -> Path:
        return self.folder / "gradients.jsonl"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint" / "state.safetensors"

    @property
    def model_file(self) -> Path:
        return self.folder / "model.safetensors"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.json"

    @property
    def failure(self) -> str | None:
        """Why the last training of an unfinished run stopped by itself, if it did."""
        path = self.folder / FAILURE
        return path.read_text(encoding="utf-8") if path.is_file() and not self.finished else None

    @property
    def finished(self) -> bool:
        """Whether the trained model is there."""
        return self.model_file.exists()

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Run:
        """An existing run."""
        run = cls(folder)
        if not run.config.is_file():
            raise HdnnError(f"{folder} is not a run: there is no config.toml in it")
        return run

    @classmethod
    def create(
        cls, folder: str | os.PathLike[str], config: RunConfig, overwrite: bool = False
    ) -> Run:
        """A run of a config: a new one, or an unfinished one of the same config to go on with."""
        run = cls(folder)
        if overwrite and run.config.is_file():
            with run.locked():
                run.clear()
        if run.config.is_file():
            if run.read_config().identity != config.identity:
                raise HdnnError(
                    f"{folder} holds a run of another config; choose another folder, or pass "
                    "--overwrite to replace it"
                )
            if run.finished:
                raise HdnnError(f"{folder} holds a finished run; pass --overwrite to train again")
            run.move_to(config.training.device)
            return run
        if run.folder.exists() and (not run.folder.is_dir() or run._has_content()):
            raise HdnnError(f"{folder} exists and is not a run; choose an empty or new folder")
        missing = [path for path in (run.folder, *run.folder.parents) if not path.exists()]
        try:
            run.folder.mkdir(parents=True, exist_ok=True)
            for path in missing:
                sync(path.parent)
        except OSError as error:
            raise HdnnError(f"cannot make {folder}: {error.strerror or error}") from error
        run._write_config(config)
        return run

    def _has_content(self) -> bool:
        left = {*self.folder.glob(LOCK), *self.folder.glob(TEMPORARY)}
        return any(path not in left for path in self.folder.iterdir())

    def read_config(self) -> RunConfig:
        """What the run trains, with the place where its data are now."""
        tables = toml.read(self.config)
        data = tables.get("data")
        if isinstance(data, dict):
            source, digest = data.get("source"), data.get("digest")
            if isinstance(source, str) and isinstance(digest, str):
                data["source"] = locate_data(source, self.folder, digest)
        return RunConfig.from_tables(tables, str(self.config))

    def _write_config(self, config: RunConfig) -> None:
        """Write the config, which tells nothing of the disk that the data are on."""
        data = config.data
        if data.digest is not None:
            remember_data(data.source, data.digest)
            data = replace(data, source=portable_path(data.source, self.folder))
        with atomic(self.config) as temporary:
            temporary.write_text(replace(config, data=data).to_toml(), encoding="utf-8")

    def find_data(self, path: str | os.PathLike[str]) -> None:
        """Say where the data of the run are now.

        Args:
            path: of the table or folder, whose contents are those that the run began with.

        Raises:
            HdnnError: they are not, or the run has no data of its own.
        """
        config, place = self.read_config(), Path(path).expanduser().resolve()
        if config.data.digest is None:
            raise HdnnError(f"the data of {self.folder} are no file or folder that could move")
        if not (os.path.isfile(place) or os.path.isdir(place)):
            raise HdnnError(f"there is no such file or folder: {path}")
        if data_digest(place) != config.data.digest:
            raise HdnnError(f"{path} is not what {self.folder} was trained on: contents differ")
        with self.locked():
            self._write_config(replace(config, data=replace(config.data, source=str(place))))

    def move_to(self, device: str) -> None:
        """Say where the run goes on, which is no part of what it trains.

        Args:
            device: as in `TrainingConfig`.
        """
        config = self.read_config()
        if config.training.device != device:
            training = replace(config.training, device=device)
            with self.locked():
                self._write_config(replace(config, training=training))

    def extend(self, epochs: int) -> None:
        """Make it a run of more epochs, to be trained on from where it is.

        The model and metrics of a finished run are kept under the number of their epochs.

        Args:
            epochs: in all; the schedule of the learning rate is that of so many epochs.

        Raises:
            HdnnError: the run has as many already, stopped early, or its last state is not there.
        """
        config = self.read_config()
        before = config.training.epochs
        longer = replace(config, training=replace(config.training, epochs=epochs))
        if epochs < before or (epochs == before and self.finished):
            raise HdnnError(
                f"{self.folder} is a run of {before} epochs; to go on, give more: "
                f"--epochs {2 * before}"
            )
        with self.locked():
            if self.finished:
                self._reopen(before)
            self._write_config(longer)

    def _reopen(self, epochs: int) -> None:
        """Put model and metrics of a finished run aside."""
        reached = len(read_history(self.history))
        if reached < epochs:
            raise HdnnError(
                f"{self.folder} stopped early, after {reached} of {epochs} epochs: more of them "
                "would change nothing; train anew with another --early-stopping"
            )
        if checkpoint.epoch_of(self.checkpoint) != epochs:
            raise HdnnError(
                f"{self.folder} has no checkpoint of its last epoch to go on from; train anew"
            )
        for path in (self.metrics, self.model_file):  # the model, which says finished, last
            if path.exists():
                path.replace(path.with_stem(f"{path.stem}-{epochs}"))

    def clean(self) -> None:
        """Remove what a killed process left half-written."""
        for folder in (self.folder, self.checkpoint.parent):
            for stale in folder.glob(TEMPORARY):
                stale.unlink(missing_ok=True)

    def tidy(self) -> None:
        """As `clean`, of a run in which perhaps another process is at work: then do nothing."""
        with suppress(HdnnError), self.locked():
            self.clean()

    def clear(self) -> None:
        """Remove what a training wrote, the config last."""
        shutil.rmtree(self.checkpoint.parent, ignore_errors=True)
        failure = self.folder / FAILURE
        earlier = (*self.folder.glob("model-*.safetensors"), *self.folder.glob("metrics-*.json"))
        files = self.model_file, self.metrics, self.gradients, self.history, failure, self.config
        for path in (*earlier, *files):
            path.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process trains in a folder; a killed process leaves no lock."""
        lock = FileLock(self.folder / LOCK)
        try:
            try:
                lock.acquire(blocking=False)
            except Timeout as error:
                raise HdnnError(
                    f"another process is training in {self.folder}; wait for it"
                ) from error
            except OSError as error:
                raise HdnnError(f"cannot lock {self.folder}: {error.strerror or error}") from error
            yield
        finally:
            if lock.is_locked:
                if os.name != "nt":  # Windows removes no open files, and filelock does it there
                    (self.folder / LOCK).unlink(missing_ok=True)
                lock.release()

    def load_model(self) -> Model:
        """The trained model."""
        if not self.finished:
            raise HdnnError(
                f"{self.folder} is not finished; go on with: hdnn train --resume {self.folder}"
            )
        model = load(self.model_file)
        if not isinstance(model, Model):
            raise FileFormatError(f"{self.model_file} holds a network, not a model")
        return model

    def load_checkpoint(self, prepared: PreparedRun) -> Model | None:
        """The model as of the last checkpoint; None where there is no checkpoint.

        Args:
            prepared: data and untrained model of this run; the model gets the state.

        Raises:
            FileFormatError: the checkpoint is damaged.
        """
        model = prepared.model
        config = self.read_config()
        snapshot = checkpoint.read_checkpoint(self.checkpoint, config, model)
        if snapshot is None:
            return None
        state = {k[6:]: v for k, v in snapshot.tensors.items() if k.startswith("model.")}
        model.load_state_dict(state)
        _, undo = standardized_target(prepared.data)
        undo(model)
        return model

    def train(
        self,
        callbacks: Sequence[Callback] = (),
        checkpoint_seconds: float = 5.0,
        prepared: PreparedRun | None = None,
    ) -> dict[str, Any]:
        """Train to the end, from the checkpoint if there is one; returns the metrics.

        Interrupted by KeyboardInterrupt, it first writes all of the last whole epoch: history,
        recordings, checkpoint.

        Args:
            callbacks: called after every epoch, when the history is written.
            checkpoint_seconds: between checkpoints.
            prepared: data and untrained model of this run, where the caller has them already; the
                model is trained in place.

        Returns:
            The metrics on the training part and, where there is one, on the test part.

        Raises:
            HdnnError: another process trains here, or the data have changed.
        """
        with ExitStack() as held:
            config = self._claim(held, prepared)
            run = prepared or PreparedRun.of(config)
            data, model = run.data, run.model
            journal = Journal(
                self.history,
                self.gradients,
                lambda snapshot: self.write_checkpoint(config, snapshot),
                checkpoint_seconds,
            )
            snapshot = self._last(config, model, journal)
            trainer = Trainer(model, config.training, [journal, *callbacks], journal.recorder)
            target, undo = standardized_target(data)
            try:
                trainer.fit(data.X, target, resume=snapshot)
                if trainer.snapshot is not None:
                    journal.save(trainer.snapshot)  # more epochs can go on from it
                undo(model.cpu())
                return self._finish(model, data, journal)
            except (KeyboardInterrupt, HdnnError) as error:
                writes = not isinstance(error, StorageError)
                if writes and trainer.snapshot is not None:
                    journal.save(trainer.snapshot)
                if writes and isinstance(error, DivergenceError):
                    (self.folder / FAILURE).write_text(str(error), encoding="utf-8")
                raise

    def _claim(self, held: ExitStack, prepared: PreparedRun | None) -> RunConfig:
        """Lock the folder for as long as the stack lives; the run config in it."""
        held.enter_context(self.locked())
        self.clean()
        config = self.read_config()
        if prepared is not None and prepared.config.identity != config.identity:
            raise HdnnError(f"{self.folder} holds a run of another config by now; begin again")
        (self.folder / FAILURE).unlink(missing_ok=True)
        return config

    def _last(self, config: RunConfig, model: Model, journal: Journal) -> Snapshot | None:
        """The state to go on from, with history and recordings cut back to it."""
        snapshot = checkpoint.read_checkpoint(self.checkpoint, config, model)
        journal.begin(0 if snapshot is None else snapshot.epoch, self._recorder(config), model)
        return snapshot

    def _recorder(self, config: RunConfig) -> Recorder | None:
        """The recorder of this run, if it has one."""
        asked = config.record
        return None if asked is None else Recorder(asked.every, asked.depths, asked.samples)

    def _finish(self, model: Model, data: Dataset, journal: Journal) -> dict[str, Any]:
        metrics: dict[str, Any] = {"train": evaluate(model, data.X, data.y)}
        if len(data.X_test):
            metrics["test"] = evaluate(model, data.X_test, data.y_test)
        self._write(model, metrics, journal)
        self.trained = model, data
        return metrics

    def _write(self, model: Model, metrics: dict[str, Any], journal: Journal) -> None:
        """Write what a finished run has; the model, which says that it is finished, last."""
        journal.sync()
        with atomic(self.metrics) as temporary:
            temporary.write_text(json.dumps(finite(metrics), indent=1) + "\n")
        save(model, self.model_file)

    def write_checkpoint(self, config: RunConfig, snapshot: Snapshot) -> None:
        """Write the state after an epoch; a reader sees the old one or the new one, whole.

        Args:
            config: of this run.
            snapshot: the state.

        Raises:
            StorageError: it cannot be written.
        """
        checkpoint.write_checkpoint(self.checkpoint, config, snapshot)


def standardized_target(data: Dataset) -> tuple[Tensor, Callable[[Model], None]]:
    """Targets of a regression, standardized, and how to undo that in the output layer."""
    if data.task == "classification":
        return data.y, lambda model: None
    scale = targets.scale_of(data.y)
    return targets.standardize(data.y, scale), (
        lambda model: targets.predict_unscaled(model, scale)
    )


def read_history(path: Path) -> list[dict[str, Any]]:
    """The epoch records of a history."""
    return read_json_lines(path, with_epoch)
