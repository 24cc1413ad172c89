"""An epoch of training by autograd, for coordinate and joint descent, and which loop serves.

`hdnn.training.compiled` has the same epochs without autograd, where the kernels can serve.
"""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hdnn.config import TrainingConfig, check_applies
from hdnn.errors import HdnnError
from hdnn.fields.hamiltonian import WeightedField
from hdnn.models import Model
from hdnn.networks import HamiltonianNetwork
from hdnn.progress import track
from hdnn.threads import one_thread
from hdnn.training.augmentation import augment
from hdnn.training.objective import count_correct, data_loss, loss_name, penalty
from hdnn.training.output_solver import solve_output
from hdnn.training.samples import Samples

SMALL_STEP = 2**22
"""Multiplications of a layer from which a step is faster on several threads: some 0.1 ms on one."""


class Epoch(NamedTuple):
    """What an epoch did: means over its batches, each before its step."""

    loss: float
    penalized: float
    accuracy: float | None


class Observer(Protocol):
    """Watches every so many iterations of a training, and changes nothing."""

    every: int

    def observe(
        self, iteration: int, network: HamiltonianNetwork, states: Tensor, gradients: np.ndarray
    ) -> None:
        """Called with the weights as they are before the step of an iteration.

        Args:
            iteration: counted from 0 over all epochs.
            network: the network, or the ensemble, that is trained.
            states: ``([E,] batch, .)``, of the batch, as the model's stem takes them.
            gradients: ``([E,] layers)``, norms of the gradient of the objective, before clipping.
        """


