"""Networks side by side, trained by coordinate descent in compiled kernels."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hdnn.backends.compiled_program import compile_program
from hdnn.backends.threads import parallel_for, thread_count
from hdnn.fields.hamiltonian import WeightedField
from hdnn.fields.patterns import Pattern
from hdnn.networks import HamiltonianNetwork
from hdnn.training.group import refuse_distributed
from hdnn.training.objective import LOSSES
from hdnn.training.settings import SOLVERS, TrainingConfig

TOLERANCE = 1e-9
"""Where the Newton solver stops: the largest entry of the gradient."""


@dataclass(frozen=True)
class Epoch:
    """What an epoch did: means over its batches, before their steps."""

    loss: float
    penalized: float
    accuracy: float | None


class Observer(Protocol):
    """Looks at a training at some iterations, without a trace in it.

    Iterations count from 0 over all epochs.
    """

    def due(self, iteration: int) -> bool:
        """Whether to look at this one."""

    def before(self, iteration: int, chosen: Tensor) -> None:
        """The weights are those before its step; ``chosen`` numbers the samples of its batch."""

    def after(self, gradients: np.ndarray) -> None:
        """``([E,] layers)``: norms of the gradient of its objective, layer by layer."""

    def saw(
        self,
        iterations: list[int],
        chosen: list[np.ndarray],
        theta: np.ndarray,
        beta: np.ndarray,
        gradients: np.ndarray,
    ) -> None:
        """Several at once: weights before their steps, and gradients, are ``(E, looks, ...)``."""


class CompiledEnsemble:
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
        self,
        network: HamiltonianNetwork,
        states: Tensor,
        targets: Tensor,
        weights: Tensor,
        config: TrainingConfig,
        *,
        outputs: int,
        loss: str,
    ) -> None:
        from hdnn.kernels.epoch import scratch_size

        refuse_distributed("an ensemble")
        field = network.field
        assert isinstance(field, WeightedField)
        self.config, self.weights, self.loss = config, field.weights, loss
        compiled = compile_program(network.program(), states.dtype, states.device)
        self.number = "float32" if states.dtype == torch.float32 else "float64"
        self.X = np.ascontiguousarray(states.detach().numpy())
        self.targets = np.ascontiguousarray(targets.double().numpy())
        self.sample_weight = np.ascontiguousarray(weights.double().numpy())
        self.tables, self.mixing = compiled.tables, compiled.parameters().mixing
        single = network.ensemble is None
        steps = compiled.inputs.steps.detach().numpy()
        self.steps = steps[:, None] if single else steps
        self.h = smoothing_steps(network)
        self.repeats = [repeats_of(p) for p in (field.weights.pattern, field.weights.bias_pattern)]
        members = network.ensemble or 1
        self.moments = [
            np.zeros((2, members, *t.shape[-2:]), self.number)
            for t in (field.weights.theta, field.weights.beta)
        ]
        self.V = np.zeros((members, outputs, states.shape[-1] + 1))
        self.taken = 0
        self._local = threading.local()
        self.scratch = scratch_size(
            self.tables.table,
            states.shape[-1],
            network.layers,
            config.batch_size,
            self.X.itemsize,
        )

    def epoch(self, order: Tensor, number: int, observer: Observer | None = None) -> list[Epoch]:
        """One epoch of every network; ``order`` is ``(E or 1, samples)``.

        The kernel copies the weights for an observer, so an observed epoch computes the same bits.
        """
        from hdnn.kernels import epoch as kernels  # loads numba

        config, networks = self.config, len(self.V)
        size, kernel = config.batch_size, kernels.epoch_kernel(self.number)
        turns = np.ascontiguousarray(order.numpy())
        count = -(-turns.shape[1] // size)
        looks = [
            i for i in range(count) if observer is not None and observer.due(number * count + i)
        ]
        theta, beta = (
            t.detach().numpy().reshape(networks, *t.shape[-2:])
            for t in (self.weights.theta, self.weights.beta)
        )
        losses = np.full((networks, count, 3), np.nan)
        gradients = np.zeros((networks, count, theta.shape[1] if looks else 0))
        shots = [np.empty((networks, len(looks), *t.shape[1:]), t.dtype) for t in (theta, beta)]
        data = kernels.Data(self.X, self.targets, self.sample_weight, turns)
        first, second = self.moments
        trained = kernels.Trained(theta, beta, first, second, self.V)
        fixed = kernels.Fixed(self.steps, self.mixing, self.h, *self.repeats)
        told = kernels.Record(losses, gradients, np.array(looks, np.int64), *shots)
        options = self._options(number)

        def work(team: np.ndarray, caller: bool) -> None:
            room, taken = self._room(), self.taken
            kernel(data, trained, fixed, self.tables, options, told, room, taken, team, caller)

        if count:
            parallel_for(work, networks, thread_count())
        if observer is not None and looks:
            batches = [turns[:, i * size : (i + 1) * size] for i in looks]
            seen = [number * count + i for i in looks]
            observer.saw(seen, batches, shots[0], shots[1], gradients[:, looks])
        self.taken += count
        return [self._summary(losses[e], turns.shape[1]) for e in range(networks)]

    def _options(self, number: int) -> Any:
        """The settings of an epoch, as the kernel takes them."""
        from hdnn.kernels.epoch import Options

        config = self.config
        return Options(
            LOSSES.index(self.loss),
            SOLVERS.index(config.solver),
            config.solver_iterations,
            config.batch_size,
            config.learning_rate_at(number),
            *config.betas,
            config.alpha,
            config.alpha_c,
            TOLERANCE,
            config.learning_rate,
            config.clip or 0.0,
        )

    def _room(self) -> np.ndarray:
        """Scratch of this thread, kept from call to call: fresh pages are slow to touch."""
        from hdnn.kernels.build import aligned

        if not hasattr(self._local, "scratch"):
            self._local.scratch = aligned(self.scratch, self.number)
        found: np.ndarray = self._local.scratch
        return found

    def _summary(self, losses: np.ndarray, samples: int) -> Epoch:
        plain, penalized, _ = losses.mean(0)
        accuracy = None if self.loss == "squared" else float(losses[:, 2].sum()) / samples
        return Epoch(float(plain), float(penalized), accuracy)

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


def smoothing_steps(network: HamiltonianNetwork) -> np.ndarray:
    """``(E or 1, L)``: h_j as the smoothness penalty weighs them, 0 for networks without a step."""
    h = network.h
    if isinstance(h, Tensor):
        return np.ascontiguousarray(np.atleast_2d(h.detach().double().numpy()))
    return np.full((1, network.layers), h if network.scheme.uses_step else 0.0)


def repeats_of(pattern: Pattern) -> np.ndarray:
    """How often every parameter stands in the assembled array."""
    counts = np.bincount(np.abs(pattern.code.ravel()), minlength=pattern.size + 1)
    return counts[1:].astype(np.float64)
