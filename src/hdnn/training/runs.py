"""Runs: a folder that a training can be killed in, resumed in, and used from.

config.toml         the recipe
history.jsonl       an entry for every epoch
gradients.jsonl     where it is asked for: recordings of gradients, see `hdnn.training.recorder`
checkpoint/         the state after an epoch, replaced atomically
model.safetensors   the trained model; it is there when the run is finished
metrics.json        what it reaches on the held-out data
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hdnn.errors import FileFormatError, HdnnError, StorageError
from hdnn.files import atomic
from hdnn.images import ImageClassifier
from hdnn.model import Model
from hdnn.persistence import load, save
from hdnn.training.evaluation import evaluate, finite
from hdnn.training.group import ALONE, Group
from hdnn.training.recipe import Prepared, Recipe, build, prepare
from hdnn.training.recorder import GradientLog, Recorder
from hdnn.training.trainer import Callback, Entry, Snapshot, Trainer

CHECKPOINT_FORMAT = "1"


class Run:
    """A run folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

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
    def create(cls, folder: str | os.PathLike[str], recipe: Recipe, overwrite: bool = False) -> Run:
        """A run of a recipe: a new one, or an unfinished one of the same recipe to go on with."""
        run = cls(folder)
        if overwrite and run.config.is_file():
            with run.locked():
                run.clear()
        if run.config.is_file():
            if run.recipe() != recipe:
                raise HdnnError(
                    f"{folder} holds a run of another config; choose another folder, or pass "
                    "--overwrite to replace it"
                )
            if run.finished:
                raise HdnnError(f"{folder} holds a finished run; pass --overwrite to train again")
            return run
        if run.folder.is_dir():
            run.clean()
        if run.folder.exists() and (not run.folder.is_dir() or any(run.folder.iterdir())):
            raise HdnnError(f"{folder} exists and is not a run; choose an empty or new folder")
        try:
            run.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HdnnError(f"cannot make {folder}: {error.strerror or error}") from error
        with atomic(run.config) as temporary:
            temporary.write_text(recipe.to_toml(), encoding="utf-8")
        return run

    def recipe(self) -> Recipe:
        """What the run trains."""
        try:
            text = self.config.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise HdnnError(f"{self.config} cannot be read: {error}") from error
        return Recipe.from_toml(text, str(self.config))

    def clean(self) -> None:
        """Remove what a killed process left half-written."""
        for pattern in (".*.toml.*", ".*.jsonl.*", ".*.json.*", ".*.safetensors.*"):
            for stale in [*self.folder.glob(pattern), *self.checkpoint.parent.glob(pattern)]:
                stale.unlink(missing_ok=True)
        for stale in self.folder.glob(".checkpoint.*"):
            shutil.rmtree(stale, ignore_errors=True)

    def clear(self) -> None:
        """Remove what a training wrote, the config last."""
        shutil.rmtree(self.checkpoint.parent, ignore_errors=True)
        for path in (self.model_file, self.metrics, self.gradients, self.history, self.config):
            path.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process trains in a folder; a killed process leaves no lock."""
        try:
            descriptor = os.open(self.folder, os.O_RDONLY)
        except OSError as error:
            raise HdnnError(f"cannot open {self.folder}: {error.strerror or error}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise HdnnError(f"another process is training in {self.folder}; wait for it") from error
        except OSError as error:
            raise HdnnError(f"cannot lock {self.folder}: {error.strerror or error}") from error
        else:
            yield
        finally:
            os.close(descriptor)

    def load_model(self) -> Model | ImageClassifier:
        """The trained model."""
        if not self.finished:
            raise HdnnError(
                f"{self.folder} is not finished; go on with: hdnn train --resume {self.folder}"
            )
        model = load(self.model_file)
        if not isinstance(model, Model | ImageClassifier):
            raise FileFormatError(f"{self.model_file} holds a network, not a model")
        return model

    def train(
        self,
        callbacks: Sequence[Callback] = (),
        checkpoint_seconds: float = 5.0,
        recorder: Recorder | None = None,
        group: Group = ALONE,
    ) -> dict[str, Any]:
        """Train to the end, from the checkpoint if there is one; returns the metrics.

        A run that was recorded so far goes on being recorded in the same way. Of several processes
        only rank 0 touches the folder; the others need the data, but not the folder.

        Interrupted by KeyboardInterrupt, it writes a checkpoint of the last whole epoch first.
        """
        with ExitStack() as held:
            recipe = group.lead(lambda: self._claim(held))
            data, model = group.each(lambda: _made(recipe))
            snapshot = group.lead(lambda: self._last(model))
            trainer = Trainer(model, recipe.training, group=group)
            if group.leads:
                trainer.recorder = self._recorder(recorder)
                trainer.callbacks = [_Recorder(self, checkpoint_seconds), *callbacks]
            target, undo = _standard(data)
            try:
                trainer.fit(data.X_train, target, resume=snapshot)
            except (KeyboardInterrupt, HdnnError) as error:
                writes = group.leads and not isinstance(error, StorageError)
                if writes and trainer.snapshot is not None:
                    self.write_checkpoint(trainer.snapshot)
                raise
            undo(model.cpu())
            return self._finish(model, data, group)

    def _claim(self, held: ExitStack) -> Recipe:
        """Lock the folder for as long as the stack lives; the recipe in it."""
        held.enter_context(self.locked())
        self.clean()
        return self.recipe()

    def _last(self, model: Model | ImageClassifier) -> Snapshot | None:
        """The state to go on from, with the history cut back to it."""
        snapshot = self._read_checkpoint(model)
        self._cut_history(0 if snapshot is None else snapshot.epoch)
        return snapshot

    def _recorder(self, given: Recorder | None) -> Recorder | None:
        """The recorder of this run, writing to its folder."""
        log = GradientLog(self.gradients)
        if given is None and self.gradients.exists():
            given = log.recorder()
        if given is not None:
            given.log = log
        return given

    def _finish(
        self, model: Model | ImageClassifier, data: Prepared, group: Group
    ) -> dict[str, Any]:
        metrics: dict[str, Any] = {"train": evaluate(model, data.X_train, data.y_train, group)}
        if len(data.X_test):
            metrics["test"] = evaluate(model, data.X_test, data.y_test, group)
        group.lead(lambda: self._write(model, metrics))
        return metrics

    def _write(self, model: Model | ImageClassifier, metrics: dict[str, Any]) -> None:
        with atomic(self.metrics) as temporary:
            temporary.write_text(json.dumps(finite(metrics), indent=1) + "\n")
        save(model, self.model_file)

    # --- checkpoint and history -------------------------------------------------------------------

    def write_checkpoint(self, snapshot: Snapshot) -> None:
        """Write the state after an epoch; a reader sees the old one or the new one, whole."""
        tensors = {name: tensor.contiguous() for name, tensor in snapshot.tensors.items()}
        facts = {
            "format": CHECKPOINT_FORMAT, "epoch": snapshot.epoch, "seconds": snapshot.seconds,
            "digest": self._digest(snapshot.epoch, tensors),
        }  # fmt: skip
        about = {"hdnn": json.dumps(facts)}
        folder = self.checkpoint.parent
        try:
            if folder.is_dir():
                with atomic(self.checkpoint) as temporary:
                    save_file(tensors, temporary, metadata=about)
                return
            fresh = folder.with_name(f".{folder.name}.{os.getpid()}")
            shutil.rmtree(fresh, ignore_errors=True)
            try:
                fresh.mkdir()
                save_file(tensors, fresh / self.checkpoint.name, metadata=about)
                os.replace(fresh, folder)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
        except (OSError, SafetensorError) as error:
            raise StorageError(f"cannot write the checkpoint of {self.folder}: {error}") from error

    def _digest(self, epoch: int, tensors: dict[str, Tensor]) -> str:
        """A checksum of a state and of the data and model it belongs to."""
        recipe = self.recipe()
        whole = hashlib.sha256(repr((recipe.data, recipe.model, epoch)).encode())
        for name in sorted(tensors):
            whole.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
            whole.update(tensors[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return whole.hexdigest()

    def _read_checkpoint(self, model: Model | ImageClassifier) -> Snapshot | None:
        if not self.checkpoint.exists():
            return None
        try:
            with safe_open(self.checkpoint, framework="pt") as file:
                about = json.loads((file.metadata() or {}).get("hdnn", "null"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if about["format"] != CHECKPOINT_FORMAT:
                raise ValueError(f"format {about['format']!r}")
            if about["digest"] != self._digest(int(about["epoch"]), tensors):
                raise ValueError("it is damaged, or of another run")
            snapshot = Snapshot(int(about["epoch"]), float(about["seconds"]), tensors)
            expected = {f"model.{k}": v.shape for k, v in model.state_dict().items()}
            found = {k: v.shape for k, v in tensors.items() if k.startswith("model.")}
            if expected != found:
                raise ValueError("it is of another model")
        except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
            raise FileFormatError(
                f"the checkpoint {self.checkpoint} cannot be used: {error}; nothing was changed. "
                f"To start again, remove {self.checkpoint.parent}"
            ) from error
        return snapshot

    def _cut_history(self, epoch: int) -> None:
        """Cut the history back to the checkpoint's epoch."""
        if not self.history.exists():
            return
        kept = [entry for entry in read_history(self.history) if entry["epoch"] <= epoch]
        with atomic(self.history) as temporary:
            temporary.write_text("".join(json.dumps(entry) + "\n" for entry in kept))


