"""A recurrence in JAX: a worker; the fastest of a few forms of `lax.scan`, all gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from speed.timing import Work, repeat
from speed.worker import Record, serve


def outputs(u: Any, K: Any, B: Any, b: Any, F: Any, E: Any, W: Any, C: Any, unroll: int) -> Any:
    """y of x+ = F x + W tanh(K x + B u + b) + E u: inputs (T, batch, d), drives at once."""

    def step(x: Any, drive: Any) -> Any:
        s, r = drive
        a = jnp.tanh(x @ K.T + s)
        return x @ F.T + a @ W.T + r, x

    x0 = jnp.zeros((u.shape[1], F.shape[0]), u.dtype)
    _, states = lax.scan(step, x0, (u @ B.T + b, u @ E.T), unroll=unroll)
    return states @ C.T


def prepare(message: Record) -> tuple[Work, Record]:
    """The work of the fastest form; every form gives the gradients that the message has."""
    arrays = {name: jnp.asarray(array) for name, array in np.load(message["arrays"]).items()}
    names = ("u", "K", "B", "b", "F", "E", "W", "C")
    leaves, g = [arrays[name] for name in names], arrays["g"]
    best: tuple[float, Work, int] | None = None
    for unroll in (1, 4, 16):
        loss = lambda *v, k=unroll: (outputs(*v, unroll=k) * g).sum()  # noqa: E731
        gradients = jax.jit(jax.grad(loss, argnums=tuple(range(len(leaves)))))
        for own, name in zip(gradients(*leaves), names, strict=True):
            expected = arrays[f"grad_{name}"]
            if not np.allclose(own, expected, atol=2e-3 * float(abs(expected).max())):
                raise ValueError(f"another gradient of {name}")
        work = repeat(lambda f=gradients: jax.block_until_ready(f(*leaves)))
        seconds = min(work(3) for _ in range(3))
        if best is None or seconds < best[0]:
            best = seconds, work, unroll
    assert best is not None
    return best[1], {"version": jax.__version__, "unroll": best[2]}


if __name__ == "__main__":
    serve(prepare)
