"""Images through convolutions, Hamiltonian blocks and pooling, one image at a time, in one call.

A network is a list of *operations* between *planes*: images in the scratch of a thread, the
channels of a pixel side by side, zeros around them (so that convolutions need not know of edges).
All planes of an image together stay in the cache. Each pixel is a row of a product, see
`hdnn.kernels.row_products`.

    CONVOLVE   y[write] = sigma(start + W * x[read]), where start is y itself, a bias or nothing
    SCALE      y[write] = carry y[write] + a x
    AFFINE     x = sigma(a x + b), channel by channel, in place
    POOL       y = the largest of 2 x 2 pixels of x
"""

from typing import NamedTuple

from numba import types

from hdnn.kernels import build
from hdnn.kernels.activations import IDENTITY, activate, fill
from hdnn.kernels.row_products import Rows, add_scaled, row_product
from hdnn.kernels.team import Team, first_piece, next_piece
from hdnn.kernels.vectors import Array, Pointer, compiled, pointer, pointer_to

CONVOLVE, SCALE, AFFINE, POOL = range(4)

# Columns of an operation: its kind; the planes that it reads and writes; first entry and number of
# the channels that it reads and writes, the latter also filled up to vectors; side and stride of a
# convolution; what it starts from; the activation's code; where its constants are (W or a; b);
# carry.
KIND, SOURCE, TARGET, R0, R, W0, W, WIDE, SIDE, STRIDE, START, SIGMA, AT, BIAS_AT, CARRY = range(15)
COLUMNS = 15

# Columns of a plane: where it begins; height and width without its edge; the edge; numbers from a
# pixel to the next.
BEGIN, HEIGHT, WIDTH, EDGE, PITCH = range(5)
PLANE_COLUMNS = 5


class Images(NamedTuple):
    """Where images come from and go to.

    Attributes:
        source: address of the images, and how many numbers apart they, their channels, lines and
            pixels are.
        target: address of the result, and how many numbers apart images, channels and pixels are.
        mean: whether the result is the mean over the pixels.
        channels: of the first plane.
        outputs: channels of the plane that is the result.
        result: its number.
    """

    source: int
    image: int
    channel: int
    line: int
    pixel: int
    target: int
    to_image: int
    to_channel: int
    to_pixel: int
    mean: int
    channels: int
    outputs: int
    result: int


@compiled
def _pixel(plane: Array, p: int, q: int) -> int:
    """Where a pixel is; those of the edge have negative coordinates, or beyond the size."""
    edge, width = plane[EDGE], plane[WIDTH] + 2 * plane[EDGE]
    return plane[BEGIN] + ((p + edge) * width + q + edge) * plane[PITCH]


@compiled
def _convolve(X: Pointer, C: Pointer, op: Array, x: Array, y: Array) -> None:
    half, line = op[SIDE] // 2, (x[WIDTH] + 2 * x[EDGE]) * x[PITCH]
    for p in range(y[HEIGHT]):
        at = _pixel(x, p * op[STRIDE] - half, -half) + op[R0]
        rows = Rows(at, op[STRIDE] * x[PITCH], op[SIDE], line, x[PITCH])
        to, count, width = _pixel(y, p, 0), y[WIDTH], op[WIDE]
        row_product(
            X, rows, count, op[R], C, op[AT], width, to + op[W0], y[PITCH], op[START], op[BIAS_AT]
        )
        if op[SIGMA] != IDENTITY:  # of whole pixels, which nobody else writes to
            activate(X, to, count * y[PITCH], op[SIGMA])


@compiled
def _scale(X: Pointer, C: Pointer, op: Array, x: Array, y: Array) -> None:
    for p in range(y[HEIGHT]):
        for q in range(y[WIDTH]):
            to = _pixel(y, p, q) + op[W0]
            add_scaled(X, _pixel(x, p, q), to, op[W], C, op[AT], op[CARRY])


