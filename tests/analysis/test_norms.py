"""The record of norms: what it says of Jacobians, and how it travels."""

from __future__ import annotations

import json

import pytest
import torch

from catalog import build
from hdnn.analysis import Norms, norms, sensitivities
from hdnn.analysis.norms import spaced_depths
from hdnn.errors import HdnnError

TURN = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)


def test_norms_of_samples_differ_from_that_of_their_mean() -> None:
    """Two rotations that cancel: each has norm 1, their mean has norm 0."""
    M = torch.stack([torch.stack([TURN, -TURN]), torch.stack([3 * TURN, TURN])])
    record = norms(M)
    assert (record.layers, record.samples, record.exact) == ((0, 1), 2, True)
    assert record.mean.tolist() == pytest.approx([1.0, 2.0])
    assert record.minimum.tolist() == pytest.approx([1.0, 1.0])
    assert record.maximum.tolist() == pytest.approx([1.0, 3.0])
    assert record.smallest.tolist() == pytest.approx([1.0, 1.0])
    assert record.of_mean.tolist() == pytest.approx([0.0, 2.0])


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_no_gradient_of_MS3_vanishes_at_depth_1024(scale: float) -> None:
    """Sample by sample; the norm of the batch mean is another matter, see above."""
    net = build("MS3", layers=1024, T=2.0, scale=scale)
    assert float(norms(sensitivities(net, 2 * torch.randn(20, 4))).minimum.min()) >= 1 - 1e-11


def test_float32_and_matrices_that_are_not_finite() -> None:
    M = torch.randn(3, 7, 4, 4, dtype=torch.float32)
    M[1, 2, 0, 0] = torch.inf
    record = norms(M)
    assert record.mean.dtype == torch.float64
    assert record.maximum.isnan().tolist() == [False, True, False]
    sizes = torch.linalg.matrix_norm(M[0].double(), 2)
    assert float(record.maximum[0]) == pytest.approx(float(sizes.max()))
    for bad in (torch.zeros(3), torch.zeros(2, 3, 4, 5), torch.zeros(3, 0, 4, 4)):
        with pytest.raises(HdnnError, match="norms"):
            norms(bad)


def test_a_record_goes_through_json_and_back() -> None:
    record = norms(torch.randn(3, 5, 4, 4))
    again = Norms.from_dict(json.loads(json.dumps(record.to_dict())))
    assert again.to_dict() == record.to_dict()
    gap = {**record.to_dict(), "mean": [None, 2.0, 1.0], "iteration": 7}  # None: not finite
    assert Norms.from_dict(gap).mean.isnan().tolist() == [True, False, False]


@pytest.mark.parametrize("layers", [0, 1, 5, 64, 1000])
def test_spaced_depths_have_both_ends(layers: int) -> None:
    depths = spaced_depths(layers, 17)
    assert (depths[0], depths[-1]) == (0, layers)
    assert len(depths) == len(set(depths)) == min(17, layers + 1)
