"""Joint descent in compiled kernels: an epoch in a few calls, without autograd."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hdnn.backends import choose
from hdnn.backends.compiled_program import compile_program
from hdnn.backends.fused import SERIAL_FLOPS
from hdnn.backends.threads import parallel_for, thread_count
from hdnn.fields.hamiltonian import WeightedField
from hdnn.kernels.stage_table import DENSE
from hdnn.models import Model, TableStem
from hdnn.training.ensemble import repeats_of, smoothing_steps
from hdnn.training.group import SINGLE_PROCESS, Group
from hdnn.training.loops import Batches, Epoch, Loop, watched
from hdnn.training.objective import LOSSES
from hdnn.training.settings import TrainingConfig

OPTIMIZERS = ("adam", "adamw")
SLICE = 0.05
"""Seconds of one call: as long as an interrupt may have to wait."""


def joint_obstacle(
    model: Model, data: Batches, config: TrainingConfig, group: Group = SINGLE_PROCESS
) -> str | None:
    """Why joint descent cannot run in kernels, or None."""
    if config.optimizer.lower() not in OPTIMIZERS:
        return f"the kernels know Adam and AdamW, not {config.optimizer}"
    if model.head.weight.device.type != "cpu":
        return f"the kernels run on the CPU, and the model is on {model.head.weight.device}"
    if group.size > 1:
        return "several processes share the training"
    if config.averaging or config.label_smoothing:
        return "the kernels know no averaging and no label smoothing"
    if not isinstance(model.stem, TableStem) or len(model.stages.blocks) != 1:
        return "the model is no single network on a table"
    network, field = model.network, model.network.field
    if not isinstance(field, WeightedField):
        return "the network has an energy of its own"
    if {id(p) for p in model.parameters() if p.requires_grad} != {id(p) for p in _parts(model)}:
        return "other parameters than K and b are trained, or not all of them"
    states = data.states[: config.batch_size].new_empty(
        (min(config.batch_size, len(data)), model.head.in_features)
    )
    choice = choose(network.program(), states, network.backend)
    if choice.backend != "fused":
        return choice.reason
    compiled = compile_program(network.program(), data.states.dtype, data.states.device)
    if DENSE in compiled.kinds:
        return "the gains are neither numbers nor of the form h J K'"
    return None


def _parts(model: Model) -> list[Tensor]:
    """All weights, in the order of `hdnn.kernels.joint`."""
    field = model.network.field
    assert isinstance(field, WeightedField)
    parts = [field.weights.theta, field.weights.beta, model.head.weight, model.head.bias]
    return [*parts, *model.stem.parameters()]


class CompiledJointLoop(Loop):
    """As `JointLoop`, for one network on a table, with whole epochs in compiled kernels."""

    def __init__(self, model: Model, data: Batches, config: TrainingConfig) -> None:
        from hdnn.kernels import joint as kernels  # loads numba

        super().__init__(model, data, config)
        network = model.network
        compiled = compile_program(network.program(), data.states.dtype, data.states.device)
        self.number = "float32" if data.states.dtype == torch.float32 else "float64"
        self.tables, self.parts = compiled.tables, _parts(model)
        (layers, theta), (_, beta) = self.parts[0].shape[-2:], self.parts[1].shape[-2:]
        outputs, width = model.head.weight.shape
        projected = data.states.shape[1] if len(self.parts) > 4 else 0
        self.layout = kernels.Weights(layers, theta, beta, width, outputs, projected)
        self.inputs = np.ascontiguousarray(data.states.detach().numpy())
        self.target = np.ascontiguousarray(data.target.double().reshape(len(data), -1).numpy())
        self.weight = np.ascontiguousarray(data.weight.double().numpy())
        field = network.field
        assert isinstance(field, WeightedField)
        patterns = field.weights.pattern, field.weights.bias_pattern
        self.constants = kernels.Constants(
            compiled.inputs.steps.detach().numpy()[:, None],
            compiled.parameters().mixing,
            np.ascontiguousarray(smoothing_steps(network)[0]),
            *map(repeats_of, patterns),
        )
        size, batch = kernels.weights_size(self.layout), min(config.batch_size, len(data))
        self.moments = np.zeros((2, size), self.number)
        itemsize = self.inputs.itemsize
        self.gradients = np.zeros((kernels.chunk_count(batch, itemsize), size), self.number)
        self.taken = 0
        self.scratch = kernels.scratch_size(
            self.tables.table, network.layers, self.layout, kernels.block_size(batch, itemsize)
        )
        flops = network.layers * compiled.flops + 2 * width * (outputs + projected)
        self.threads = thread_count() if 3 * flops * batch >= SERIAL_FLOPS / 10 else 1
        self._local = threading.local()

    def epoch(self, order: Tensor, number: int) -> Epoch:
        from hdnn.kernels import joint as kernels
        from hdnn.kernels.barrier import new_progress

        config = self.config
        turns = np.ascontiguousarray(order.numpy())
        starts = np.arange(0, len(turns), config.batch_size)
        rates = [config.learning_rate_at(number + k / len(starts)) for k in range(len(starts))]
        samples = kernels.Samples(
            self.inputs,
            self.target,
            self.weight,
            turns,
            np.add.reduceat(self.weight[turns], starts),
            np.array(rates),
        )
        flat = torch.cat([p.detach().reshape(-1) for p in self.parts]).numpy()
        losses = np.full((len(starts), 3), np.nan)
        state = np.array((0, self.taken), np.int64)
        tallies = np.zeros((len(self.gradients), 2))
        first, second = self.moments
        shared = kernels.Shared(
            flat, first, second, self.gradients, tallies, losses, state, new_progress()
        )
        for count in self._slices(number, turns, flat, state):
            self._steps(samples, shared, count)
            if np.isnan(losses[state[0] - 1, 1]) or np.isinf(losses[state[0] - 1, 1]):
                losses[:, :2] = np.nan
                break
        self.taken = int(state[1])
        self._write_back(flat)
        plain, penalized, _ = losses.mean(0)
        accuracy = None if self.loss == "squared" else float(np.nansum(losses[:, 2])) / len(turns)
        return Epoch(float(plain), float(penalized), accuracy)

    def _slices(
        self, number: int, turns: np.ndarray, flat: np.ndarray, state: np.ndarray
    ) -> Iterator[int]:
        """How many steps to do next, until the epoch is over: so many as take `SLICE` seconds.

        An iteration that the observer looks at is a slice of its own.
        """
        size, observer = self.config.batch_size, self.observer
        batches, count = -(-len(turns) // size), 1
        while state[0] < batches:
            here, iteration = int(state[0]), number * batches + int(state[0])
            due = watched(observer, iteration, count)
            todo = min(count, batches - here, max(1, due[0]) if due else count)
            if due and due[0] == 0:
                self._write_back(flat)
                self._look(iteration, torch.from_numpy(turns[here * size : (here + 1) * size]))
            begin = time.perf_counter()
            yield todo
            seconds = (time.perf_counter() - begin) / todo
            count = max(1, min(2 * count, int(SLICE / max(seconds, 1e-9))))
            if due and due[0] == 0 and observer is not None:
                observer.after_gradients(self._gradient_norms())

    def _steps(self, samples: Any, shared: Any, count: int) -> None:
        """So many steps, in one call."""
        from hdnn.kernels import joint as kernels
        from hdnn.kernels.barrier import fail, new_progress

        config, kernel = self.config, kernels.joint_kernel(self.number)
        options = kernels.Options(
            LOSSES.index(self.loss),
            config.batch_size,
            int(config.optimizer.lower() == "adamw"),
            *config.betas,
            config.weight_decay,
            config.alpha,
            config.alpha_c,
            config.clip or 0.0,
        )
        progress = new_progress()
        given = samples, shared._replace(progress=progress), self.layout, self.constants

        def work(team: np.ndarray, caller: bool) -> None:
            try:
                kernel(*given, self.tables, options, self._room(), count, team, caller)
            except BaseException:
                fail(progress)  # else the caller would wait for a piece that never comes
                raise

        threads = min(self.threads, len(self.gradients))
        parallel_for(work, threads, threads)

    def _room(self) -> Any:
        """Room of this thread, kept from call to call: fresh pages are slow to touch."""
        from hdnn.kernels.build import aligned
        from hdnn.kernels.joint import Room

        if not hasattr(self._local, "room"):
            size = self.tables.layers * self.tables.wire.size
            self._local.room = Room(
                aligned(size, self.number),
                np.zeros(size, self.number),
                np.zeros(2, np.int64),
                aligned(self.scratch, self.number),
                np.empty(self.layout.outputs),
            )
        return self._local.room

    @torch.no_grad()
    def _write_back(self, flat: np.ndarray) -> None:
        """The weights into the model."""
        values = torch.from_numpy(flat).split([p.numel() for p in self.parts])
        for part, value in zip(self.parts, values, strict=True):
            part.copy_(value.reshape(part.shape))

    def _gradient_norms(self) -> np.ndarray:
        """Norms of the last gradient by layer, before it was clipped."""
        layers, theta, beta = self.layout[:3]
        g = self.gradients[0].astype(np.float64) ** 2
        middle, end = layers * theta, layers * (theta + beta)
        squares = g[:middle].reshape(layers, -1).sum(1) + g[middle:end].reshape(layers, -1).sum(1)
        return np.sqrt(squares)

    def state(self) -> dict[str, Tensor]:
        return {
            "moments": torch.from_numpy(self.moments.copy()),
            "taken": torch.tensor(self.taken),
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        self.moments[:] = state["moments"].numpy()
        self.taken = int(state["taken"])
