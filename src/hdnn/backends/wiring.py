"""How the stages of a layer follow from the parameters: tables of numbers that the kernels read.

A *row* is W, A and b of every stage of one layer, one after the other.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from hdnn.fields.patterns import Pattern

# Columns of the stage table: slices read and written, hidden width m, where W, A and b start in a
# row, kind of gain, c, and the first of the parameters that W and b are in their own order, or -1.
R0, R, W0, W, M, AT_W, AT_A, AT_B, GAIN, CARRY, RUN_W, RUN_B = range(12)
COLUMNS = 12

SCALAR, DENSE, ADJOINT = range(3)
"""Kinds of gain: A = a;  A given;  A = a S W' with a constant matrix S."""


@dataclass(frozen=True, eq=False)
class Wiring:
    """How the stages of a layer follow from the tensors; the same for every call of a network.

    Args:
        table: ``(S, 12)``, the columns above for every stage.
        wire: ``(size,)``, a signed parameter number for every entry of W and b in a packed row.
        size: length of a packed row: W, A and b of every stage.
    """

    table: np.ndarray
    wire: np.ndarray
    size: int

    @functools.cached_property
    def flops(self) -> int:
        """Operations for a sample in a layer: products, and 20 for every activation."""
        _, r, _, w, m = self.table[:, :5].T
        return int((2 * m * (r + w) + 20 * m).sum())


StageKey = tuple[tuple[int, int], tuple[int, int], Pattern, int, Pattern, int, int, int]


@functools.lru_cache(maxsize=512)
def wiring(stages: tuple[StageKey, ...]) -> Wiring:
    """The tables of stages: read, write, W, its offset, b, its offset, kind of gain, carry."""
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
    return Wiring(np.array(rows, np.int64), np.concatenate(wires), at)


@functools.lru_cache(maxsize=64)
def sparse(entries: bytes, shape: tuple[int, int], number: str) -> np.ndarray:
    """The `Arrays.mixing` of one matrix, by its bytes: a program is packed many times."""
    rows: list[float] = []
    for row in np.frombuffer(entries, number).reshape(shape):
        columns = np.flatnonzero(row)
        rows.append(len(columns))
        for column in columns:
            rows += [float(column), float(row[column])]
    return np.array(rows, number)


def _run(codes: np.ndarray) -> int:
    """The first of the parameters that the entries are in their own order, or -1."""
    straight = codes.size > 0 and codes[0] > 0 and bool((np.diff(codes) == 1).all())
    return int(codes[0]) - 1 if straight else -1
