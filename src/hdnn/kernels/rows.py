"""Assembled rows: W, A and b of every stage of a layer, filled from the parameters, and back.

A *row* holds W, A and b of every stage of one layer, one after the other, as matrices in row-major
order. Structure (a skew K, zero blocks, shared weights) is a matter of filling: the kernels that
multiply by rows see full matrices only. Rows are filled a few layers at a time, when a block of
samples gets there, so that no copy of all parameters is made. On the way back, gradients are
collected in rows of the same layout, and `scatter_gradients` adds them to those of the parameters.
"""

from typing import NamedTuple

import numpy as np
from numba import types

from hdnn.kernels.stage_table import (
    ADJOINT,
    AT_A,
    AT_B,
    AT_W,
    COLUMNS,
    DENSE,
    GAIN,
    RUN_B,
    RUN_W,
    SCALAR,
    M,
    Parameters,
    R,
    StageTable,
    W,
)
from hdnn.kernels.vectors import (
    Array,
    Pointer,
    cached_part,
    compiled,
    inlined,
    pointer,
    pointer_to,
)


class StridedView(NamedTuple):
    """The part of one network in an array (E, L, .).

    Entry k of a layer is data[start + layer * by_layer + k * by_entry].
    """

    data: Pointer
    start: int
    by_layer: int  # 0 where layers share
    by_entry: int


class RowSource(NamedTuple):
    """What the rows of one network are filled from: places in memory, see `source_of`."""

    theta: StridedView
    beta: StridedView
    steps: StridedView
    dense: StridedView
    mixing: Pointer
    wire: Pointer
    table: Pointer
    stages: int
    size: int
    layers: int


class Gradients(NamedTuple):
    """Where those of one network are added up: of theta, beta, steps (by stage) and dense."""

    theta: StridedView
    beta: StridedView
    steps: StridedView
    dense: StridedView


class Entries(NamedTuple):
    """Entries of a row that come from one stack: W of a stage, or b."""

    start: int
    length: int
    run: int  # the first of the parameters that they are in their own order, or -1


@compiled
def view_of(array: Array, e: int) -> StridedView:
    """The part of network e in (E, L, .); axes that all share have size 1."""
    return _view(array, e, 0, 1, 2)


