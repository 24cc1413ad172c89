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
from hdnn.fields import STRUCTURES, HamiltonianField, Pattern, Weights, signs

every_structure = pytest.mark.parametrize("structure", STRUCTURES)


def corners(K: Tensor) -> Tensor:
    m = K.shape[-1] // 2
    mask = torch.zeros_like(K)
    mask[..., :m, m:] = mask[..., m:, :m] = 1.0
    return K * mask


FORMS: dict[str, tuple[Callable[[int], float], Callable[[Tensor], Tensor]]] = {
    "dense": (lambda n: n**2, lambda K: K),
    "skew": (lambda n: n * (n - 1) / 2, lambda K: (K - K.mT) / 2),
    "off-diagonal-skew": (lambda n: n**2 / 4, lambda K: (corners(K) - corners(K).mT) / 2),
    "off-diagonal": (lambda n: n**2 / 2, corners),
    "block-diagonal": (lambda n: n**2 / 2, lambda K: K - corners(K)),
}


@every_structure
@given(half=st.integers(1, 5), layers=st.integers(0, 4), ensemble=st.none() | st.integers(1, 3))
def test_every_structure_is_a_linear_space_of_its_dimension(
    structure: str, half: int, layers: int, ensemble: int | None
) -> None:
    """K has the form, and every K of the form is reached: projection and dimension agree."""
    n = 2 * half
    weights = Weights(structure, features=n, layers=layers, ensemble=ensemble, dtype=torch.float64)
    lead = (layers,) if ensemble is None else (ensemble, layers)
    assert weights.K.shape == (*lead, n, n)
    assert weights.b.shape == (*lead, n)
    basis = Weights(structure, features=n, layers=weights.pattern.size, dtype=torch.float64)
    with torch.no_grad():
        basis.theta.copy_(torch.eye(weights.pattern.size))
    assert torch.linalg.matrix_rank(basis.K.flatten(1)) == weights.pattern.size
    if structure in FORMS:
        count, project = FORMS[structure]
        assert weights.pattern.size == count(n)
        assert torch.equal(project(weights.K), weights.K)


@given(
    graph=st.integers(1, 5).flatmap(
        lambda m: st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=m, max_size=m)
    )
)
def test_a_graph_is_respected_by_K_and_by_what_a_unit_sees(graph: list[list[bool]]) -> None:
    mask = torch.tensor(graph)
    weights = Weights(graph, features=4, layers=2, dtype=torch.float64)
    assert torch.equal(weights.K != 0, mask.expand(2, *mask.shape))
    assert weights.parameters_per_layer == mask.sum() + len(graph)
    field = HamiltonianField("J2", weights)
    y = torch.randn(4, dtype=torch.float64)
    J, K = signs(4), weights.K[1].detach()
    reach = (J != 0).long() @ mask.long().mT @ mask.long() > 0
    M = torch.autograd.functional.jacobian(lambda v: field.velocity(v, 1), y)
    torch.testing.assert_close(
        M, J @ K.mT @ torch.diag(1 - torch.tanh(K @ y + weights.b[1].detach()) ** 2) @ K
    )
    assert bool((M[~reach] == 0).all())


@pytest.mark.parametrize(
    "structure",
    [[[2, 0], [0, 1]], [True, False], np.ones((2, 3), dtype=bool), "denes", np.eye(2) / 2],
    ids=str,
)
def test_a_structure_that_is_none_is_refused(structure: object) -> None:
    with pytest.raises(HdnnError):
        Weights(structure, features=2, layers=1)


@pytest.mark.parametrize("code", [[[1, 3]], [[0.5, 1.0]]], ids=str)
def test_a_pattern_numbers_its_parameters_without_gaps(code: list[list[float]]) -> None:
    with pytest.raises(HdnnError, match="pattern"):
        Pattern.of(code)


@every_structure
def test_time_invariant_layers_share_one_set_of_parameters(structure: str) -> None:
    weights = Weights(structure, features=4, layers=5, time_invariant=True)
    assert weights.theta.shape[0] == weights.beta.shape[0] == 1
    assert torch.equal(weights.K, weights.K[:1].expand(5, 4, 4))
    weights.K.sum().backward()
    single = Weights(structure, features=4, layers=1)
    single.K.sum().backward()
    torch.testing.assert_close(weights.theta.grad, 5 * single.theta.grad)
