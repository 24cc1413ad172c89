"""The record of norms: what it says of Jacobians, and how it travels."""

from __future__ import annotations

import json

import pytest
import torch

from catalogue import build
from hdnn.analysis import Norms, norms, sensitivities
from hdnn.analysis.norms import spaced_depths
from hdnn.errors import HdnnError

TURN = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)


def test_norms_of_samples_differ_from_that_of_their_mean() -> None:
    """Two rotations that cancel: each has norm 1, their mean has norm 0."""
    M = torch.stack([torch.stack([TURN, -TURN]), torch.stack([3 * TURN, TURN])])
    found = norms(M)
    assert (found.layers, found.samples, found.exact) == ((0, 1), 2, True)
    for name, expected in {
        "mean": [1.0, 2.0],
        "minimum": [1.0, 1.0],
        "maximum": [1.0, 3.0],
        "smallest": [1.0, 1.0],
        "of_mean": [0.0, 2.0],
    }.items():
        assert getattr(found, name).tolist() == pytest.approx(expected), name


def test_no_gradient_of_MS3_vanishes_at_depth_1024() -> None:
    """Sample by sample; the norm of the batch mean is another matter, see above."""
    for scale in (0.3, 1.0, 3.0):
        net = build("MS3", layers=1024, T=2.0, scale=scale)
        found = norms(sensitivities(net, 2 * torch.randn(20, 4)))
        assert float(found.minimum.min()) >= 1 - 1e-11


def test_float32_and_matrices_that_are_not_finite() -> None:
    M = torch.randn(3, 7, 4, 4, dtype=torch.float32)
    M[1, 2, 0, 0] = torch.inf
    found = norms(M)
    assert found.mean.dtype == torch.float64
    assert found.maximum.isnan().tolist() == [False, True, False]
    sizes = torch.linalg.matrix_norm(M[0].double(), 2)
    assert float(found.maximum[0]) == pytest.approx(float(sizes.max()))
    for bad in (torch.zeros(3), torch.zeros(2, 3, 4, 5), torch.zeros(3, 0, 4, 4)):
        with pytest.raises(HdnnError, match="norms"):
            norms(bad)


def test_a_record_goes_through_json_and_back() -> None:
    found = norms(torch.randn(3, 5, 4, 4))
    again = Norms.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again.to_dict() == found.to_dict()
    gap = {**found.to_dict(), "mean": [None, 2.0, 1.0], "iteration": 7}  # None: not finite
    assert Norms.from_dict(gap).mean.isnan().tolist() == [True, False, False]


def test_spaced_depths_have_both_ends() -> None:
    for layers in (0, 1, 5, 64, 1000):
        found = spaced_depths(layers, 17)
        assert (found[0], found[-1]) == (0, layers)
        assert len(found) == len(set(found)) == min(17, layers + 1)
