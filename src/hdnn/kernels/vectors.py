"""Explicit vectors for numba: tiles, a few rows of machine vectors held in registers.

A *block* is a set of samples, stored sample-minor in a flat scratch array: row i (one feature)
starts at `o + i width`, and `width` is a multiple of two vectors. Numba only vectorizes loops that
LLVM can prove independent, and never blocks them for registers; a `Tile` (a few rows of machine
vectors held in registers) states both outright, so that one generic kernel serves every number of
features at full speed. Offsets count elements and are not checked: the callers own the layout.
"""

import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, models, register_model

from hdnn.kernels.cache import cached

Array = np.ndarray
Pointer = np.ndarray  # in compiled code, a place in memory: no shape, and nobody counts references
VECTOR_BYTES = 64  # LLVM splits it where registers are shorter (AVX2: two, SSE: four)

# Fast-math without nnan and ninf: a NaN must come out as a NaN.
# Only other kernels call these: what Python would call takes a fifth of the time to compile.
_options = {
    "nogil": True,
    "fastmath": {"contract"},
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
compiled = functools.partial(njit, **_options)
inlined = functools.partial(njit, forceinline=True, **_options)
# Large, and part of several kernels: kept on disk, so that processes that compile share them.
cached_part = cached(error_model="numpy", **_options)
# Put into the caller before compilation: numba optimizes nested functions again at every level.
always_inline = functools.partial(njit, inline="always", nogil=True)


class Tile(types.Type):
    """The type of `rows` vectors of `width` registers each, kept in registers."""

    def __init__(self, dtype: types.Float, rows: int, width: int) -> None:
        self.dtype, self.rows, self.width = dtype, rows, width
        self.lanes = width * VECTOR_BYTES * 8 // dtype.bitwidth
        super().__init__(name=f"Tile({dtype}, {rows}, {width})")


@register_model(Tile)
class _TileModel(models.PrimitiveModel):
    def __init__(self, manager: Any, tile: Tile) -> None:
        scalar = manager.lookup(tile.dtype).get_value_type()
        super().__init__(manager, tile, ir.ArrayType(ir.VectorType(scalar, tile.lanes), tile.rows))


def vectors_of(builder: ir.IRBuilder, tile: ir.Value) -> list[ir.Value]:
    """The vectors of a tile."""
    return [builder.extract_value(tile, q) for q in range(tile.type.count)]


def tile_of(builder: ir.IRBuilder, vectors: list[ir.Value]) -> ir.Value:
    """The tile of vectors."""
    tile = ir.Constant(ir.ArrayType(vectors[0].type, len(vectors)), ir.Undefined)
    for q, vector in enumerate(vectors):
        tile = builder.insert_value(tile, vector, q)
    return tile


def _data(context: Any, builder: ir.IRBuilder, array: types.Array, value: ir.Value) -> ir.Value:
    return context.make_array(array)(context, builder, value).data


@intrinsic
def pointer(typing, array):
    """Where the numbers of an array are; somebody else must keep it alive."""

    def codegen(context, builder, signature, args):
        return _data(context, builder, array, args[0])

    return types.CPointer(array.dtype)(array), codegen


@intrinsic
def pointer_to(typing, address, like):
    """The place at an address, of numbers as those of another place or array."""

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(address, like), codegen


@intrinsic
def shifted(typing, place, count):
    """The place so many numbers further on."""

    def codegen(context, builder, signature, args):
        return builder.gep(args[0], [args[1]])

    return place(place, types.intp), codegen


@intrinsic
def lanes(typing, array):
    """How many numbers a machine vector holds."""

    def codegen(context, builder, signature, args):
        return context.get_constant(types.int64, VECTOR_BYTES * 8 // array.dtype.bitwidth)

    return types.int64(array), codegen


def _pointers(
    context: Any,
    builder: ir.IRBuilder,
    array: types.Array | types.CPointer,
    value: ir.Value,
    offset: ir.Value,
    stride: ir.Value,
    rows: int,
) -> list[ir.Value]:
    """Addresses of `array[offset + q stride]`: no bounds check, no negative indices."""
    data = value if isinstance(array, types.CPointer) else _data(context, builder, array, value)
    steps = [builder.mul(stride, ir.Constant(stride.type, q)) for q in range(rows)]
    return [builder.gep(data, [builder.add(offset, step)]) for step in steps]


def splat(builder: ir.IRBuilder, scalar: ir.Value, lanes: int) -> ir.Value:
    """A vector with one number in every lane."""
    vector = ir.VectorType(scalar.type, lanes)
    one = builder.insert_element(
        ir.Constant(vector, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0)
    )
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), everywhere)


