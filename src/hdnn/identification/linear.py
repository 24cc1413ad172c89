"""Linear models of recordings: least squares, then a realization.

    y_t = sum_k a_k y_{t-k} + sum_k b_k u_{t-k} + c           ARX, least squares
    g_t: its impulse response                                 Markov parameters
    H = [g_{i+j+1}] = O R, by its n largest singular values   Ho-Kalman
    A = O_up^+ O_down,  B = first of R,  C = first of O,  D = g_0

A mode outside the unit circle, which noise can give, is pulled inside.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hdnn.data.recordings import Recordings

RADIUS = 0.995
"""Eigenvalues of a realization are at most so large."""


class LinearSystem(NamedTuple):
    """x+ = A x + B u, y = C x + D u."""

    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor


def arx(recordings: Recordings, order: int) -> tuple[Tensor, Tensor]:
    """Least-squares ARX model of recordings, with a little ridge.

    Args:
        recordings: each longer than the order.
        order: how many samples back.

    Returns:
        a ``(order, outputs, outputs)`` and b ``(order + 1, outputs, inputs)``.
    """
    rows, goals = [], []
    for u, y in zip(recordings.inputs, recordings.outputs, strict=True):
        past = [y[order - k : len(y) - k] for k in range(1, order + 1)]
        drive = [u[order - k : len(u) - k] for k in range(order + 1)]
        parts = [torch.tensor(part) for part in (*past, *drive)]
        rows.append(torch.cat([*parts, torch.ones_like(parts[0][:, :1])], -1))
        goals.append(torch.tensor(y[order:]))
    X, Y = torch.cat(rows), torch.cat(goals)
    G = X.mT @ X
    G += 1e-6 * G.diagonal().mean() * torch.eye(len(G), dtype=G.dtype)
    theta = torch.linalg.solve(G, X.mT @ Y)
    q, d = Y.shape[1], recordings.inputs[0].shape[1]
    a, b, _ = theta.split([order * q, (order + 1) * d, 1])
    return a.unflatten(0, (order, q)).mT, b.unflatten(0, (order + 1, d)).mT


def impulse_response(a: Tensor, b: Tensor, length: int) -> Tensor:
    """Markov parameters of an ARX model.

    Args:
        a, b: as of `arx`.
        length: how many.

    Returns:
        ``(length, outputs, inputs)``.
    """
    g: list[Tensor] = []
    for t in range(length):
        value = b[t].clone() if t < len(b) else torch.zeros_like(b[0])
        for k in range(min(t, len(a))):
            value += a[k] @ g[t - 1 - k]
        g.append(value)
    return torch.stack(g)


def ho_kalman(g: Tensor, order: int) -> LinearSystem:
    """The realization of an impulse response, made stable.

    Args:
        g: ``(length, outputs, inputs)``.
        order: the number of states; at most outputs * (length - 1) / 2.

    Returns:
        The system.
    """
    half, (q, d) = (len(g) - 1) // 2, g.shape[1:]
    H = torch.cat([torch.cat([*g[1 + i : 1 + i + half]], -1) for i in range(half)])
    U, s, V = torch.linalg.svd(H, full_matrices=False)
    O, R = U[:, :order] * s[:order].sqrt(), s[:order].sqrt()[:, None] * V[:order]
    A = torch.linalg.lstsq(O[:-q], O[q:], driver="gelsd").solution
    return LinearSystem(_stable(A), R[:, :d], O[:q], g[0])


def _stable(A: Tensor) -> Tensor:
    """Eigenvalues beyond `RADIUS` shrink to it; eigenvectors stay."""
    values, vectors = torch.linalg.eig(A)
    if bool((values.abs() <= RADIUS).all()):
        return A
    shrunk = values * (RADIUS / values.abs()).clamp(max=1.0)
    return torch.linalg.solve(vectors, vectors * shrunk, left=False).real


def realize(recordings: Recordings, order: int, past: int = 20) -> LinearSystem:
    """A stable linear system that explains recordings.

    Args:
        recordings: scaled.
        order: its number of states.
        past: order of the ARX model, less where recordings are short.

    Returns:
        The system.
    """
    shortest = min(map(len, recordings.inputs))
    a, b = arx(recordings, max(1, min(past, shortest // 12)))
    return ho_kalman(impulse_response(a, b, 2 * max(2 * order, 40) + 1), order)
