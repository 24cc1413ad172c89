"""The fused backend: programs of stages through numba kernels on the CPU.

A block of samples is carried through all layers while it sits in the cache, and the backward pass
recomputes it there: nothing is saved but the input state and the parameters. (Calls that are small
enough keep their activations on a tape, see `hdnn.backends.tapes`.)

For small networks the time goes into what is around the kernels, so whatever depends on shapes and
strides only is found once and kept, in a `_Form`.
"""

from __future__ import annotations

import functools
import itertools
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
from hdnn.backends.packing import Arrays, Inputs, Packed, is_batched, pack
from hdnn.backends.tapes import Tape, take
from hdnn.backends.team import new_team
from hdnn.backends.threads import Work, parallel_for, thread_count
from hdnn.fields.layout import Layout
from hdnn.program import Program

SERIAL_FLOPS = 6e6
"""Work below which a second thread, which comes after 0.05 ms, is not worth it: about 0.2 ms."""

STEPS = 2  # the place of the steps among the inputs
FORMS = 64  # shapes and strides of states that are remembered for a program

Array = np.ndarray


def run(program: Program, x: Tensor) -> Tensor:
    """The state after the last layer."""
    x, restore = program.layout.flatten(x)
    packed = pack(program, x.dtype, x.device)
    out: Tensor = _apply(
        _unwrapped(x), packed, torch.is_grad_enabled(), *packed.inputs[: packed.moving]
    )
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
        ctx.save_for_backward(x, *tensors)
        return call.forward(graph and True in ctx.needs_input_grad)

    @staticmethod
    def backward(ctx: Any, gout: Tensor) -> tuple[Tensor | None, ...]:
        call, (x, *tensors) = ctx.call, ctx.saved_tensors
        need_x, _, _, *needed = ctx.needs_input_grad
        batched = is_batched(gout)
        if not batched and not torch.is_grad_enabled():
            gx, found = call.backward(gout, needed)
            return (gx if need_x else None, None, None, *found)
        if call.packed.arrays().mixing.tobytes() != call.arrays.mixing.tobytes():
            raise RuntimeError("J was modified by an inplace operation; go forward again")
        inputs = Inputs(*tensors, *call.packed.inputs[len(needed) :])
        if batched:
            gx, *found = call.packed.pull(x, inputs, gout)
        else:
            gx, *found = call.packed.gradients(x, inputs, gout, (need_x, *needed))
        return (gx, None, None, *found[: len(needed)])


# `Function.apply` looks for transforms of torch.func, which `selection` has done, and for what they
# have left behind.
_apply = super(torch.autograd.Function, _Fused).apply
_unwrapped = torch._C._functorch.unwrap_if_dead


