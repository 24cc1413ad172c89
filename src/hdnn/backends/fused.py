"""The fused backend: programs of stages through numba kernels on the CPU.

A block of samples is carried through all layers while it sits in the cache, and the backward pass
recomputes it there: nothing is saved but the input state and the parameters.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hdnn.backends import kernels
from hdnn.backends.packing import Inputs, Packed, Wiring, is_batched, pack
from hdnn.backends.rows import M, R, W
from hdnn.backends.selection import ACTIVATIONS
from hdnn.backends.threads import share, thread_count
from hdnn.fields.layout import Layout
from hdnn.program import Program

SERIAL_FLOPS = 1.5e7
"""Work below which a second thread costs more than it gives: about 0.5 ms."""

Array = np.ndarray
_NUMPY = {torch.float32: "float32", torch.float64: "float64"}


def run(program: Program, x: Tensor) -> Tensor:
    """The state after the last layer."""
    x, restore = program.layout.flatten(x)
    packed = pack(program, x.dtype, x.device)
    out: Tensor = _Fused.apply(x, *packed.inputs, packed)
    return restore(out)


def sensitivities(program: Program, x: Tensor) -> Tensor:
    """``(layers + 1, [E,] samples, n, n)``: d y_N / d y_l for every l, one backward sweep."""
    x, _ = program.layout.flatten(x.detach())
    packed = pack(program, x.dtype, x.device)
    found = _Call(packed, packed.inputs, x).sensitivities().movedim(2, 0)
    return found.squeeze(1) if program.layout.ensemble is None else found


class _Fused(torch.autograd.Function):
    """y_N as a function of y_0 and the tensors of a program."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, theta: Tensor, beta: Tensor, steps: Tensor, dense: Tensor,
        packed: Packed,
    ) -> Tensor:  # fmt: skip
        call = _Call(packed, Inputs(theta, beta, steps, dense), x)
        # The matrices S are saved only so that torch notices if somebody writes to them.
        ctx.save_for_backward(x, theta, beta, steps, dense, *packed.mixers())
        ctx.call = call
        return call.forward()

    @staticmethod
    def backward(ctx: Any, gout: Tensor) -> tuple[Tensor | None, ...]:
        x, *tensors = ctx.saved_tensors
        packed, inputs = ctx.call.packed, Inputs(*tensors[:4])
        if is_batched(gout):
            return (*packed.pull(x, inputs, gout), None)
        if torch.is_grad_enabled():
            return (*packed.gradients(x, inputs, gout, ctx.needs_input_grad), None)
        return (*ctx.call.backward(gout, ctx.needs_input_grad), None)


