"""One epoch of training, in three ways behind one interface.

`DirectLoop` runs whole epochs of coordinate descent in compiled kernels; `CoordinateLoop` is the
same through autograd, for any network; `JointLoop` trains everything with one optimiser.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hdnn.backends import choose
from hdnn.backends.packing import DENSE, pack
from hdnn.backends.selection import ACTIVATIONS
from hdnn.backends.threads import share, thread_count
from hdnn.errors import HdnnError, unknown_name
from hdnn.fields.hamiltonian import WeightedField
from hdnn.fields.patterns import Pattern
from hdnn.model import Model
from hdnn.network import HamiltonianNetwork
from hdnn.training.config import SOLVERS, TrainingConfig
from hdnn.training.objective import LOSSES, data_loss, loss_name, output_penalty, smoothness

TOLERANCE = 1e-9
"""Where the Newton solver stops: the largest entry of the gradient."""

MOST_UNKNOWNS = 160
"""The largest output layer that the kernels solve; beyond it a matrix library wins."""


UNFIT = ("Optimizer", "LBFGS", "SparseAdam")
"""Optimisers that need a closure or sparse gradients, and so cannot train a model."""


@dataclass(frozen=True)
class Epoch:
    """What an epoch did: means over its batches, before their steps."""

    loss: float
    penalised: float
    accuracy: float | None


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


def make_optimiser(
    parameters: Any, config: TrainingConfig, weight_decay: float
) -> torch.optim.Optimizer:
    """The optimiser of a config: any class of `torch.optim`, by name."""
    known = [
        name for name in dir(torch.optim)
        if isinstance(kind := getattr(torch.optim, name), type)
        and issubclass(kind, torch.optim.Optimizer) and name not in UNFIT
    ]  # fmt: skip
    names = {name.lower(): name for name in known}
    if config.optimiser.lower() not in names:
        raise unknown_name("optimiser", config.optimiser, known)
    kind = getattr(torch.optim, names[config.optimiser.lower()])
    accepted = inspect.signature(kind).parameters
    options: dict[str, Any] = {"lr": config.learning_rate}
    if "betas" in accepted:
        options["betas"] = config.betas
    if "weight_decay" in accepted:
        options["weight_decay"] = weight_decay
    elif weight_decay:
        raise HdnnError(f"{config.optimiser} has no weight decay; use 0, or another optimiser")
    try:
        optimiser: torch.optim.Optimizer = kind(parameters, **options)
    except ValueError as error:
        raise HdnnError(f"{config.optimiser} cannot train this model: {error}") from error
    return optimiser


def flatten_optimiser(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of an optimiser as named tensors."""
    found = {}
    for number, entries in optimiser.state_dict()["state"].items():
        for name, value in entries.items():
            if value is not None:
                found[f"{number}.{name}"] = torch.as_tensor(value).clone()
    return found


def restore_optimiser(optimiser: torch.optim.Optimizer, state: dict[str, Tensor]) -> None:
    """Put named tensors back."""
    entries: dict[int, dict[str, Tensor]] = {}
    for key, value in state.items():
        number, name = key.split(".", 1)
        entries.setdefault(int(number), {})[name] = value.clone()
    whole = optimiser.state_dict()
    whole["state"] = entries
    optimiser.load_state_dict(whole)


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


