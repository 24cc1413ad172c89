"""The same computation by different means: forward and backward with all parameter gradients.

A peer turns a network and a batch into a function without arguments that does the work once.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hdnn.errors import HdnnError
from hdnn.fields.hamiltonian import WeightedField
from hdnn.networks import HamiltonianNetwork

Work = Callable[[], Any]
Peer = Callable[[HamiltonianNetwork, Tensor], Work]


def _training_step(function: Callable[[Tensor], Tensor], net: torch.nn.Module, y: Tensor) -> Work:
    parameters = [p for p in net.parameters() if p.requires_grad]
    y = y.clone().requires_grad_()
    weight = torch.randn_like(y)

    def work() -> tuple[Tensor, ...]:
        return torch.autograd.grad(function(y), [y, *parameters], weight)

    return work


def _with_backend(net: HamiltonianNetwork, backend: str) -> HamiltonianNetwork:
    twin = copy.deepcopy(net)
    twin.backend = backend
    return twin


def auto(net: HamiltonianNetwork, y: Tensor) -> Work:
    """hdnn as a user gets it."""
    twin = _with_backend(net, "auto")
    return _training_step(twin, twin, y)


def fused(net: HamiltonianNetwork, y: Tensor) -> Work:
    """hdnn's fused kernels."""
    twin = _with_backend(net, "fused")
    return _training_step(twin, twin, y)


def reference(net: HamiltonianNetwork, y: Tensor) -> Work:
    """hdnn's reference backend: eager torch, a loop over layers."""
    twin = _with_backend(net, "reference")
    return _training_step(twin, twin, y)


def compiled(net: HamiltonianNetwork, y: Tensor) -> Work:
    """torch.compile of the reference backend."""
    twin = _with_backend(net, "reference")
    return _training_step(torch.compile(twin), twin, y)


def torchdiffeq(net: HamiltonianNetwork, y: Tensor) -> Work:
    """torchdiffeq's fixed-step Euler over the same velocity; forward Euler networks only."""
    from hdnn.schemes import ForwardEuler

    if net.scheme != ForwardEuler() or not isinstance(net.h, float) or net.ensemble is not None:
        raise HdnnError("only single networks of forward Euler with a uniform step")
    from torchdiffeq import odeint

    twin = _with_backend(net, "reference")
    grid, h = torch.arange(net.layers + 1) * net.h, net.h
    layout = twin.field.layout

    def function(y: Tensor) -> Tensor:
        x, restore = layout.flatten(y)
        velocity = twin.field.velocity_fn()
        solution = odeint(
            lambda t, x: velocity(min(round(float(t) / h), net.layers - 1), t, x),
            x,
            grid,
            method="euler",
        )
        return restore(solution[-1])

    return _training_step(function, twin, y)


def _jax(net: HamiltonianNetwork, y: Tensor, *, checkpoint: bool) -> Work:
    import jax
    import jax.numpy as jnp

    stages = net.program().stages
    field = net.field
    if stages is None or not isinstance(field, WeightedField):
        raise HdnnError("only programs of stages")
    plan = [_JaxStage.of(stage) for stage in stages]
    channels, ensemble = net.channels is not None, net.ensemble is not None
    arrays = [
        (jnp.asarray(s.W.tensor().detach().numpy()), jnp.asarray(s.b.tensor().detach().numpy()))
        for s in stages
    ]
    multiply = "mr,brs->bms" if channels else "mr,br->bm"
    cuts = sorted({0, field.layout.width}.union(*(s.read + s.write for s in plan)))
    whole = len(cuts) == 2  # the state is one piece; split networks carry the pair (y, z)

    def layer(pieces: Any, weights: Any) -> tuple[Any, None]:
        for stage, (W, b, A) in zip(plan, weights, strict=True):
            source, target = (0, 0) if whole else (stage.read[0] > 0, stage.write[0] > 0)
            s = jnp.einsum(multiply, W, pieces[source]) + (b[:, None] if channels else b)
            s = jnp.tanh(s)
            change = stage.step * s if A is None else jnp.einsum(multiply, A, s)
            new = pieces[target] + change if stage.carry else change
            pieces = tuple(new if k == target else old for k, old in enumerate(pieces))
        return pieces, None

    body = jax.checkpoint(layer) if checkpoint else layer

    def single(x: Any, weights: Any) -> Any:
        gains = [
            None if stage.S is None else stage.step * jnp.asarray(stage.S) @ W.swapaxes(-1, -2)
            for stage, (W, _) in zip(plan, weights, strict=True)
        ]
        stacks = [(W, b, A) for (W, b), A in zip(weights, gains, strict=True)]
        pieces = tuple(x[:, a:b] for a, b in itertools.pairwise(cuts))
        return jnp.concatenate(jax.lax.scan(body, pieces, stacks)[0], axis=1)

    run = jax.vmap(single) if ensemble else single
    weight = jnp.asarray(
        torch.randn_like(y).flatten(3 if ensemble else 2).numpy()
        if channels
        else torch.randn_like(y).numpy()
    )
    gradient = jax.jit(jax.grad(lambda x, w: (run(x, w) * weight).sum(), argnums=(0, 1)))
    x = jnp.asarray((y.flatten(3 if ensemble else 2) if channels else y).numpy())

    def work() -> Any:
        return jax.block_until_ready(gradient(x, arrays))

    return work


@dataclass(frozen=True)
class _JaxStage:
    read: tuple[int, int]
    write: tuple[int, int]
    step: float
    S: Any
    carry: int

    @classmethod
    def of(cls, stage: Any) -> _JaxStage:
        from hdnn.program import Adjoint

        adjoint = isinstance(stage.A, Adjoint)
        step = stage.A.step if adjoint else stage.A
        if not isinstance(step, float):
            raise HdnnError("only uniform steps")
        S = stage.A.S.detach().numpy() if adjoint else None
        return cls(stage.read, stage.write, step, S, stage.carry)


def jax_scan(net: HamiltonianNetwork, y: Tensor) -> Work:
    """JAX: `lax.scan` over the layers, jitted."""
    return _jax(net, y, checkpoint=False)


def jax_checkpoint(net: HamiltonianNetwork, y: Tensor) -> Work:
    """JAX: `lax.scan` over layers under `jax.checkpoint`, jitted."""
    return _jax(net, y, checkpoint=True)


PEERS: dict[str, Peer] = {
    "fused": fused,
    "auto": auto,
    "reference": reference,
    "compile": compiled,
    "jax": jax_scan,
    "jax-checkpoint": jax_checkpoint,
    "torchdiffeq": torchdiffeq,
}
"""Who is compared; jax and torchdiffeq need the extra `bench`."""
