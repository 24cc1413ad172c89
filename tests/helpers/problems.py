"""Problems with exact answers, shared by the tests: a field, a start, and where it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.integrate import solve_ivp
from scipy.special import ellipj
from torch import Tensor

from hdnn.fields import EnergyField, Field, HamiltonianField, Weights

Vector = np.ndarray


@dataclass(frozen=True)
class Problem:
    """y' = f(y), y(0) = start; ``exact(t)`` is y(t), from a formula or from DOP853.

    Args:
        field: the field for a number of layers, with the same weights in each.
        separable: whether splitting schemes apply.
    """

    field: Callable[[int], Field]
    start: tuple[float, ...]
    exact: Callable[[float], Vector]
    separable: bool


def _oscillator(layers: int) -> Field:
    weights = Weights("block-diagonal", features=2, layers=layers, time_invariant=True)
    with torch.no_grad():
        weights.theta.fill_(1.0)
        weights.beta.zero_()
    return HamiltonianField("J1", weights, activation="identity")


def _rotation(t: float) -> Vector:
    y, z = 0.8, -0.3
    return np.array([y * np.cos(t) + z * np.sin(t), z * np.cos(t) - y * np.sin(t)])


def _pendulum(layers: int) -> Field:
    def energy(x: Tensor, t: Tensor | float) -> Tensor:
        return x[..., 1] ** 2 / 2 - x[..., 0].cos()

    return EnergyField("J1", energy, features=2, separable=True)


def _elliptic(t: float, k: float = 0.6) -> Vector:
    sn, cn, _, _ = ellipj(t, k**2)
    return np.array([2 * np.arcsin(k * sn), 2 * k * cn])


INERTIA = (1.0, 1.0, 2.5)


def _rigid_body(layers: int) -> Field:
    inertia = torch.tensor(INERTIA, dtype=torch.float64)

    def cross(m: Tensor, t: Tensor | float) -> Tensor:
        """J(m) v = m x v."""
        a, b, c = m.unbind(-1)
        o = torch.zeros_like(a)
        rows = ((o, -c, b), (c, o, -a), (-b, a, o))
        return torch.stack([torch.stack(row, -1) for row in rows], -2)

    return EnergyField(cross, lambda m, t: (m**2 / inertia).sum(-1) / 2, features=3)


def _symmetric_top(t: float) -> Vector:
    m1, m2, m3 = 0.7, -0.4, 1.1
    w = m3 * (1 / INERTIA[0] - 1 / INERTIA[2])
    c, s = np.cos(w * t), np.sin(w * t)
    return np.array([m1 * c - m2 * s, m1 * s + m2 * c, m3])


# Any numbers do; these are written out so that the reference solution needs no hdnn.
K4 = np.array(
    [[0.9, -0.4, 0.3, 0.7], [0.2, 1.1, -0.6, 0.1], [-0.5, 0.3, 0.8, 0.4], [0.6, -0.2, 0.5, -1.0]]
)
B4 = np.array([0.3, -0.2, 0.1, 0.5])
Y4 = (0.5, -1.0, 0.8, 0.2)
J1 = np.block([[np.zeros((2, 2)), np.eye(2)], [-np.eye(2), np.zeros((2, 2))]])
J2 = np.triu(np.ones((4, 4)), 1) - np.tril(np.ones((4, 4)), -1)
BLOCKS = K4 * np.kron(np.eye(2), np.ones((2, 2)))


def _network(structure: str, J: str, K: Vector) -> Callable[[int], Field]:
    def field(layers: int) -> Field:
        weights = Weights(structure, features=4, layers=layers, time_invariant=True)
        with torch.no_grad():
            weights.theta.copy_(torch.from_numpy(K[K != 0]).reshape(1, -1))
            weights.beta.copy_(torch.from_numpy(B4).reshape(1, -1))
        return HamiltonianField(J, weights)

    return field


def _tight(J: Vector, K: Vector) -> Callable[[float], Vector]:
    def exact(t: float) -> Vector:
        return solve_ivp(
            lambda _, y: J @ K.T @ np.tanh(K @ y + B4),
            (0.0, t),
            Y4,
            method="DOP853",
            rtol=1e-13,
            atol=1e-14,
        ).y[:, -1]

    return exact


PROBLEMS: dict[str, Problem] = {
    "oscillator": Problem(_oscillator, (0.8, -0.3), _rotation, separable=True),
    "pendulum": Problem(_pendulum, (0.0, 1.2), _elliptic, separable=True),
    "rigid-body": Problem(_rigid_body, (0.7, -0.4, 1.1), _symmetric_top, separable=False),
    "separable": Problem(_network("block-diagonal", "J1", BLOCKS), Y4, _tight(J1, BLOCKS), True),
    "dense-J1": Problem(_network("dense", "J1", K4), Y4, _tight(J1, K4), separable=False),
    "dense-J2": Problem(_network("dense", "J2", K4), Y4, _tight(J2, K4), separable=False),
}
