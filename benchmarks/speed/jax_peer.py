"""The peer in JAX: a worker for an environment with jax and numpy, such as ``jax==0.4.31``.

JAX programs of one network differ in speed by a factor of four, and which is fastest differs by
version. So the worker tries several forms and times the strongest. All of them return y_N and the
gradients of y_0, K and b. Layers are scanned, or written out where there are few; the state is (n,
samples), as XLA vectorizes the last axis, or (samples, n). Small products are fastest as sums of
broadcasts; as autodiff's gradient of these is slow, a custom one computes the gradient of the
matrix by a reduction or a matrix product. Networks of an ensemble and samples of images are split
over the devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from speed.timing import Work, repeat
from speed.worker import Record, serve

Function = Callable[..., Any]


class Form(NamedTuple):
    """How a case is written in JAX.

    Args:
        product: how W x is computed, by name in `PRODUCTS`; the state of "rows" is (samples, n).
        unroll: layers in one iteration of the scan; None is a Python loop over all of them.
        checkpoint: whether the backward pass recomputes layers.
        block: samples that pass through all layers together; None is all.
    """

    product: str
    unroll: int | None = 1
    checkpoint: bool = False
    block: int | None = None


def _sums(W: Any, x: Any) -> Any:
    out = W[:, 0, None] * x[0]
    for j in range(1, W.shape[1]):
        out = out + W[:, j, None] * x[j]
    return out


def _custom(outer: Function) -> Function:
    """Sums of broadcasts whose gradient with respect to W is `outer`."""
    product = jax.custom_vjp(_sums)
    product.defvjp(
        lambda W, x: (_sums(W, x), (W, x)),
        lambda saved, g: (outer(g, saved[1]), _sums(saved[0].T, g)),
    )
    return product


PRODUCTS: dict[str, Function] = {
    "matmul": lambda W, x: W @ x,
    "rows": lambda W, x: x @ W.T,
    "sums, reduced gradient": _custom(lambda g, x: (g[:, None] * x).sum(-1)),
    "sums, matmul gradient": _custom(lambda g, x: g @ x.T),
}


def forms(case: Record) -> list[Form]:
    """Those worth trying: each kind was the fastest for some network.

    Others never were: autodiff's gradient of sums, a vmap over samples, images in one piece or on
    one device, and single networks that are split over devices.
    """
    small = [name for name in PRODUCTS if name not in ("matmul", "rows")]
    products = ["matmul", *(small if case["width"] <= 8 else [])]
    if not case["pixels"]:
        halves = case["architecture"].startswith("MS")  # which are rows of a state (n, samples)
        products += [] if halves or case["ensemble"] or case["width"] < 16 else ["rows"]
        unrolls = (1, 2, *([None] if case["layers"] <= 16 else []))
        return [Form(product, unroll=unroll) for product in products for unroll in unrolls]
    return [
        Form(product, checkpoint=checkpoint, block=block)
        for product in products
        for block, checkpoint in ((1400, False), (4900, True))
    ]


def forward(case: Record, form: Form) -> Function:
    """y_N of one network from y_0 (n, samples), K and b as in `plain.parameters`."""
    n, h, multiply = case["width"], 1.2 / case["layers"], PRODUCTS[form.product]
    half, name = n // 2, case["architecture"]
    J = np.diag(np.ones(half), half) if name == "H1" else np.triu(np.ones((n, n)), 1)
    J = np.asarray(h * (J - J.T), np.float32)

    def squash(W: Any, x: Any, b: Any) -> Any:
        return jnp.tanh(multiply(W, x) + (b if form.product == "rows" else b[:, None]))

    def whole(y: Any, K: Any, A: Any, b: Any) -> Any:
        return y + multiply(A, squash(K, y, b))

    def ms1(x: Any, K: Any, A: Any, b: Any) -> Any:
        z = x[1] - h * squash(K.T, x[0], b[:half])
        return x[0] + h * squash(K, z, b[half:]), z

    def ms3(x: Any, K: Any, A: Any, b: Any) -> Any:
        y = x[0] + multiply(A[:, :half], squash(K[:half], x[1], b[:half]))
        return y, x[1] - multiply(A[:, half:], squash(K[half:], y, b[half:]))

    layer = {"H1": whole, "H2": whole, "MS1": ms1, "MS3": ms3}[name]

    def body(x: Any, weights: Any) -> tuple[Any, None]:
        return layer(x, *weights), None

    body = jax.checkpoint(body) if form.checkpoint else body

    def run(x: Any, K: Any, b: Any) -> Any:
        A = h * K.swapaxes(1, 2) if name.startswith("MS") else J @ K.swapaxes(1, 2)
        start = (x[:half], x[half:]) if name.startswith("MS") else x
        if form.unroll is None:
            out = start
            for j in range(case["layers"]):
                out = layer(out, K[j], A[j], b[j])
        else:
            out, _ = lax.scan(body, start, (K, A, b), unroll=form.unroll)
        return jnp.concatenate(out) if name.startswith("MS") else out

    return run


def gradients(case: Record, form: Form) -> Function:
    """From y_0, K, b and the gradient of y_N: y_N and the gradients of y_0, K, b."""
    run = forward(case, form)

    def whole(x: Any, K: Any, b: Any, g: Any) -> Any:
        out, pull = jax.vjp(run, x, K, b)
        return (out, *pull(g))

    def blocked(x: Any, K: Any, b: Any, g: Any) -> Any:
        def piece(sums: Any, inputs: Any) -> Any:
            out, grad_x, *grads = whole(inputs[0], K, b, inputs[1])
            return [total + grad for total, grad in zip(sums, grads, strict=True)], (out, grad_x)

        zeros = [jnp.zeros_like(K), jnp.zeros_like(b)]
        size = math.gcd(form.block, x.shape[1])
        grads, (out, grad_x) = lax.scan(piece, zeros, (_cut(x, size), _cut(g, size)))
        return _join(out), _join(grad_x), *grads

    return whole if form.block is None else blocked


def _cut(x: Any, size: int) -> Any:
    return x.reshape(len(x), -1, size).swapaxes(0, 1)


def _join(x: Any) -> Any:
    return x.swapaxes(0, 1).reshape(x.shape[1], -1)


def _place(parts: Any) -> Any:
    """Each part to its device, so that no call copies it there."""
    return jax.pmap(lambda part: part)(parts)


def build(case: Record, form: Form, arrays: list[Any]) -> tuple[Function, Function]:
    """A function that computes once, and one that joins the results of several devices."""
    function, devices = gradients(case, form), jax.device_count()
    if case["ensemble"]:
        devices = math.gcd(devices, case["ensemble"])
        inputs = [_place(a.reshape(devices, -1, *a.shape[1:])) for a in arrays]
        compiled = jax.pmap(jax.vmap(function))
        join = lambda results: [r.reshape(-1, *r.shape[2:]) for r in results]  # noqa: E731
    elif case["pixels"]:
        x, K, b, g = arrays
        devices = math.gcd(devices, x.shape[1])
        size = x.shape[1] // devices
        parts = [_cut(x, size), np.stack([K] * devices), np.stack([b] * devices), _cut(g, size)]
        inputs = [_place(part) for part in parts]

        def summed(*inputs: Any) -> Any:
            out, grad_x, *grads = function(*inputs)
            return out, grad_x, *lax.psum(grads, "device")

        compiled = jax.pmap(summed, axis_name="device")
        join = lambda r: [_join(r[0]), _join(r[1]), r[2][0], r[3][0]]  # noqa: E731
    else:
        rows = form.product == "rows"
        x, K, b, g = arrays
        arrays = [x.T, K, b, g.T] if rows else arrays
        inputs, compiled = [jnp.asarray(a) for a in arrays], jax.jit(function)
        join = lambda r: [r[0].T, r[1].T, *r[2:]] if rows else list(r)  # noqa: E731
    return lambda: jax.block_until_ready(compiled(*inputs)), join


def prepare(request: Record) -> tuple[Work, Record]:
    """Time the forms of ``{"case": ..., "arrays": file}``, and take the fastest.

    Raises:
        ValueError: a form computes other gradients than those of the file.
    """
    with np.load(request["arrays"]) as file:
        arrays = [file[name] for name in ("y", "K", "b", "g")]
        gradients = [file[name] for name in ("grad_y", "grad_K", "grad_b")]
    works, seconds = {}, {}
    for form in forms(request["case"]):
        function, join = build(request["case"], form, arrays)
        _, *results = join(function())
        for result, exact in zip(results, gradients, strict=True):
            if not np.linalg.norm(result - exact) < 1e-4 * np.linalg.norm(exact):
                raise ValueError(f"{form} computes other gradients")
        works[form] = repeat(function)
        calls = max(1, round(0.01 / works[form](1)))
        seconds[form] = min(works[form](calls) / calls for _ in range(7))
    best = min(seconds, key=lambda form: seconds[form])
    return works[best], {"version": jax.__version__, "form": best._asdict()}


if __name__ == "__main__":
    serve(prepare)
