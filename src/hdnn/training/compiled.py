"""Training in compiled kernels, without autograd: whole epochs in a few calls.

Coordinate descent (of one network, or of an ensemble side by side) and joint descent (of one
network on a table, with its input projection and its head) are one kernel, see train.h.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hdnn.backends import choose, fused
from hdnn.config import TrainingConfig
from hdnn.fields.hamiltonian import WeightedField
from hdnn.kernels import native
from hdnn.models import Model, TableStem
from hdnn.networks import HamiltonianNetwork
from hdnn.training.loops import Epoch, Loop, Observer
from hdnn.training.output_solver import ITERATIONS, MOST_UNKNOWNS, TOLERANCE
from hdnn.training.samples import Samples

CALL_SECONDS = 0.05
"""Seconds of one call: as long as an interrupt may have to wait."""
STATE = ("first", "second", "adam_steps", "V")
"""What an epoch changes beside the weights: the moments and steps of Adam, the output layers."""


def obstacle(model: Model, data: Samples, config: TrainingConfig) -> str | None:
    """Why a model cannot be trained in kernels, or None."""
    joint, unknowns = config.method == "joint", sum(p.numel() for p in model.head.parameters())
    optimizers = ("Adam", "AdamW") if joint else ("Adam",)
    if config.optimizer not in optimizers:
        return f"the kernels know Adam{' and AdamW' if joint else ''}, not {config.optimizer}"
    if config.averaging:
        return "the kernels know no averaging"
    if not isinstance(model.stem, TableStem) or len(model.blocks) != 1:
        return "the model is no single network on a table"
    if not joint and any(p.requires_grad for p in model.stem.parameters()):
        return "the input projection is trained"
    if not joint and unknowns > MOST_UNKNOWNS:
        return f"an output layer of {unknowns} unknowns is solved better by a matrix library"
    network, field = model.network, model.network.field
    if not isinstance(field, WeightedField):
        return "the network has an energy of its own"
    if model.head.weight.device.type != "cpu":
        return f"the kernels run on the CPU, and the model is on {model.head.weight.device}"
    own = {id(p) for p in (field.weights.theta, field.weights.beta)}
    frozen = joint and not all(p.requires_grad for p in model.parameters())
    if frozen or {id(p) for p in network.parameters() if p.requires_grad} != own:
        return "other parameters than K and b are trained, or not all of them"
    batch = min(config.batch_size, len(data.states))
    states = data.states.new_empty((batch, model.head.in_features))
    choice = choose(network.program, network.values(), states, network.backend)
    return None if choice.in_stages else choice.reason


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
        data: Samples,
        config: TrainingConfig,
        *,
        outputs: int,
        loss: str,
    ) -> None:
        field, E, width = network.field, network.ensemble or 1, network.field.layout.width
        assert isinstance(field, WeightedField)
        self.network, self.parts, self.config, self.loss = network, list(parts), config, loss
        self.states = data.states.detach()
        X = np.ascontiguousarray(self.states.numpy())
        # A batch is at most all samples, and the kernel makes room for a whole one.
        self.batch = min(config.batch_size, X.shape[1])
        size = sum(p.numel() for p in parts) // E
        # In float64 whatever the network's precision: Newton needs it, and V is small.
        self.V = np.zeros((E, outputs, width + 1))
        zeros = [np.zeros((E, size), X.dtype) for _ in range(4)]
        self.parameters, self.first, self.second, self.gradients = zeros
        self.adam_steps = np.zeros(E, np.int64)
        joint = config.method == "joint"
        options = native.SolverOptions(config.solver, ITERATIONS, TOLERANCE, config.learning_rate)
        patterns = field.weights.pattern, field.weights.bias
        arrays = {
            "X": X,
            "target": np.ascontiguousarray(data.target.double().numpy()),
            "weight": np.ascontiguousarray(data.weight.double().numpy()),
            "smoothness": _smoothing_steps(network),
            "repeats": np.concatenate([p.repeats for p in patterns]),
            "parameters": self.parameters,
            "first": self.first,
            "second": self.second,
            "gradients": self.gradients,
            "V": self.V,
        }
        settings = {
            "coordinate": int(not joint),
            "loss": native.LOSSES.index(loss),
            "outputs": outputs,
            "inputs": X.shape[-1] if len(parts) > 4 else 0,
            "batch": self.batch,
            "count": X.shape[1],
            "shared_data": int(len(X) == 1),
            "decoupled": int(config.optimizer == "AdamW"),
            "alpha": config.alpha,
            "clip": config.clip or 0.0,
            "weight_decay": config.weight_decay if joint else 0.0,
            "output": options.with_penalty(config.alpha_c),
        }
        batch = self.states.new_empty((*network.field.layout.lead, self.batch, width))
        self.one_batch = batch
        plan = fused.locate(network.program, network.values(), batch).plan
        self.training = native.Training(plan, arrays, settings)
        # Calls grow from one step, as nobody knows before how long a step takes.
        self.most = 1

    def epoch(self, order: Tensor, number: int, observer: Observer | None = None) -> list[Epoch]:
        """One epoch of every network; ``order`` is ``(E or 1, samples)``.

        It is cut into calls of at most `CALL_SECONDS`, which changes no number; the first is as
        long as the last epoch's. An iteration that is observed is a call of its own. A network
        whose loss is not finite keeps its weights until the next epoch; its losses are NaN.
        """
        rows = np.ascontiguousarray(order.numpy())
        batches = -(-rows.shape[1] // self.batch)
        losses = np.full((len(self.parameters), batches, 3), np.nan)
        rates = [self.config.learning_rate_at(number + k / batches) for k in range(batches)]
        network = self.network
        located = fused.locate(network.program, network.values(), self.one_batch)
        self._read()
        lost: dict[int, list[np.ndarray]] = {}
        at = 0
        while at < batches:
            iteration, count = number * batches + at, min(self.most, batches - at)
            wait = count if observer is None else -iteration % observer.every
            count = min(count, wait or 1)
            if wait == 0:
                self._write()  # the observer sees the weights before the step
            start = time.perf_counter()
            losses[:, at : at + count] = self.training.run(
                located.addresses,
                rows,
                at,
                np.array(rates[at : at + count]),
                self.adam_steps,
                torch.get_num_threads(),
            )
            seconds = (time.perf_counter() - start) / count
            self._restore_lost(lost, losses[:, at : at + count])
            if observer is not None and wait == 0:
                self._show(observer, iteration, rows[:, at * self.batch : (at + 1) * self.batch])
            at += count
            # The last batch of an epoch may be a small one, whose time tells little.
            longest = 2 * self.most if at < batches else self.most
            self.most = max(1, min(longest, int(CALL_SECONDS / max(seconds, 1e-9))))
        self._write()
        return [self._summary(losses[e], rows.shape[1]) for e in range(len(losses))]

    def _restore_lost(self, lost: dict[int, list[np.ndarray]], losses: np.ndarray) -> None:
        """Undo what a call did to networks that were lost before it; note those lost in it.

        Within a call the kernel sees to that; how an epoch is cut into calls must not show.

        Args:
            lost: by network, its rows of all arrays; extended in place.
            losses: of the call.
        """
        arrays = (self.parameters, *(getattr(self, name) for name in STATE))
        for e, rows in lost.items():
            losses[e] = np.nan
            for array, row in zip(arrays, rows, strict=True):
                array[e] = row
        for e in np.flatnonzero(~np.isfinite(losses[:, :, 1]).all(1)).tolist():
            lost.setdefault(e, [array[e].copy() for array in arrays])

    def _show(self, observer: Observer, iteration: int, rows: np.ndarray) -> None:
        """Let the observer see an iteration: states of its batch, norms of its gradients."""
        E, layers = len(self.parameters), self.parts[0].shape[-2]
        # The gradients of theta and beta come first; both are stacks of layers.
        sizes = [part.numel() // E for part in self.parts[:2]]
        theta, beta, _ = np.split(self.gradients.astype(np.float64) ** 2, np.cumsum(sizes), 1)
        norms = np.sqrt(sum(g.reshape(E, layers, -1).sum(-1) for g in (theta, beta)))
        batch = torch.from_numpy(rows)
        states = torch.stack([self.states[e % len(self.states)][r] for e, r in enumerate(batch)])
        if self.network.ensemble is None:
            states, norms = states[0], norms[0]
        observer.observe(iteration, self.network, states, norms)

    @torch.no_grad()
    def _read(self) -> None:
        """The parameters, as they are now, into the rows of the kernel."""
        E = len(self.parameters)
        self.parameters[:] = torch.cat([p.reshape(E, -1) for p in self.parts], 1).numpy()

    @torch.no_grad()
    def _write(self) -> None:
        """The rows of the kernel into the parameters."""
        sizes = [p.numel() // len(self.parameters) for p in self.parts]
        columns = torch.from_numpy(self.parameters).split(sizes, 1)
        for part, rows in zip(self.parts, columns, strict=True):
            part.copy_(rows.reshape(part.shape))

    def _summary(self, losses: np.ndarray, samples: int) -> Epoch:
        plain, penalized, _ = losses.mean(0)
        accuracy = None if self.loss == "squared" else float(np.nansum(losses[:, 2])) / samples
        return Epoch(float(plain), float(penalized), accuracy)

    def state(self) -> dict[str, Tensor]:
        """Everything beside the parameters that the next epoch depends on."""
        return {name: torch.from_numpy(getattr(self, name)) for name in STATE}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go back to a state."""
        for name in STATE:
            getattr(self, name)[...] = state[name].numpy()


