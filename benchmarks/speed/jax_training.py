"""A whole joint training in JAX, one jit: a worker for an environment with jax and numpy.

H1 and a linear output layer on the Swiss roll, with hdnn's loss, penalties, batches and Adam: scans
over epochs, batches and layers. Samples are last, and small products are sums of broadcasts.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from speed.jax_peer import PRODUCTS
from speed.timing import Work, repeat
from speed.worker import Record, serve

PRODUCT = PRODUCTS["sums, matmul gradient"]
DECAYS, TINY = (0.9, 0.999), 1e-8


def loss_of(weights: Any, X: Any, y: Any, h: float, penalties: tuple[float, float]) -> Any:
    """The penalized loss of a batch, and the loss."""
    K, b, W, mu = weights
    n, (alpha, alpha_c) = K.shape[-1], penalties
    A = K.swapaxes(1, 2)
    A = h * jnp.concatenate([A[:, n // 2 :], -A[:, : n // 2]], 1)

    def layer(x: Any, own: Any) -> tuple[Any, None]:
        K_j, A_j, b_j = own
        return x + PRODUCT(A_j, jnp.tanh(PRODUCT(K_j, x) + b_j[:, None])), None

    out, _ = lax.scan(layer, X.T, (K, A, b))
    z = W @ out + mu
    plain = (jnp.maximum(z, 0) - z * y + jnp.log1p(jnp.exp(-jnp.abs(z)))).mean()
    changes = sum((jnp.diff(p, axis=0) ** 2).sum() for p in (K, b))
    return plain + alpha * h / 2 * changes + alpha_c * ((W**2).sum() + mu**2), plain


def prepare(request: Record) -> tuple[Work, Record]:
    """Train on ``{"arrays": file, ...}``; the answer has the mean loss of the last epoch."""
    with np.load(request["arrays"]) as file:
        X, y, *start = (jnp.asarray(file[name]) for name in ("X", "y", "K", "b", "W", "mu"))
    h, rate, epochs, batch = (request[name] for name in ("h", "rate", "epochs", "batch"))
    penalties = request["alpha"], request["alpha_c"]
    gradient = jax.value_and_grad(loss_of, has_aux=True)

    def step(carry: Any, rows: Any) -> tuple[Any, Any]:
        weights, first, second, t = carry
        (_, plain), g = gradient(weights, X[rows], y[rows], h, penalties)
        t, (d1, d2) = t + 1, DECAYS
        first = [d1 * m + (1 - d1) * v for m, v in zip(first, g, strict=True)]
        second = [d2 * m + (1 - d2) * v**2 for m, v in zip(second, g, strict=True)]
        size = rate / (1 - d1**t)
        weights = [
            w - size * m / (jnp.sqrt(s / (1 - d2**t)) + TINY)
            for w, m, s in zip(weights, first, second, strict=True)
        ]
        return (weights, first, second, t), plain

    def epoch(carry: Any, key: Any) -> tuple[Any, Any]:
        order = jax.random.permutation(key, len(X)).reshape(-1, batch)
        carry, losses = lax.scan(step, carry, order)
        return carry, losses.mean()

    @jax.jit
    def train(start: Any, key: Any) -> Any:
        zeros = [jnp.zeros_like(w) for w in start]
        return lax.scan(epoch, (start, zeros, zeros, 0.0), jax.random.split(key, epochs))

    def work() -> Any:
        return jax.block_until_ready(train(start, jax.random.PRNGKey(0)))

    losses = work()[1]
    answer = {"version": jax.__version__, "losses": [float(losses[k]) for k in (0, -1)]}
    return repeat(work), answer


if __name__ == "__main__":
    serve(prepare)