def _made(recipe: Recipe) -> tuple[Prepared, Model | ImageClassifier]:
    """Data and untrained model of a recipe."""
    data = prepare(recipe)
    torch.manual_seed(recipe.model.seed)
    return data, build(recipe, data)


def _standard(data: Prepared) -> tuple[Tensor, Callable[[Model | ImageClassifier], None]]:
    """Targets of a regression, standardised, and how to undo that in the output layer."""
    target = data.y_train
    if data.task == "classification":
        return target, lambda model: None
    mean, spread = target.mean(0), target.std(0, correction=0)
    spread = torch.where(spread > 0, spread, 1.0)

    @torch.no_grad()
    def undo(model: Model | ImageClassifier) -> None:
        model.head.weight.mul_(spread.reshape(-1, 1))
        model.head.bias.mul_(spread).add_(mean)

    return (target - mean) / spread, undo


def read_history(path: Path) -> list[dict[str, Any]]:
    """The entries of a history; a last line that was cut off is left out."""
    entries = []
    for line in path.read_text().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            break
        entries.append(entry)
    return entries


class _Recorder:
    """Writes history and checkpoints while a run trains."""

    def __init__(self, run: Run, checkpoint_seconds: float) -> None:
        self.run, self.interval = run, checkpoint_seconds
        self.last = time.monotonic()

    def __call__(self, trainer: Trainer, entry: Entry) -> None:
        try:
            with open(self.run.history, "a") as file:
                file.write(json.dumps(entry.to_dict()) + "\n")
        except OSError as error:
            raise StorageError(f"cannot write {self.run.history}: {error.strerror}") from error
        now = time.monotonic()
        if now - self.last >= self.interval and trainer.snapshot is not None:
            self.run.write_checkpoint(trainer.snapshot)
            self.last = now
