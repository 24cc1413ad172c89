"""The fused backend: programs of stages through numba kernels on the CPU.

A block of samples is carried through all layers while it sits in the cache, and the backward pass
recomputes it there: nothing is saved but the input state and the parameters.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hdnn.backends import kernels
from hdnn.backends.packing import Inputs, Packed, Wiring, is_batched, pack
from hdnn.backends.rows import M, R, W
from hdnn.backends.tapes import Tape, take
from hdnn.backends.threads import share, thread_count
from hdnn.fields.layout import Layout
from hdnn.program import Program

SERIAL_FLOPS = 6e6
"""Work below which a second thread, which comes after 0.05 ms, is not worth it: about 0.2 ms."""

STEPS = 2  # the place of the steps among the inputs
WAKING_FLOPS = 2e6
"""What a thread does while another wakes up: about 0.05 ms."""

Array = np.ndarray
_NUMPY = {torch.float32: "float32", torch.float64: "float64"}


def run(program: Program, x: Tensor) -> Tensor:
    """The state after the last layer."""
    x, restore = program.layout.flatten(x)
    packed = pack(program, x.dtype, x.device)
    out: Tensor = _Fused.apply(x, packed, torch.is_grad_enabled(), *packed.inputs[: packed.moving])
    return restore(out)


def sensitivities(program: Program, x: Tensor) -> Tensor:
    """``(layers + 1, [E,] samples, n, n)``: d y_N / d y_l for every l, one backward sweep."""
    x, _ = program.layout.flatten(x.detach())
    found = _Call(pack(program, x.dtype, x.device), x).sensitivities().movedim(2, 0)
    return found.squeeze(1) if program.layout.ensemble is None else found


class _Fused(torch.autograd.Function):
    """y_N as a function of y_0 and the tensors of a program."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Packed, graph: bool, *tensors: Tensor) -> Tensor:
        ctx.call = call = _Call(packed, x)
        # The matrices S are saved only so that torch notices if somebody writes to them.
        ctx.save_for_backward(x, *tensors, *packed.mixers)
        return call.forward(graph and True in ctx.needs_input_grad)

    @staticmethod
    def backward(ctx: Any, gout: Tensor) -> tuple[Tensor | None, ...]:
        call, (x, *tensors) = ctx.call, ctx.saved_tensors
        need_x, _, _, *needed = ctx.needs_input_grad
        batched = is_batched(gout)
        if not batched and not torch.is_grad_enabled():
            gx, *found = call.backward(gout, need_x, needed)
            return (gx, None, None, *found)
        inputs = Inputs(*tensors[: len(needed)], *call.packed.inputs[len(needed) :])
        if batched:
            gx, *found = call.packed.pull(x, inputs, gout)
        else:
            gx, *found = call.packed.gradients(x, inputs, gout, (need_x, *needed))
        return (gx, None, None, *found[: len(needed)])


