"""Training in compiled kernels, without autograd: whole epochs in a few calls.

Coordinate descent (of one network, or of an ensemble side by side) and joint descent (of one
network on a table, with its input projection and its head) are one kernel, see train.h.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hdnn.backends import choose, fused
from hdnn.config import TrainingConfig
from hdnn.fields.hamiltonian import WeightedField
from hdnn.kernels import native
from hdnn.models import Model, TableStem
from hdnn.networks import HamiltonianNetwork
from hdnn.training.loops import TOLERANCE, Batches, Epoch, Loop, Observations, Observer, watched
from hdnn.training.output_solver import MOST_UNKNOWNS

SLICE = 0.05
"""Seconds of one call: as long as an interrupt may have to wait."""
STATE = ("first", "second", "taken", "V")
"""What an epoch changes beside the weights: the moments and steps of Adam, the output layers."""


def coordinate_obstacle(model: Model, data: Batches, config: TrainingConfig) -> str | None:
    """Why coordinate descent cannot run in kernels, or None."""
    if config.optimizer.lower() != "adam":
        return f"the kernels know Adam, not {config.optimizer}"
    if any(p.requires_grad for p in model.stem.parameters()):
        return "the input projection is trained"
    unknowns = model.head.out_features * (data.states.shape[1] + 1)
    if unknowns > MOST_UNKNOWNS:
        return f"an output layer of {unknowns} unknowns is solved better by a matrix library"
    return _obstacle(model, data.states[: config.batch_size], list(model.network.parameters()))


def joint_obstacle(model: Model, data: Batches, config: TrainingConfig) -> str | None:
    """Why joint descent cannot run in kernels, or None."""
    if config.optimizer.lower() not in ("adam", "adamw"):
        return f"the kernels know Adam and AdamW, not {config.optimizer}"
    if config.averaging or config.label_smoothing:
        return "the kernels know no averaging and no label smoothing"
    if not isinstance(model.stem, TableStem) or len(model.blocks) != 1:
        return "the model is no single network on a table"
    states = data.states[: config.batch_size].new_empty(
        (min(config.batch_size, len(data)), model.head.in_features)
    )
    return _obstacle(model, states, list(model.parameters()))


def _obstacle(model: Model, states: Tensor, trained: list[Tensor]) -> str | None:
    network, field = model.network, model.network.field
    if not isinstance(field, WeightedField):
        return "the network has an energy of its own"
    if model.head.weight.device.type != "cpu":
        return f"the kernels run on the CPU, and the model is on {model.head.weight.device}"
    own = {id(p) for p in (field.weights.theta, field.weights.beta)}
    rest = {id(p) for p in (*model.head.parameters(), *model.stem.parameters())}
    if {id(p) for p in trained if p.requires_grad} - rest != own:
        return "other parameters than K and b are trained, or not all of them"
    choice = choose(network.program, network.values(), states, network.backend)
    return None if choice.backend == "fused" else choice.reason


class CompiledTraining:
    """Networks side by side, trained in kernels; the parameters are changed in place.

    Args:
        network: a network, or an ensemble of E.
        parts: what is trained: theta, beta, and in joint descent W, mu and perhaps P, nu.
        data: states y_0, or what the projection takes, ``(E or 1, samples, .)``; targets
            ``(E or 1, samples, 1 or outputs)``; weights ``(E or 1, samples)``.
        config: Adam, or in joint descent AdamW.
        outputs, loss: of the output layers.

    Attributes:
        V: ``(E, outputs, n + 1)``, the output layers (W, mu) of coordinate descent, in float64.
    """

    def __init__(
        self,
        network: HamiltonianNetwork,
        parts: Sequence[Tensor],
        data: Batches,
        config: TrainingConfig,
        *,
        outputs: int,
        loss: str,
    ) -> None:
        field, E, width = network.field, network.ensemble or 1, network.field.layout.width
        assert isinstance(field, WeightedField)
        self.network, self.parts, self.config = network, list(parts), config
        self.loss, self.joint = loss, config.method == "joint"
        states = data.states
        samples = data.weight.shape[-1]
        X = np.ascontiguousarray(states.detach().numpy())
        size = sum(p.numel() for p in parts) // E
        self.V = np.zeros((E, outputs, width + 1))
        zeros = [np.zeros((E, size), X.dtype) for _ in range(4)]
        self.values, self.first, self.second, self.gradients = zeros
        self.taken = np.zeros(E, np.int64)
        steps = _smoothing_steps(network)
        patterns = field.weights.pattern, field.weights.bias_pattern
        arrays = {
            "X": X,
            "target": np.ascontiguousarray(data.target.double().numpy()),
            "weight": np.ascontiguousarray(data.weight.double().numpy()),
            "steps": steps,
            "repeats": np.concatenate([p.repeats for p in patterns]),
            "values": self.values,
            "first": self.first,
            "second": self.second,
            "gradients": self.gradients,
            "V": self.V,
        }
        settings = {
            "coordinate": int(not self.joint),
            "loss": native.LOSSES.index(loss),
            "outputs": outputs,
            "inputs": states.shape[-1] if len(parts) > 4 else 0,
            "batch": config.batch_size,
            "count": samples,
            "shared_data": int(len(X) == 1),
            "decoupled": int(config.optimizer.lower() == "adamw"),
            "solver": native.SOLVERS.index(config.solver),
            "solver_iterations": config.solver_iterations,
            "alpha": config.alpha,
            "alpha_c": config.alpha_c,
            "clip": config.clip or 0.0,
            "weight_decay": config.weight_decay if self.joint else 0.0,
            "beta1": config.betas[0],
            "beta2": config.betas[1],
            "tolerance": TOLERANCE,
            "solver_rate": config.learning_rate,
            "steps_networks": len(steps),
        }
        batch = states.new_empty((*network.field.layout.lead, config.batch_size, width))
        plan = fused.plan_of(network.program, batch, field.weights.theta)
        self.training = native.Training(plan, arrays, settings)

    def epoch(self, order: Tensor, number: int, observer: Observer | None = None) -> list[Epoch]:
        """One epoch of every network; ``order`` is ``(E or 1, samples)``.

        It is cut into calls of at most `SLICE` seconds, which changes no number. An iteration that
        the observer looks at is a call of its own.
        """
        size, turns = self.config.batch_size, np.ascontiguousarray(order.numpy())
        batches = -(-turns.shape[1] // size)
        losses = np.full((len(self.values), batches, 3), np.nan)
        rates = self._rates(number, batches)
        numbers = fused.Numbers(self.network.program, self.network.values())
        self._read()
        watch = _Watch(self, observer, number * batches, turns)
        at, count, lost = 0, 1, _Lost(self, losses)
        while at < batches:
            todo = watch.before(at, min(count, batches - at))
            begin = time.perf_counter()
            losses[:, at : at + todo] = self.training.steps(
                numbers.addresses,
                turns,
                at,
                rates[at : at + todo],
                self.taken,
                torch.get_num_threads(),
            )
            seconds = (time.perf_counter() - begin) / todo
            watch.after()
            lost.after(at, todo)
            count = max(1, min(2 * count, int(SLICE / max(seconds, 1e-9))))
            at += todo
        self._write()
        watch.report()
        return [self._summary(losses[e], turns.shape[1]) for e in range(len(losses))]

    def _rates(self, number: int, batches: int) -> np.ndarray:
        """The learning rate of every step; coordinate descent has one for an epoch."""
        places = [k / batches if self.joint else 0 for k in range(batches)]
        return np.array([self.config.learning_rate_at(number + place) for place in places])

    @torch.no_grad()
    def _read(self) -> None:
        """The parameters, as they are now, into the rows of the kernel."""
        E = len(self.values)
        self.values[:] = torch.cat([p.reshape(E, -1) for p in self.parts], 1).numpy()

    @torch.no_grad()
    def _write(self) -> None:
        """The rows of the kernel into the parameters."""
        sizes = [p.numel() // len(self.values) for p in self.parts]
        for part, rows in zip(
            self.parts, torch.from_numpy(self.values).split(sizes, 1), strict=True
        ):
            part.copy_(rows.reshape(part.shape))

    def stacks(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Theta and beta, or their gradients, in rows of the kernel: ``(E, L or 1, .)``."""
        theta, beta = self.parts[:2]
        E, layers = len(rows), theta.shape[-2]
        middle, end = layers * theta.shape[-1], layers * (theta.shape[-1] + beta.shape[-1])
        return rows[:, :middle].reshape(E, layers, -1), rows[:, middle:end].reshape(E, layers, -1)

    def _summary(self, losses: np.ndarray, samples: int) -> Epoch:
        plain, penalized, _ = losses.mean(0)
        accuracy = None if self.loss == "squared" else float(np.nansum(losses[:, 2])) / samples
        return Epoch(float(plain), float(penalized), accuracy)

    def state(self) -> dict[str, Tensor]:
        """Everything beside the parameters that the next epoch depends on."""
        return {name: torch.from_numpy(getattr(self, name).copy()) for name in STATE}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go back to a state."""
        for name in STATE:
            getattr(self, name)[...] = state[name].numpy()


class _Lost:
    """Networks whose loss is not finite: they keep their weights until the next epoch.

    The kernel sees to that within a call; how an epoch is cut into calls must not show.
    """

    def __init__(self, training: CompiledTraining, losses: np.ndarray) -> None:
        self.training, self.losses = training, losses
        self.kept: dict[int, list[np.ndarray]] = {}

    def after(self, at: int, count: int) -> None:
        """Undo what a call did to networks that were lost before, and find those lost in it."""
        training, part = self.training, self.losses[:, at : at + count]
        arrays = (training.values, *(getattr(training, name) for name in STATE))
        for e, rows in self.kept.items():
            part[e] = np.nan
            for array, row in zip(arrays, rows, strict=True):
                array[e] = row
        for e in np.flatnonzero(~np.isfinite(part[:, :, 1]).all(1)).tolist():
            self.kept.setdefault(e, [array[e].copy() for array in arrays])


class _Watch:
    """What an observer is shown of an epoch: weights before, gradients of some iterations."""

    def __init__(
        self, training: CompiledTraining, observer: Observer | None, first: int, turns: np.ndarray
    ) -> None:
        self.training, self.observer, self.first, self.turns = training, observer, first, turns
        self.looking, self.seen = False, Observations([], [], *(np.empty(0),) * 3)
        self.shots: list[tuple[np.ndarray, ...]] = []

    def before(self, at: int, count: int) -> int:
        """How many of the next iterations go in one call, after a look at the first."""
        due = watched(self.observer, self.first + at, count)
        self.looking = bool(due) and due[0] == 0
        if self.looking and self.observer is not None:
            size, training = self.training.config.batch_size, self.training
            samples = self.turns[:, at * size : (at + 1) * size]
            if training.joint:
                training._write()
                self.observer.before_step(self.first + at, torch.from_numpy(samples[0]))
            else:
                self.seen.iterations.append(self.first + at)
                self.seen.batches.append(samples)
                weights = (stack.copy() for stack in training.stacks(training.values))
                self.shots.append(tuple(weights))
        return 1 if self.looking else due[0] if due else count

    def after(self) -> None:
        """The gradients of what was just looked at."""
        if not self.looking or self.observer is None:
            return
        squares = [g.astype(np.float64) ** 2 for g in self.training.stacks(self.training.gradients)]
        norms = np.sqrt(sum(square.sum(-1) for square in squares))
        if self.training.joint:
            self.observer.after_gradients(norms[0])
        else:
            self.shots[-1] = (*self.shots[-1], norms)

    def report(self) -> None:
        """All that was seen of coordinate descent."""
        if self.shots and self.observer is not None:
            stacks = (np.stack(column, 1) for column in zip(*self.shots, strict=True))
            self.observer.after_compiled_epoch(Observations(*self.seen[:2], *stacks))


class CompiledLoop(Loop):
    """Coordinate or joint descent of one model for tables in compiled kernels."""

    def __init__(self, model: Model, data: Batches, config: TrainingConfig) -> None:
        super().__init__(model, data, config)
        field, head = model.network.field, model.head
        assert isinstance(field, WeightedField)
        parts: list[Tensor] = [field.weights.theta, field.weights.beta]
        if config.method == "joint":
            parts += [head.weight, head.bias, *model.stem.parameters()]
        target = data.target.reshape(1, len(data), -1)
        self.compiled = CompiledTraining(
            model.network,
            parts,
            Batches(data.states[None], target, data.weight[None]),
            config,
            outputs=head.out_features,
            loss=self.loss,
        )
        V = torch.cat([head.weight, head.bias[:, None]], 1).detach().double().numpy()
        self.compiled.V[0] = V

    def epoch(self, order: Tensor, number: int) -> Epoch:
        (epoch,) = self.compiled.epoch(order[None], number, self.observer)
        if self.config.method != "joint":
            head, V = self.model.head, torch.from_numpy(self.compiled.V[0])
            with torch.no_grad():
                head.weight.copy_(V[:, :-1])
                head.bias.copy_(V[:, -1])
        return epoch

    def state(self) -> dict[str, Tensor]:
        return self.compiled.state()

    def restore(self, state: dict[str, Tensor]) -> None:
        self.compiled.restore(state)


def _smoothing_steps(network: HamiltonianNetwork) -> np.ndarray:
    """``(E or 1, L)``: h_j as the smoothness penalty weighs them, 0 for networks without a step."""
    h = network.h
    if isinstance(h, Tensor):
        return np.ascontiguousarray(np.atleast_2d(h.detach().double().numpy()))
    return np.full((1, network.layers), h if network.scheme.uses_step else 0.0)
