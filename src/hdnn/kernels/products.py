"""Products of small matrices with blocks of samples, tile by tile."""

from collections.abc import Callable

from numba import int64, types

from hdnn.kernels.vectors import (
    Pointer,
    add,
    add_totals,
    always_inline,
    axpy,
    cached_part,
    compiled,
    inlined,
    lanes,
    load,
    outer,
    spread,
    store,
    zeros,
)

FRESH, ADD, BIAS = range(3)  # what a product starts from


def _product_tile(rows: int) -> Callable[..., None]:
    @inlined
    def tile(
        M: Pointer,
        mo: int,
        si: int,
        sk: int,
        inner: int,
        buffer: Pointer,
        x: int,
        y: int,
        width: int,
        start: int,
        bo: int,
    ) -> None:
        sums = spread(M, bo, 1, rows, 2) if start == BIAS else zeros(buffer, rows, 2)
        for k in range(inner):
            sums = axpy(M, mo + k * sk, si, load(buffer, x + k * width, 0, 1, 2), sums)
        if start == ADD:  # last: each product would else be rounded at the size of y
            sums = add(load(buffer, y, width, rows, 2), sums)
        store(buffer, y, width, sums)

    return tile


_product4, _product2, _product1 = map(_product_tile, (4, 2, 1))


@always_inline
def product(
    M: Pointer,
    mo: int,
    si: int,
    sk: int,
    rows: int,
    inner: int,
    buffer: Pointer,
    xo: int,
    yo: int,
    width: int,
    start: int,
    bo: int,
) -> None:
    """y = start + M x for the blocks at xo and yo, M[i, k] = M[mo + i si + k sk].

    Start: nothing (FRESH), y itself (ADD), or the numbers M[bo + i] (BIAS). x and y are disjoint.
    """
    # numba compiles a version for every literal argument: faster for strides of 1, else a waste.
    _product(M, mo, si, sk, rows, inner, buffer, xo, yo, width, int64(start), int64(bo))


@cached_part
def _product(
    M: Pointer,
    mo: int,
    si: int,
    sk: int,
    rows: int,
    inner: int,
    buffer: Pointer,
    xo: int,
    yo: int,
    width: int,
    start: int,
    bo: int,
) -> None:
    for j in range(0, width, 2 * lanes(buffer)):  # outermost: a panel of x stays in L1
        x, i = xo + j, 0
        while i + 4 <= rows:
            _product4(
                M, mo + i * si, si, sk, inner, buffer, x, yo + i * width + j, width, start, bo + i
            )
            i += 4
        if i + 2 <= rows:
            _product2(
                M, mo + i * si, si, sk, inner, buffer, x, yo + i * width + j, width, start, bo + i
            )
            i += 2
        if i < rows:
            _product1(
                M, mo + i * si, si, sk, inner, buffer, x, yo + i * width + j, width, start, bo + i
            )


@always_inline
def scale(M: Pointer, mo: int, buffer: Pointer, xo: int, yo: int, count: int, start: int) -> None:
    """y = start + M[mo] x, `product` with a scalar gain."""
    _scale(M, mo, buffer, xo, yo, count, int64(start))


@compiled
def _scale(M: Pointer, mo: int, buffer: Pointer, xo: int, yo: int, count: int, start: int) -> None:
    for j in range(0, count, 2 * lanes(buffer)):
        y = load(buffer, yo + j, 0, 1, 2) if start == ADD else zeros(buffer, 1, 2)
        store(buffer, yo + j, 0, axpy(M, mo, 0, load(buffer, xo + j, 0, 1, 2), y))


def _gram_tile(rows: int, columns: int) -> Callable[..., None]:
    count = rows * columns

    @inlined
    def tile(
        buffer: Pointer, ao: int, bo: int, width: int, sums: Pointer, to: int, stride: int
    ) -> None:
        total = zeros(buffer, count, 1)
        for j in range(0, width, lanes(buffer)):
            total = outer(
                load(buffer, ao + j, width, rows, 1), load(buffer, bo + j, width, columns, 1), total
            )
        add_totals(sums, to, stride, total, columns)

    return tile


_gram44, _gram42, _gram41 = (_gram_tile(4, columns) for columns in (4, 2, 1))
_gram24, _gram22, _gram21 = (_gram_tile(2, columns) for columns in (4, 2, 1))
_gram14, _gram12, _gram11 = (_gram_tile(1, columns) for columns in (4, 2, 1))


def _gram_strip(
    four: Callable[..., None], two: Callable[..., None], one: Callable[..., None]
) -> Callable[..., None]:
    @inlined
    def strip(
        buffer: Pointer, ao: int, bo: int, columns: int, width: int, sums: Pointer, to: int
    ) -> None:
        k = 0
        while k + 4 <= columns:
            four(buffer, ao, bo + k * width, width, sums, to + k, columns)
            k += 4
        if k + 2 <= columns:
            two(buffer, ao, bo + k * width, width, sums, to + k, columns)
            k += 2
        if k < columns:
            one(buffer, ao, bo + k * width, width, sums, to + k, columns)

    return strip


_gram4 = _gram_strip(_gram44, _gram42, _gram41)
_gram2 = _gram_strip(_gram24, _gram22, _gram21)
_gram1 = _gram_strip(_gram14, _gram12, _gram11)


@always_inline
def gram(
    buffer: Pointer, ao: int, rows: int, bo: int, columns: int, width: int, sums: Pointer, to: int
) -> None:
    """sums[i, k] += sum over samples of a[i] b[k], a (rows, columns) matrix at `to`."""
    _gram(buffer, ao, int64(rows), bo, int64(columns), width, sums, to)


@cached_part
def _gram(
    buffer: Pointer, ao: int, rows: int, bo: int, columns: int, width: int, sums: Pointer, to: int
) -> None:
    i = 0
    while i + 4 <= rows:
        _gram4(buffer, ao + i * width, bo, columns, width, sums, to + i * columns)
        i += 4
    if i + 2 <= rows:
        _gram2(buffer, ao + i * width, bo, columns, width, sums, to + i * columns)
        i += 2
    if i < rows:
        _gram1(buffer, ao + i * width, bo, columns, width, sums, to + i * columns)


def product_types(number: types.Float) -> tuple[types.Type, ...]:
    """Of the arguments of `_product`, for a matrix in row-major order."""
    place, columns = types.CPointer(number), types.literal(1)
    return (place, int64, int64, columns, int64, int64, place, *(int64,) * 5)


def gram_types(number: types.Float) -> tuple[types.Type, ...]:
    """Of the arguments of `_gram`."""
    place = types.CPointer(number)
    return (place, *(int64,) * 5, place, int64)
