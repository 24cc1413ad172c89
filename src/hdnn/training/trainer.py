"""The trainer: epochs, validation, early stopping, callbacks, divergence."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace

import torch
from torch import Tensor

from hdnn.analysis import advise
from hdnn.config import TrainingConfig
from hdnn.errors import DivergenceError, FileFormatError, HdnnError
from hdnn.models import Model
from hdnn.training import devices
from hdnn.training.devices import placed
from hdnn.training.ensemble import Ensemble, ensemble_loop
from hdnn.training.evaluation import logits_of
from hdnn.training.loops import (
    Batches,
    Epoch,
    Loop,
    Observer,
    count_correct,
    make_loop,
    solve_output,
)
from hdnn.training.objective import data_loss
from hdnn.training.recorder import Recorder, Recording

CPU = torch.device("cpu")
ADVISED = 32
"""Samples that the step advisor looks at when a training diverges."""


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
            Figures by name.
        """
        return {name: value for name, value in asdict(self).items() if value is not None}


Callback = Callable[["Trainer", EpochRecord], None]
LoopOf = Callable[[Ensemble, Batches, TrainingConfig], Loop]
"""Makes the loop of an ensemble."""


@dataclass
class Snapshot:
    """All of an epoch that has ended: what it told, and what the rest of a training depends on.

    The trainer publishes it by one assignment: an interruption finds whole epochs only.

    Args:
        epoch: the number of epochs so far.
        seconds: time since the training began.
        tensors: the state of model, loop and generator.
        record, recordings: of this epoch; None and nothing at the beginning, or where resumed.

    >>> from hdnn.training import Snapshot
    >>> Snapshot(epoch=0, seconds=0.0).record is None
    True
    """

    epoch: int
    seconds: float
    tensors: dict[str, Tensor] = field(default_factory=dict)
    record: EpochRecord | None = None
    recordings: tuple[Recording, ...] = ()


