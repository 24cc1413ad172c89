"""Activations and their derivatives on blocks of samples, one machine vector after the other."""

import math
from collections.abc import Callable

from llvmlite import ir
from numba.extending import intrinsic

from hdnn.kernels.vectors import (
    Pointer,
    add,
    add_totals,
    cached_part,
    compiled,
    lanes,
    load,
    muladd,
    store,
    tile_of,
    vectors_of,
    zeros,
)

TANH, IDENTITY, RELU, SOFTSIGN, SIGMOID = range(5)

# Coefficients of ((exp 2r - 1) / 2 - r) / r^2 for |r| <= log(2) / 4, minimax (2.3e-8 and 3.7e-17);
# a number whose tanh rounds to 1; bits of the mantissa.
_TANH: dict[str, tuple[list[float], float, int]] = {
    "float": (
        [1.0, 0.66666306664479713, 0.33333243370387322, 0.13381172613892189, 0.044564002660792357],
        9.2,
        23,
    ),
    "double": (
        [
            1.0,
            0.66666666666666674,
            0.33333333333299059,
            0.13333333333328062,
            0.044444444535574661,
            0.012698412712429797,
            0.0031745946954071301,
            0.00070546606788878582,
            0.00014141543214608152,
            2.5702883845831676e-05,
        ],
        19.5,
        52,
    ),
}


def _constant(like: ir.Value, number: float) -> ir.Value:
    return ir.Constant(like.type, [number] * like.type.count)


