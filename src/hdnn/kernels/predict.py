"""From the columns of a table to the values of the output layer, in one call.

The other kernels have a block of many samples side by side in vectors; few samples would leave most
lanes idle. Here the *outputs* of a product are side by side, and every sample is a row:

    x (samples, pitch)      h = sigma(x[read] W' + b)      x[write] = c x[write] + h A'

so that one sample uses whole vectors, and W', A' are read once, one after the other. They are
assembled beforehand (`constants`), as parameters do not change between predictions. Rows of W' and
A' are filled up with zeros to whole vectors: what a product writes behind its outputs is 0 added to
what was there.
"""

from collections.abc import Callable
from typing import NamedTuple

from numba import int64, types

from hdnn.kernels import build
from hdnn.kernels.activations import activate
from hdnn.kernels.team import Team, first_piece, next_piece
from hdnn.kernels.vectors import (
    VECTOR_BYTES,
    Array,
    Pointer,
    add,
    axpy,
    compiled,
    inlined,
    lanes,
    load,
    pointer,
    pointer_to,
    store,
    zeros,
)

BLOCK = 32  # samples that go through the layers together

FRESH, ADD, BIAS = range(3)  # what a product starts from

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


def _tile(rows: int, vectors: int) -> Callable[..., None]:
    @inlined
    def tile(
        X: Pointer,
        x: int,
        sx: int,
        inner: int,
        C: Pointer,
        c: int,
        width: int,
        Y: Pointer,
        y: int,
        sy: int,
        start: int,
        bias: int,
    ) -> None:
        sums = load(C, bias, 0, rows, vectors) if start == BIAS else zeros(C, rows, vectors)
        for k in range(inner):
            sums = axpy(X, x + k, sx, load(C, c + k * width, 0, 1, vectors), sums)
        if start == ADD:  # last: each product would else be rounded at the size of y
            sums = add(load(Y, y, sy, rows, vectors), sums)
        store(Y, y, sy, sums)

    return tile


def _panel(vectors: int) -> Callable[..., None]:
    four, two, one = (_tile(rows, vectors) for rows in (4, 2, 1))

    @inlined
    def panel(
        X: Pointer,
        x: int,
        sx: int,
        rows: int,
        inner: int,
        C: Pointer,
        c: int,
        width: int,
        Y: Pointer,
        y: int,
        sy: int,
        start: int,
        bias: int,
    ) -> None:
        i = 0
        while i + 4 <= rows:
            four(X, x + i * sx, sx, inner, C, c, width, Y, y + i * sy, sy, start, bias)
            i += 4
        if i + 2 <= rows:
            two(X, x + i * sx, sx, inner, C, c, width, Y, y + i * sy, sy, start, bias)
            i += 2
        if i < rows:
            one(X, x + i * sx, sx, inner, C, c, width, Y, y + i * sy, sy, start, bias)

    return panel


_panel2, _panel1 = map(_panel, (2, 1))


@compiled
def _product(
    X: Pointer,
    xo: int,
    sx: int,
    rows: int,
    inner: int,
    C: Pointer,
    co: int,
    width: int,
    Y: Pointer,
    yo: int,
    sy: int,
    start: int,
    bias: int,
) -> None:
    """y = start + x C for rows x at xo, sx apart, and y at yo, sy apart; C is (inner, width).

    Start: nothing (FRESH), y itself (ADD), or the row of C at `bias` (BIAS).
    """
    j = 0
    while j + 2 * lanes(C) <= width:  # outermost: a panel of C stays in L1
        _panel2(X, xo, sx, rows, inner, C, co + j, width, Y, yo + j, sy, start, bias + j)
        j += 2 * lanes(C)
    if j < width:
        _panel1(X, xo, sx, rows, inner, C, co + j, width, Y, yo + j, sy, start, bias + j)


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
def _add_scaled(X: Pointer, h: int, x: int, count: int, C: Pointer, a: int, carry: int) -> None:
    """x = carry x + C[a] h, not a number further: behind it may be other entries of the state."""
    whole = count // lanes(X) * lanes(X)
    for i in range(0, whole, lanes(X)):
        y = load(X, x + i, 0, 1, 1) if carry else zeros(X, 1, 1)
        store(X, x + i, 0, axpy(C, a, 0, load(X, h + i, 0, 1, 1), y))
    for i in range(whole, count):
        X[x + i] = (X[x + i] if carry else 0) + C[a] * X[h + i]


@compiled
def _stage(
    stages: Array, k: int, C: Pointer, at: int, X: Pointer, x: int, h: int, rows: int, form: Form
) -> None:
    """One stage of the layer whose constants are at `at`, on the rows of x; h is room."""
    _product(
        X,
        x + stages[k, R0],
        form.pitch,
        rows,
        stages[k, R],
        C,
        at + stages[k, AT_W],
        stages[k, WIDE_M],
        X,
        h,
        stages[k, WIDE_M],
        int64(BIAS),
        at + stages[k, AT_B],
    )
    activate(X, h, rows * stages[k, WIDE_M], form.activation)
    if stages[k, SCALAR]:
        for i in range(rows):
            source, target = h + i * stages[k, WIDE_M], x + stages[k, W0] + i * form.pitch
            _add_scaled(X, source, target, stages[k, W], C, at + stages[k, AT_A], stages[k, CARRY])
        return
    _product(
        X,
        h,
        stages[k, WIDE_M],
        rows,
        stages[k, M],
        C,
        at + stages[k, AT_A],
        stages[k, WIDE_W],
        X,
        x + stages[k, W0],
        form.pitch,
        int64(ADD if stages[k, CARRY] else FRESH),
        0,
    )


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
            _product(
                X,
                raw,
                form.features,
                rows,
                form.features,
                C,
                form.projection,
                form.wide,
                X,
                x,
                form.pitch,
                int64(BIAS),
                form.offset,
            )
        for layer in range(form.layers):
            for k in range(len(stages)):
                _stage(stages, k, C, form.first + layer * form.layer_size, X, x, h, rows, form)
        _product(
            X,
            x,
            form.pitch,
            rows,
            form.width,
            C,
            form.head,
            form.wide_outputs,
            X,
            h,
            form.wide_outputs,
            int64(BIAS),
            form.bias,
        )
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


def _types(number: types.Float) -> tuple[types.Type, ...]:
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
    return build.kernel(predict, dtype, _types)
