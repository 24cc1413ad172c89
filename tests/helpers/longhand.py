"""The layer equations of sections 2.3 and 3.2 of the paper, written out with numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Vector = np.ndarray
Layer = Callable[[Vector, Vector, Vector, float], Vector]
tanh = np.tanh


def halves(v: Vector) -> tuple[Vector, Vector]:
    m = len(v) // 2
    return v[:m], v[m:]


def corners(K: Vector) -> tuple[Vector, Vector, Vector, Vector]:
    m = len(K) // 2
    return K[:m, :m], K[:m, m:], K[m:, :m], K[m:, m:]


def ms1(s: Vector, K: Vector, b: Vector, h: float) -> Vector:
    (y, z), (b1, b2), (_, K0, _, _) = halves(s), halves(b), corners(K)
    z = z - h * tanh(K0.T @ y + b1)
    y = y + h * tanh(K0 @ z + b2)
    return np.concatenate([y, z])


def ms3(s: Vector, K: Vector, b: Vector, h: float) -> Vector:
    (y, z), (b1, b2), (_, K1, K2, _) = halves(s), halves(b), corners(K)
    y = y + h * K1.T @ tanh(K1 @ z + b1)
    z = z - h * K2.T @ tanh(K2 @ y + b2)
    return np.concatenate([y, z])


def hs(s: Vector, K: Vector, b: Vector, h: float, X: Vector | None = None) -> Vector:
    (y, z), (b1, b2), (K1, _, _, K2) = halves(s), halves(b), corners(K)
    X = np.eye(len(y)) if X is None else X
    y = y + h * X @ K2.T @ tanh(K2 @ z + b2)
    z = z - h * X.T @ K1.T @ tanh(K1 @ y + b1)
    return np.concatenate([y, z])


def J1(n: int) -> Vector:
    J = np.zeros((n, n))
    for i in range(n // 2):
        J[i, i + n // 2], J[i + n // 2, i] = 1.0, -1.0
    return J


def J2(n: int) -> Vector:
    return np.array([[float(np.sign(k - i)) for k in range(n)] for i in range(n)])


LONGHAND: dict[str, Layer] = {
    "MS1": ms1,
    "MS2": lambda y, K, b, h: y + h * tanh(K @ y + b),
    "MS3": ms3,
    "H1": lambda y, K, b, h: y + h * J1(len(y)) @ K.T @ tanh(K @ y + b),
    "H2": lambda y, K, b, h: y + h * J2(len(y)) @ K.T @ tanh(K @ y + b),
    "HS": hs,
    "FCNN": lambda y, K, b, h: tanh(K @ y + b),
    "ResNet": lambda y, K, b, h: y + h * tanh(K @ y + b),
}
