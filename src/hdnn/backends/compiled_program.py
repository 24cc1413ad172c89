"""A program of stages as a few tensors and tables: what the backends compute with.

What can be differentiated is apart from what is fixed:

    theta  ([E,] L or 1, P)     parameters behind every W
    beta   ([E,] L or 1, Q)     parameters behind every b
    steps  (S, [E or 1,] L or 1)   the factor of every stage's gain
    dense  ([E,] L, D)          gains that are neither a factor nor factor * S W' with S constant

Backends that do not let autograd see the layers (`fused`, `checkpointed`) take these as their
inputs; `rebuild` makes the program of other values of them, for the reference. The tables say how
W, A and b of every stage follow from them (see `hdnn.kernels.stage_table`).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hdnn.backends import reference
from hdnn.backends.selection import ACTIVATIONS
from hdnn.errors import IncompatibleError
from hdnn.fields.patterns import Pattern
from hdnn.fields.weights import Block, Stack
from hdnn.kernels.stage_table import ADJOINT, AT_B, AT_W, DENSE, SCALAR, M, Parameters, StageTable
from hdnn.program import Adjoint, Program, Stage


class Inputs(NamedTuple):
    """The tensors of a program; the axis L has size 1 where layers share."""

    theta: Tensor
    beta: Tensor
    steps: Tensor
    dense: Tensor

    def of_layers(self, first: int, last: int) -> Inputs:
        """Those of a range of layers; what layers share stays whole."""
        rows = (self.theta, self.beta, self.dense)
        theta, beta, dense = (t if t.shape[-2] == 1 else t[..., first:last, :] for t in rows)
        steps = self.steps if self.steps.shape[-1] == 1 else self.steps[..., first:last]
        return Inputs(theta, beta, steps, dense)


class _Views(NamedTuple):
    """Arrays over the memory of tensors, and what they depend on."""

    places: tuple[object, ...]  # addresses and strides of theta and beta
    parameters: Parameters
    mixers: list[tuple[Tensor, int, np.ndarray, bytes]]  # every S: its address, view and entries


@dataclass(frozen=True)
class CompiledProgram:
    """A program taken apart.

    Args:
        program: the program itself.
        stages: its stages.
        kinds: the kind of gain of every stage.
        inputs: its tensors.
        tables: how W, A and b follow from them.
        moving: how many of the tensors, from the first, may want gradients.
        mixers: S of every adjoint gain.
        shapes: what the fused backend derives from it for states of one shape and strides.
    """

    program: Program
    stages: tuple[Stage, ...]
    kinds: tuple[int, ...]
    inputs: Inputs
    tables: StageTable
    moving: int
    mixers: tuple[Tensor, ...]
    shapes: dict[object, Any] = field(default_factory=dict, compare=False, repr=False)
    _views: list[_Views] = field(default_factory=list, compare=False, repr=False)

    @property  # not cached: in Python 3.11 that takes a lock, which a fork may find taken
    def flops(self) -> int:
        """Operations for a sample in a layer: products, and 20 for every activation."""
        _, r, _, w, m = self.tables.table[:, :5].T
        return int((2 * m * (r + w) + 20 * m).sum())

    def parameters(self) -> Parameters:
        """The tensors as numpy arrays over the same memory, kept while it is the same memory."""
        theta, beta = self.inputs[:2]  # the others are constants wherever a program is kept
        places = theta.data_ptr(), theta.stride(), beta.data_ptr(), beta.stride()
        if self._views and self._views[0].places == places:
            views = self._views[0]
            for S, place, array, entries in views.mixers:  # somebody may have written to one
                if S.data_ptr() != place or array.tobytes() != entries:
                    break
            else:
                return views.parameters
        self._views[:] = [_Views(places, self._arrays(), self._mixers())]
        return self._views[0].parameters

    def _mixers(self) -> list[tuple[Tensor, int, np.ndarray, bytes]]:
        mixers = [(S, S.data_ptr(), S.detach().numpy()) for S in self.mixers]
        return [(*one, one[-1].tobytes()) for one in mixers]

    def _arrays(self) -> Parameters:
        theta, beta, steps, dense = (t.detach().numpy() for t in self.inputs)
        if self.program.layout.ensemble is None:
            theta, beta, steps, dense = theta[None], beta[None], steps[:, None], dense[None]
        matrices = [S.detach().numpy() for S in self.mixers]
        parts = [_sparse(S.tobytes(), S.shape, S.dtype.name) for S in matrices]
        mixing = np.concatenate(parts) if parts else np.empty(0, theta.dtype)
        return Parameters(theta, beta, steps, dense, mixing)

    @property  # not cached: in Python 3.11 that takes a lock, which a fork may find taken
    def filling(self) -> float:
        """Operations that fill an entry of a row, on the average: S W' of a full S takes many."""
        count, at = 0, 0
        for row, kind in zip(self.tables.table, self.kinds, strict=True):
            if kind == ADJOINT:
                count += int((self.mixers[at] != 0).sum()) * int(row[M])
                at += 1
        return 1 + count / self.tables.wire.size

    def rebuild(self, inputs: Inputs, layers: int | None = None) -> Program:
        """The program of other values of the tensors, possibly with fewer layers."""
        layers = self.program.layers if layers is None else layers
        stages: list[Stage] = []
        dense_at = 0
        for s, (stage, kind) in enumerate(zip(self.stages, self.kinds, strict=True)):
            W, b = _patterns(self, s)
            step = inputs.steps[s].expand(*inputs.steps.shape[1:-1], layers)
            A: Tensor | Adjoint = step
            if kind == ADJOINT and isinstance(stage.A, Adjoint):
                A = Adjoint(step, stage.A.S)
            elif kind == DENSE:
                shape = stage.write[1] - stage.write[0], W.shape[0], *W.shape[2:]
                A = inputs.dense.expand(*inputs.dense.shape[:-2], layers, -1)[
                    ..., dense_at : dense_at + math.prod(shape)
                ].unflatten(-1, shape)
                dense_at += math.prod(shape)
            blocks = [_block(t, p, layers) for t, p in ((inputs.theta, W), (inputs.beta, b))]
            stages.append(replace(stage, W=blocks[0], b=blocks[1], A=A))
        return replace(self.program, layers=layers, steps=tuple(stages), memo={})

    def vjp(self, x: Tensor, inputs: Inputs, gout: Tensor) -> list[Tensor]:
        """The gradients of <gout, y_N> where gout is batched by vmap."""

        def function(x: Tensor, *tensors: Tensor) -> Tensor:
            return reference.run(self.rebuild(Inputs(*tensors)), x)

        return list(torch.func.vjp(function, x, *inputs)[1](gout))

    def gradients(
        self, x: Tensor, inputs: Inputs, gout: Tensor, needed: tuple[bool, ...]
    ) -> list[Tensor | None]:
        """The gradients of <gout, y_N> as a graph of their own, for differentiating twice."""
        # Aliases: the inputs may depend on each other, and each wants its own share only.
        aliases = [t.view_as(t) for t in (x, *inputs)]
        wanted = [t for t, need in zip(aliases, needed, strict=False) if need]
        out = reference.run(self.rebuild(Inputs(*aliases[1:])), aliases[0])
        grads = iter(torch.autograd.grad(out, wanted, gout, create_graph=True, allow_unused=True))
        return [next(grads) if need else None for need in needed[: len(aliases)]]


