"""Layouts: states of any batch shape become ([E,] B, n, *spatial), and come back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hdnn.errors import HdnnError
from hdnn.fields import Layout

sizes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
ensembles = st.none() | st.integers(1, 3)


@given(batch=sizes, ensemble=ensembles)
def test_features_become_rows_and_come_back(batch: tuple[int, ...], ensemble: int | None) -> None:
    layout = Layout(4, ensemble=ensemble)
    y = torch.randn(*layout.lead, *batch, 4)
    x, restore = layout.flatten(y)
    assert x.shape == (*layout.lead, y[..., 0].numel() // (ensemble or 1), 4)
    assert torch.equal(restore(x), y)
    assert torch.equal(layout.of_samples(x[..., 0], y), y[..., 0])


@given(spatial=sizes, ensemble=ensembles)
def test_channels_are_canonical_already(spatial: tuple[int, ...], ensemble: int | None) -> None:
    layout = Layout(4, channels=True, ensemble=ensemble)
    y = torch.randn(*layout.lead, 3, 4, *spatial)
    x, restore = layout.flatten(y)
    assert restore(x) is x is y
    assert x.shape[layout.axis] == 4


@pytest.mark.parametrize(
    ("layout", "shape", "message"),
    [
        (Layout(4), (), r"\(\.\.\., 4\)"),
        (Layout(4), (4, 3), r"\(\.\.\., 4\), got \(4, 3\)"),
        (Layout(4, channels=True), (4,), r"\(B, 4, \*spatial\)"),
        (Layout(4, channels=True), (2, 3, 4), r"\(B, 4, \*spatial\)"),
        (Layout(4, channels=True, spatial=2), (2, 4, 3), r"\(B, 4, height, width\)"),
        (Layout(4, ensemble=3), (2, 5, 4), r"\(3, \.\.\., 4\), or .* \(1, \.\.\., 4\), got"),
        (Layout(4, ensemble=3), (4,), r"\(3, \.\.\., 4\)"),
    ],
    ids=str,
)
def test_a_state_of_another_shape_raises(
    layout: Layout, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(HdnnError, match=message):
        layout.flatten(torch.zeros(shape))
