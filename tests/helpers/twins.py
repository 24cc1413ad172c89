"""The same network on several backends, and what they compute side by side."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import hdnn
from catalog import PAIRS, build

Net = hdnn.HamiltonianNetwork
Results = dict[str, Tensor]

_SAME = ("SemiImplicitEuler", "Verlet")  # as the schemes of their own


def _staged(name: str, scheme: str) -> bool:
    if scheme in _SAME or (scheme == "ForwardEuler" and (name, "Leapfrog") not in PAIRS):
        return False
    return not build(name, scheme).program.has_flows


CATALOG: dict[str, Callable[..., Net]] = {
    f"{name}-{scheme}": lambda n=name, s=scheme, **options: build(n, s, **options)
    for name, scheme in PAIRS
    if _staged(name, scheme)
}
"""Every architecture with every kind of stages it has: what the kernels serve."""


def stepped(label: str) -> bool:
    return not label.startswith("FCNN")


def twin(net: Net, backend: str, memory: str = "fast", dtype: torch.dtype | None = None) -> Net:
    """A copy on another backend."""
    other = copy.deepcopy(net)
    other.backend, other.memory = backend, memory
    return other if dtype is None else other.to(dtype)


def derivatives(net: Net, y: Tensor, weight: Tensor, function: Any = None) -> Results:
    """y_N, and the gradients of <weight, y_N> with respect to the state and all parameters.

    Where a function is given, it computes y_N with the parameters of the network.
    """
    y, named = y.detach().clone().requires_grad_(), dict(net.named_parameters())
    out = net(y) if function is None else function(y)
    gradients = torch.autograd.grad(out, [y, *named.values()], weight, materialize_grads=True)
    return {"value": out.detach()} | dict(zip(["state", *named], gradients, strict=True))


def error(value: Tensor, exact: Tensor) -> float:
    """|value - exact| / |exact| in the 2-norm."""
    assert value.shape == exact.shape
    exact = exact.detach().double()
    difference = float(torch.linalg.vector_norm(value.detach().double() - exact))
    return difference / max(float(torch.linalg.vector_norm(exact)), 1e-300)


def agree(results: Results, exact: Results, tolerance: float = 1e-11) -> None:
    assert results.keys() == exact.keys()
    errors = {name: error(results[name], exact[name]) for name in exact}
    assert max(errors.values()) <= tolerance, errors
