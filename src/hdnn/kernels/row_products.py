"""Products whose outputs are side by side in vectors, while every sample is a row.

The other kernels have many samples side by side; few samples would leave most lanes idle. Here

    y = start + x C      for rows x (a sample, a pixel) and a matrix C (inner, width)

uses whole vectors for a single row. The width is filled up with zeros to whole vectors: what a
product writes behind its outputs is 0 added to what was there. A convolution is such a product too:
its row is the k x k neighborhood of a pixel.
"""

from collections.abc import Callable
from typing import NamedTuple

from numba import int64

from hdnn.kernels.vectors import (
    Pointer,
    add,
    always_inline,
    axpy,
    compiled,
    inlined,
    lanes,
    load,
    store,
    zeros,
)

FRESH, ADD, BIAS = range(3)  # what a product starts from


class Rows(NamedTuple):
    """Where rows begin and how far they are apart; `taps` pieces in both directions make one up.

    Attributes:
        at: the first row.
        step: from a row to the next.
        taps: 1, or the side k of a convolution's kernel.
        across, along: from a piece to the next, in either direction.
    """

    at: int
    step: int
    taps: int
    across: int
    along: int


@always_inline
def plain_rows(at: int, step: int) -> Rows:
    """Rows in one piece."""
    return Rows(int64(at), int64(step), int64(1), int64(0), int64(0))


def _tile(rows: int, vectors: int) -> Callable[..., None]:
    @inlined
    def tile(
        X: Pointer,
        x: Rows,
        at: int,
        inner: int,
        C: Pointer,
        c: int,
        width: int,
        y: int,
        sy: int,
        start: int,
        bias: int,
    ) -> None:
        sums = load(C, bias, 0, rows, vectors) if start == BIAS else zeros(C, rows, vectors)
        for u in range(x.taps):
            for v in range(x.taps):
                piece = at + u * x.across + v * x.along
                for k in range(inner):
                    sums = axpy(X, piece + k, x.step, load(C, c, 0, 1, vectors), sums)
                    c += width
        if start == ADD:  # last: each product would else be rounded at the size of y
            sums = add(load(X, y, sy, rows, vectors), sums)
        store(X, y, sy, sums)

    return tile


def _panel(vectors: int) -> Callable[..., None]:
    four, two, one = (_tile(rows, vectors) for rows in (4, 2, 1))

    @inlined
    def panel(
        X: Pointer,
        x: Rows,
        rows: int,
        inner: int,
        C: Pointer,
        c: int,
        width: int,
        y: int,
        sy: int,
        start: int,
        bias: int,
    ) -> None:
        i, at = 0, x.at
        while i + 4 <= rows:
            four(X, x, at + i * x.step, inner, C, c, width, y + i * sy, sy, start, bias)
            i += 4
        if i + 2 <= rows:
            two(X, x, at + i * x.step, inner, C, c, width, y + i * sy, sy, start, bias)
            i += 2
        if i < rows:
            one(X, x, at + i * x.step, inner, C, c, width, y + i * sy, sy, start, bias)

    return panel


_panel2, _panel1 = map(_panel, (2, 1))


@compiled
def row_product(
    X: Pointer,
    x: Rows,
    rows: int,
    inner: int,
    C: Pointer,
    c: int,
    width: int,
    y: int,
    sy: int,
    start: int,
    bias: int,
) -> None:
    """y = start + x C for rows x of the buffer X, and y in it at y, sy apart.

    Start: nothing (FRESH), y itself (ADD), or the row of C at `bias` (BIAS). C is at c, of `inner`
    lines for each piece of a row.
    """
    j = 0
    while j + 2 * lanes(C) <= width:  # outermost: a panel of C stays in the cache
        _panel2(X, x, rows, inner, C, c + j, width, y + j, sy, start, bias + j)
        j += 2 * lanes(C)
    if j < width:
        _panel1(X, x, rows, inner, C, c + j, width, y + j, sy, start, bias + j)


@compiled
def add_scaled(X: Pointer, x: int, y: int, count: int, C: Pointer, a: int, carry: int) -> None:
    """y = carry y + C[a] x, not a number further: behind it may be other entries of the state."""
    whole = count // lanes(X) * lanes(X)
    for i in range(0, whole, lanes(X)):
        old = load(X, y + i, 0, 1, 1) if carry else zeros(X, 1, 1)
        store(X, y + i, 0, axpy(C, a, 0, load(X, x + i, 0, 1, 1), old))
    for i in range(whole, count):
        X[y + i] = (X[y + i] if carry else 0) + C[a] * X[x + i]