@compiled
def _view(array: Array, e: int, networks: int, layers: int, entries: int) -> StridedView:
    """The same of an array whose axes are in another order."""
    strides, shape, size = array.strides, array.shape, array.itemsize
    start = e * strides[networks] // size if shape[networks] > 1 else 0
    by_layer = strides[layers] // size if shape[layers] > 1 else 0
    return StridedView(pointer(array), start, by_layer, strides[entries] // size)


@cached_part
def source_of(parameters: Parameters, stages: StageTable, e: int) -> RowSource:
    """What the rows of network e are filled from."""
    return RowSource(
        view_of(parameters.theta, e),
        view_of(parameters.beta, e),
        _view(parameters.steps, e, 1, 2, 0),
        view_of(parameters.dense, e),
        pointer(parameters.mixing),
        pointer(stages.wire),
        pointer(stages.table),
        stages.table.shape[0],
        stages.wire.size,
        stages.layers,
    )


@compiled
def extent(table: Array) -> tuple[int, int]:
    """The widest hidden layer, and how many numbers of a sample a layer keeps for going back."""
    hidden, activations = 0, 0
    for s in range(table.shape[0]):
        hidden = max(hidden, table[s, M])
        activations += table[s, R] + table[s, M]
    return hidden, activations


@cached_part
def assemble(source: RowSource, first: int, last: int, rows: Pointer) -> None:
    """Fill the rows of layers first <= layer < last.

    Entry k of W or b is +-theta[|wire[k]| - 1] (or beta), 0 where wire[k] = 0. A is a number of
    `steps`, or the next entries of `dense`, or a S W' with S next in `mixing`.
    """
    table, mixing, dense = source.table, source.mixing, source.dense
    workspace = _columns(source)
    columns = pointer_to(workspace.ctypes.data, rows)
    for layer in range(first, last):
        row, dense_at, mix = (layer - first) * source.size, 0, 0
        for s in range(source.stages):
            at = s * COLUMNS
            r, w, m = table[at + R], table[at + W], table[at + M]
            at_w, at_a = row + table[at + AT_W], row + table[at + AT_A]
            W_entries = Entries(table[at + AT_W], m * r, table[at + RUN_W])
            b_entries = Entries(table[at + AT_B], m, table[at + RUN_B])
            _gather(source.theta, layer, source.wire, W_entries, rows, row)
            _gather(source.beta, layer, source.wire, b_entries, rows, row)
            if table[at + GAIN] == DENSE:
                begin = dense.start + layer * dense.by_layer + dense_at * dense.by_entry
                for k in range(w * m):
                    rows[at_a + k] = dense.data[begin + k * dense.by_entry]
                dense_at += w * m
                continue
            a = _step(source.steps, layer, s)
            if table[at + GAIN] == SCALAR:
                rows[at_a] = a
                continue
            transposed = False  # whether `columns` has those of W yet
            for to in range(at_a, at_a + w * m, m):
                count = int(mixing[mix])
                mix += 1
                if count == 1:  # as in J1
                    k, factor = at_w + int(mixing[mix]), a * mixing[mix + 1]
                    for j in range(m):
                        rows[to + j] = factor * rows[k + j * r]
                    mix += 2
                    continue
                if not transposed:
                    for j in range(m):
                        for k in range(r):
                            columns[k * m + j] = rows[at_w + j * r + k]
                    transposed = True
                for j in range(m):
                    rows[to + j] = 0
                for _ in range(count):
                    _add(rows, to, columns, int(mixing[mix]) * m, m, a * mixing[mix + 1])
                    mix += 2
    workspace[0] = 0  # numba would free it after its last use, and `columns` is only an address


@inlined
def _columns(source: RowSource) -> Array:
    """Room for the columns of the largest W, one after the other."""
    size = 1
    for at in range(0, source.stages * COLUMNS, COLUMNS):
        if source.table[at + GAIN] == ADJOINT:
            size = max(size, source.table[at + M] * source.table[at + R])
    return np.empty(size)


@inlined
def _add(to: Pointer, start: int, what: Pointer, begin: int, count: int, factor: float) -> None:
    """to[start + j] += factor what[begin + j]: both in one piece, so in machine vectors."""
    for j in range(count):
        to[start + j] += factor * what[begin + j]


@inlined
def _step(steps: StridedView, layer: int, s: int) -> float:
    return steps.data[steps.start + layer * steps.by_layer + s * steps.by_entry]


@inlined
def _gather(
    stack: StridedView, layer: int, wire: Pointer, entries: Entries, rows: Pointer, row: int
) -> None:
    """Fill entries of the row at `row` from the parameters of a layer."""
    start, count, run = entries
    begin, by, data = stack.start + layer * stack.by_layer, stack.by_entry, stack.data
    if run >= 0:
        for k in range(count):
            rows[row + start + k] = data[begin + (run + k) * by]
        return
    for k in range(start, start + count):
        code = wire[k]
        if code > 0:
            rows[row + k] = data[begin + (code - 1) * by]
        elif code < 0:
            rows[row + k] = -data[begin - (code + 1) * by]
        else:
            rows[row + k] = 0


@inlined
def _scatter(
    grads: Pointer, row: int, wire: Pointer, entries: Entries, out: StridedView, layer: int
) -> None:
    """Add the gradients of entries of the row at `row` to those of the parameters of a layer."""
    start, count, run = entries
    begin, data = out.start + layer * out.by_layer, out.data
    if run >= 0:
        for k in range(count):
            data[begin + run + k] += grads[row + start + k]
        return
    for k in range(start, start + count):
        code = wire[k]
        if code > 0:
            data[begin + code - 1] += grads[row + k]
        elif code < 0:
            data[begin - code - 1] -= grads[row + k]


@cached_part
def scatter_gradients(
    source: RowSource,
    first: int,
    last: int,
    rows: Pointer,
    grads: Pointer,
    out: Gradients,
    gains: bool,
) -> None:
    """Add the gradients of rows first <= layer < last to those of the parameters; clears them.

    For A = a S W': dL/dW += a (dL/dA)' S and dL/da = <dL/dA, S W'>, the latter if `gains`. Layers
    that share parameters add up.
    """
    table, mixing, steps, dense = source.table, source.mixing, out.steps, out.dense
    workspace = _columns(source)
    columns = pointer_to(workspace.ctypes.data, rows)
    for layer in range(first, last):
        row, dense_at, mix = (layer - first) * source.size, 0, 0
        for s in range(source.stages):
            at = s * COLUMNS
            r, w, m = table[at + R], table[at + W], table[at + M]
            at_w, at_a = row + table[at + AT_W], row + table[at + AT_A]
            of_step = rows[row] * 0
            if table[at + GAIN] == DENSE:
                begin = dense.start + layer * dense.by_layer + dense_at
                for k in range(w * m):
                    dense.data[begin + k] += grads[at_a + k]
                dense_at += w * m
            elif table[at + GAIN] == SCALAR:
                of_step = grads[at_a]
            else:
                a = _step(source.steps, layer, s)
                many = False  # whether `columns` has part of the gradient of W
                for of in range(at_a, at_a + w * m, m):
                    count = int(mixing[mix])
                    mix += 1
                    if count > 1 and not many:
                        for k in range(m * r):
                            columns[k] = 0
                        many = True
                    for _ in range(count):
                        column, factor = int(mixing[mix]), mixing[mix + 1]
                        mix += 2
                        if gains:
                            for j in range(m):
                                of_step += factor * grads[of + j] * rows[at_w + j * r + column]
                        if count > 1:
                            _add(columns, column * m, grads, of, m, a * factor)
                            continue
                        for j in range(m):
                            grads[at_w + j * r + column] += a * factor * grads[of + j]
                if many:
                    for j in range(m):
                        for k in range(r):
                            grads[at_w + j * r + k] += columns[k * m + j]
            if gains:
                steps.data[steps.start + layer * steps.by_layer + s * steps.by_entry] += of_step
            W_entries = Entries(table[at + AT_W], m * r, table[at + RUN_W])
            b_entries = Entries(table[at + AT_B], m, table[at + RUN_B])
            _scatter(grads, row, source.wire, W_entries, out.theta, layer)
            _scatter(grads, row, source.wire, b_entries, out.beta, layer)
        for k in range(row, row + source.size):
            grads[k] = 0
    workspace[0] = 0  # as in `assemble`


def scatter_types(number: types.Float) -> tuple[types.Type, ...]:
    """Of the arguments of `scatter_gradients`."""
    integer, place, codes = types.int64, types.CPointer(number), types.CPointer(types.int64)

    def named(kind: type, *members: types.Type) -> types.Type:
        return types.BaseTuple.from_types(members, kind)

    view = named(StridedView, place, integer, integer, integer)
    source = named(RowSource, *(view,) * 4, place, codes, codes, integer, integer, integer)
    gradients = named(Gradients, *(view,) * 4)
    return source, integer, integer, place, place, gradients, types.boolean