class Trainer:
    """Trains a model, or an ensemble of networks, on data in memory.

    While it trains, the model is on the device of the config; then it is back where it was. Data
    stay on the CPU, their batches are moved; the order of samples and all random changes of images
    are drawn on the CPU, so that a seed means the same on every device.

    Args:
        model: what is trained, in place.
        config: how.
        callbacks: called with the trainer and the epoch's record after every epoch; one that sets
            ``trainer.stopped = True`` ends the training there.
        recorder: looks at gradients on the way; it changes nothing.
        observer: looks at iterations of an ensemble; it changes nothing.
        ensemble_loop: how an ensemble goes through an epoch.

    Raises:
        HdnnError: the settings do not suit the model.

    >>> import hdnn
    >>> from hdnn.data import split
    >>> data = split("double-moons", size=400)
    >>> net = hdnn.network("H1", features=4, layers=4, T=1.0)
    >>> model = hdnn.Model(net, 1, hdnn.Augmentation(2, 4))
    >>> trainer = Trainer(model, TrainingConfig(epochs=2, batch_size=50))
    >>> [record.epoch for record in trainer.fit(data.X_train, data.y_train)]
    [1, 2]
    """

    def __init__(
        self,
        model: Model | Ensemble,
        config: TrainingConfig | None = None,
        callbacks: Sequence[Callback] = (),
        recorder: Recorder | None = None,
        observer: Observer | None = None,
        ensemble_loop: LoopOf = ensemble_loop,
    ) -> None:
        self.trained, self.recorder = model, recorder
        self.observer, self.ensemble_loop = observer, ensemble_loop
        self.config = TrainingConfig() if config is None else config
        self.callbacks = list(callbacks)
        self.history: list[EpochRecord] = []
        self.stopped = False
        self.snapshot: Snapshot | None = None
        self._best: tuple[float, int, dict[str, Tensor]] | None = None

    @property
    def model(self) -> Model:
        """What is trained, where it is one model."""
        assert isinstance(self.trained, Model)
        return self.trained

    def fit(
        self,
        X: Tensor,
        target: Tensor,
        sample_weight: Tensor | None = None,
        validation: tuple[Tensor, Tensor] | None = None,
        resume: Snapshot | None = None,
    ) -> list[EpochRecord]:
        """Train, epoch by epoch.

        Args:
            X: ``(samples, features)``, or images ``(samples, C, H, W)``; of an ensemble
                ``(E, samples, n)``.
            target: class numbers ``(samples,)``, or values ``(samples[, outputs])``; of an
                ensemble ``(E, samples)``.
            sample_weight: ``(samples,)``.
            validation: data to watch, instead of a part held out by the config.
            resume: go on from here.

        Returns:
            The history, a record for every epoch.

        Raises:
            DivergenceError: the loss is no longer finite.
            HdnnError: model, data and settings do not fit together.
        """
        self.history, self.stopped, self.snapshot, self._best = [], False, None, None
        device = self._device()
        if isinstance(self.trained, Ensemble):
            self._check_ensemble(sample_weight, validation)
            data, watched, seeds = self.trained.batches(X, target), None, self.trained.seeds
        else:
            with placed(self.model, CPU):
                data, watched = self._parts(X, target, sample_weight, validation)
            seeds = [self.config.seed]
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        with placed(self.trained, device):
            self.loop = self._make_loop(data)
            if resume is not None:
                self._restore(resume)
            self._run(data, watched, resume)
            self._set_final_weights(data)
        return self.history

    def _device(self) -> torch.device:
        """Where the model is while it is trained."""
        if isinstance(self.trained, Ensemble):
            if self.config.device not in ("cpu", "auto"):
                raise HdnnError(f"ensembles train on the CPU, not on {self.config.device!r}")
            return CPU
        stem, dtype = self.model.stem, self.model.head.weight.dtype
        return devices.choose_device(self.config.device, stem.takes_images, dtype)

    def _check_ensemble(self, *unused: object) -> None:
        """Raise for what is there for single models only."""
        config = self.config
        options = (
            config.class_weight,
            config.early_stopping,
            config.validation or None,
        )
        if any(part is not None for part in (*unused, *options, self.recorder)):
            raise HdnnError(
                "an ensemble is trained without sample or class weights, validation, early "
                "stopping and recorder; train its networks one by one"
            )

    def _make_loop(self, data: Batches) -> Loop:
        # A batch is at most all samples, and the loop makes room for a whole one.
        size = min(self.config.batch_size, data.samples)
        config = replace(self.config, batch_size=size)
        if isinstance(self.trained, Ensemble):
            loop = self.ensemble_loop(self.trained, data, config)
            loop.observer = self.observer
            return loop
        loop = make_loop(self.trained, data, config)
        if self.recorder is not None:
            if self.model.stem.takes_images:
                raise HdnnError("recording serves tables; see hdnn.analysis.watch for images")
            if loop.device.type != "cpu":
                raise HdnnError("recording runs on the CPU: leave out device, or the recording")
            self.recorder.start(self.model.network, data.states, self.model.stem)
            loop.observer = self.recorder
        return loop

    def _parts(
        self,
        X: Tensor,
        target: Tensor,
        sample_weight: Tensor | None,
        validation: tuple[Tensor, Tensor] | None,
    ) -> tuple[Batches, Batches | None]:
        """What a model is trained on, and what is watched: on the CPU, batches are moved."""
        X, target = X.cpu(), target.cpu()
        sample_weight = None if sample_weight is None else sample_weight.cpu()
        validation = None if validation is None else (validation[0].cpu(), validation[1].cpu())
        self._check(X, target)
        weight = self._weights(X, target, sample_weight)
        if not bool((weight > 0).all()):  # a sample of weight 0 is no sample
            X, target, weight = X[weight > 0], target[weight > 0], weight[weight > 0]
        train, held = self._hold_out(len(X), target) if validation is None else (None, None)
        size = 0 if validation is None else len(validation[0])
        watched_weight = torch.ones(size, dtype=self.model.head.weight.dtype)
        if held is not None and train is not None:
            validation, watched_weight = (X[held], target[held]), weight[held]
            X, target, weight = X[train], target[train], weight[train]
        data = self._batches(X, target, weight)
        watched = None if validation is None else self._batches(*validation, watched_weight)
        return data, watched

    def _run(self, data: Batches, watched: Batches | None, resume: Snapshot | None) -> None:
        begin = time.perf_counter() - (0.0 if resume is None else resume.seconds)
        first = 0 if resume is None else resume.epoch
        if resume is None:
            self.snapshot = self._take(0, 0.0)
        for number in range(first, self.config.epochs):
            if self._patience_is_over(number):
                break
            epoch = self.loop.epoch(self._order(data.samples), number)
            if not self._may_go_on(epoch):
                raise DivergenceError(self._diagnosis(data, number))
            loss, accuracy = (None, None) if watched is None else self._watch(watched)
            record = EpochRecord(
                number + 1,
                epoch.loss,
                epoch.penalized,
                epoch.accuracy,
                self.config.learning_rate_at(number),
                time.perf_counter() - begin,
                loss,
                accuracy,
            )
            self.history.append(record)
            self._note_best(record)
            recordings = [] if self.recorder is None else self.recorder.finish(number + 1)
            self.snapshot = self._take(number + 1, record.seconds, record, recordings)
            for callback in self.callbacks:
                callback(self, record)
            if self.stopped:
                break

    def _order(self, samples: int) -> Tensor:
        """In which order an epoch takes the samples: ``(samples,)``, or ``(E, samples)``."""
        orders = [torch.randperm(samples, generator=source) for source in self.generators]
        return torch.stack(orders) if isinstance(self.trained, Ensemble) else orders[0]

    def _check(self, X: Tensor, target: Tensor) -> None:
        model = self.model
        if len(X) == 0 or len(X) != len(target):
            raise HdnnError(
                f"X and the targets must have as many rows, got {len(X)}, {len(target)}"
            )
        model.check(X)
        if model.task != "classification":
            return
        classes = max(2, model.head.out_features)
        if target.ndim != 1 or target.is_floating_point():
            raise HdnnError(f"class numbers are integers (samples,), got {tuple(target.shape)}")
        if int(target.min()) < 0 or int(target.max()) >= classes:
            raise HdnnError(
                f"class numbers are 0 to {classes - 1} for this model, got {int(target.min())} to "
                f"{int(target.max())}"
            )

    # --- data -------------------------------------------------------------------------------------

    def _weights(self, X: Tensor, target: Tensor, sample_weight: Tensor | None) -> Tensor:
        dtype = self.model.head.weight.dtype
        weight = torch.ones(len(X), dtype=dtype)
        if sample_weight is not None:
            weight = sample_weight.to(dtype)
            good = weight.shape == (len(X),) and bool(((weight >= 0) & weight.isfinite()).all())
            if not good or not bool(weight.sum() > 0):
                raise HdnnError("sample weights are one nonnegative number a row, not all zero")
        given = self.config.class_weight
        if given is None:
            return weight
        if self.model.task != "classification":
            raise HdnnError("class_weight is for classification")
        classes = max(2, self.model.head.out_features)
        if given == "balanced":
            counts = torch.bincount(target, weights=weight.double(), minlength=classes)
            factors = weight.double().sum() / (classes * counts.clamp_min(1e-300))
        else:
            factors = torch.tensor(given, dtype=torch.float64)
            if len(factors) != classes:
                raise HdnnError(f"class_weight has {len(factors)} entries for {classes} classes")
        return weight * factors.to(dtype)[target]

    def _hold_out(self, size: int, target: Tensor) -> tuple[Tensor | None, Tensor | None]:
        if self.config.validation == 0:
            return None, None
        from hdnn.data import holdout

        labels = target if self.model.task == "classification" else None
        return holdout(size, self.config.validation, self.config.seed, labels)

    def _batches(self, X: Tensor, target: Tensor, weight: Tensor) -> Batches:
        with torch.no_grad():
            states = self.model.prepare(X)
        if self.model.task == "regression":
            target = target.to(states.dtype).reshape(len(X), -1)
        return Batches(states, target, weight)

    # --- after an epoch ---------------------------------------------------------------------------

    @contextmanager
    def _judged(self, best: bool) -> Iterator[None]:
        """The model with the weights that the training would return now.

        Args:
            best: whether those of the best epoch count, or those of this one.
        """
        last = {name: t.clone() for name, t in self.model.state_dict().items()}
        try:
            self._set_final_weights(self.loop.data, best)
            yield
        finally:
            self._load(last)

    @torch.no_grad()
    def _measure(self, data: Batches, best: bool) -> tuple[float, float | None]:
        """Loss without penalties, and accuracy (None for regression), of what would be returned."""
        with self._judged(best):
            logits = logits_of(self.model, data.states)
        loss = float(data_loss(logits, data.target, data.weight, self.loop.loss))
        if self.loop.loss == "squared":
            return loss, None
        return loss, count_correct(logits, data.target, self.loop.loss) / len(data)

    def _watch(self, data: Batches) -> tuple[float, float | None]:
        return self._measure(data, best=False)

    def evaluate_now(self) -> tuple[float, float | None]:
        """Loss and accuracy, on the training data, of the model that would be returned now.

        An epoch record has those of each batch, whose output layer was solved for that very batch.

        Returns:
            The loss without penalties, and the accuracy; None for regression.
        """
        return self._measure(self.loop.data, best=True)

    def _set_final_weights(self, data: Batches, best: bool = True) -> None:
        """From the weights of the last epoch to those that a training returns."""
        if not (best and self._return_to_best()) and self.loop.average is not None:
            self._load(self.loop.average.weights)
        if self.config.solves_output:
            self._fit_output(data)

    def _return_to_best(self) -> bool:
        """Load the weights that early stopping has kept, if it has."""
        if self._best is None or self.config.early_stopping is None:
            return False
        self._load(self._best[2])
        return True

    def _note_best(self, record: EpochRecord) -> None:
        if self.config.early_stopping is None or record.validation_loss is None:
            return
        loss = math.inf if math.isnan(record.validation_loss) else record.validation_loss
        if self._best is None or loss < self._best[0]:
            average = self.loop.average
            state = self.model.state_dict() if average is None else average.weights
            self._best = loss, record.epoch, {k: v.clone() for k, v in state.items()}

    def _patience_is_over(self, epochs: int) -> bool:
        patience, best = self.config.early_stopping, self._best
        return patience is not None and best is not None and epochs - best[1] >= patience

    def _may_go_on(self, epoch: Epoch) -> bool:
        """Whether loss and weights are finite, where they must be."""
        if isinstance(self.trained, Ensemble):
            return self.trained.may_diverge or math.isfinite(epoch.loss)
        finite = epoch.penalized - epoch.penalized == 0.0
        return finite and all(bool(torch.isfinite(p).all()) for p in self.model.parameters())

    @torch.no_grad()
    def _fit_output(self, data: Batches) -> None:
        """The final output layer, on all training data."""
        if self.config.epochs == 0:
            return
        if isinstance(self.trained, Ensemble):
            self.trained.fit_outputs(data.states, data.target, self.config.alpha_c)
            return
        out = self.model.hidden(data.states.to(self.loop.device))
        solve_output(self.model, out, data.target, data.weight, self.config)

    def _diagnosis(self, data: Batches, number: int) -> str:
        if isinstance(self.trained, Ensemble):
            layers = self.trained.network.layers
            return f"a network with {layers} layers diverged in epoch {number + 1}"
        advice = (
            f"a smaller learning rate (now {self.config.learning_rate_at(number):.3g}), or clip=1.0"
        )
        with torch.no_grad():
            states = data.states[: self.config.batch_size].to(self.model.head.weight.device)
            inputs = self.model.block_inputs(states)
            found = [(network, network.trajectory(y)) for network, y in inputs]
        if not found:
            return f"the loss is not finite in epoch {number + 1}; use {advice}"
        broken = [pair for pair in found if not bool(torch.isfinite(pair[1]).all())]
        network, states = (broken or found)[0]
        finite = torch.isfinite(states).flatten(1).all(1)
        sizes = torch.nan_to_num(states, nan=0.0, posinf=0.0, neginf=0.0).abs().flatten(1).amax(1)
        layer = int((~finite).nonzero()[0]) if not bool(finite.all()) else int(sizes.argmax())
        what = (
            "is the first whose state is not finite"
            if not bool(finite.all())
            else (f"has the largest state ({float(sizes.max()):.3g})")
        )
        h = network.h if isinstance(network.h, float) else float(network.h.max())
        return (
            f"the loss is not finite in epoch {number + 1}: with step h = {h:.3g}, layer {layer} "
            f"of {network.layers} {what}; use a smaller T or step, {advice}{self._advice(data)}"
        )

    def _advice(self, data: Batches) -> str:
        """What the step advisor says of the last good weights, where it can say anything."""
        good = copy.deepcopy(self.model).cpu()  # as the data are
        if self.snapshot is not None:
            kept = self.snapshot.tensors.items()
            good.load_state_dict({k[6:]: v for k, v in kept if k.startswith("model.")})
        try:
            with torch.no_grad():
                network, y = good.block_inputs(data.states[:ADVISED])[0]
            return f". Before this epoch: {advise(network, y).remedy}"
        except (ArithmeticError, HdnnError, RuntimeError):  # a convolution; weights beyond LAPACK
            return ""

    # --- state ------------------------------------------------------------------------------------

    def _take(
        self,
        epoch: int,
        seconds: float,
        record: EpochRecord | None = None,
        recordings: Sequence[Recording] = (),
    ) -> Snapshot:
        tensors = {f"model.{k}": v.detach().clone() for k, v in self.trained.state_dict().items()}
        tensors |= {f"loop.{k}": v for k, v in self.loop.state().items()}
        tensors["generator"] = torch.cat([source.get_state() for source in self.generators])
        if self._best is not None:
            tensors["best.loss"] = torch.tensor(self._best[0], dtype=torch.float64)
            tensors["best.epoch"] = torch.tensor(self._best[1])
            tensors |= {f"best.model.{k}": v for k, v in self._best[2].items()}
        on_cpu = {name: t.cpu() for name, t in tensors.items()}
        return Snapshot(epoch, seconds, on_cpu, record, tuple(recordings))

    def _restore(self, snapshot: Snapshot) -> None:
        def part(prefix: str) -> dict[str, Tensor]:
            cut = len(prefix)
            return {k[cut:]: v for k, v in snapshot.tensors.items() if k.startswith(prefix)}

        try:
            self._load(part("model."))
            self.loop.restore(part("loop."))
            states = snapshot.tensors["generator"].reshape(len(self.generators), -1)
            for source, state in zip(self.generators, states, strict=True):
                source.set_state(state.clone())
            if "best.loss" in snapshot.tensors:
                best = snapshot.tensors
                self._best = float(best["best.loss"]), int(best["best.epoch"]), part("best.model.")
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as e:
            raise FileFormatError(
                f"the checkpoint is not one of this training: {str(e)[:200]}"
            ) from e
        self.snapshot = snapshot

    def _load(self, state: dict[str, Tensor]) -> None:
        self.trained.load_state_dict(state)
