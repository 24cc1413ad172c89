"""The fused backend: programs of stages through compiled kernels on the CPU.

A block of samples is carried through all layers while it sits in the cache, and the backward pass
recomputes it there: nothing is saved but the input state and the parameters. (Calls that are small
enough keep their activations, see `hdnn.backends.activation_pool`.)

For small networks the time goes into what is around the kernels, so whatever depends on shapes and
strides only is found once and kept, in a `_CallShape`.
"""

from __future__ import annotations

import itertools
import math
import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hdnn._openmp import calm
from hdnn.backends.activation_pool import Lease, lend
from hdnn.backends.compiled_program import CompiledProgram, Inputs, compile_program, is_batched
from hdnn.backends.threads import Work, parallel_for, thread_count
from hdnn.fields.layout import Layout
from hdnn.kernels.build import aligned
from hdnn.kernels.jacobians import Extremes, jacobians_kernel
from hdnn.kernels.passes import Sums, Workspace, backward_kernel, forward_kernel
from hdnn.kernels.stage_table import Parameters
from hdnn.kernels.team import Team, new_team
from hdnn.kernels.tiling import Plan, plan
from hdnn.program import Program

SERIAL_FLOPS = 6e6
"""Work below which a second thread, which comes after 0.05 ms, is not worth it: about 0.2 ms."""

STEPS = 2  # the place of the steps among the inputs
SHAPES = 64  # shapes and strides of states that are remembered for a program

Array = np.ndarray

calm()


def run(program: Program, x: Tensor) -> Tensor:
    """The state after the last layer."""
    x, restore = program.layout.flatten(x)
    compiled = compile_program(program, x.dtype, x.device)
    out: Tensor = _apply(
        _unwrapped(x), compiled, torch.is_grad_enabled(), *compiled.inputs[: compiled.moving]
    )
    return restore(out)


def sensitivities(program: Program, x: Tensor) -> Tensor:
    """``(layers + 1, [E,] samples, n, n)``: d y_N / d y_l for every l, one backward sweep."""
    x, _ = program.layout.flatten(x.detach())
    compiled = compile_program(program, x.dtype, x.device)
    depths = np.arange(program.layers + 1)
    matrices = torch.from_numpy(jacobians(compiled, compiled.parameters(), _plain(x), depths))
    matrices = matrices.movedim(2, 0)
    return matrices.squeeze(1) if program.layout.ensemble is None else matrices


