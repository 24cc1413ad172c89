"""The trainer: epochs, validation, early stopping, callbacks, and a state to resume from."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from hdnn.config import TrainingConfig
from hdnn.data import Dataset
from hdnn.errors import FileFormatError, HdnnError, shortened
from hdnn.models import Model, Scaler
from hdnn.training.diagnosis import check_divergence
from hdnn.training.evaluation import logits_of
from hdnn.training.loops import Observer, make_loop
from hdnn.training.objective import count_correct, data_loss
from hdnn.training.output_solver import solve_output
from hdnn.training.recorder import Recorder
from hdnn.training.samples import Samples, to_samples

CPU = torch.device("cpu")
State = dict[str, Any]
"""Tensors, numbers and dicts of them, for `torch.save` and ``torch.load(weights_only=True)``."""


@dataclass(frozen=True)
class EpochRecord:
    """One epoch in the history.

    Args:
        epoch: counted from 1.
        loss, penalized: means over the batches, without and with the penalties.
        accuracy: share of training samples classified correctly, each before its step.
        learning_rate: the optimizer's.
        validation_loss, validation_accuracy: on the held-out part, after the epoch.
        seconds: time since the training began (summed over interruptions).

    >>> from hdnn.training import EpochRecord
    >>> EpochRecord(1, 0.5, 0.6, 0.9, learning_rate=0.05, seconds=1.0).to_dict()["loss"]
    0.5
    """

    epoch: int
    loss: float
    penalized: float
    accuracy: float | None
    learning_rate: float
    seconds: float
    validation_loss: float | None = None
    validation_accuracy: float | None = None

    def to_dict(self) -> dict[str, float | int]:
        """Without what was not measured.

        Returns:
            Numbers by name.
        """
        return {name: value for name, value in asdict(self).items() if value is not None}


Callback = Callable[["Trainer", EpochRecord], None]


class Trainer:
    """Trains a model on data in memory.

    The targets of a regression are standardized during training; before and after, the model
    predicts them in their own units. During training the model is on the device of the config,
    and afterwards back where it was. Data stay on the CPU, and batches are moved. The order of
    samples and the augmentation of images are drawn on the CPU: a seed means the same on every
    device.

    Args:
        model: trained in place.
        config: how to train; the default is the paper's planar protocol.
        callbacks: called with the trainer and the record of the epoch after every epoch; one that
            sets ``trainer.stopped = True`` ends the training there.
        recorder: records gradients during training; it changes nothing.

    Attributes:
        history: a record for every epoch of the last `fit`.
        state: all that resuming needs, as of the last whole epoch (or of the beginning). Its keys
            "epoch" and "seconds" are for people.
        stopped: set by a callback.

    >>> import hdnn
    >>> data = hdnn.data.load(hdnn.config.DataConfig(source="double-moons", size=400))
    >>> net = hdnn.network("H1", features=4, layers=4, T=1.0)
    >>> model = hdnn.Model(net, 1, hdnn.Padding(2, 4))
    >>> trainer = Trainer(model, TrainingConfig(epochs=2, batch_size=50))
    >>> [record.epoch for record in trainer.fit(data)]
    [1, 2]
    """

    def __init__(
        self,
        model: Model,
        config: TrainingConfig | None = None,
        callbacks: Sequence[Callback] = (),
        recorder: Observer | None = None,
    ) -> None:
        self.model, self.recorder = model, recorder
        self.config = TrainingConfig() if config is None else config
        self.callbacks = list(callbacks)
        self.history: list[EpochRecord] = []
        self.stopped = False
        self.state: State | None = None
        self._best: State | None = None

    def fit(self, data: Dataset, resume: State | None = None) -> list[EpochRecord]:
        """Train, epoch by epoch.

        Args:
            data: its training part is used; a share of it is held out for validation, if the
                config says so. Numbers are converted to the model's precision.
            resume: the `state` of an earlier training of the same model and data, to continue.

        Returns:
            The history, a record for every epoch.

        Raises:
            DivergenceError: the loss is no longer finite, or exploded.
            FileFormatError: the state is not one of this training.
            HdnnError: model, data and settings do not fit together.
        """
        self.history, self.stopped, self.state, self._best = [], False, None, None
        model, config = self.model, self.config
        home = model.head.weight.device
        device = choose_device(config.device, model.stem.takes_images, model.head.weight.dtype)
        self._generator = torch.Generator().manual_seed(config.seed)
        try:
            train, validation, self._scale = to_samples(model.to(CPU), data, config)
            with _standard_units(model, self._scale):
                self.loop = make_loop(model.to(device), train, config)
                self.loop.observer = self.recorder
                if isinstance(self.recorder, Recorder):
                    self.recorder.start(model, -(-len(train.states) // config.batch_size))
                if resume is None:
                    self.state = self._take_state(0, 0.0)
                else:
                    self._restore(resume)
                self._run(train, validation)
                self._set_final_weights()
        finally:
            model.to(home)
        return self.history

    def _run(self, train: Samples, validation: Samples | None) -> None:
        """The epochs, from that of the state on."""
        assert self.state is not None
        start = time.perf_counter() - self.state["seconds"]
        for number in range(self.state["epoch"], self.config.epochs):
            if self.stopped or self._patience_is_over(number):
                break
            order = torch.randperm(len(train.states), generator=self._generator)
            epoch = self.loop.epoch(order, number)
            check_divergence(self.model, epoch, self.state, train.states, self.config)
            loss, accuracy = (None, None) if validation is None else self._measure(validation)
            record = EpochRecord(
                epoch=number + 1,
                loss=epoch.loss,
                penalized=epoch.penalized,
                accuracy=epoch.accuracy,
                learning_rate=self.config.learning_rate_at(number),
                seconds=time.perf_counter() - start,
                validation_loss=loss,
                validation_accuracy=accuracy,
            )
            self.history.append(record)
            self._note_best(record)
            # One assignment: an interrupt finds the state of this epoch, or that of the last one.
            self.state = self._take_state(number + 1, record.seconds, epoch.loss)
            for callback in self.callbacks:
                callback(self, record)

    # --- after an epoch ---------------------------------------------------------------------------

    def evaluate_now(self) -> tuple[float, float | None]:
        """Loss and accuracy, on the training data, of the model after this epoch.

        An epoch record has those of each batch, whose output layer was solved for that very batch.

        Returns:
            The loss without penalties, and the accuracy; None for regression.
        """
        return self._measure(self.loop.data)

    @torch.no_grad()
    def _measure(self, data: Samples) -> tuple[float, float | None]:
        """Loss without penalties, and accuracy, of what this epoch would return if it were last."""
        last = _copy(self.model.state_dict())
        try:
            self._set_final_weights(best=False)
            logits = logits_of(self.model, data.states)
        finally:
            self.model.load_state_dict(last)
        loss = float(data_loss(logits, data.target, data.weight, self.loop.loss))
        if self.loop.loss == "squared":
            return loss, None
        return loss, count_correct(logits, data.target, self.loop.loss) / len(logits)

    @torch.no_grad()
    def _set_final_weights(self, best: bool = True) -> None:
        """From the weights of the last epoch to those that a training returns."""
        data, config = self.loop.data, self.config
        if best and self._best is not None:
            self.model.load_state_dict(self._best["model"])
        elif self.loop.average is not None:
            self.model.load_state_dict(self.loop.average.weights)
        # Coordinate descent solved the output layer of each batch: now it is that of all data.
        if config.method == "coordinate" and config.epochs:
            out = self.model.hidden(data.states.to(self.model.head.weight.device))
            solve_output(self.model, out, data.target, data.weight, config)

    def _note_best(self, record: EpochRecord) -> None:
        """Keep the weights of the best epoch, for early stopping."""
        if self.config.early_stopping is None or record.validation_loss is None:
            return
        # No comparison with NaN is true: as the first epoch's loss it would stay the best.
        loss = math.inf if math.isnan(record.validation_loss) else record.validation_loss
        if self._best is None or loss < self._best["loss"]:
            average = self.loop.average
            weights = self.model.state_dict() if average is None else average.weights
            self._best = {"loss": loss, "epoch": record.epoch, "model": _copy(weights)}

    def _patience_is_over(self, epochs: int) -> bool:
        patience, best = self.config.early_stopping, self._best
        return patience is not None and best is not None and epochs - best["epoch"] >= patience

    # --- state ------------------------------------------------------------------------------------

    def _take_state(self, epoch: int, seconds: float, loss: float | None = None) -> State:
        scale = None if self._scale is None else self._scale.state_dict()
        state: State = _copy(
            {
                "epoch": epoch,
                "seconds": seconds,
                "loss": loss,
                "model": self.model.state_dict(),
                "loop": self.loop.state(),
                "generator": self._generator.get_state(),
                "best": self._best,
                "target": scale,
            }
        )
        return state

    def _restore(self, state: State) -> None:
        try:
            self.model.load_state_dict(state["model"])
            self.loop.restore(state["loop"])
            self._generator.set_state(state["generator"].clone())
            self._best = state["best"]
            float(state["seconds"]), int(state["epoch"]), state["loss"]
        except Exception as error:  # whatever a dict that came from a file may hold
            raise FileFormatError(
                f"the checkpoint is not one of this training: {shortened(str(error), 200)}"
            ) from error
        self.state = state


def choose_device(name: str, images: bool, dtype: torch.dtype) -> torch.device:
    """The device that a training asks for.

    Args:
        name: "cpu", "cuda", "mps", or "auto": an accelerator for images, if there is one. Planar
            networks and tables stay on the CPU, where whole epochs run in compiled code.
        images: whether the model takes images.
        dtype: of the model.

    Raises:
        HdnnError: it is not there, or does not know the dtype.

    >>> choose_device("auto", images=False, dtype=torch.float32)
    device(type='cpu')
    """
    available = ["cpu"]
    if torch.cuda.is_available():
        available.append("cuda")
    if torch.backends.mps.is_available() and dtype != torch.float64:  # which it does not have
        available.append("mps")
    if name == "auto":
        return torch.device(available[-1] if images else "cpu")
    if name not in available:
        raise HdnnError(
            f"device={name!r} is not available to this installation of torch for {dtype}; use "
            f"device={available[-1]!r}"
        )
    return torch.device(name)


def load_state(model: Model, state: State) -> None:
    """Give a model the weights of a state; a regression predicts in the units of its targets.

    Args:
        model: built as the one that was trained.
        state: `Trainer.state`.

    Raises:
        FileFormatError: the state is of another model.

    >>> import hdnn
    >>> X = torch.randn(50, 4)
    >>> data = Dataset.from_arrays(X, X[:, 0] > 0)
    >>> def build():
    ...     return Model(hdnn.network("H1", features=4, layers=2, T=1.0), 1)
    >>> trainer = Trainer(build(), TrainingConfig(method="joint", epochs=2))
    >>> _ = trainer.fit(data)
    >>> model = build()
    >>> load_state(model, trainer.state)
    >>> torch.equal(model(X), trainer.model(X))
    True
    """
    try:
        model.load_state_dict(state["model"])
        if state["target"] is not None:
            _rescale(model, state["target"]["scale"], state["target"]["mean"])
    except (LookupError, RuntimeError, TypeError) as error:
        raise FileFormatError(
            f"the checkpoint is of another model: {shortened(str(error), 200)}"
        ) from error


def _copy(value: Any) -> Any:
    """A nested dict with copies of its tensors on the CPU, which nobody else writes to."""
    if isinstance(value, dict):
        return {name: _copy(part) for name, part in value.items()}
    return value.detach().to(CPU, copy=True) if isinstance(value, Tensor) else value


@contextmanager
def _standard_units(model: Model, scale: Scaler | None) -> Iterator[None]:
    """The output layer in the units of standardized targets, and then back in their own."""
    if scale is None:
        yield
        return
    head = model.head
    if bool(head.weight.any() | head.bias.any()):  # an untrained one begins at the mean: 0
        _rescale(model, 1 / scale.scale, -scale.mean / scale.scale)
    try:
        yield
    finally:
        _rescale(model, scale.scale, scale.mean)


@torch.no_grad()
def _rescale(model: Model, factor: Tensor, shift: Tensor) -> None:
    """The output layer of ``factor * value + shift``."""
    weight, bias = model.head.weight, model.head.bias
    factor, shift = factor.to(weight.device), shift.to(weight.device)
    weight.copy_(weight.double() * factor[:, None])
    bias.copy_(bias.double() * factor + shift)