def is_batched(gout: Tensor) -> bool:
    """Whether torch.func.vmap batches an incoming gradient; the older vmap is an error."""
    if torch._C._functorch.is_legacy_batchedtensor(gout):
        raise IncompatibleError(
            "batched vector-Jacobian products (is_grads_batched=True, vectorize=True) see only "
            "plain torch; use backend='reference', or torch.func.jacrev"
        )
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(gout))


def _block(theta: Tensor, pattern: Pattern, layers: int) -> Block:
    index = torch.from_numpy(pattern.index).to(theta.device)
    sign = torch.from_numpy(pattern.sign).to(theta)
    return Block.whole(Stack(theta, pattern, layers, (index, sign)))


def _patterns(compiled: CompiledProgram, s: int) -> tuple[Pattern, Pattern]:
    """The patterns of a stage over the joined parameters, as in the wire."""
    row = compiled.tables.table[s]
    m, at_w, at_b = row[M], row[AT_W], row[AT_B]
    wire = compiled.tables.wire
    shape = compiled.stages[s].W.pattern.shape
    codes = wire[at_w : at_w + math.prod(shape)].reshape(shape)
    W = Pattern(codes, compiled.inputs.theta.shape[-1])
    return W, Pattern(wire[at_b : at_b + m], compiled.inputs.beta.shape[-1])


def compile_program(program: Program, dtype: torch.dtype, device: torch.device) -> CompiledProgram:
    """Take a program of stages apart; kept with the program where nothing is computed anew."""
    known: CompiledProgram | None = program.memo.get("compiled")
    if known is not None and known.inputs.steps.dtype == dtype:
        return known
    stages = program.stages
    assert stages is not None
    lead = 0 if program.layout.ensemble is None else 1
    kinds = tuple(_kind(stage, lead) for stage in stages)
    theta, W_offsets = _join([stage.W.stack for stage in stages])
    beta, b_offsets = _join([stage.b.stack for stage in stages])
    key = tuple(
        _StageKey(
            stage.read,
            stage.write,
            stage.W.pattern,
            W_offsets[s],
            stage.b.pattern,
            b_offsets[s],
            kinds[s],
            stage.carry,
        )
        for s, stage in enumerate(stages)
    )
    with torch.inference_mode(False):  # constants outlive the mode they are first made in
        steps = _steps(stages, kinds, lead, dtype, device)
        nothing = _constant((), (*(1,) * (lead + 1), 0), dtype, device)
    dense = [
        A.flatten(lead + 1)
        for stage, kind in zip(stages, kinds, strict=True)
        if kind == DENSE and isinstance(A := stage.gain(stage.W.tensor(), program.layout), Tensor)
    ]
    joined = torch.cat(dense, -1) if dense else nothing
    inputs = Inputs(theta, beta, steps, joined)
    moving = 4 if dense or steps.requires_grad else 2
    mixers = tuple(
        stage.A.S
        for stage, kind in zip(stages, kinds, strict=True)
        if kind == ADJOINT and isinstance(stage.A, Adjoint)
    )
    table, wire = _tables(key)
    activation = (
        ACTIVATIONS.index(name) if (name := stages[0].activation.name) in ACTIVATIONS else -1
    )
    tables = StageTable(table, wire, activation, program.layers)
    compiled = CompiledProgram(program, stages, kinds, inputs, tables, moving, mixers)
    if not dense and theta is stages[0].W.stack.theta and beta is stages[0].b.stack.theta:
        program.memo["compiled"] = compiled
    return compiled


