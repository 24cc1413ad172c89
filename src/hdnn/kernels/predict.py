"""From the columns of a table to the values of the output layer, in one call.

Every sample is a row of a block, see `hdnn.kernels.row_products`:

    x (samples, pitch)      h = sigma(x[read] W' + b)      x[write] = c x[write] + h A'

W' and A' are assembled beforehand (`constants`), as parameters do not change between predictions,
and stand in the order in which they are read.
"""

from typing import NamedTuple

from numba import int64, types

from hdnn.kernels import build
from hdnn.kernels.activations import activate
from hdnn.kernels.row_products import ADD, BIAS, FRESH, add_scaled, plain_rows, row_product
from hdnn.kernels.team import Team, first_piece, next_piece
from hdnn.kernels.vectors import VECTOR_BYTES, Array, Pointer, compiled, lanes, pointer, pointer_to

BLOCK = 32  # samples that go through the layers together

R0, R, W0, W, M, WIDE_M, WIDE_W, AT_W, AT_B, AT_A, SCALAR, CARRY = range(12)
"""Columns of the stages: first entry and length of x[read] and of x[write]; hidden width; it and
the length of x[write] filled up to vectors; where W', b and A' (or a number) begin in the constants
of a layer; whether A is a number; c."""

COLUMNS = 12


class Form(NamedTuple):
    """The shape of a model for tables, and where its constants are; -1: it has none of these.

    Attributes:
        features: numbers of a sample, as they come.
        outputs: of the output layer, and `wide_outputs`, filled up to vectors.
        layers: how many, and how many constants each has.
        activation: its code in `hdnn.kernels.activations`.
        pitch: numbers from a sample's state to the next one's.
        hidden: the same of hidden layers.
        width: n, and `wide`, filled up to vectors.
        mean, scale: standardize the features.
        projection, offset: P' ``(features, wide)`` and nu.
        first: the constants of the first layer.
        head, bias: W' ``(n, wide_outputs)`` and mu of the output layer.
    """

    features: int
    outputs: int
    wide_outputs: int
    layers: int
    layer_size: int
    activation: int
    pitch: int
    hidden: int
    width: int
    wide: int
    mean: int
    scale: int
    projection: int
    offset: int
    first: int
    head: int
    bias: int


@compiled
def _read(
    data: Pointer,
    first: int,
    strides: tuple[int, int],
    rows: int,
    form: Form,
    places: Array,
    C: Pointer,
    X: Pointer,
    xo: int,
    pitch: int,
) -> None:
    """Samples from `first` on, standardized, each feature in its place; other places hold 0."""
    for i in range(rows):
        at, o = (first + i) * strides[0], xo + i * pitch
        if form.projection < 0:
            for f in range(form.width):
                X[o + f] = 0
        for f in range(form.features):
            value = data[at + f * strides[1]]
            if form.mean < 0:
                X[o + places[f]] = value
            elif value == value:
                X[o + places[f]] = (value - C[form.mean + f]) / C[form.scale + f]
            else:  # missing: the mean stands for it
                X[o + places[f]] = 0


@compiled
def _stage(
    stages: Array, k: int, C: Pointer, at: int, X: Pointer, x: int, h: int, rows: int, form: Form
) -> None:
    """One stage of the layer whose constants are at `at`, on the rows of x; h is room."""
    m, wide = stages[k, M], stages[k, WIDE_M]
    read, write = x + stages[k, R0], x + stages[k, W0]
    at_w, at_b, at_a = at + stages[k, AT_W], at + stages[k, AT_B], at + stages[k, AT_A]
    source = plain_rows(read, form.pitch)
    row_product(X, source, rows, stages[k, R], C, at_w, wide, h, wide, int64(BIAS), at_b)
    activate(X, h, rows * wide, form.activation)
    if stages[k, SCALAR]:
        for i in range(rows):
            target = write + i * form.pitch
            add_scaled(X, h + i * wide, target, stages[k, W], C, at_a, stages[k, CARRY])
        return
    start = int64(ADD if stages[k, CARRY] else FRESH)
    hidden = plain_rows(h, wide)
    row_product(X, hidden, rows, m, C, at_a, stages[k, WIDE_W], write, form.pitch, start, int64(0))


def predict(
    source: int,
    strides: tuple[int, int],
    samples: int,
    target: int,
    mirrored: bool,
    form: Form,
    places: Array,
    stages: Array,
    constants: Array,
    scratch: Array,
    team: Team,
    caller: bool,
) -> None:
    """The output layer's values ``(samples, outputs)`` at the address `target`.

    Args:
        source: address of the samples, which are ``strides[0]`` numbers apart, their features
            ``strides[1]``.
        samples: how many.
        target: address of the result, in one piece.
        mirrored: write ``(samples, 2)``, minus the value and the value, where there is one output.
        form: of the model.
        places: which entry of the first state each feature becomes.
        stages: ``(S, 12)``, the columns above.
        constants: what does not change from call to call.
        scratch: of this thread, `scratch_size` numbers.
        team: with `caller`: how threads share blocks of samples, see `hdnn.kernels.team`.
        caller: see there.
    """
    C, X = pointer(constants), pointer(scratch)
    data, out = pointer_to(source, constants), pointer_to(target, constants)
    x, h = 0, BLOCK * form.pitch
    raw = h + BLOCK * form.hidden + lanes(C)
    block = first_piece(team, caller)
    while block >= 0:
        first = block * BLOCK
        rows = min(BLOCK, samples - first)
        if form.projection < 0:
            _read(data, first, strides, rows, form, places, C, X, x, form.pitch)
        else:
            _read(data, first, strides, rows, form, places, C, X, raw, form.features)
            columns = plain_rows(raw, form.features)
            P, nu, start = form.projection, form.offset, int64(BIAS)
            row_product(X, columns, rows, form.features, C, P, form.wide, x, form.pitch, start, nu)
        for layer in range(form.layers):
            for k in range(len(stages)):
                _stage(stages, k, C, form.first + layer * form.layer_size, X, x, h, rows, form)
        states, wide, start = plain_rows(x, form.pitch), form.wide_outputs, int64(BIAS)
        row_product(X, states, rows, form.width, C, form.head, wide, h, wide, start, form.bias)
        _write(X, h, form, out, first, rows, mirrored)
        block = next_piece(team, caller)


@compiled
def _write(
    X: Pointer, h: int, form: Form, out: Pointer, first: int, rows: int, mirrored: bool
) -> None:
    for i in range(rows):
        for k in range(form.outputs):
            value = X[h + i * form.wide_outputs + k]
            at = (first + i) * form.outputs + k
            if mirrored:
                out[2 * at], out[2 * at + 1] = -value, value
            else:
                out[at] = value


def scratch_size(form: Form) -> int:
    """How many numbers of scratch a thread needs: states, hidden layers, features."""
    # Activations are computed two vectors at a time, so perhaps one behind the hidden layers.
    return BLOCK * (form.pitch + form.hidden + form.features) + VECTOR_BYTES // 4


def predict_types(number: types.Float) -> tuple[types.Type, ...]:
    """The types of the arguments, given that of the numbers."""
    flat, pair = build.flat(number), types.UniTuple(types.int64, 2)
    form = build.named(Form, *(types.int64,) * len(Form._fields))
    return (
        types.int64,
        pair,
        types.int64,
        types.int64,
        types.boolean,
        form,
        build.integers,
        build.table,
        flat,
        flat,
        *build.team,
    )


def predict_kernel(dtype: str) -> build.Kernel:
    """`predict`, compiled for float32 or float64."""
    return build.kernel(predict, dtype, predict_types)
