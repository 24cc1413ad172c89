"""Stems of tables: padding, standardization, projection."""

from __future__ import annotations

import pytest
import torch

from hdnn.errors import HdnnError
from hdnn.models import Padding, Projection, Scaler, TableStem


def test_padding_as_the_paper_says_and_as_its_code_does() -> None:
    x = torch.tensor([[1.0, 2.0]])
    assert Padding(2, 4, mode="append")(x).tolist() == [[1, 2, 0, 0]]
    assert Padding(2, 4, mode="spread")(x).tolist() == [[1, 0, 0, 2]]
    assert torch.equal(Padding(2)(x), Padding(2, 4)(x))
    three = torch.tensor([1.0, 2, 3])
    assert Padding(3, 5, mode="spread")(three).tolist() == [1, 2, 0, 0, 0, 3]  # made even
    assert Padding(3, 3)(three).tolist() == [1, 2, 3, 0]


def test_a_scaler_standardizes_weighted_columns_and_fills_gaps_with_the_mean() -> None:
    x = torch.tensor([[1.0, 5.0], [3.0, 5.0], [torch.nan, 5.0]])
    scaler = Scaler.fit(x, torch.tensor([3.0, 1.0, 7.0]))
    assert scaler.mean.tolist() == [1.5, 5.0]
    assert scaler.scale.tolist() == [0.75**0.5, 1.0]  # a constant column keeps its scale
    assert scaler(x)[2].tolist() == [0.0, 0.0]


def test_huge_integers_are_standardized_and_constants_are_not() -> None:
    numbers = torch.arange(400.0, dtype=torch.float64)
    x = torch.stack([9e15 + 7 * numbers, torch.full_like(numbers, 0.1)], 1)
    scaled = Scaler.fit(x)(x)
    assert scaled[:, 0].std(correction=0).item() == pytest.approx(1.0)
    assert scaled[:, 1].abs().max() < 1e-12
    x = torch.tensor([1e15, 1e22, -1e30, 0.1, 7e299], dtype=torch.float64).expand(60, 5).clone()
    assert not Scaler.fit(x)(x).any()
    x[5] = torch.nan
    weight = torch.rand(60, generator=torch.Generator().manual_seed(0))
    assert not Scaler.fit(x, weight)(x).any()


def test_a_projection_starts_with_states_of_variance_one_and_an_even_width() -> None:
    projection = Projection(2000, 15, torch.Generator().manual_seed(0))
    y = projection(torch.randn(500, 2000, generator=torch.Generator().manual_seed(1)))
    assert y.shape == (500, 16)
    torch.testing.assert_close(y.std(), torch.ones(()), rtol=0.05, atol=0)
    with pytest.raises(HdnnError, match="features is a positive integer, got 0"):
        Projection(0, 4)


def test_parts_that_do_not_fit_raise() -> None:
    with pytest.raises(HdnnError, match="width=16 is too small for 50 features"):
        Padding(50, 16)
    with pytest.raises(HdnnError, match=r"width is a positive integer, got 4\.5"):
        Padding(2, 4.5)  # type: ignore[arg-type]
    with pytest.raises(HdnnError, match="did you mean 'append'"):
        Padding(2, 4, "apend")
    with pytest.raises(HdnnError, match="not both"):
        TableStem(4, Padding(2, 4), projection=Projection(50, 4))
    with pytest.raises(HdnnError, match="the projection gives 6 features"):
        TableStem(4, projection=Projection(50, 6))
    with pytest.raises(HdnnError, match="the scaler has 3 features, the data 2"):
        TableStem(4, Padding(2, 4), Scaler(torch.zeros(3), torch.ones(3)))
    for x in (torch.ones(4, 3), torch.tensor(1.0)):
        with pytest.raises(HdnnError, match=r"expected \(..., 2\)"):
            Padding(2, 4)(x)
