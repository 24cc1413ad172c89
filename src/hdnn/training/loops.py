"""One epoch of training, in three ways behind one interface.

`DirectLoop` runs whole epochs of coordinate descent in compiled kernels; `CoordinateLoop` is the
same through autograd, for any network; `JointLoop` trains everything with one optimiser.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from hdnn.backends import choose
from hdnn.backends.packing import DENSE, pack
from hdnn.errors import HdnnError
from hdnn.fields.hamiltonian import WeightedField
from hdnn.model import Model
from hdnn.training.config import TrainingConfig
from hdnn.training.ensemble import TOLERANCE, DirectEnsemble, Epoch
from hdnn.training.objective import LOSSES, data_loss, loss_name, output_penalty, smoothness
from hdnn.training.optimisers import flatten_optimiser, make_optimiser, restore_optimiser

MOST_UNKNOWNS = 160
"""The largest output layer that the kernels solve; beyond it a matrix library wins."""


@dataclass(frozen=True)
class Batches:
    """The training data on the threshold of the network.

    Args:
        states: y_0, ``(samples, n)``.
        target: class numbers ``(samples,)`` or values ``(samples, outputs)``.
        weight: ``(samples,)``.
    """

    states: Tensor
    target: Tensor
    weight: Tensor

    def __len__(self) -> int:
        return len(self.states)


class Loop(ABC):
    """Trains a model on batches, epoch by epoch; its state can be taken out and put back."""

    def __init__(self, model: Model, data: Batches, config: TrainingConfig) -> None:
        self.model, self.data, self.config = model, data, config
        self.loss = loss_name(model.task, model.head.out_features)

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


def right(values: Tensor, target: Tensor, loss: str) -> int:
    """How many samples are classified correctly."""
    if loss == "squared":
        return 0
    found = (values[:, 0] > 0).long() if loss == "logistic" else values.argmax(-1)
    return int((found == target).sum())


class CoordinateLoop(Loop):
    """Output layer solved given the hidden layers, then one step on the hidden layers."""

    def __init__(self, model: Model, data: Batches, config: TrainingConfig) -> None:
        super().__init__(model, data, config)
        self.optimiser = make_optimiser(model.network.parameters(), config, weight_decay=0.0)

    def epoch(self, order: Tensor, number: int) -> Epoch:
        for group in self.optimiser.param_groups:
            group["lr"] = self.config.rate(number)
        sums, correct = np.zeros(2), 0
        batches = self._batches(order)
        for chosen in batches:
            plain, penalised, hits = self._step(chosen)
            sums += plain, penalised
            correct += hits
            if not np.isfinite(penalised):
                sums[:] = np.nan
                break
        mean = sums / len(batches)
        accuracy = None if self.loss == "squared" else correct / len(order)
        return Epoch(float(mean[0]), float(mean[1]), accuracy)

    def _step(self, chosen: Tensor) -> tuple[float, float, int]:
        config, head = self.config, self.model.head
        target, weight = self.data.target[chosen], self.data.weight[chosen]
        out = self.model.network(self.data.states[chosen])
        if not bool(weight.sum() > 0):  # a batch of which nothing counts
            return 0.0, 0.0, right(head(out).detach(), target, self.loss)
        solve_output(self.model, out.detach(), target, weight, config)
        values = out @ head.weight.detach().mT + head.bias.detach()
        plain = data_loss(values, target, weight, self.loss)
        smooth = config.alpha * smoothness(self.model.network)
        self.optimiser.zero_grad()
        (plain + smooth).backward()
        if config.clip is not None:
            nn.utils.clip_grad_norm_(self.model.network.parameters(), config.clip)
        penalty = config.alpha_c * output_penalty(head.weight, head.bias)
        penalised = float((plain + smooth + penalty).detach())
        if np.isfinite(penalised):
            self.optimiser.step()
        return float(plain.detach()), penalised, right(values.detach(), target, self.loss)

    def state(self) -> dict[str, Tensor]:
        return flatten_optimiser(self.optimiser)

    def restore(self, state: dict[str, Tensor]) -> None:
        restore_optimiser(self.optimiser, state)


class JointLoop(Loop):
    """One optimiser for hidden and output layers together (appendix B.2)."""

    def __init__(self, model: Model, data: Batches, config: TrainingConfig) -> None:
        super().__init__(model, data, config)
        self.optimiser = make_optimiser(
            model.parameters(), config, weight_decay=config.weight_decay
        )

    def epoch(self, order: Tensor, number: int) -> Epoch:
        for group in self.optimiser.param_groups:
            group["lr"] = self.config.rate(number)
        config, head = self.config, self.model.head
        sums, correct = np.zeros(2), 0
        batches = self._batches(order)
        for chosen in batches:
            target, weight = self.data.target[chosen], self.data.weight[chosen]
            values = head(self.model.network(self.data.states[chosen]))
            correct += right(values.detach(), target, self.loss)
            if not bool(weight.sum() > 0):  # a batch of which nothing counts
                continue
            plain = data_loss(values, target, weight, self.loss)
            penalised = plain + config.alpha * smoothness(self.model.network)
            penalised = penalised + config.alpha_c * output_penalty(head.weight, head.bias)
            self.optimiser.zero_grad()
            penalised.backward()
            if config.clip is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
            sums += float(plain.detach()), float(penalised.detach())
            if not np.isfinite(sums[1]):
                sums[:] = np.nan
                break
            self.optimiser.step()
        mean = sums / len(batches)
        accuracy = None if self.loss == "squared" else correct / len(order)
        return Epoch(float(mean[0]), float(mean[1]), accuracy)

    def state(self) -> dict[str, Tensor]:
        return flatten_optimiser(self.optimiser)

    def restore(self, state: dict[str, Tensor]) -> None:
        restore_optimiser(self.optimiser, state)


def solve_output(
    model: Model, out: Tensor, target: Tensor, weight: Tensor, config: TrainingConfig
) -> None:
    """Set the output layer to the minimiser (or a few Adam steps towards it) given y_N."""
    from hdnn.training import matrices, solvers  # loads numba

    head = model.head
    loss = loss_name(model.task, head.out_features)
    Z = np.concatenate([out.double().numpy(), np.ones((len(out), 1))], axis=1)
    T = np.ascontiguousarray(target.double().reshape(len(out), -1).numpy())
    w = weight.double().numpy() / float(weight.sum())
    V = torch.cat([head.weight, head.bias[:, None]], 1).detach().double().numpy().copy()
    code = LOSSES.index(loss)
    if config.solver == "newton" and V.size > MOST_UNKNOWNS:
        matrices.newton(Z, T, w, V, loss, config.alpha_c, config.solver_iterations, TOLERANCE)
    elif config.solver == "newton":
        solvers.kernel("newton")(
            Z, T, w, V, code, config.alpha_c, config.solver_iterations, TOLERANCE
        )
    else:
        solvers.kernel("adam")(
            Z, T, w, V, code, config.alpha_c, config.solver_iterations, config.learning_rate,
            *config.betas,
        )  # fmt: skip
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(V[:, :-1]))
        head.bias.copy_(torch.from_numpy(V[:, -1]))


def direct_obstacle(model: Model, data: Batches, config: TrainingConfig) -> str | None:
    """Why whole epochs cannot run in kernels, or None."""
    if config.method != "coordinate":
        return "joint descent goes through autograd"
    if config.optimiser.lower() != "adam":
        return f"the kernels know Adam, not {config.optimiser}"
    network, field = model.network, model.network.field
    if not isinstance(field, WeightedField):
        return "the network has an energy of its own"
    trained = sum(p.requires_grad for p in network.parameters())
    if trained != 2 or not (field.weights.theta.requires_grad and field.weights.beta.requires_grad):
        return "other parameters than K and b are trained, or not all of them"
    choice = choose(network.program(), data.states[:1], network.backend)
    if choice.backend != "fused":
        return choice.reason
    unknowns = model.head.out_features * (data.states.shape[1] + 1)
    if unknowns > MOST_UNKNOWNS:
        return f"an output layer of {unknowns} unknowns is solved better by a matrix library"
    packed = pack(network.program(), data.states.dtype, data.states.device)
    if DENSE in packed.kinds:
        return "the gains are neither numbers nor of the form h J K'"
    return None


class DirectLoop(Loop):
    """Coordinate descent in compiled kernels: whole epochs in one call, without autograd."""

    def __init__(self, model: Model, data: Batches, config: TrainingConfig) -> None:
        super().__init__(model, data, config)
        self.ensemble = DirectEnsemble(
            model.network, data.states[None], self._targets(), data.weight[None], config,
            outputs=model.head.out_features, loss=self.loss,
        )  # fmt: skip
        self._load_head()

    def _targets(self) -> Tensor:
        return self.data.target.double().reshape(1, len(self.data), -1)

    def _load_head(self) -> None:
        head = self.model.head
        V = torch.cat([head.weight, head.bias[:, None]], 1).detach().double().numpy()
        self.ensemble.V[0] = V

    def epoch(self, order: Tensor, number: int) -> Epoch:
        found = self.ensemble.epoch(order[None], number)[0]
        head, V = self.model.head, torch.from_numpy(self.ensemble.V[0])
        with torch.no_grad():
            head.weight.copy_(V[:, :-1])
            head.bias.copy_(V[:, -1])
        return found

    def state(self) -> dict[str, Tensor]:
        return self.ensemble.state()

    def restore(self, state: dict[str, Tensor]) -> None:
        self.ensemble.restore(state)


def make_loop(model: Model, data: Batches, config: TrainingConfig) -> Loop:
    """The loop that a config asks for; "auto" takes the kernels where they can serve."""
    reason = direct_obstacle(model, data, config)
    if config.loop == "direct" and reason is not None:
        raise HdnnError(f"loop='direct' cannot serve: {reason}; use loop='auto'")
    if config.method == "joint":
        return JointLoop(model, data, config)
    direct = config.loop != "autograd" and reason is None
    return DirectLoop(model, data, config) if direct else CoordinateLoop(model, data, config)
