"""The same computation by different means: forward and backward with all parameter gradients.

A peer turns a case into a function without arguments that computes once and returns the gradients
of y_0 and of the parameters. Peers in JAX are workers; see `jax_peer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from speed import plain
from speed.cases import Case

Gradients = tuple[Tensor, ...]
Function = Callable[[], Gradients]


def _training_step(
    case: Case, forward: Callable[[Tensor], Tensor], parameters: Iterable[Tensor]
) -> Function:
    inputs = [case.state().requires_grad_(), *parameters]
    grad_out = case.state(seed=2)
    return lambda: torch.autograd.grad(forward(inputs[0]), inputs, grad_out)


def network(case: Case, compiled: bool = False, **options: Any) -> Function:
    """hdnn's network through autograd."""
    net = case.network(**options)
    return _training_step(case, torch.compile(net) if compiled else net, net.parameters())


def loop(case: Case, compiled: bool = False) -> Function:
    """A plain loop over the layers in eager PyTorch; gradients are those of K and b."""
    K, b = plain.parameters(case)
    forward = partial(plain.forward, case)
    forward = torch.compile(forward) if compiled else forward
    return _training_step(case, lambda y: forward(y, K, b), (K, b))


PEERS: dict[str, Callable[[Case], Function]] = {
    "fused": partial(network, backend="fused"),
    "fused compiled": partial(network, backend="fused", compiled=True),
    "auto": network,
    "lean": partial(network, memory="lean"),
    "reference": partial(network, backend="reference"),
    "loop": loop,
    "compile": partial(loop, compiled=True),
}
"""What is compared."""
