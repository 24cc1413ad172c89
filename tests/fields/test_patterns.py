"""Structures of K: each is a linear space of its declared dimension, walked from the catalogue."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hdnn.errors import HdnnError
from hdnn.fields import STRUCTURES, Pattern, Weights
from hdnn.fields.patterns import masked

every_structure = pytest.mark.parametrize("structure", STRUCTURES)


def adjoint(K: Tensor) -> Tensor:
    """K', of matrices and of kernels, which turn by 180 degrees."""
    return K.transpose(1, 2).flip(tuple(range(3, K.ndim)))


def corners(K: Tensor) -> Tensor:
    m = K.shape[1] // 2
    mask = torch.zeros_like(K)
    mask[:, :m, m:] = mask[:, m:, :m] = 1.0
    return K * mask


FORMS: dict[str, tuple[Callable[[int, int], float], Callable[[Tensor], Tensor]]] = {
    "dense": (lambda n, k: n**2 * k**2, lambda K: K),
    "skew": (lambda n, k: (n**2 * k**2 - n) / 2, lambda K: (K - adjoint(K)) / 2),
    "off-diagonal-skew": (
        lambda n, k: n**2 * k**2 / 4,
        lambda K: (corners(K) - adjoint(corners(K))) / 2,
    ),
    "off-diagonal": (lambda n, k: n**2 * k**2 / 2, corners),
    "block-diagonal": (lambda n, k: n**2 * k**2 / 2, lambda K: K - corners(K)),
}


@every_structure
@pytest.mark.parametrize(("n", "k"), [(2, 1), (4, 1), (10, 1), (2, 3), (4, 3), (2, 5)])
def test_every_structure_is_a_linear_space_of_its_dimension(structure: str, n: int, k: int) -> None:
    """K has the form, and every K of the form is reached: projection and dimension agree."""
    layout = {"features": n} if k == 1 else {"channels": n, "kernel": k}
    size = STRUCTURES[structure](n, k).size
    basis = Weights(structure, layers=size, **layout)
    with torch.no_grad():
        basis.theta.copy_(torch.eye(size))
    assert basis.K.shape == (size, n, n, *((k, k) if k > 1 else ()))
    assert torch.linalg.matrix_rank(basis.K.flatten(1)) == size
    if structure in FORMS:
        count, project = FORMS[structure]
        assert size == count(n, k)
        assert torch.equal(project(basis.K), basis.K)
        assert basis.pattern.is_skew == bool(torch.equal(basis.K, -adjoint(basis.K)))


graphs = st.integers(1, 5).flatmap(
    lambda m: st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=m, max_size=m)
)


@given(graph=graphs, kernel=st.sampled_from((1, 3)))
def test_an_edge_of_a_graph_is_a_parameter_or_a_whole_kernel(
    graph: list[list[bool]], kernel: int
) -> None:
    pattern = masked(graph, kernel)
    assert pattern.size == np.sum(graph) * kernel**2
    assert np.array_equal(pattern.support, graph)
    assert (pattern.code >= 0).all()


@given(st.data())
def test_a_block_is_a_part_of_the_assembled_matrix(data: st.DataObject) -> None:
    pattern = STRUCTURES[data.draw(st.sampled_from(sorted(STRUCTURES)))](6)
    numbers = st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True).map(np.array)
    rows, columns = data.draw(numbers), data.draw(numbers)
    theta = np.random.default_rng(0).normal(size=pattern.size)

    def assembled(p: Pattern) -> np.ndarray:
        return (p.sign * theta[p.index]).reshape(p.shape)

    block = pattern.block(rows, columns)
    assert np.array_equal(assembled(block), assembled(pattern)[rows][:, columns])
    assert block.size == pattern.size


@every_structure
def test_parameters_are_counted_as_often_as_they_stand(structure: str) -> None:
    pattern = STRUCTURES[structure](4)
    assert pattern.repeats.sum() == pattern.support.sum()
    assert set(pattern.repeats) == ({2.0} if pattern.is_skew else {1.0})
    assert pattern.is_plain == (structure == "dense")


@pytest.mark.parametrize(
    "structure",
    [[[2, 0], [0, 1]], [True, False], np.ones((2, 3), dtype=bool), "denes", np.eye(2) / 2],
    ids=str,
)
def test_an_impossible_structure_raises(structure: object) -> None:
    with pytest.raises(HdnnError):
        Weights(structure, features=2, layers=1)


@pytest.mark.parametrize("code", [[[1, 3]], [[0.5, 1.0]], [[2**62, 1]], [[-(2**63), 1]]], ids=str)
def test_a_pattern_numbers_its_parameters_without_gaps(code: list[list[float]]) -> None:
    with pytest.raises(HdnnError, match="pattern"):
        Pattern.of(code)


@pytest.mark.parametrize("structure", ["off-diagonal", "block-diagonal", "off-diagonal-skew"])
def test_halves_need_an_even_width(structure: str) -> None:
    with pytest.raises(HdnnError, match="even width, got 5; augment"):
        STRUCTURES[structure](5)


@pytest.mark.parametrize("pattern", ["matrix", "function of n", "wrong side"])
def test_structures_of_convolutions_are_tables_of_kernels(pattern: str) -> None:
    eye = Pattern.of(np.arange(1, 17).reshape(4, 4))
    structure = {"matrix": eye, "function of n": lambda n: eye}.get(
        pattern, Pattern.of(np.arange(1, 401).reshape(4, 4, 5, 5))
    )
    with pytest.raises(HdnnError, match="with kernel=3 a structure has shape"):
        Weights(structure, channels=4, kernel=3, layers=1)
    own = Pattern.of(np.arange(1, 145).reshape(4, 4, 3, 3))
    assert Weights(own, channels=4, kernel=3, layers=1).K.shape == (1, 4, 4, 3, 3)