class _Fused(torch.autograd.Function):
    """y_N as a function of y_0 and the tensors of a program."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, compiled: CompiledProgram, graph: bool, *tensors: Tensor
    ) -> Tensor:
        ctx.call = call = Call(compiled, x)
        ctx.save_for_backward(x, *tensors)
        return call.forward(graph and True in ctx.needs_input_grad)

    @staticmethod
    def backward(ctx: Any, gout: Tensor) -> tuple[Tensor | None, ...]:
        call, (x, *tensors) = ctx.call, ctx.saved_tensors
        need_x, _, _, *needed = ctx.needs_input_grad
        batched = is_batched(gout)
        if not batched and not torch.is_grad_enabled():
            gx, grads = call.backward(gout, needed)
            return (gx if need_x else None, None, None, *grads)
        if call.compiled.parameters().mixing.tobytes() != call.parameters.mixing.tobytes():
            raise RuntimeError("J was modified by an inplace operation; go forward again")
        inputs = Inputs(*tensors, *call.compiled.inputs[len(needed) :])
        if batched:
            gx, *grads = call.compiled.vjp(x, inputs, gout)
        else:
            gx, *grads = call.compiled.gradients(x, inputs, gout, (need_x, *needed))
        return (gx, None, None, *grads[: len(needed)])


# `Function.apply` looks for transforms of torch.func, which `selection` has done, and for what they
# have left behind.
_apply = super(torch.autograd.Function, _Fused).apply
_unwrapped = torch._C._functorch.unwrap_if_dead


class _CallShape:
    """What all calls of a program on states of one shape, with the same strides, have in common.

    Attributes:
        shape: (E, groups, n, samples).
        strides: of such a state, in this order; `fresh`: of a new one like it.
        plan: how they are cut up; `chunks` in all.
        flops: operations forward.
        room: numbers of the rows that a thread loads.
        kept: numbers that the activations of a call take, 0 where they are recomputed.
        shapes: of the gradients of theta, beta, steps (for every network and layer) and dense (for
            every network); `ends`: where each begins and ends in one array, without and with steps.
    """

    def __init__(
        self, compiled: CompiledProgram, parameters: Parameters, x: Tensor, covectors: int = 1
    ) -> None:
        tables, layout = compiled.tables, compiled.program.layout
        layers = compiled.program.layers
        self.dtype = parameters.theta.dtype.name
        lead, rest = (1, x.shape) if layout.ensemble is None else (x.shape[0], x.shape[1:])
        self.shape = (lead, *rest) if layout.channels else (lead, 1, rest[1], rest[0])
        fresh = torch.empty_like(x, device="meta")
        self.strides, self.fresh = _strides(x, layout), _strides(fresh, layout)
        self.plan = plan(
            tables.table, self.shape, layers, x.element_size(), covectors, compiled.filling
        )
        self.flops = layers * compiled.flops * (x.numel() // layout.width)
        self.chunks = lead * self.plan.tiling.pieces
        self.room, keep = self.plan.window * tables.wire.size, self.plan.keep
        self.kept = lead * self.plan.blocks * keep + self.chunks * self.room if keep else 0
        theta, beta, steps, dense, _ = (array.shape for array in parameters)
        networks = theta[0]
        self.shapes = theta, beta, (networks, steps[0], layers), (networks, *dense[1:])
        self.ends = [
            list(itertools.accumulate(map(math.prod, sizes), initial=0))
            for sizes in ((theta, beta, (0,), self.shapes[3]), self.shapes)
        ]


class Call:
    """One program on one batch."""

    __slots__ = ("compiled", "lease", "parameters", "shape", "x")

    def __init__(self, compiled: CompiledProgram, x: Tensor) -> None:
        x = _plain(x)
        self.compiled, self.x, self.parameters = compiled, x, compiled.parameters()
        self.lease: Lease | None = None
        key = x.shape, x.stride()
        shape: _CallShape | None = compiled.shapes.get(key)
        if shape is None:
            if len(compiled.shapes) >= SHAPES:
                compiled.shapes.clear()
            shape = compiled.shapes[key] = _CallShape(compiled, self.parameters, x)
        self.shape = shape

    def _run(self, work: Work, factor: float) -> None:
        """Run a kernel over all chunks, on threads where there is work enough."""
        if factor * self.shape.flops < SERIAL_FLOPS:
            work(_room(self.shape)[0], True)
        else:
            parallel_for(work, self.shape.chunks, thread_count())

    def _workspace(self) -> tuple[Workspace, int]:
        """Room for this thread, and how much of it a block keeps for the way back."""
        workspace = _room(self.shape)[1]
        if self.lease is None:
            return workspace, 0
        grads, rows, loaded, _ = workspace
        return Workspace(grads, rows, loaded, self.lease.room.array), self.shape.plan.keep

    def forward(self, graph: bool) -> Tensor:
        """The state after the last layer; with `graph`, keep the activations if there is room."""
        shape, x, parameters, tables = self.shape, self.x, self.parameters, self.compiled.tables
        out = torch.empty_like(x)
        state, target = (x.data_ptr(), *shape.strides), (out.data_ptr(), *shape.fresh)
        self.lease = lend(shape.kept, shape.dtype) if graph else None
        kernel, tiling = forward_kernel(shape.dtype), shape.plan.tiling

        def work(team: Team, caller: bool) -> None:
            room = self._workspace()
            kernel(shape.shape, state, target, parameters, tables, tiling, *room, team, caller)

        self._run(work, 1.0)
        return out

    def backward(
        self, gout: Tensor, needed: list[bool]
    ) -> tuple[Tensor | None, list[Tensor | None]]:
        """The gradients of the state and, where needed, of the program's tensors."""
        if self.lease is None:
            return self._backward(gout, needed)
        with self.lease.room.lock:
            return self._backward(gout, needed)

    def _backward(
        self, gout: Tensor, needed: list[bool]
    ) -> tuple[Tensor | None, list[Tensor | None]]:
        compiled, shape, x = self.compiled, self.shape, self.x
        parameters, tables = self.parameters, compiled.tables
        gains, gout = len(needed) > STEPS and needed[STEPS], _plain(gout)
        gx, ends = torch.empty_like(x), shape.ends[gains]
        state, outgoing = (x.data_ptr(), *shape.strides), (gx.data_ptr(), *shape.fresh)
        incoming = (gout.data_ptr(), *_strides(gout, compiled.program.layout))
        totals = [
            torch.empty_like(t, memory_format=torch.contiguous_format)
            for t in compiled.inputs[:STEPS]
        ]
        for size in shape.shapes[STEPS : compiled.moving]:
            totals.append(x.new_empty(size))
        others = _others(shape, ends[-1])
        theta, beta, steps, dense = (*[t.data_ptr() for t in totals], 0, 0)[:4]
        sums = Sums(theta, beta, steps, dense, others)
        kernel, tiling = backward_kernel(shape.dtype), shape.plan.tiling

        def work(team: Team, caller: bool) -> None:
            workspace, keep = self._workspace()
            kernel(
                shape.shape,
                state,
                incoming,
                outgoing,
                sums,
                parameters,
                tables,
                tiling,
                workspace,
                keep,
                gains,
                team,
                caller,
            )

        self._run(work, 3.0)
        if tiling.pieces > 1:
            _add(others, ends, totals)
        grads = [part if want else None for part, want in zip(totals, needed, strict=True)]
        for k in range(STEPS, len(needed)):
            if needed[k]:
                whole = _summed(totals[k], k, parameters[k].shape)
                grads[k] = whole.reshape(compiled.inputs[k].shape)
        return gx, grads