class Loop(ABC):
    """Trains a model on batches, epoch by epoch; its state can be taken out and put back."""

    def __init__(self, model: Model, data: Samples, config: TrainingConfig) -> None:
        self.model, self.data, self.config = model, data, config
        self.loss = loss_name(model.task, model.head.out_features)
        self.observer: Observer | None = None
        self.average: Average | None = None

    @abstractmethod
    def epoch(self, order: Tensor, number: int) -> Epoch:
        """Go once through the samples in the given order."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Everything beside the model that the next epoch depends on: tensors, numbers, dicts.

        The tensors are those of the loop, which it goes on to change: copy them to keep them.
        """

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a state."""


class AutogradLoop(Loop):
    """Every iteration is one forward pass, one backward pass and one step of the optimizer.

    Joint descent (appendix B.2) steps on all parameters. Coordinate descent (appendix B.1) first
    solves for the output layer, given the hidden layers, and then steps on the hidden layers, for
    which the output layer is a constant.
    """

    def __init__(self, model: Model, data: Samples, config: TrainingConfig) -> None:
        super().__init__(model, data, config)
        self.joint = config.method == "joint"
        hidden = [*model.stem.parameters(), *model.blocks.parameters()]
        self.trained = [*hidden, *(model.head.parameters() if self.joint else ())]
        decay = config.weight_decay if self.joint else 0.0
        self.optimizer = make_optimizer(self.trained, config, decay)
        self.average = Average(model, config.averaging) if config.averaging else None

    def epoch(self, order: Tensor, number: int) -> Epoch:
        self.model.train()
        batches = order.split(self.config.batch_size)
        sums, correct = np.zeros(2), 0
        for k, rows in enumerate(track(batches, "batches of this epoch")):
            for group in self.optimizer.param_groups:
                group["lr"] = self.config.learning_rate_at(number + k / len(batches))
            with one_thread(_multiplications(self.model, len(rows)), SMALL_STEP):
                plain, penalized, hits = self.gradients(rows, number, k, len(batches))
            sums += plain, penalized
            correct += hits
            if not np.isfinite(penalized):  # a step would spoil the weights and tell nothing new
                sums[:] = np.nan
                break
            self.optimizer.step()
            if self.average is not None:
                self.average.update()
        self.model.eval()
        plain, penalized = (sums / len(batches)).tolist()
        return Epoch(plain, penalized, None if self.loss == "squared" else correct / len(order))

    def gradients(
        self, rows: Tensor, number: int, place: int, count: int
    ) -> tuple[float, float, int]:
        """Form the gradients of a batch; returns its loss, the penalized loss and the hits.

        Args:
            rows: numbers of the samples.
            number: of the epoch.
            place, count: the number of the batch in the epoch, and how many there are.
        """
        config, head = self.config, self.model.head
        batch = self.data.take(rows)
        # Drawn before the batch is moved, so that a seed means the same on every device.
        batch = batch._replace(states=augment(batch.states, config, number, place))
        states, target, weight = batch.to(head.weight.device)
        self.optimizer.zero_grad()
        out = self.model.hidden(states)
        if not self.joint:
            solve_output(self.model, out.detach(), target, weight, config)
        # The solved W, mu minimize the objective: its derivative by them is zero, so that they
        # count as constants.
        W, mu = (part if self.joint else part.detach() for part in (head.weight, head.bias))
        logits = F.linear(out, W, mu)
        plain = data_loss(logits, target, weight, self.loss)
        penalized = plain + penalty(self.model, W, mu, config)
        penalized.backward()
        if self.observer is not None and (number * count + place) % self.observer.every == 0:
            network = self.model.network
            norms = layer_gradient_norms(network)
            self.observer.observe(number * count + place, network, batch.states, norms)
        if config.clip is not None:
            nn.utils.clip_grad_norm_(self.trained, config.clip)
        hits = count_correct(logits.detach(), target, self.loss)
        return float(plain.detach()), float(penalized.detach()), hits

    def state(self) -> dict[str, Any]:
        average = None if self.average is None else self.average.state()
        return {"optimizer": self.optimizer.state_dict()["state"], "average": average}

    def restore(self, state: dict[str, Any]) -> None:
        # The groups stay: they have the learning rate, which the schedule sets.
        saved = {**self.optimizer.state_dict(), "state": copy.deepcopy(state["optimizer"])}
        self.optimizer.load_state_dict(saved)
        if self.average is not None:
            self.average.restore(state["average"])


def _multiplications(model: Model, samples: int) -> int:
    """Of the largest operation of a step, about: a layer, or in the kernels all layers at once."""
    numbers = samples * model.head.in_features  # every input of the head is a number of a state
    layers = [
        net.program.widest * net.kernel**2 * (1 if net.program.obstacle else net.layers)
        for net in model.networks
    ]
    return numbers * max(layers, default=SMALL_STEP)


def make_optimizer(
    parameters: list[nn.Parameter], config: TrainingConfig, weight_decay: float
) -> torch.optim.Optimizer:
    """The optimizer of a config, by its name in `torch.optim`, in its fused form if it has one."""
    kind: Any = getattr(torch.optim, config.optimizer)
    # Fused, a step is one call for all parameters instead of several for each.
    fused = {"fused": True} if "fused" in inspect.signature(kind).parameters else {}
    return kind(parameters, lr=config.learning_rate, weight_decay=weight_decay, **fused)


class Average:
    """avg <- d avg + (1 - d) weights after every iteration, d = min(decay, (1 + t) / (10 + t)).

    The average often generalizes better than the last weights. Early iterations count less, so that
    the initial weights are forgotten soon. Running statistics of normalizations are averaged like
    weights.

    >>> line = nn.Linear(1, 1)
    >>> average = Average(line, 0.9)
    >>> average.update()
    >>> torch.equal(average.weights["weight"], line.weight)
    True
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay, self.count = model, decay, 0
        self.weights = {name: t.detach().clone() for name, t in model.state_dict().items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take the weights of now into the average."""
        keep = min(self.decay, (1 + self.count) / (10 + self.count))
        self.count += 1
        now = self.model.state_dict()
        numbers = [name for name, t in now.items() if t.is_floating_point()]
        torch._foreach_lerp_(
            [self.weights[name] for name in numbers], [now[name] for name in numbers], 1 - keep
        )
        for name in now.keys() - set(numbers):
            self.weights[name].copy_(now[name])

    def state(self) -> dict[str, Any]:
        """Everything that the next update depends on."""
        return {"count": self.count, "weights": self.weights}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a state."""
        self.count = int(state["count"])
        for name, tensor in self.weights.items():
            tensor.copy_(state["weights"][name])


def layer_gradient_norms(network: HamiltonianNetwork) -> np.ndarray:
    """Norms of the gradient by layer; of parameters that belong to no layer, one norm for all."""
    field = network.field
    if isinstance(field, WeightedField):
        grads = [field.weights.theta.grad, field.weights.beta.grad]
        squares = [g.double().square().sum(-1).reshape(-1) for g in grads if g is not None]
    else:
        grads = [p.grad for p in network.parameters()]
        squares = [g.double().square().sum().reshape(1) for g in grads if g is not None]
    norms: np.ndarray = torch.stack(squares).sum(0).sqrt().numpy() if squares else np.zeros(1)
    return norms


def make_loop(model: Model, data: Samples, config: TrainingConfig) -> Loop:
    """The loop that a config asks for; "auto" takes the kernels where they can serve."""
    # It builds on this module.
    from hdnn.training.compiled import CompiledLoop, obstacle

    check_settings(config, "images" if model.stem.takes_images else "table")
    if config.loop == "autograd":
        return AutogradLoop(model, data, config)
    reason = obstacle(model, data, config)
    if reason is None:
        return CompiledLoop(model, data, config)
    if config.loop == "compiled":
        raise HdnnError(f"loop='compiled' cannot serve: {reason}; use loop='auto'")
    return AutogradLoop(model, data, config)


def check_settings(config: TrainingConfig, data: str) -> None:
    """Raise for settings that would not be used: those that differ from their defaults.

    Args:
        config: made by hand, perhaps; `hdnn.training.resolve` knows what was set.
        data: the kind of data.
    """
    default = TrainingConfig()
    names = [name for name, value in config if value != getattr(default, name)]
    if data == "images" and config.method != "joint":
        raise HdnnError(
            f"an image classifier is trained with method='joint', not {config.method!r}"
        )
    check_applies(config, data, names)
    if config.method != "joint" and config.schedule == "one-cycle":
        raise HdnnError("the one-cycle schedule is for method='joint'")