def _horner(builder: ir.IRBuilder, t: ir.Value, coefficients: list[float]) -> ir.Value:
    value = _constant(t, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = muladd(builder, value, t, _constant(t, coefficient))
    return value


def _tanh(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """tanh |x| = F / (F + 1), F = (exp 2|x| - 1) / 2: accurate beside tanh x and beside 1 - tanh x.

    |x| = n log(2)/2 + r gives F = 2^n (exp 2r - 1) / 2 + (2^n - 1) / 2. Odd, at most 1, exactly 1
    when saturated; NaN fails every comparison and so passes through.
    """
    coefficients, edge, mantissa = _TANH[str(x.type.element)]
    bits = ir.VectorType(ir.IntType(32 if mantissa == 23 else 64), x.type.count)
    size = _absolute(builder, x)
    a = builder.select(
        builder.fcmp_ordered("<", _constant(x, edge), size), _constant(x, edge), size
    )
    # Adding 1.5 * 2^mantissa rounds to an integer, and leaves it in the lowest bits.
    magic = _constant(x, 1.5 * 2**mantissa)
    shifted = muladd(builder, a, _constant(x, 2 / math.log(2)), magic)
    r = muladd(builder, builder.fsub(shifted, magic), _constant(x, -math.log(2) / 2), a)
    exponent = builder.shl(builder.bitcast(shifted, bits), _constant_bits(bits, mantissa))
    power = builder.bitcast(builder.add(exponent, builder.bitcast(_constant(x, 1.0), bits)), x.type)
    grown = muladd(builder, builder.fmul(r, r), _horner(builder, r, coefficients), r)
    F = muladd(builder, power, grown, muladd(builder, power, _constant(x, 0.5), _constant(x, -0.5)))
    t = builder.fdiv(F, builder.fadd(F, _constant(x, 1.0)))
    sign = builder.xor(builder.bitcast(x, bits), builder.bitcast(size, bits))
    return builder.bitcast(builder.or_(builder.bitcast(t, bits), sign), x.type)


def _constant_bits(kind: ir.VectorType, number: int) -> ir.Value:
    return ir.Constant(kind, [number] * kind.count)


def _absolute(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    width = 32 if str(x.type.element) == "float" else 64
    bits = ir.VectorType(ir.IntType(width), x.type.count)
    mask = _constant_bits(bits, 2 ** (width - 1) - 1)
    return builder.bitcast(builder.and_(builder.bitcast(x, bits), mask), x.type)


def _relu(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    zero = _constant(x, 0.0)
    return builder.select(builder.fcmp_ordered("<", x, zero), zero, x)


def _softsign(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return builder.fdiv(x, builder.fadd(_constant(x, 1.0), _absolute(builder, x)))


def _sigmoid(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    half = _constant(x, 0.5)
    return muladd(builder, half, _tanh(builder, builder.fmul(half, x)), half)


def _tanh_derivative(builder: ir.IRBuilder, s: ir.Value, g: ir.Value) -> ir.Value:
    return builder.fmul(g, builder.fsub(_constant(s, 1.0), builder.fmul(s, s)))


def _relu_derivative(builder: ir.IRBuilder, s: ir.Value, g: ir.Value) -> ir.Value:
    zero = _constant(s, 0.0)
    return builder.select(builder.fcmp_ordered("<=", s, zero), zero, g)


def _softsign_derivative(builder: ir.IRBuilder, s: ir.Value, g: ir.Value) -> ir.Value:
    rest = builder.fsub(_constant(s, 1.0), _absolute(builder, s))
    return builder.fmul(g, builder.fmul(rest, rest))


def _sigmoid_derivative(builder: ir.IRBuilder, s: ir.Value, g: ir.Value) -> ir.Value:
    return builder.fmul(g, builder.fmul(s, builder.fsub(_constant(s, 1.0), s)))


# sigma(z), and g sigma'(z) from s = sigma(z) alone, so that preactivations need not be kept.
_VALUES: dict[int, Callable[..., ir.Value]] = {
    TANH: _tanh,
    RELU: _relu,
    SOFTSIGN: _softsign,
    SIGMOID: _sigmoid,
}
_DERIVATIVES: dict[int, Callable[..., ir.Value]] = {
    TANH: _tanh_derivative,
    RELU: _relu_derivative,
    SOFTSIGN: _softsign_derivative,
    SIGMOID: _sigmoid_derivative,
}


@intrinsic(prefer_literal=True)
def _value(typing, z, code):
    def codegen(context, builder, signature, args):
        return tile_of(
            builder, [_VALUES[code.literal_value](builder, v) for v in vectors_of(builder, args[0])]
        )

    return z(z, code), codegen


@intrinsic(prefer_literal=True)
def _derivative(typing, s, g, code):
    def codegen(context, builder, signature, args):
        pairs = zip(vectors_of(builder, args[0]), vectors_of(builder, args[1]), strict=True)
        return tile_of(builder, [_DERIVATIVES[code.literal_value](builder, s, g) for s, g in pairs])

    return g(s, g, code), codegen


@compiled
def copy(buffer: Pointer, source: int, target: int, count: int) -> None:
    """buffer[target :][:count] = buffer[source :][:count]."""
    for i in range(0, count, 2 * lanes(buffer)):
        store(buffer, target + i, 0, load(buffer, source + i, 0, 1, 2))


@compiled
def fill(buffer: Pointer, target: int, count: int, number: float) -> None:
    """buffer[target :][:count] = number."""
    for i in range(target, target + count):
        buffer[i] = number


@cached_part
def activate(buffer: Pointer, o: int, count: int, code: int) -> None:
    """s = sigma(z) in place."""
    for i in range(o, o + count, 2 * lanes(buffer)):
        z = load(buffer, i, 0, 1, 2)
        if code == TANH:
            s = _value(z, TANH)
        elif code == RELU:
            s = _value(z, RELU)
        elif code == SOFTSIGN:
            s = _value(z, SOFTSIGN)
        elif code == SIGMOID:
            s = _value(z, SIGMOID)
        else:
            s = z
        store(buffer, i, 0, s)


@cached_part
def apply_derivative(
    buffer: Pointer, so: int, do: int, rows: int, width: int, code: int, sums: Pointer, to: int
) -> None:
    """d = d sigma'(z) in place, from s; and unless to < 0, sums[to + i] += sum of d[i]."""
    for i in range(rows):
        total = zeros(buffer, 1, 2)
        for j in range(i * width, (i + 1) * width, 2 * lanes(buffer)):
            s, d = load(buffer, so + j, 0, 1, 2), load(buffer, do + j, 0, 1, 2)
            if code == TANH:
                d = _derivative(s, d, TANH)
            elif code == RELU:
                d = _derivative(s, d, RELU)
            elif code == SOFTSIGN:
                d = _derivative(s, d, SOFTSIGN)
            elif code == SIGMOID:
                d = _derivative(s, d, SIGMOID)
            store(buffer, do + j, 0, d)
            total = add(total, d)
        if to >= 0:
            add_totals(sums, to + i, 0, total, 1)