class _Call:
    """One program on one batch: its arrays, and how the kernels cut them up."""

    def __init__(self, packed: Packed, inputs: Inputs, x: Tensor) -> None:
        self.packed, self.inputs = packed, inputs
        self.layout, self.wiring = packed.program.layout, packed.wiring
        self.number, self.shape = _NUMPY[x.dtype], x.shape
        self.state = _view(x, self.layout)
        layers = packed.program.layers
        self.plan, self.flops = _plan(self.wiring, self.state.shape, layers, x.element_size())
        self.code = ACTIVATIONS.index(packed.stages[0].activation.name)
        self.mixing = mixing(packed)
        self.arrays = self._arrays([t.detach().numpy() for t in inputs])
        networks = self.state.shape[0]
        self.rows = np.empty((networks, layers, self.wiring.size), self.number)
        # Where a chunk is a whole network, threads also take parameters apart and together.
        self.own = networks > 1 and self.plan.pieces == 1

    def _assemble(self, first: int, last: int) -> None:
        """Pack the parameters of networks first <= e < last."""
        theta, beta, steps, dense = self._members(self.arrays, first, last)
        wiring = self.wiring
        _kernel("assemble", self.number)(
            theta, beta, dense, steps, wiring.wire, self.mixing, wiring.table,
            self.rows[first:last],
        )  # fmt: skip

    def _disassemble(
        self, partial: Array, found: tuple[Array, ...], gains: bool, first: int, last: int
    ) -> None:
        """Carry the gradients of packed parameters back, for networks first <= e < last."""
        theta, beta, gsteps, dense = self._members(found, first, last)
        wiring, steps = self.wiring, self._members(self.arrays, first, last)[2]
        _kernel("disassemble", self.number)(
            partial[:, first:last] if self.own else partial, self.rows[first:last], steps,
            wiring.wire, self.mixing, wiring.table, theta, beta, dense,
            gsteps if gains else _none(self.number),
        )  # fmt: skip

    def _members(self, arrays: tuple[Array, ...], first: int, last: int) -> tuple[Array, ...]:
        """The part of some networks; what all share stays whole."""
        if not self.own:
            return arrays
        theta, beta, steps, dense = arrays
        return (
            theta[first:last], beta[first:last],
            steps if steps.shape[1] == 1 else steps[:, first:last],
            dense if dense.shape[0] == 1 else dense[first:last],
        )  # fmt: skip

    def _arrays(self, arrays: list[Array]) -> tuple[Array, Array, Array, Array]:
        """Those of the program with an axis for the ensemble, of size 1 where there is none."""
        theta, beta, steps, dense = arrays
        if self.layout.ensemble is None:
            return theta[None], beta[None], steps[:, None], dense[None]
        return theta, beta, steps, dense

    def _share(self, work: Callable[[Array, int, int], None], factor: float) -> None:
        """Run a kernel over all chunks, on threads where there is work enough."""
        chunks = self.state.shape[0] * self.plan.pieces
        size, number = self.plan.scratch, self.number
        if factor * self.flops < SERIAL_FLOPS:
            work(_scratch(size, number), 0, chunks)
            return
        share(lambda a, b: work(_scratch(size, number), a, b), chunks, thread_count())

    def forward(self) -> Tensor:
        """The state after the last layer."""
        out = np.empty(self.shape, self.number)
        kernel, table, plan = _kernel("forward", self.number), self.wiring.table, self.plan
        target = _arranged(out, self.layout)
        if not self.own:
            self._assemble(0, len(self.rows))

        def work(scratch: Array, first: int, last: int) -> None:
            if self.own:
                self._assemble(first, last)
            kernel(
                self.state, target, self.rows, table, scratch, self.code, plan.block, plan.pieces,
                first, last,
            )  # fmt: skip

        self._share(work, 1.0)
        return torch.from_numpy(out)

    def backward(self, gout: Tensor, needed: tuple[bool, ...]) -> list[Tensor | None]:
        """The gradients of the state and of the program's tensors, where needed."""
        kernel, table, plan = _kernel("backward", self.number), self.wiring.table, self.plan
        shape = (plan.pieces, *self.rows.shape)
        partial = _scratch(math.prod(shape), self.number, "partial").reshape(shape)
        gx = np.empty(self.shape, self.number)
        incoming, outgoing = _view(gout, self.layout), _arranged(gx, self.layout)
        gains = needed[3]
        found = [np.empty(t.shape, self.number) for t in self.inputs]
        arrays = self._arrays(found)
        # Gradients that networks share (of common steps) are summed by one thread.
        own = self.own and not gains

        def work(scratch: Array, first: int, last: int) -> None:
            kernel(
                self.state, incoming, outgoing, partial, self.rows, table, scratch, self.code,
                gains, plan.block, plan.segment, plan.slots, plan.pieces, first, last,
            )  # fmt: skip
            if own:
                self._disassemble(partial, arrays, gains, first, last)

        self._share(work, 3.0)
        if not own:
            self._disassemble(partial, arrays, gains, 0, len(self.rows))
        return [
            torch.from_numpy(g) if want else None
            for g, want in zip((gx, *found), needed, strict=False)
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
                self.state, out, self.rows, table, scratch, self.code, plan.block, plan.segment,
                plan.slots, plan.pieces, first, last,
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


def mixing(packed: Packed) -> Array:
    """S of all adjoint gains, one after the other."""
    flat = [S.detach().reshape(-1) for S in packed.mixers()]
    if not flat:
        return _none(_NUMPY[packed.inputs.steps.dtype]).reshape(0)
    array: Array = (flat[0] if len(flat) == 1 else torch.cat(flat)).numpy()
    return array


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