def _kind(stage: Stage, lead: int) -> int:
    A = stage.A
    if isinstance(A, Adjoint):
        return ADJOINT if A.S.ndim == 2 and not A.S.requires_grad else DENSE
    return DENSE if isinstance(A, Tensor) and A.ndim >= lead + 3 else SCALAR


def _join(stacks: list[Stack]) -> tuple[Tensor, list[int]]:
    """The parameters of all stacks side by side, and where those of each begin."""
    begins: dict[int, int] = {}
    parts: list[Tensor] = []
    width = 0
    for stack in stacks:
        if id(stack.theta) not in begins:
            begins[id(stack.theta)] = width
            parts.append(stack.theta)
            width += stack.theta.shape[-1]
    offsets = [begins[id(stack.theta)] for stack in stacks]
    if len(parts) == 1:
        return parts[0], offsets
    rows = max(part.shape[-2] for part in parts)
    return torch.cat([part.expand(*part.shape[:-2], rows, -1) for part in parts], -1), offsets


def _steps(
    stages: tuple[Stage, ...],
    kinds: tuple[int, ...],
    lead: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    factors = []
    for stage, kind in zip(stages, kinds, strict=True):
        factor = stage.A.step if isinstance(stage.A, Adjoint) else stage.A
        factors.append(1.0 if kind == DENSE else factor)
    numbers = tuple(factor for factor in factors if isinstance(factor, float))
    if len(numbers) == len(factors):
        return _constant(numbers, (len(numbers), *(1,) * (lead + 1)), dtype, device)
    tensors = [
        factor if isinstance(factor, Tensor) else torch.tensor(factor, dtype=dtype, device=device)
        for factor in factors
    ]
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    return torch.stack([tensor.expand(shape) for tensor in tensors])


@functools.lru_cache(maxsize=512)
def _constant(
    numbers: tuple[float, ...], shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    return torch.tensor(numbers, dtype=dtype, device=device).reshape(shape)


class _StageKey(NamedTuple):
    """What the tables of a stage depend on."""

    read: tuple[int, int]
    write: tuple[int, int]
    W: Pattern
    W_offset: int  # of its parameters among the joined ones
    b: Pattern
    b_offset: int
    kind: int
    carry: int


@functools.lru_cache(maxsize=512)
def _tables(stages: tuple[_StageKey, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The table and the wire of stages, see `hdnn.kernels.stage_table.StageTable`."""
    rows, wires, at = [], [], 0
    for read, write, W, W_offset, b, b_offset, kind, carry in stages:
        m, r, w = W.shape[0], read[1] - read[0], write[1] - write[0]
        gains = 1 if kind == SCALAR else w * m * math.prod(W.shape[2:])
        at_w, at_a, at_b = at, at + W.code.size, at + W.code.size + gains
        codes = W.code.ravel(), np.zeros(gains, np.int64), b.code.ravel()
        offsets = W_offset, 0, b_offset
        parts = [c + np.sign(c) * offset for c, offset in zip(codes, offsets, strict=True)]
        runs = _run(parts[0]), _run(parts[2])
        rows.append((read[0], r, write[0], w, m, at_w, at_a, at_b, kind, carry, *runs))
        wires += parts
        at = at_b + m
    return np.array(rows, np.int64), np.concatenate(wires)


def _run(codes: np.ndarray) -> int:
    """The first of the parameters that the entries are in their own order, or -1."""
    straight = codes.size > 0 and codes[0] > 0 and bool((np.diff(codes) == 1).all())
    return int(codes[0]) - 1 if straight else -1


@functools.lru_cache(maxsize=64)
def _sparse(entries: bytes, shape: tuple[int, int], dtype: str) -> np.ndarray:
    """The `Parameters.mixing` of one matrix, by its bytes: a program is compiled many times."""
    rows: list[float] = []
    for row in np.frombuffer(entries, dtype).reshape(shape):
        columns = np.flatnonzero(row)
        rows.append(len(columns))
        for column in columns:
            rows += [float(column), float(row[column])]
    return np.array(rows, dtype)
