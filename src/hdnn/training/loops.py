"""One epoch of training, in three ways behind one interface.

`CoordinateLoop` alternates between output layer and hidden layers; `JointLoop` trains everything
with one optimizer; `CompiledLoop` is either in compiled kernels, without autograd.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from hdnn.config import TrainingConfig
from hdnn.errors import HdnnError
from hdnn.fields.hamiltonian import WeightedField
from hdnn.kernels.native import SolverOptions
from hdnn.models import Model
from hdnn.networks import HamiltonianNetwork
from hdnn.progress import track
from hdnn.training.distortion import distort
from hdnn.training.objective import (
    Objective,
    data_loss,
    loss_name,
    output_penalty,
    smoothness,
)
from hdnn.training.optimizers import Average, flatten_optimizer, make_optimizer, restore_optimizer
from hdnn.training.output_solver import solve

BATCHES = "batches of this epoch"
"""The step of an epoch, as `hdnn.progress` tells it."""
TOLERANCE = 1e-9
"""Where the Newton solver stops: the largest entry of the gradient."""


@dataclass(frozen=True)
class Epoch:
    """What an epoch did: means over its batches, before their steps."""

    loss: float
    penalized: float
    accuracy: float | None


class Observations(NamedTuple):
    """What was seen of several iterations, of E networks side by side.

    Args:
        iterations: which, counted from 0 over all epochs.
        batches: the samples of each, ``(E or 1, batch)``.
        theta, beta: the weights before the steps, ``(E, iterations, ...)``.
        gradient_norms: of the objective, layer by layer, ``(E, iterations, layers)``.
    """

    iterations: list[int]
    batches: list[np.ndarray]
    theta: np.ndarray
    beta: np.ndarray
    gradient_norms: np.ndarray


class Observer(Protocol):
    """Watches some iterations of a training, and changes nothing.

    A loop that goes step by step calls `before_step` and `after_gradients`; one whose epoch is one
    call calls `after_compiled_epoch`. Iterations count from 0 over all epochs.
    """

    def observes(self, iteration: int) -> bool:
        """Whether this iteration is watched."""

    def before_step(self, iteration: int, samples: Tensor) -> None:
        """The weights are those before the step; ``samples`` are the numbers of its batch's."""

    def after_gradients(self, norms: np.ndarray) -> None:
        """``([E,] layers)``: norms of the gradient of the objective, before clipping."""

    def after_compiled_epoch(self, seen: Observations) -> None:
        """All that was watched in an epoch."""


def watched(observer: Observer | None, first: int, count: int) -> list[int]:
    """Which of ``count`` iterations from ``first`` on are watched, counted from there."""
    return [i for i in range(count) if observer is not None and observer.observes(first + i)]


@dataclass(frozen=True)
class Batches:
    """The training data on the threshold of the network.

    Args:
        states: y_0, ``(samples, n)``, or images ``(samples, C, H, W)``.
        target: class numbers ``(samples,)`` or values ``(samples, outputs)``.
        weight: ``(samples,)``.
    """

    states: Tensor
    target: Tensor
    weight: Tensor

    def __len__(self) -> int:
        return len(self.states)

    def take(self, chosen: Tensor | slice, device: torch.device) -> Batches:
        """Some samples, on a device; where that is the data's own, indexing is all there is.

        Args:
            chosen: numbers of samples.
            device: where they go.
        """
        parts = (self.states, self.target, self.weight)
        return Batches(*(part[chosen].to(device) for part in parts))

    @property
    def samples(self) -> int:
        """How many samples a network has, also of an ensemble, where states are ``(E, ...)``."""
        return self.weight.shape[-1]


class Loop(ABC):
    """Trains a model on batches, epoch by epoch; its state can be taken out and put back."""

    average: Average | None = None

    def __init__(self, model: Model, data: Batches, config: TrainingConfig) -> None:
        self.model, self.data, self.config = model, data, config
        self.loss = loss_name(model.task, model.head.out_features)
        self.device = model.head.weight.device
        self.observer: Observer | None = None
        self._looked = False

    @abstractmethod
    def epoch(self, order: Tensor, number: int) -> Epoch:
        """Go once through the samples in the given order."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Everything beside the model that the next epoch depends on."""

    @abstractmethod
    def restore(self, state: dict[str, Tensor]) -> None:
        """Go back to a state."""

    def _batches(self, order: Tensor) -> list[Tensor]:
        return list(order.split(self.config.batch_size))

    def _look(self, iteration: int, chosen: Tensor) -> None:
        """Let the observer see the weights before an iteration."""
        self._looked = self.observer is not None and self.observer.observes(iteration)
        if self._looked and self.observer is not None:
            self.observer.before_step(iteration, chosen)

    def _report_gradients(self) -> None:
        """Let the observer see the gradients that were just computed, before they are clipped."""
        if self._looked and self.observer is not None:
            self.observer.after_gradients(layer_gradient_norms(self.model.networks[0]))


