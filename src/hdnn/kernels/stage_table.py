"""The stages of a layer as tables of integers: what the kernels read instead of Python objects.

Every stage is x[write] = c x[write] + A sigma(W x[read] + b). W, A and b of all stages of one layer
stand one after the other in a *row*; a row has ``wire.size`` numbers.
"""

from typing import NamedTuple

import numpy as np

# Columns of the table, which has a line for every stage: first entry and length of x[read] and of
# x[write]; hidden width m; where W, A and b begin in a row; the kind of gain; c; and, where the
# entries of W (of b) are parameters in their own order, the number of the first one, else -1.
R0, R, W0, W, M, AT_W, AT_A, AT_B, GAIN, CARRY, RUN_W, RUN_B = range(12)
COLUMNS = 12

SCALAR, DENSE, ADJOINT = range(3)
"""Kinds of gain: A = a;  A given;  A = a S W' with a constant matrix S."""


class StageTable(NamedTuple):
    """The stages of all layers.

    Attributes:
        table: ``(S, 12)``, the columns above.
        wire: ``(size,)``: for every entry of W and b in a row, which parameter it is, counted from
            1, negative where the entry is minus that parameter, 0 where the entry is always 0.
        activation: its code in `hdnn.kernels.activations`.
        layers: how many there are.
    """

    table: np.ndarray
    wire: np.ndarray
    activation: int
    layers: int


class Parameters(NamedTuple):
    """What rows are filled from; an axis that all share (E, L) has size 1, whatever the strides.

    Attributes:
        theta, beta: ``(E, L, .)``, the parameters behind every W and every b.
        steps: ``(S, E, L)``, the factor a of every stage's gain.
        dense: ``(E, L, .)``, gains that are given, stage after stage.
        mixing: S of every adjoint gain, line by line: how many entries of the line are not 0, and
            for each of these its column and its value.
    """

    theta: np.ndarray
    beta: np.ndarray
    steps: np.ndarray
    dense: np.ndarray
    mixing: np.ndarray
