"""The layer equations of section 2.3 in plain PyTorch, as one would write them without hdnn."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from speed.cases import Case

Layer = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From y, K_j and b_j."""


def parameters(case: Case) -> tuple[Tensor, Tensor]:
    """K and b of a case's network as leaves: K0 of MS1 (L, n/2, n/2), K1 on K2 of MS3 (L, n, n/2).

    With an ensemble's axis in front.
    """
    net, half = case.network(), case.width // 2
    K, b = net.K.detach(), net.b.detach()
    if case.architecture == "MS1":
        K = K[..., :half, half:]
    if case.architecture == "MS3":
        K = torch.cat([K[..., :half, half:], K[..., half:, :half]], -2)
    return K.clone().requires_grad_(), b.clone().requires_grad_()


def interconnection(architecture: str, n: int) -> Tensor:
    """J of H1 and H2."""
    h1 = architecture == "H1"
    J = torch.diag(torch.ones(n // 2), n // 2) if h1 else torch.ones(n, n).triu(1)
    return J - J.T


def layer(case: Case) -> Layer:
    """One layer; states are (..., samples, n), or (samples, n, pixels)."""
    h, half, images = 1.2 / case.layers, case.width // 2, case.pixels is not None
    J = interconnection(case.architecture, case.width)

    def multiply(W: Tensor, x: Tensor) -> Tensor:
        return W @ x if images else x @ W.mT

    def squash(W: Tensor, x: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(multiply(W, x) + b.unsqueeze(-1 if images else -2))

    def whole(y: Tensor, K: Tensor, b: Tensor) -> Tensor:
        return y + multiply(h * J @ K.mT, squash(K, y, b))

    def ms1(x: Tensor, K: Tensor, b: Tensor) -> Tensor:
        y, z = x.split(half, axis)
        z = z - h * squash(K.mT, y, b[..., :half])
        y = y + h * squash(K, z, b[..., half:])
        return torch.cat([y, z], axis)

    def ms3(x: Tensor, K: Tensor, b: Tensor) -> Tensor:
        y, z = x.split(half, axis)
        K1, K2 = K.split(half, -2)
        y = y + h * multiply(K1.mT, squash(K1, z, b[..., :half]))
        z = z - h * multiply(K2.mT, squash(K2, y, b[..., half:]))
        return torch.cat([y, z], axis)

    axis = -2 if images else -1
    return {"H1": whole, "H2": whole, "MS1": ms1, "MS3": ms3}[case.architecture]


def forward(case: Case, y: Tensor, K: Tensor, b: Tensor) -> Tensor:
    """y_N, by a loop over the layers."""
    step, first = layer(case), 0 if case.ensemble is None else 1
    x = y.flatten(2) if case.pixels else y
    for K_j, b_j in zip(K.unbind(first), b.unbind(first), strict=True):
        x = step(x, K_j, b_j)
    return x.reshape(y.shape)
