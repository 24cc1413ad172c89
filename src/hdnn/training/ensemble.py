"""Coordinate descent in compiled kernels: of one model, or of an ensemble of networks as one."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hdnn.backends.compiled_program import compile_program
from hdnn.backends.threads import parallel_for, thread_count
from hdnn.errors import HdnnError
from hdnn.fields.hamiltonian import WeightedField
from hdnn.fields.patterns import Pattern
from hdnn.models import Model
from hdnn.networks import HamiltonianNetwork
from hdnn.training.group import refuse_distributed
from hdnn.training.loops import TOLERANCE, Batches, Epoch, Loop, Observations, Observer, watched
from hdnn.training.objective import LOSSES
from hdnn.training.settings import SOLVERS, TrainingConfig

FINAL_ITERATIONS = 50
"""Of the Newton solver, for the output layers on all training data."""


class CompiledLoop(Loop):
    """Coordinate descent in compiled kernels: whole epochs in one call, without autograd."""

    def __init__(self, model: Model, data: Batches, config: TrainingConfig) -> None:
        super().__init__(model, data, config)
        self.compiled = _CompiledEpochs(
            model.network,
            data.states[None],
            self._targets(),
            data.weight[None],
            config,
            outputs=model.head.out_features,
            loss=self.loss,
        )
        self._load_head()

    def _targets(self) -> Tensor:
        return self.data.target.double().reshape(1, len(self.data), -1)

    def _load_head(self) -> None:
        head = self.model.head
        V = torch.cat([head.weight, head.bias[:, None]], 1).detach().double().numpy()
        self.compiled.V[0] = V

    def epoch(self, order: Tensor, number: int) -> Epoch:
        found = self.compiled.epoch(order[None], number, self.observer)[0]
        head, V = self.model.head, torch.from_numpy(self.compiled.V[0])
        with torch.no_grad():
            head.weight.copy_(V[:, :-1])
            head.bias.copy_(V[:, -1])
        return found

    def state(self) -> dict[str, Tensor]:
        return self.compiled.state()

    def restore(self, state: dict[str, Tensor]) -> None:
        self.compiled.restore(state)


class Ensemble(nn.Module):
    """E networks for two classes, and their output layers; `Trainer` trains them together.

    Args:
        network: the networks.
        seeds: one a network, for the order of its batches.
        may_diverge: whether the others go on when one diverges; else that ends the training.

    Attributes:
        V: ``(E, 1, n + 1)``, the output layers (W, mu) in float64.

    Raises:
        HdnnError: there is not one seed a network.

    >>> import hdnn
    >>> net = hdnn.network("H1", features=4, layers=3, T=1.0, ensemble=2)
    >>> hdnn.training.Ensemble(net, seeds=[0, 1]).V.shape
    torch.Size([2, 1, 5])
    """

    V: Tensor

    def __init__(
        self, network: HamiltonianNetwork, seeds: Sequence[int], may_diverge: bool = False
    ) -> None:
        super().__init__()
        if network.ensemble != len(seeds) or network.features is None:
            raise HdnnError(
                f"an ensemble has one seed a network, got {len(seeds)} seeds for "
                f"{network.ensemble or 'no'} networks over features"
            )
        self.network, self.seeds, self.may_diverge = network, list(seeds), may_diverge
        V = torch.zeros(len(seeds), 1, network.features + 1, dtype=torch.float64)
        self.register_buffer("V", V)

    def batches(self, X: Tensor, target: Tensor) -> Batches:
        """The training data of all networks.

        Args:
            X: ``(E, samples, n)``, states of the networks.
            target: ``(E, samples)``, classes 0 and 1.

        Returns:
            The same with weights of 1.

        Raises:
            HdnnError: the shapes do not fit.
        """
        expected = (len(self.seeds), target.shape[-1], self.V.shape[-1] - 1)
        if tuple(X.shape) != expected or target.shape != X.shape[:2] or not target.numel():
            raise HdnnError(
                f"an ensemble of {expected[0]} networks is trained on X (E, samples, n) and "
                f"classes (E, samples), got {tuple(X.shape)} and {tuple(target.shape)}"
            )
        return Batches(X, target, torch.ones(target.shape))

    @torch.no_grad()
    def fit_outputs(self, X: Tensor, target: Tensor, alpha_c: float) -> None:
        """Fit the output layers to all samples; that of a network which diverged stays.

        Args:
            X: ``(E, samples, n)``.
            target: ``(E, samples)``.
            alpha_c: weight decay.
        """
        Z = with_ones(self.network(X))
        solve_outputs(Z, target, self.V.numpy(), alpha_c, FINAL_ITERATIONS)


class EnsembleLoop(Loop):
    """Coordinate descent of an ensemble in compiled kernels.

    Args:
        model: trained in place.
        data: of its members.
        config: coordinate descent with Adam.

    Raises:
        HdnnError: the kernels know no such training.
    """

    def __init__(self, model: Ensemble, data: Batches, config: TrainingConfig) -> None:
        if config.method != "coordinate" or config.optimizer.lower() != "adam":
            raise HdnnError("an ensemble is trained with method='coordinate', optimizer='adam'")
        self.loss, self.observer = "logistic", None
        self.compiled = _CompiledEpochs(
            model.network,
            data.states,
            data.target.unsqueeze(-1),
            data.weight,
            config,
            outputs=1,
            loss=self.loss,
        )
        self.compiled.V = model.V.numpy()  # shared: what the kernel solves is the model's

    def epoch(self, order: Tensor, number: int) -> Epoch:
        return mean_of(self.compiled.epoch(order, number, self.observer))

    def state(self) -> dict[str, Tensor]:
        return self.compiled.state()

    def restore(self, state: dict[str, Tensor]) -> None:
        self.compiled.restore(state)


def mean_of(epochs: Sequence[Epoch]) -> Epoch:
    """The mean over the networks; not a number where one of them diverged."""
    accuracies = [epoch.accuracy for epoch in epochs if epoch.accuracy is not None]
    return Epoch(
        float(np.mean([epoch.loss for epoch in epochs])),
        float(np.mean([epoch.penalized for epoch in epochs])),
        float(np.mean(accuracies)) if accuracies else None,
    )


def solve_outputs(
    Z: np.ndarray, target: Tensor, V: np.ndarray, alpha_c: float, iterations: int
) -> None:
    """Fit output layers in place; that of a network which diverged stays.

    Args:
        Z: ``(E, samples, n + 1)``, outputs of the networks and a column of ones.
        target: ``(E, samples)``, classes.
        V: ``(E, 1, n + 1)``.
        alpha_c: weight decay.
        iterations: at most.
    """
    from hdnn.kernels import output_layer  # loads numba

    solve, count = output_layer.kernel("newton"), target.shape[1]
    weight, code = np.full(count, 1 / count), output_layer.LOGISTIC
    for e in range(len(V)):
        classes = np.ascontiguousarray(target[e].double().numpy()[:, None])
        if np.isfinite(Z[e]).all() and np.isfinite(V[e]).all():
            solve(Z[e], classes, weight, V[e], code, alpha_c, iterations, TOLERANCE)


def with_ones(states: Tensor) -> np.ndarray:
    """States in float64 and a column of ones, ``(E, samples, n + 1)``."""
    out = states.detach().double().numpy()
    return np.concatenate([out, np.ones((*out.shape[:2], 1))], axis=2)


# --- arrays ---------------------------------------------------------------------------------------


class _CompiledEpochs:
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
        seen = watched(observer, number * count, count)
        theta, beta = (
            t.detach().numpy().reshape(networks, *t.shape[-2:])
            for t in (self.weights.theta, self.weights.beta)
        )
        losses = np.full((networks, count, 3), np.nan)
        gradients = np.zeros((networks, count, theta.shape[1] if seen else 0))
        shots = [np.empty((networks, len(seen), *t.shape[1:]), t.dtype) for t in (theta, beta)]
        data = kernels.Data(self.X, self.targets, self.sample_weight, turns)
        first, second = self.moments
        trained = kernels.Trained(theta, beta, first, second, self.V)
        fixed = kernels.Fixed(self.steps, self.mixing, self.h, *self.repeats)
        told = kernels.Record(losses, gradients, np.array(seen, np.int64), *shots)
        options = self._options(number)

        def work(team: np.ndarray, caller: bool) -> None:
            room, taken = self._room(), self.taken
            kernel(data, trained, fixed, self.tables, options, told, room, taken, team, caller)

        if count:
            parallel_for(work, networks, thread_count())
        if observer is not None and seen:
            batches = [turns[:, i * size : (i + 1) * size] for i in seen]
            iterations = [number * count + i for i in seen]
            norms = gradients[:, seen]
            observer.after_compiled_epoch(
                Observations(iterations, batches, shots[0], shots[1], norms)
            )
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