def jacobians(compiled: CompiledProgram, parameters: Parameters, x: Tensor, depths: Array) -> Array:
    """``(E, samples, D, n, n)``: d y_N / d y_l at depths l of a canonical state."""
    shape = _CallShape(compiled, parameters, x, covectors=compiled.program.layout.width)
    networks, groups, n, samples = shape.shape
    out = np.empty((networks, groups * samples, len(depths), n, n), shape.dtype)
    states, wide = np.empty((0, 0, 0, 0), shape.dtype), [np.empty((0,) * d) for d in (3, 3, 2)]
    state, kernel = (x.data_ptr(), *shape.strides), jacobians_kernel(shape.dtype)
    outputs, tables = (depths, states, out, Extremes(*wide)), compiled.tables

    def work(team: Team, caller: bool) -> None:
        room, tiling = _room(shape)[1], shape.plan.tiling
        kernel(shape.shape, state, *outputs, parameters, tables, tiling, room, team, caller)

    threads = thread_count() if n * shape.flops >= SERIAL_FLOPS else 1
    parallel_for(work, shape.chunks, threads)
    return out


def profile(
    compiled: CompiledProgram, parameters: Parameters, X: Array, depths: Array
) -> tuple[Extremes, Array]:
    """Singular values of d y_N / d y_l of networks side by side, and y_l.

    Args:
        compiled: a program over features.
        parameters: of E networks.
        X: ``(E or 1, samples, n)``, in one piece.
        depths: l, ``(D,)``, increasing.

    Returns:
        Largest and smallest singular values ``(E, D, samples)`` and the norm of the mean of
        d y_N / d y_l over samples ``(E, D)``; y_l, ``(E, D, samples, n)``.
    """
    (samples, n), D, networks = X.shape[1:], len(depths), len(parameters.theta)
    shape, tables, dtype = (networks, 1, n, samples), compiled.tables, X.dtype.name
    cut = plan(tables.table, shape, tables.layers, X.itemsize, n, compiled.filling)
    tiling = cut.tiling._replace(pieces=1)  # a network has one mean
    state = (X.ctypes.data, 0 if len(X) == 1 else samples * n, 0, 1, n)
    states, matrices = np.empty((networks, D, samples, n), dtype), np.empty((0,) * 5, dtype)
    largest, smallest = np.empty((2, networks, D, samples))
    extremes = Extremes(largest, smallest, np.empty((networks, D)))
    outputs, kernel = (depths, states, matrices, extremes), jacobians_kernel(dtype)

    def work(team: Team, caller: bool) -> None:
        room = _new_workspace(cut, cut.window * tables.wire.size, dtype)
        kernel(shape, state, *outputs, parameters, tables, tiling, room, team, caller)

    parallel_for(work, networks, thread_count())
    return extremes, states


