"""Feature augmentation: room for the network, in the paper's two ways."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hdnn import Augmentation
from hdnn.errors import HdnnError


def test_the_two_ways_of_the_paper() -> None:
    x = torch.tensor([[1.0, 2.0]])
    assert Augmentation(2, 4, mode="append")(x).tolist() == [[1, 2, 0, 0]]
    assert Augmentation(2, 4, mode="spread")(x).tolist() == [[1, 0, 0, 2]]
    assert Augmentation(3, 6, mode="spread")(torch.tensor([1.0, 2, 3])).tolist() == [
        1,
        2,
        0,
        0,
        0,
        3,
    ]
    assert torch.equal(Augmentation(2)(x), Augmentation(2, 4)(x))


@given(
    features=st.integers(1, 6),
    extra=st.integers(0, 5),
    mode=st.sampled_from(["append", "spread"]),
    batch=st.lists(st.integers(0, 3), max_size=2),
)
def test_widths_become_even_and_nothing_is_lost(
    features: int, extra: int, mode: str, batch: list[int]
) -> None:
    module = Augmentation(features, features + extra, mode)
    x = torch.randn(*batch, features, requires_grad=True)
    out = module(x)
    width = features + extra
    assert module.width == out.shape[-1] == width + width % 2
    assert out.shape[:-1] == x.shape[:-1]
    for before, after in zip(x.reshape(-1, features), out.reshape(-1, module.width), strict=True):
        assert after[after != 0].tolist() == before.tolist()
    out.sum().backward()
    assert bool((x.grad == 1).all())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, 2), "too small for 3"),
        ((0, 4), "positive"),
        ((2.0, 4), "integer"),
        ((2, 4.5), "integer"),
        ((2, 4, "apend"), "did you mean 'append'"),
    ],
    ids=str,
)
def test_what_cannot_be_augmented(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(HdnnError, match=message):
        Augmentation(*arguments)


def test_data_of_another_width_is_refused() -> None:
    for x in (torch.ones(4, 3), torch.tensor(1.0)):
        with pytest.raises(HdnnError, match="2"):
            Augmentation(2, 4)(x)