def count_correct(logits: Tensor, target: Tensor, loss: str) -> int:
    """How many samples are classified correctly."""
    if loss == "squared":
        return 0
    found = (logits[:, 0] > 0).long() if loss == "logistic" else logits.argmax(-1)
    return int((found == target).sum())


def layer_gradient_norms(network: HamiltonianNetwork) -> np.ndarray:
    """Norms of the gradient by layer; of parameters that belong to no layer, one norm for all."""
    field = network.field
    if isinstance(field, WeightedField):
        grads = [field.weights.theta.grad, field.weights.beta.grad]
        squares = [g.cpu().double().square().sum(-1).reshape(-1) for g in grads if g is not None]
    else:
        grads = [p.grad for p in network.parameters()]
        squares = [g.cpu().double().square().sum().reshape(1) for g in grads if g is not None]
    found: np.ndarray = torch.stack(squares).sum(0).sqrt().numpy() if squares else np.zeros(1)
    return found


class CoordinateLoop(Loop):
    """Output layer solved given the hidden layers, then one step on the hidden layers."""

    def __init__(self, model: Model, data: Batches, config: TrainingConfig) -> None:
        super().__init__(model, data, config)
        self.hidden = [*model.stem.parameters(), *model.blocks.parameters()]
        self.optimizer = make_optimizer(self.hidden, config, weight_decay=0.0)

    def epoch(self, order: Tensor, number: int) -> Epoch:
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate_at(number)
        sums, correct = np.zeros(2), 0
        batches = self._batches(order)
        for i, chosen in enumerate(track(batches, BATCHES)):
            self._look(number * len(batches) + i, chosen)
            plain, penalized, hits = self._step(chosen)
            sums += plain, penalized
            correct += hits
            if not np.isfinite(penalized):
                sums[:] = np.nan
                break
        mean = sums / len(batches)
        accuracy = None if self.loss == "squared" else correct / len(order)
        return Epoch(float(mean[0]), float(mean[1]), accuracy)

    def _step(self, chosen: Tensor) -> tuple[float, float, int]:
        config, head = self.config, self.model.head
        batch = self.data.take(chosen, self.device)
        target, weight = batch.target, batch.weight
        out = self.model.hidden(batch.states)
        if not bool(weight.sum() > 0):  # a batch of which nothing counts
            return 0.0, 0.0, count_correct(head(out).detach(), target, self.loss)
        solve_output(self.model, out.detach(), target, weight, config)
        logits = out @ head.weight.detach().mT + head.bias.detach()
        plain = data_loss(logits, target, weight, self.loss)
        smooth = config.alpha * smoothness(self.model.network)
        self.optimizer.zero_grad()
        (plain + smooth).backward()
        self._report_gradients()
        if config.clip is not None:
            nn.utils.clip_grad_norm_(self.hidden, config.clip)
        penalty = config.alpha_c * output_penalty(head.weight, head.bias)
        penalized = float((plain + smooth + penalty).detach())
        if np.isfinite(penalized):
            self.optimizer.step()
        return float(plain.detach()), penalized, count_correct(logits.detach(), target, self.loss)

    def state(self) -> dict[str, Tensor]:
        return flatten_optimizer(self.optimizer)

    def restore(self, state: dict[str, Tensor]) -> None:
        restore_optimizer(self.optimizer, state)


