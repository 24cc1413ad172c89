"""The same computation by different means: forward and backward with all parameter gradients.

A peer turns a case into a function without arguments that computes once and returns the gradients
of y_0 and of the parameters. Peers in JAX are workers; see `jax_peer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from speed import plain
from speed.cases import Case

Gradients = tuple[Tensor, ...]
Function = Callable[[], Gradients]
Peer = Callable[[Case], Function]


def _training_step(
    case: Case, forward: Callable[[Tensor], Tensor], parameters: Iterable[Tensor]
) -> Function:
    inputs = [case.state().requires_grad_(), *parameters]
    grad_out = case.state(seed=2)
    return lambda: torch.autograd.grad(forward(inputs[0]), inputs, grad_out)


def network(*, compiled: bool = False, **options: Any) -> Peer:
    """hdnn's network through autograd."""

    def peer(case: Case) -> Function:
        net = case.network(**options)
        return _training_step(case, torch.compile(net) if compiled else net, net.parameters())

    return peer


def vjp(case: Case) -> Function:
    """hdnn's fused kernels without autograd."""
    net, y, grad_out = case.network(backend="fused"), case.state(), case.state(seed=2)

    def function() -> Gradients:
        grad_y, gradients = net.vjp(y, grad_out)
        return grad_y, *gradients.values()

    return function


def loop(case: Case) -> Function:
    """A plain loop over the layers in eager PyTorch; gradients are those of K and b."""
    K, b = plain.parameters(case)
    return _training_step(case, lambda y: plain.forward(case, y, K, b), (K, b))


def compiled_loop(case: Case) -> Function:
    """torch.compile of the plain loop."""
    K, b = plain.parameters(case)
    forward = torch.compile(lambda y, K, b: plain.forward(case, y, K, b))
    return _training_step(case, lambda y: forward(y, K, b), (K, b))


PEERS: dict[str, Peer] = {
    "fused": network(backend="fused"),
    "fused compiled": network(backend="fused", compiled=True),
    "auto": network(),
    "lean": network(memory="lean"),
    "reference": network(backend="reference"),
    "vjp": vjp,
    "loop": loop,
    "compile": compiled_loop,
}
"""What is compared."""
