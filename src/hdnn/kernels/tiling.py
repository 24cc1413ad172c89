"""How a call is cut into blocks, segments and chunks: by shapes only, never by the threads.

A *block* is as many samples as go through the layers together; a *segment* as many layers as keep
their activations at once on the way back; a *chunk* is a run of blocks, and what a thread takes at
a time. Partial gradients are added up chunk by chunk, so that the same shapes give the same bits.
"""

import math
from typing import NamedTuple

import numpy as np

from hdnn.kernels.stage_table import AT_B, M, R
from hdnn.kernels.vectors import VECTOR_BYTES

BUDGET = 512 * 1024  # bytes of scratch a thread, whatever the depth
WINDOW = 64 * 1024  # bytes of rows up to which a thread holds those of all layers at once
PARTIAL = 512 * 1024  # bytes of partial gradients, where those of one chunk take no more
CHUNKS = 16  # enough to share among threads, few enough that adding partial gradients costs nothing


class Tiling(NamedTuple):
    """What kernels need to know of it."""

    block: int  # samples that go through the layers together
    segment: int  # layers whose activations are kept at once while going back
    slots: int  # block states kept to restart from
    pieces: int  # chunks of a network; chunks in all: networks * pieces


class Plan(NamedTuple):
    """How one call is cut up, and the memory that it takes."""

    tiling: Tiling
    window: int  # layers whose rows are loaded at once: all, or a segment
    scratch: int  # numbers of scratch that a thread needs
    blocks: int  # blocks of a network
    keep: int  # numbers that keep all activations of a block, 0 where its scratch does not


def plan(
    table: np.ndarray,
    shape: tuple[int, ...],
    layers: int,
    itemsize: int,
    covectors: int = 1,
    filling: float = 1.0,
) -> Plan:
    """Choose blocks, segments and chunks.

    Args:
        table: the stages, see `hdnn.kernels.stage_table`.
        shape: of a state, (E, groups, n, samples).
        layers: how many.
        itemsize: bytes of a number.
        covectors: how many are carried back: 1 for gradients, n for Jacobians.
        filling: operations that fill an entry of a row: the more, the less often it is done.
    """
    networks, groups, n, samples = shape
    lanes = 2 * VECTOR_BYTES // itemsize
    per_layer = int((table[:, R] + table[:, M]).sum())  # rows kept per layer
    fixed = (1 + covectors) * n + int(table[:, M].max())  # x, covectors, one stage's hidden rows
    deep = max(
        1, math.isqrt(layers * n // per_layer)
    )  # segments and saved states smallest together
    # Best first: all activations at once, also with a smaller block; else save states, and go
    # forward twice.
    for vectors, segment in ((4, layers), (2, layers), (3, deep), (2, deep), (1, deep)):
        block = min(vectors, -(-samples // lanes)) * lanes
        slots = -(-layers // segment)
        if (fixed + segment * per_layer + slots * n) * block * itemsize <= BUDGET:
            break
    else:  # deeper still: fewer saved states than segments, more passes (or n is very large)
        rows = BUDGET // (itemsize * block) - fixed
        segment = max(1, rows // 2 // per_layer)
        slots = min(-(-layers // segment), max(8, (rows - segment * per_layer) // n))
    size = int((table[:, AT_B] + table[:, M]).max())
    window = layers if layers * size * itemsize <= WINDOW * filling else segment
    parameters = int((table[:, M] * (table[:, R] + 1)).sum()) * layers * networks * itemsize
    blocks = groups * -(-samples // block)
    pieces = min(blocks, -(-CHUNKS // networks), 1 + max(1, PARTIAL // parameters))
    scratch = (fixed + segment * per_layer + slots * n) * block
    keep = scratch if slots == 1 else 0
    return Plan(Tiling(block, segment, slots, pieces), window, scratch, blocks, keep)