class _Form:
    """What all calls of a program on states of one shape, with the same strides, have in common.

    Attributes:
        shape: (E, groups, n, samples).
        strides: of such a state, in this order; `fresh`: of a new one like it.
        plan: how they are cut up; `chunks` in all.
        flops: operations forward.
        room: elements of the rows that a thread holds.
        tape: elements of a tape.
        shapes: of the gradients of theta, beta, steps (for every network and layer) and dense (for
            every network); `ends`: where each begins and ends in one array, without and with steps.
        constants: what every kernel is told, after the arrays of the parameters.
    """

    def __init__(self, packed: Packed, arrays: Arrays, x: Tensor, covectors: int = 1) -> None:
        wiring, layers, layout = packed.wiring, packed.program.layers, packed.program.layout
        self.dtype, self.number = arrays.theta.dtype, arrays.theta.dtype.name
        lead, rest = (1, x.shape) if layout.ensemble is None else (x.shape[0], x.shape[1:])
        self.shape = (lead, *rest) if layout.channels else (lead, 1, rest[1], rest[0])
        fresh = torch.empty_like(x, device="meta")
        self.strides, self.fresh = _strides(x, layout), _strides(fresh, layout)
        self.plan = plan = _plan(
            wiring, self.shape, layers, x.element_size(), covectors, packed.filling
        )
        self.flops = layers * wiring.flops * (x.numel() // layout.width)
        self.chunks, self.room = lead * plan.pieces, plan.window * wiring.size
        self.tape = lead * plan.blocks * plan.keep + self.chunks * self.room if plan.keep else 0
        theta, beta, steps, dense, _ = (array.shape for array in arrays)
        networks = theta[0]
        self.shapes = theta, beta, (networks, steps[0], layers), (networks, *dense[1:])
        self.ends = [
            list(itertools.accumulate(map(math.prod, sizes), initial=0))
            for sizes in ((theta, beta, (0,), self.shapes[3]), self.shapes)
        ]
        self.constants = (
            wiring.wire, wiring.table, packed.code, layers, plan.block, plan.segment, plan.slots,
            plan.pieces,
        )  # fmt: skip


class _Call:
    """One program on one batch: its arrays, and the room that its kernels need."""

    __slots__ = ("arrays", "form", "packed", "tape", "x")

    def __init__(self, packed: Packed, x: Tensor) -> None:
        self.tape, x = None, _plain(x)
        self.packed, self.x, self.arrays = packed, x, packed.arrays()
        key = x.shape, x.stride()
        form: _Form | None = packed.forms.get(key)
        if form is None:
            if len(packed.forms) >= FORMS:
                packed.forms.clear()
            form = packed.forms[key] = _Form(packed, self.arrays, x)
        self.form = form

    tape: Tape | None

    def _run(self, work: Work, factor: float) -> None:
        """Run a kernel over all chunks, on threads where there is work enough."""
        if factor * self.form.flops < SERIAL_FLOPS:
            work(_room(self.form)[0], True)
        else:
            parallel_for(work, self.form.chunks, thread_count())

    def forward(self, graph: bool) -> Tensor:
        """The state after the last layer; with `graph`, on tape for `backward` if there is room."""
        form, x, arrays = self.form, self.x, self.arrays
        out = torch.empty_like(x)
        state, target = (x.data_ptr(), *form.strides), (out.data_ptr(), *form.fresh)
        self.tape = tape = take(form.tape, form.number) if graph else None
        kernel, keep = _kernel("forward", form.number), 0 if tape is None else form.plan.keep

        def work(team: Array, caller: bool) -> None:
            _, _, rows, marks, scratch = _room(form)
            kernel(
                form.shape, state, target, *arrays, *form.constants, rows, marks,
                scratch if tape is None else tape.room.array, keep, team, caller,
            )  # fmt: skip

        self._run(work, 1.0)
        return out

    def backward(
        self, gout: Tensor, needed: list[bool]
    ) -> tuple[Tensor | None, list[Tensor | None]]:
        """The gradients of the state and, where needed, of the program's tensors."""
        if self.tape is None:
            return self._backward(gout, needed)
        with self.tape.room.lock:
            return self._backward(gout, needed)

    def _backward(
        self, gout: Tensor, needed: list[bool]
    ) -> tuple[Tensor | None, list[Tensor | None]]:
        packed, form, x, arrays, tape = self.packed, self.form, self.x, self.arrays, self.tape
        gains, gout = len(needed) > STEPS and needed[STEPS], _plain(gout)
        gx, ends = torch.empty_like(x), form.ends[gains]
        state, outgoing = (x.data_ptr(), *form.strides), (gx.data_ptr(), *form.fresh)
        incoming = (gout.data_ptr(), *_strides(gout, packed.program.layout))
        # The first chunk of every network adds to `sums`, the others to `others`.
        sums = [
            torch.empty_like(t, memory_format=torch.contiguous_format)
            for t in packed.inputs[:STEPS]
        ]
        for shape in form.shapes[STEPS : packed.moving]:
            sums.append(x.new_empty(shape))
        places, others = (*[t.data_ptr() for t in sums], 0, 0)[:4], _others(form, ends[-1])
        kernel, keep = _kernel("backward", form.number), 0 if tape is None else form.plan.keep

        def work(team: Array, caller: bool) -> None:
            _, grads, rows, marks, scratch = _room(form)
            kernel(
                form.shape, state, incoming, outgoing, places, others, grads, *arrays,
                *form.constants, rows, marks, scratch if tape is None else tape.room.array, keep,
                gains, team, caller,
            )  # fmt: skip

        self._run(work, 3.0)
        if form.plan.pieces > 1:
            _add(others, ends, sums)
        found = [part if want else None for part, want in zip(sums, needed, strict=True)]
        for k in range(STEPS, len(needed)):
            if needed[k]:
                found[k] = _summed(sums[k], k, arrays[k].shape).reshape(packed.inputs[k].shape)
        return gx, found

    def sensitivities(self) -> Tensor:
        """``(E, samples, layers + 1, n, n)``: d y_N / d y_l."""
        packed, arrays, layout = self.packed, self.arrays, self.packed.program.layout
        self.form = form = _Form(packed, arrays, self.x, covectors=layout.width)
        (networks, groups, n, samples), layers = form.shape, packed.program.layers
        state = self.x.data_ptr(), *form.strides
        out = np.empty((networks, groups * samples, layers + 1, n, n), form.dtype)
        kernel = _kernel("sensitivities", form.number)

        def work(team: Array, caller: bool) -> None:
            kernel(
                form.shape, state, out, *arrays, *form.constants, *_room(form)[2:], team, caller,
            )  # fmt: skip

        self._run(work, float(n))
        return torch.from_numpy(out)


def _add(others: Array, ends: list[int], sums: list[Tensor]) -> None:
    """Add the partial gradients of all chunks but the first to those of the first, in turn."""
    for part, first, last in zip(sums, ends, ends[1:], strict=False):
        if last > first:
            total = part.view(-1).numpy()
            for other in others:
                total += other[first:last]


def _summed(found: Tensor, place: int, shape: tuple[int, ...]) -> Tensor:
    """Gradients of every network and layer, summed over what these share."""
    if place == STEPS:  # (E, S, L)
        found = found.transpose(0, 1)
    shared = tuple(axis for axis, size in enumerate(shape) if size < found.shape[axis])
    return found.sum(shared, keepdim=True) if shared else found


def _plain(x: Tensor) -> Tensor:
    return x.resolve_neg() if x.is_neg() else x


def _strides(x: Tensor, layout: Layout) -> tuple[int, ...]:
    """Of a canonical state, as (E, groups, n, samples)."""
    strides = x.stride()
    if layout.ensemble is None:
        strides = 0, *strides
    return strides if layout.channels else (strides[0], 0, strides[2], strides[1])


@functools.lru_cache(maxsize=256)
def _plan(wiring: Any, *rest: Any) -> kernels.Plan:
    return kernels.plan(wiring.table, *rest)


# --- room of a thread, kept from call to call: fresh pages are slow to touch ----------------------

_local = threading.local()


def _room(form: _Form) -> tuple[Array, Array, Array, Array, Array]:
    """A team of one; gradients of rows, rows, marks and scratch."""
    kept = _local.__dict__
    of, room = kept.get("room", (None, None))
    if of is not form:
        plan, number = form.plan, form.number
        room = (
            new_team(form.chunks),
            _scratch(form.room, number, "grads"),
            _scratch(form.room, number, "rows"),
            _scratch(2 + plan.slots, "int64", "marks"),
            _scratch(plan.scratch, number, "block"),
        )
        kept["room"] = form, room  # in one step: an exception may come before it or after it
    return room


def _others(form: _Form, size: int) -> Array:
    """Partial gradients of all chunks of a network but the first."""
    pieces = form.plan.pieces
    if pieces == 1:
        return _NONE[form.number]
    return _scratch((pieces - 1) * size, form.number, "others").reshape(pieces - 1, size)


_NONE = {number: np.empty((0, 0), number) for number in ("float32", "float64")}


def _scratch(length: int, number: str, purpose: str) -> Array:
    kept: dict[str, Array] = _local.__dict__
    key = purpose + number
    if key not in kept or kept[key].size < length:
        kept[key] = kernels.aligned(length, number)
    return kept[key][:length]


@functools.cache
def _kernel(name: str, number: str) -> Callable[..., None]:
    cached = Path(kernels.__file__).parent / "__pycache__"
    found = (path for form in (f"*.{name}-*.nbi", f"*._{name}-*.nbi") for path in cached.glob(form))
    if sys.stderr.isatty() and not any(found):
        sys.stderr.write(f"hdnn: compiling the kernel {name!r}, once for this machine ...\n")
    return kernels.kernel(name, number)