class _Call:
    """One program on one batch: its arrays, and how the kernels cut them up."""

    def __init__(self, packed: Packed, x: Tensor) -> None:
        self.packed, self.wiring = packed, packed.wiring
        self.layout, layers = packed.program.layout, packed.program.layers
        self.number, self.shape = _NUMPY[x.dtype], x.shape
        self.state = _view(x, self.layout)
        self.plan, self.flops = _plan(self.wiring, self.state.shape, layers, x.element_size())
        self.arrays = packed.arrays()
        networks = self.state.shape[0]
        self.rows = np.empty((networks, layers, self.wiring.size), self.number)
        # Where a chunk is a whole network, threads also take parameters apart and together.
        self.own = networks > 1 and self.plan.pieces == 1
        self.tape: Tape | None = None

    def _assemble(self, first: int, last: int) -> None:
        """Pack the parameters of networks first <= e < last."""
        theta, beta, steps, dense = self._members(self.arrays[:4], first, last)
        wiring = self.wiring
        _kernel("assemble", self.number)(
            theta, beta, dense, steps, wiring.wire, self.arrays.mixing, wiring.table,
            self.rows[first:last],
        )  # fmt: skip

    def _disassemble(
        self, partial: Array, found: Sequence[Array], gains: bool, first: int, last: int
    ) -> None:
        """Carry the gradients of packed parameters back, for networks first <= e < last."""
        theta, beta, gsteps, dense = self._members(found, first, last)
        wiring, steps = self.wiring, self._members(self.arrays[:4], first, last)[2]
        _kernel("disassemble", self.number)(
            partial[:, first:last] if self.own else partial, self.rows[first:last], steps,
            wiring.wire, self.arrays.mixing, wiring.table, theta, beta, dense,
            gsteps if gains else _none(self.number),
        )  # fmt: skip

    def _members(self, arrays: Sequence[Array], first: int, last: int) -> Sequence[Array]:
        """The part of some networks; what all share stays whole."""
        if not self.own:
            return arrays
        theta, beta, steps, dense = arrays
        return (
            theta[first:last], beta[first:last],
            steps if steps.shape[1] == 1 else steps[:, first:last],
            dense if dense.shape[0] == 1 else dense[first:last],
        )  # fmt: skip

    def _share(self, work: Callable[[Array, int, int], None], factor: float) -> None:
        """Run a kernel over all chunks, on threads where there is work enough."""
        chunks = self.state.shape[0] * self.plan.pieces
        if factor * self.flops < SERIAL_FLOPS:
            work(self._room(), 0, chunks)
            return
        lead = chunks * WAKING_FLOPS / (factor * self.flops)
        share(lambda a, b: work(self._room(), a, b), chunks, thread_count(), lead)

    def _room(self) -> Array:
        """The tape, of which every block has its part, or scratch of this thread."""
        return _scratch(self.plan.scratch, self.number) if self.tape is None else self.tape.array

    def forward(self, graph: bool) -> Tensor:
        """The state after the last layer; with `graph`, on tape for `backward` if there is room."""
        plan, table, code = self.plan, self.wiring.table, self.packed.code
        out = np.empty(self.shape, self.number)
        kernel, target = _kernel("forward", self.number), _arranged(out, self.layout)
        if graph:
            self.tape = take(len(self.rows) * plan.blocks * plan.keep, self.number)
        keep = 0 if self.tape is None else plan.keep
        if not self.own:
            self._assemble(0, len(self.rows))

        def work(scratch: Array, first: int, last: int) -> None:
            if self.own:
                self._assemble(first, last)
            kernel(
                self.state, target, self.rows, table, scratch, code, plan.block, plan.pieces, keep,
                first, last,
            )  # fmt: skip

        self._share(work, 1.0)
        return torch.from_numpy(out)

    def backward(self, gout: Tensor, need_x: bool, needed: list[bool]) -> list[Tensor | None]:
        """The gradients of the state and of the program's tensors, where needed."""
        if self.tape is None:
            return self._backward(gout, need_x, needed)
        with self.tape.lock:
            return self._backward(gout, need_x, needed)

    def _backward(self, gout: Tensor, need_x: bool, needed: list[bool]) -> list[Tensor | None]:
        plan, table, code = self.plan, self.wiring.table, self.packed.code
        kernel, number = _kernel("backward", self.number), self.number
        shape = (plan.pieces, *self.rows.shape)
        partial = _scratch(math.prod(shape), number, "partial").reshape(shape)
        gx = np.empty(self.shape, number)
        incoming, outgoing = _view(gout, self.layout), _arranged(gx, self.layout)
        found = [np.empty(t.shape, number) for t in self.packed.inputs[: len(needed)]]
        # What is constant has no gradient; the kernel adds nothing to arrays without elements.
        arrays = (
            *(g.reshape(a.shape) for g, a in zip(found, self.arrays, strict=False)),
            *self.arrays[len(needed) : 4],
        )
        gains = len(needed) > STEPS and needed[STEPS]
        keep = 0 if self.tape is None else plan.keep
        # Gradients that networks share (of common steps) are summed by one thread.
        own = self.own and not gains

        def work(scratch: Array, first: int, last: int) -> None:
            kernel(
                self.state, incoming, outgoing, partial, self.rows, table, scratch, code, gains,
                plan.block, plan.segment, plan.slots, plan.pieces, keep, first, last,
            )  # fmt: skip
            if own:
                self._disassemble(partial, arrays, gains, first, last)

        self._share(work, 3.0)
        if not own:
            self._disassemble(partial, arrays, gains, 0, len(self.rows))
        return [
            torch.from_numpy(gx) if need_x else None,
            *(torch.from_numpy(g) if want else None for g, want in zip(found, needed, strict=True)),
        ]

    def sensitivities(self) -> Tensor:
        """``(E, samples, layers + 1, n, n)``: d y_N / d y_l."""
        kernel, table = _kernel("sensitivities", self.number), self.wiring.table
        networks, groups, n, samples = self.state.shape
        self._assemble(0, networks)
        layers = self.rows.shape[1]
        self.plan = plan = _plan(self.wiring, self.state.shape, layers, self.rows.itemsize, n)[0]
        out = np.empty((networks, groups * samples, layers + 1, n, n), self.number)
        self._share(
            lambda scratch, first, last: kernel(
                self.state, out, self.rows, table, scratch, self.packed.code, plan.block,
                plan.segment, plan.slots, plan.pieces, first, last,
            ),
            float(n),
        )  # fmt: skip
        return torch.from_numpy(out)


def _view(x: Tensor, layout: Layout) -> Array:
    return _arranged((x.resolve_neg() if x.is_neg() else x).detach().numpy(), layout)


def _arranged(array: Array, layout: Layout) -> Array:
    """A canonical state as ``(E, groups, n, samples)``, without a copy."""
    if layout.ensemble is None:
        array = array[None]
    return array if layout.channels else array.swapaxes(1, 2)[:, None]


@functools.lru_cache(maxsize=256)
def _plan(
    wiring: Wiring, shape: tuple[int, ...], layers: int, itemsize: int, pulled: int = 1
) -> tuple[kernels.Plan, float]:
    """How a call is cut up, and its operations: products, and 20 for every activation."""
    samples = shape[0] * shape[1] * shape[3]
    r, w, m = (wiring.table[:, column] for column in (R, W, M))
    flops = float(samples * layers * (2 * m * (r + w) + 20 * m).sum())
    return kernels.plan(wiring.table, shape, layers, itemsize, pulled), flops


_local = threading.local()


def _scratch(length: int, number: str, purpose: str = "block") -> Array:
    """Room of this thread for a purpose, kept from call to call: fresh pages are slow to touch."""
    kept: dict[str, Array] = _local.__dict__
    key = purpose + number
    if key not in kept or kept[key].size < length:
        kept[key] = kernels.aligned(length, np.dtype(number))
    return kept[key][:length]


@functools.cache
def _none(number: str) -> Array:
    return np.empty((0, 0, 0), number)


@functools.cache
def _kernel(name: str, number: str) -> Callable[..., None]:
    cached = Path(kernels.__file__).parent / "__pycache__"
    found = (path for form in (f"*.{name}-*.nbi", f"*._{name}-*.nbi") for path in cached.glob(form))
    if sys.stderr.isatty() and not any(found):
        sys.stderr.write(f"hdnn: compiling the kernel {name!r}, once for this machine ...\n")
    return kernels.kernel(name, number)
