"""Parameters: raw stacks to packed rows, and gradients of packed rows back to the stacks.

packed   (E, L, P)           W, A and b of every stage of a layer, in one row
partial  (pieces, E, L, P)   gradients of packed, by chunk
"""

from hdnn.backends.vector.tiles import Array, compiled

# Columns of the stage table: slices read and written, hidden width m, where W, A and b start in a
# packed row, kind of gain, and c.
R0, R, W0, W, M, AT_W, AT_A, AT_B, GAIN, CARRY = range(10)
SCALAR, DENSE, ADJOINT = range(3)  # A = a;  A given;  A = a S W' with a constant matrix S


@compiled
def _shared(stack: Array, e: int, layer: int) -> Array:
    """stack[e, layer], where either axis may be shared (size 1)."""
    return stack[e if stack.shape[0] > 1 else 0, layer if stack.shape[1] > 1 else 0]


def assemble(
    theta: Array, beta: Array, dense: Array, steps: Array, wire: Array, mixing: Array,
    table: Array, packed: Array,
) -> None:  # fmt: skip
    """Fill packed rows: entry k of W or b is +-theta[|wire[k]| - 1] (or beta), 0 where wire[k] = 0.

    A is a number of `steps`, or the next entries of `dense`, or a S W' with S next in `mixing`.
    """
    networks, layers, _ = packed.shape
    for e in range(networks):
        for layer in range(layers):
            row = packed[e, layer]
            given, mix = 0, 0
            for s in range(table.shape[0]):
                stage = table[s]
                r, w, m, at_w, at_a = stage[R], stage[W], stage[M], stage[AT_W], stage[AT_A]
                _gather(_shared(theta, e, layer), wire, row, at_w, m * r)
                _gather(_shared(beta, e, layer), wire, row, stage[AT_B], m)
                if stage[GAIN] == DENSE:
                    gains = _shared(dense, e, layer)
                    for k in range(w * m):
                        row[at_a + k] = gains[given + k]
                    given += w * m
                    continue
                a = _step(steps, s, e, layer)
                if stage[GAIN] == SCALAR:
                    row[at_a] = a
                    continue
                row[at_a : at_a + w * m] = 0
                for i in range(w):
                    for k in range(r):
                        factor = a * mixing[mix + i * r + k]
                        if factor != 0:  # S is mostly zeros
                            for j in range(m):
                                row[at_a + i * m + j] += factor * row[at_w + j * r + k]
                mix += w * r


@compiled
def _step(steps: Array, s: int, e: int, layer: int) -> float:
    return steps[s, e if steps.shape[1] > 1 else 0, layer if steps.shape[2] > 1 else 0]


@compiled
def _gather(source: Array, wire: Array, row: Array, start: int, count: int) -> None:
    for k in range(start, start + count):
        code = wire[k]
        if code > 0:
            row[k] = source[code - 1]
        elif code < 0:
            row[k] = -source[-code - 1]
        else:
            row[k] = 0


@compiled
def _scatter(row: Array, wire: Array, target: Array, start: int, count: int) -> None:
    for k in range(start, start + count):
        code = wire[k]
        if code > 0:
            target[code - 1] += row[k]
        elif code < 0:
            target[-code - 1] -= row[k]


def disassemble(
    partial: Array, packed: Array, steps: Array, wire: Array, mixing: Array, table: Array,
    gtheta: Array, gbeta: Array, gdense: Array, gsteps: Array,
) -> None:  # fmt: skip
    """Add partial gradients in chunk order (into partial[0]) and carry them to the raw stacks.

    For A = a S W': dL/dW += a (dL/dA)' S and dL/da = <dL/dA, S W'>. Shared axes (size 1) are summed
    over. An empty gsteps (size 0) is not computed.
    """
    pieces, networks, layers, _ = partial.shape
    gtheta[:] = 0
    gbeta[:] = 0
    gdense[:] = 0
    gsteps[:] = 0
    for e in range(networks):
        for layer in range(layers):
            grads, row = partial[0, e, layer], packed[e, layer]
            for piece in range(1, pieces):
                part = partial[piece, e, layer]
                for k in range(grads.size):
                    grads[k] += part[k]
            given, mix = 0, 0
            for s in range(table.shape[0]):
                stage = table[s]
                r, w, m, at_a = stage[R], stage[W], stage[M], stage[AT_A]
                slope = row[0] * 0
                if stage[GAIN] == DENSE:
                    target = _shared(gdense, e, layer)
                    for k in range(w * m):
                        target[given + k] += grads[at_a + k]
                    given += w * m
                elif stage[GAIN] == SCALAR:
                    slope = grads[at_a]
                else:
                    a = _step(steps, s, e, layer)
                    slope = _adjoint_gain(stage, row, grads, a, mixing, mix)
                    mix += w * r
                if gsteps.size:
                    one_e, one_layer = gsteps.shape[1] == 1, gsteps.shape[2] == 1
                    gsteps[s, 0 if one_e else e, 0 if one_layer else layer] += slope
                _scatter(grads, wire, _shared(gtheta, e, layer), stage[AT_W], m * r)
                _scatter(grads, wire, _shared(gbeta, e, layer), stage[AT_B], m)


@compiled
def _adjoint_gain(
    stage: Array, row: Array, grads: Array, a: float, mixing: Array, mix: int
) -> float:
    """dL/dW += a (dL/dA)' S in place; returns dL/da."""
    r, w, m, at_w, at_a = stage[R], stage[W], stage[M], stage[AT_W], stage[AT_A]
    slope = row[0] * 0
    for i in range(w):
        for k in range(r):
            factor = mixing[mix + i * r + k]
            if factor != 0:
                for j in range(m):
                    g = factor * grads[at_a + i * m + j]
                    slope += g * row[at_w + j * r + k]
                    grads[at_w + j * r + k] += a * g
    return slope
