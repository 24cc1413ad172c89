"""Structures of K: each is a linear space of its declared dimension, walked from the catalog."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from hdnn.errors import HdnnError
from hdnn.fields import STRUCTURES, Pattern, Weights


def adjoint(K: Tensor) -> Tensor:
    """K', of matrices and of kernels, which turn by 180 degrees."""
    return K.transpose(1, 2).flip(tuple(range(3, K.ndim)))


def corners(K: Tensor) -> Tensor:
    m = K.shape[1] // 2
    mask = torch.zeros_like(K)
    mask[:, :m, m:] = mask[:, m:, :m] = 1.0
    return K * mask


def exchanged(K: Tensor) -> Tensor:
    """[A 0; 0 B] with A = B'."""
    K, m = K - corners(K), K.shape[1] // 2
    other = adjoint(K).roll((m, m), (1, 2))
    return (K + other) / 2


FORMS: dict[str, tuple[Callable[[int, int], float], Callable[[Tensor], Tensor]]] = {
    "dense": (lambda n, k: n**2 * k**2, lambda K: K),
    "skew": (lambda n, k: (n**2 * k**2 - n) / 2, lambda K: (K - adjoint(K)) / 2),
    "off-diagonal-skew": (
        lambda n, k: n**2 * k**2 / 4,
        lambda K: (corners(K) - adjoint(corners(K))) / 2,
    ),
    "off-diagonal": (lambda n, k: n**2 * k**2 / 2, corners),
    "block-diagonal": (lambda n, k: n**2 * k**2 / 2, lambda K: K - corners(K)),
    "block-adjoint": (lambda n, k: n**2 * k**2 / 4, exchanged),
}


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize(("n", "k"), [(2, 1), (4, 1), (10, 1), (2, 3), (4, 3), (2, 5)])
def test_every_structure_is_a_linear_space_of_its_dimension(structure: str, n: int, k: int) -> None:
    """K has the form, and every K of the form is reached: projection and dimension agree."""
    layout = {"features": n} if k == 1 else {"channels": n, "kernel": k}
    count, project = FORMS[structure]
    size = STRUCTURES[structure](n, k).size
    assert size == count(n, k)
    basis = Weights(structure, layers=size, **layout)
    with torch.no_grad():
        basis.theta.copy_(torch.eye(size))
    assert basis.K.shape == (size, n, n, *((k, k) if k > 1 else ()))
    assert torch.linalg.matrix_rank(basis.K.flatten(1)) == size
    assert torch.equal(project(basis.K), basis.K)
    assert basis.pattern.is_skew == bool(torch.equal(basis.K, -adjoint(basis.K)))
    tied = structure in ("skew", "off-diagonal-skew", "block-adjoint")
    assert set(basis.pattern.repeats) == ({2.0} if tied else {1.0})


@pytest.mark.parametrize(
    "structure",
    [[[2, 0], [0, 1]], [True, False], np.ones((2, 3), dtype=bool), "denes", np.eye(2) / 2],
    ids=str,
)
def test_impossible_structure_raises(structure: object) -> None:
    with pytest.raises(HdnnError):
        Weights(structure, features=2, layers=1)


@pytest.mark.parametrize("code", [[[1, 3]], [[0.5, 1.0]], [[2**62, 1]], [[-(2**63), 1]]], ids=str)
def test_pattern_with_gaps_raises(code: list[list[float]]) -> None:
    with pytest.raises(HdnnError, match="pattern"):
        Pattern.of(code)


@pytest.mark.parametrize("structure", ["off-diagonal", "block-diagonal", "off-diagonal-skew"])
def test_odd_width_of_halves_raises(structure: str) -> None:
    with pytest.raises(HdnnError, match="even width, got 5; augment"):
        STRUCTURES[structure](5)


def test_structures_of_convolutions_are_tables_of_kernels() -> None:
    for shape in ((4, 4), (4, 4, 5, 5)):
        pattern = Pattern.of(np.arange(1, 1 + np.prod(shape)).reshape(shape))
        with pytest.raises(HdnnError, match=r"shape \('m', 4, 3, 3\)"):
            Weights(pattern, channels=4, kernel=3, layers=1)
    own = Pattern.of(np.arange(1, 145).reshape(4, 4, 3, 3))
    assert Weights(own, channels=4, kernel=3, layers=1).K.shape == (1, 4, 4, 3, 3)