@compiled
def _affine(X: Pointer, C: Pointer, op: Array, x: Array) -> None:
    a, b = op[AT], op[BIAS_AT]
    for p in range(x[HEIGHT]):
        for q in range(x[WIDTH]):
            at = _pixel(x, p, q)
            for f in range(op[W]):
                X[at + f] = C[a + f] * X[at + f] + C[b + f]
        if op[SIGMA] != IDENTITY:
            activate(X, _pixel(x, p, 0), x[WIDTH] * x[PITCH], op[SIGMA])


@compiled
def _pool(X: Pointer, op: Array, x: Array, y: Array) -> None:
    for p in range(y[HEIGHT]):
        for q in range(y[WIDTH]):
            a, b, to = _pixel(x, 2 * p, 2 * q), _pixel(x, 2 * p + 1, 2 * q), _pixel(y, p, q)
            for f in range(op[W]):
                largest = X[a + f]
                for at in (a + x[PITCH], b, b + x[PITCH]):
                    value = X[at + f]
                    largest = value if value > largest or value != value else largest
                X[to + f] = largest


@compiled
def _read(data: Pointer, image: int, images: Images, X: Pointer, plane: Array) -> None:
    for f in range(images.channels):
        for p in range(plane[HEIGHT]):
            at = image * images.image + f * images.channel + p * images.line
            to = _pixel(plane, p, 0) + f
            for q in range(plane[WIDTH]):
                X[to + q * plane[PITCH]] = data[at + q * images.pixel]


@compiled
def _write(X: Pointer, plane: Array, out: Pointer, image: int, images: Images) -> None:
    count = plane[HEIGHT] * plane[WIDTH]
    for f in range(images.outputs):
        to = image * images.to_image + f * images.to_channel
        total = X[plane[BEGIN]] * 0
        for p in range(plane[HEIGHT]):
            at = _pixel(plane, p, 0) + f
            for q in range(plane[WIDTH]):
                value = X[at + q * plane[PITCH]]
                if images.mean:
                    total += value
                else:
                    out[to + (p * plane[WIDTH] + q) * images.to_pixel] = value
        if images.mean:
            out[to] = total / count


def predict_images(
    images: Images,
    operations: Array,
    planes: Array,
    constants: Array,
    scratch: Array,
    team: Team,
    caller: bool,
) -> None:
    """The plane that is the result, or its mean, of images through all operations.

    Args:
        images: where they come from and go to.
        operations: ``(operations, 15)``, the columns above.
        planes: ``(planes, 5)``; the first is the image.
        constants: W of convolutions, biases, factors.
        scratch: of this thread, room for all planes and one vector.
        team: with `caller`: how threads share images, see `hdnn.kernels.team`.
        caller: see there.
    """
    C, X = pointer(constants), pointer(scratch)
    data, out = pointer_to(images.source, constants), pointer_to(images.target, constants)
    fill(X, 0, scratch.size, 0)  # edges, which stay 0
    image = first_piece(team, caller)
    while image >= 0:
        _read(data, image, images, X, planes[0])
        for k in range(len(operations)):
            op = operations[k]
            x, y = planes[op[SOURCE]], planes[op[TARGET]]
            if op[KIND] == CONVOLVE:
                _convolve(X, C, op, x, y)
            elif op[KIND] == SCALE:
                _scale(X, C, op, x, y)
            elif op[KIND] == AFFINE:
                _affine(X, C, op, x)
            else:
                _pool(X, op, x, y)
        _write(X, planes[images.result], out, image, images)
        image = next_piece(team, caller)


def predict_images_types(number: types.Float) -> tuple[types.Type, ...]:
    """The types of the arguments, given that of the numbers."""
    flat = build.flat(number)
    images = build.named(Images, *(types.int64,) * len(Images._fields))
    return (images, build.table, build.table, flat, flat, *build.team)


def predict_images_kernel(dtype: str) -> build.Kernel:
    """`predict_images`, compiled for float32 or float64."""
    return build.kernel(predict_images, dtype, predict_images_types)