def muladd(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """a b + c, fused where the machine can (llvm.fma would be a slow call where it cannot)."""
    return builder.fadd(builder.fmul(a, b, flags=("contract",)), c, flags=("contract",))


@intrinsic(prefer_literal=True)
def zeros(typing, array, rows, width):
    """A tile of zeros."""
    tile = Tile(array.dtype, rows.literal_value, width.literal_value)

    def codegen(context, builder, signature, args):
        return ir.Constant(context.get_value_type(tile), None)

    return tile(array, rows, width), codegen


@intrinsic(prefer_literal=True)
def load(typing, array, offset, stride, rows, width):
    """Tile of `array[offset + q stride :][:lanes]`, q < rows."""
    tile = Tile(array.dtype, rows.literal_value, width.literal_value)

    def codegen(context, builder, signature, args):
        kind = context.get_value_type(tile).element
        addresses = _pointers(context, builder, array, args[0], args[1], args[2], tile.rows)
        align = array.dtype.bitwidth // 8
        return tile_of(
            builder,
            [
                builder.load(builder.bitcast(address, kind.as_pointer()), align=align, typ=kind)
                for address in addresses
            ],
        )

    return tile(array, types.intp, types.intp, rows, width), codegen


@intrinsic(prefer_literal=True)
def spread(typing, array, offset, stride, rows, width):
    """Tile whose row q holds the number `array[offset + q stride]` in every lane."""
    tile = Tile(array.dtype, rows.literal_value, width.literal_value)

    def codegen(context, builder, signature, args):
        addresses = _pointers(context, builder, array, args[0], args[1], args[2], tile.rows)
        return tile_of(
            builder, [splat(builder, builder.load(address), tile.lanes) for address in addresses]
        )

    return tile(array, types.intp, types.intp, rows, width), codegen


@intrinsic
def store(typing, array, offset, stride, tile):
    """array[offset + q stride :][:lanes] = tile[q]."""

    def codegen(context, builder, signature, args):
        addresses = _pointers(context, builder, array, args[0], args[1], args[2], tile.rows)
        for address, vector in zip(addresses, vectors_of(builder, args[3]), strict=True):
            builder.store(
                vector,
                builder.bitcast(address, vector.type.as_pointer()),
                align=array.dtype.bitwidth // 8,
            )
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, tile), codegen


@intrinsic
def axpy(typing, array, offset, stride, x, tile):
    """tile[q] + array[offset + q stride] x: one column of a matrix times one row of a block."""

    def codegen(context, builder, signature, args):
        addresses = _pointers(context, builder, array, args[0], args[1], args[2], tile.rows)
        (vector,) = vectors_of(builder, args[3])
        return tile_of(
            builder,
            [
                muladd(builder, splat(builder, builder.load(a), tile.lanes), vector, t)
                for a, t in zip(addresses, vectors_of(builder, args[4]), strict=True)
            ],
        )

    return tile(array, types.intp, types.intp, x, tile), codegen


@intrinsic
def outer(typing, a, b, tile):
    """tile[q, p] + a[q] b[p], lane by lane: the sum over samples stays spread over the lanes."""

    def codegen(context, builder, signature, args):
        left, right, sums = (vectors_of(builder, value) for value in args)
        pairs = [(x, y) for x in left for y in right]
        return tile_of(
            builder, [muladd(builder, x, y, t) for (x, y), t in zip(pairs, sums, strict=True)]
        )

    return tile(a, b, tile), codegen


@intrinsic(prefer_literal=True)
def add_totals(typing, array, offset, stride, tile, columns):
    """array[offset + q stride + p] += sum over lanes of tile[q, p], p < columns."""
    count = columns.literal_value

    def codegen(context, builder, signature, args):
        starts = _pointers(context, builder, array, args[0], args[1], args[2], tile.rows // count)
        for start, total in zip(
            starts, _lane_sums(builder, vectors_of(builder, args[3]), count), strict=True
        ):
            address = builder.bitcast(start, total.type.as_pointer())
            old = builder.load(address, align=array.dtype.bitwidth // 8, typ=total.type)
            builder.store(builder.fadd(old, total), address, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, tile, columns), codegen


def _lane_sums(builder: ir.IRBuilder, vectors: list[ir.Value], columns: int) -> list[ir.Value]:
    """Sum over lanes of each vector, `columns` sums to a vector.

    Neighbors are added pairwise, two vectors at a time, so that the vectors of a tile share the
    shuffles: 45 instructions for 16 vectors instead of 128.
    """
    lanes = vectors[0].type.count

    def shuffle(a: ir.Value, b: ir.Value, indices: range) -> ir.Value:
        mask = ir.Constant(ir.VectorType(ir.IntType(32), len(indices)), list(indices))
        return builder.shuffle_vector(a, b, mask)

    even, odd, level = range(0, 2 * lanes, 2), range(1, 2 * lanes, 2), vectors
    for _ in range(lanes.bit_length() - 1):
        level = level if len(level) > 1 else level * 2
        pairs = zip(level[::2], level[1::2], strict=True)
        level = [builder.fadd(shuffle(a, b, even), shuffle(a, b, odd)) for a, b in pairs]
    # Now each vector holds the sums of `lanes` (or all) of the vectors that entered, in order.
    return [
        shuffle(level[i // lanes], level[i // lanes], range(i % lanes, i % lanes + columns))
        for i in range(0, len(vectors), columns)
    ]


@intrinsic
def add(typing, a, b):
    """a + b, lane by lane."""

    def codegen(context, builder, signature, args):
        pairs = zip(vectors_of(builder, args[0]), vectors_of(builder, args[1]), strict=True)
        return tile_of(builder, [builder.fadd(x, y) for x, y in pairs])

    return a(a, b), codegen