class JointLoop(Loop):
    """One optimizer for opening, hidden and output layers together (appendix B.2)."""

    def __init__(self, model: Model, data: Batches, config: TrainingConfig) -> None:
        super().__init__(model, data, config)
        self.objective = Objective(model, config)
        self.optimizer = make_optimizer(
            model.parameters(), config, weight_decay=config.weight_decay, fused=True
        )
        self.average = Average(model, config.averaging) if config.averaging else None

    def epoch(self, order: Tensor, number: int) -> Epoch:
        self.model.train()
        sums, correct = np.zeros(2), 0
        batches = self._batches(order)
        for k, chosen in enumerate(track(batches, BATCHES)):
            for group in self.optimizer.param_groups:
                group["lr"] = self.config.learning_rate_at(number + k / len(batches))
            self._look(number * len(batches) + k, chosen)
            plain, penalized, hits = self.gradients(chosen, number, k)
            correct += hits
            sums += plain, penalized
            if not np.isfinite(penalized):
                sums[:] = np.nan
                break
            self.optimizer.step()
            if self.average is not None:
                self.average.update()
        self.model.eval()
        mean = sums / len(batches)
        accuracy = None if self.loss == "squared" else correct / len(order)
        return Epoch(float(mean[0]), float(mean[1]), accuracy)

    def gradients(self, chosen: Tensor, number: int, place: int) -> tuple[float, float, int]:
        """Form the gradients of a batch; returns its loss, the penalized loss and the hits.

        Args:
            chosen: the samples of the batch.
            number, place: the epoch, and the number of the batch in it.
        """
        config = self.config
        states = distort(self.data.states[chosen], config, number, place)
        states, weight = states.to(self.device), self.data.weight[chosen].to(self.device)
        target, total = self.data.target[chosen].to(self.device), weight.sum()
        logits, plain, penalty = self.objective(states, target, weight, total)
        hits = count_correct(logits.detach(), target, self.loss)
        self.optimizer.zero_grad()
        if not bool(total > 0):  # a batch of which nothing counts
            return 0.0, 0.0, hits
        (plain + penalty).backward()
        self._report_gradients()
        if config.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
        loss = float(plain.detach())
        return loss, loss + float(penalty.detach()), hits

    def state(self) -> dict[str, Tensor]:
        found = flatten_optimizer(self.optimizer)
        if self.average is not None:
            found |= {f"average.{name}": t for name, t in self.average.state().items()}
        return found

    def restore(self, state: dict[str, Tensor]) -> None:
        own = {k.removeprefix("average."): v for k, v in state.items() if k.startswith("average.")}
        if self.average is not None:
            self.average.restore(own)
        rest = {k: v for k, v in state.items() if not k.startswith("average.")}
        restore_optimizer(self.optimizer, rest)


def solve_output(
    model: Model, out: Tensor, target: Tensor, weight: Tensor, config: TrainingConfig
) -> None:
    """Set the output layer to the minimizer (or a few Adam steps towards it) given y_N.

    It is solved on the CPU, wherever the model is.
    """
    head = model.head
    loss = loss_name(model.task, head.out_features)
    out, target, weight = out.cpu(), target.cpu(), weight.cpu()
    Z = np.concatenate([out.double().numpy(), np.ones((len(out), 1))], axis=1)
    T = np.ascontiguousarray(target.double().reshape(len(out), -1).numpy())
    w = weight.double().numpy() / float(weight.sum())
    V = torch.cat([head.weight, head.bias[:, None]], 1).detach().cpu().double().numpy().copy()
    options = SolverOptions(
        config.solver, config.solver_iterations, TOLERANCE, config.learning_rate, *config.betas
    )
    solve(Z, T, w, V, loss, config.alpha_c, options)
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(V[:, :-1]))
        head.bias.copy_(torch.from_numpy(V[:, -1]))


def make_loop(model: Model, data: Batches, config: TrainingConfig) -> Loop:
    """The loop that a config asks for; "auto" takes the kernels where they can serve."""
    # It builds on this module.
    from hdnn.training.compiled import CompiledLoop, coordinate_obstacle, joint_obstacle

    _check_fit(model, config)
    joint = config.method == "joint"
    if joint:
        reason = joint_obstacle(model, data, config)
    else:
        reason = coordinate_obstacle(model, data, config)
    if config.loop == "compiled" and reason is not None:
        raise HdnnError(f"loop='compiled' cannot serve: {reason}; use loop='auto'")
    if config.loop != "autograd" and reason is None:
        return CompiledLoop(model, data, config)
    return JointLoop(model, data, config) if joint else CoordinateLoop(model, data, config)


def _check_fit(model: Model, config: TrainingConfig) -> None:
    """Refuse settings that would not be used."""
    images = model.stem.takes_images
    if images and config.method != "joint":
        raise HdnnError(
            f"an image classifier is trained with method='joint', not {config.method!r}"
        )
    if images and config.loop == "compiled":
        raise HdnnError("loop='compiled' serves models for tables; use loop='auto' for images")
    if config.distorts and not images:
        raise HdnnError("shift, rotate, zoom, flip and erase are for images")
    if config.method != "joint" and (
        config.averaging
        or config.label_smoothing
        or config.warmup
        or config.schedule == "one-cycle"
    ):
        raise HdnnError(
            "averaging, label_smoothing, warmup and the one-cycle schedule are for method='joint'"
        )
    outputs = model.head.out_features
    if config.label_smoothing and loss_name(model.task, outputs) != "softmax":
        raise HdnnError("label_smoothing is for classification with three classes or more")