class CompiledLoop(Loop):
    """Coordinate or joint descent of one model for tables in compiled kernels."""

    def __init__(self, model: Model, data: Samples, config: TrainingConfig) -> None:
        super().__init__(model, data, config)
        field, head = model.network.field, model.head
        assert isinstance(field, WeightedField)
        self.joint = config.method == "joint"
        parts: list[Tensor] = [field.weights.theta, field.weights.beta]
        if self.joint:
            parts += [head.weight, head.bias, *model.stem.parameters()]
        target = data.target.reshape(1, len(data.target), -1)
        self.compiled = CompiledTraining(
            model.network,
            parts,
            Samples(data.states[None], target, data.weight[None]),
            config,
            outputs=head.out_features,
            loss=self.loss,
        )
        with torch.no_grad():
            self.compiled.V[0] = torch.cat([head.weight, head.bias[:, None]], 1).numpy()

    def epoch(self, order: Tensor, number: int) -> Epoch:
        (epoch,) = self.compiled.epoch(order[None], number, self.observer)
        if not self.joint:
            head, V = self.model.head, torch.from_numpy(self.compiled.V[0])
            with torch.no_grad():
                head.weight.copy_(V[:, :-1])
                head.bias.copy_(V[:, -1])
        return epoch

    def state(self) -> dict[str, Any]:
        return self.compiled.state()

    def restore(self, state: dict[str, Any]) -> None:
        self.compiled.restore(state)


def _smoothing_steps(network: HamiltonianNetwork) -> np.ndarray:
    """``(E, L)``: h_j as the smoothness penalty weighs them, 0 for networks without a step."""
    h, shape = network.h, (network.ensemble or 1, network.layers)
    if isinstance(h, Tensor):
        return np.ascontiguousarray(np.broadcast_to(h.detach().double().numpy(), shape))
    return np.full(shape, h if network.scheme.uses_step else 0.0)