def _add(others: Array, ends: list[int], sums: list[Tensor]) -> None:
    """Add the partial gradients of all chunks but the first to those of the first, in turn."""
    for part, first, last in zip(sums, ends, ends[1:], strict=False):
        if last > first:
            total = part.view(-1).numpy()
            for other in others:
                total += other[first:last]


def _summed(grads: Tensor, place: int, shape: tuple[int, ...]) -> Tensor:
    """Gradients of every network and layer, summed over what these share."""
    if place == STEPS:  # (E, S, L)
        grads = grads.transpose(0, 1)
    shared = tuple(axis for axis, size in enumerate(shape) if size < grads.shape[axis])
    return grads.sum(shared, keepdim=True) if shared else grads


def _plain(x: Tensor) -> Tensor:
    return x.resolve_neg() if x.is_neg() else x


def _strides(x: Tensor, layout: Layout) -> tuple[int, ...]:
    """Of a canonical state, as (E, groups, n, samples)."""
    strides = x.stride()
    if layout.ensemble is None:
        strides = 0, *strides
    return strides if layout.channels else (strides[0], 0, strides[2], strides[1])


# --- room of a thread, kept from call to call: fresh pages are slow to touch ----------------------

_local = threading.local()


def _room(shape: _CallShape) -> tuple[Team, Workspace]:
    """A team of one, and the workspace of this thread."""
    cache = _local.__dict__
    of, room = cache.get("room", (None, None))
    if of is not shape:
        plan, dtype = shape.plan, shape.dtype
        workspace = Workspace(
            _scratch(shape.room, dtype, "grads"),
            _scratch(shape.room, dtype, "rows"),
            _scratch(2 + plan.tiling.slots, "int64", "loaded"),
            _scratch(plan.scratch, dtype, "scratch"),
        )
        room = new_team(shape.chunks), workspace
        cache["room"] = shape, room  # in one step: an exception may come before it or after it
    return room


def _new_workspace(plan: Plan, room: int, dtype: str) -> Workspace:
    sizes = 0, room, 2 + plan.tiling.slots, plan.scratch
    dtypes = dtype, dtype, "int64", dtype
    return Workspace(*map(aligned, sizes, dtypes))


def _others(shape: _CallShape, size: int) -> Array:
    """Partial gradients of all chunks of a network but the first."""
    pieces = shape.plan.tiling.pieces
    if pieces == 1:
        return _NONE[shape.dtype]
    return _scratch((pieces - 1) * size, shape.dtype, "others").reshape(pieces - 1, size)


_NONE = {dtype: np.empty((0, 0), dtype) for dtype in ("float32", "float64")}


def _scratch(length: int, dtype: str, purpose: str) -> Array:
    cache: dict[str, Array] = _local.__dict__
    key = purpose + dtype
    if key not in cache or cache[key].size < length:
        cache[key] = aligned(length, dtype)
    return cache[key][:length]