class DirectEnsemble:
    """Networks side by side, trained by coordinate descent in kernels; threads share them.

    Args:
        network: a network, or an ensemble of E; its parameters are trained in place.
        states: y_0, ``(E or 1, samples, n)``.
        targets: ``(E or 1, samples, 1)`` class numbers, or ``(E or 1, samples, outputs)`` values.
        weights: ``(E or 1, samples)``.
        config: coordinate descent with Adam.
        outputs, loss: of the output layers.

    Attributes:
        V: ``(E, outputs, n + 1)``, the output layers (W, mu) in float64.
    """

    def __init__(
        self, network: HamiltonianNetwork, states: Tensor, targets: Tensor, weights: Tensor,
        config: TrainingConfig, *, outputs: int, loss: str,
    ) -> None:  # fmt: skip
        from hdnn.backends.fused import mixing  # loads numba
        from hdnn.training import direct

        field = network.field
        assert isinstance(field, WeightedField)
        self.config, self.weights, self.loss = config, field.weights, loss
        packed = pack(network.program(), states.dtype, states.device)
        self.number = "float32" if states.dtype == torch.float32 else "float64"
        self.X = np.ascontiguousarray(states.detach().numpy())
        self.targets = np.ascontiguousarray(targets.double().numpy())
        self.sample_weight = np.ascontiguousarray(weights.double().numpy())
        self.wiring, self.mixing = packed.wiring, mixing(packed)
        self.code = ACTIVATIONS.index(packed.stages[0].activation.name)
        single = network.ensemble is None
        steps = packed.inputs.steps.detach().numpy()
        self.steps = steps[:, None] if single else steps
        self.h = self._smoothing_steps(network)
        self.repeats = [_repeats(p) for p in (field.weights.pattern, field.weights.bias_pattern)]
        members = network.ensemble or 1
        self.moments = [
            np.zeros((2, members, *t.shape[-2:]), self.number)
            for t in (field.weights.theta, field.weights.beta)
        ]
        self.V = np.zeros((members, outputs, states.shape[-1] + 1))
        self.taken = 0
        table = self.wiring.table
        self.scratch = direct.scratch_size(
            table, states.shape[-1], network.layers, config.batch_size, self.X.itemsize
        )

    def _smoothing_steps(self, network: HamiltonianNetwork) -> np.ndarray:
        """h_j as the smoothness penalty weighs them: 0 for networks without a step."""
        h = network.h
        if isinstance(h, Tensor):
            return np.ascontiguousarray(np.atleast_2d(h.detach().double().numpy()))
        return np.full((1, network.layers), h if network.scheme.uses_step else 0.0)

    def epoch(self, order: Tensor, number: int) -> list[Epoch]:
        """One epoch of every network; ``order`` is ``(E or 1, samples)``."""
        from hdnn.backends.kernels import aligned
        from hdnn.training import direct

        config = self.config
        count = -(-order.shape[1] // config.batch_size)
        losses = np.full((len(self.V), count, 3), np.nan)
        numbers = np.array(
            [config.rate(number), *config.betas, config.alpha, config.alpha_c, TOLERANCE,
             config.learning_rate, config.clip or 0.0]
        )  # fmt: skip
        theta, beta = (
            t.detach().numpy().reshape(len(self.V), *t.shape[-2:])
            for t in (self.weights.theta, self.weights.beta)
        )
        kernel, indices = direct.epoch_kernel(self.number), np.ascontiguousarray(order.numpy())
        loss = LOSSES.index(self.loss)
        solver = SOLVERS.index(config.solver)

        def work(first: int, last: int) -> None:
            kernel(
                self.X, self.targets, self.sample_weight, indices, theta, beta, *self.moments,
                self.V, self.steps, self.h, self.wiring.wire, self.mixing, self.wiring.table,
                *self.repeats, numbers, losses, aligned(self.scratch, self.number), self.code,
                loss, solver, config.solver_iterations, config.batch_size, self.taken, first, last,
            )  # fmt: skip

        share(work, len(self.V), thread_count())
        self.taken += count
        return [self._summary(losses[e], order.shape[1]) for e in range(len(self.V))]

    def _summary(self, losses: np.ndarray, samples: int) -> Epoch:
        plain, penalised, _ = losses.mean(0)
        accuracy = None if self.loss == "squared" else float(losses[:, 2].sum()) / samples
        return Epoch(float(plain), float(penalised), accuracy)

    def state(self) -> dict[str, Tensor]:
        """Everything beside the parameters that the next epoch depends on."""
        return {
            "moments_theta": torch.from_numpy(self.moments[0].copy()),
            "moments_beta": torch.from_numpy(self.moments[1].copy()),
            "V": torch.from_numpy(self.V.copy()),
            "taken": torch.tensor(self.taken),
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go back to a state."""
        for kept, name in zip(self.moments, ("moments_theta", "moments_beta"), strict=True):
            kept[:] = state[name].numpy()
        self.V[:] = state["V"].numpy()
        self.taken = int(state["taken"])


def _repeats(pattern: Pattern) -> np.ndarray:
    """How often every parameter stands in the assembled array."""
    counts = np.bincount(np.abs(pattern.code.ravel()), minlength=pattern.size + 1)
    return counts[1:].astype(np.float64)


def make_loop(model: Model, data: Batches, config: TrainingConfig) -> Loop:
    """The loop that a config asks for; "auto" takes the kernels where they can serve."""
    reason = direct_obstacle(model, data, config)
    if config.loop == "direct" and reason is not None:
        raise HdnnError(f"loop='direct' cannot serve: {reason}; use loop='auto'")
    if config.method == "joint":
        return JointLoop(model, data, config)
    direct = config.loop != "autograd" and reason is None
    return DirectLoop(model, data, config) if direct else CoordinateLoop(model, data, config)
