"""Where data are at every depth, in one plane."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import hdnn
from hdnn import plots


@pytest.fixture
def points() -> Tensor:
    return torch.randn(40, 2)


def model(outputs: int = 1) -> hdnn.Model:
    net = hdnn.network("H1", features=4, layers=6, T=1.0)
    made = hdnn.Model(net, outputs, hdnn.Padding(2, 4))
    torch.nn.init.normal_(made.head.weight)
    torch.nn.init.normal_(made.head.bias)
    return made


def test_a_flow_is_the_trajectory_in_one_plane(points: Tensor) -> None:
    """For two classes of the plane, the first coordinate is the distance to the boundary."""
    classifier = model()
    moving = plots.flow(classifier, points)
    assert moving.depths == tuple(range(7))
    states = classifier.network.trajectory(classifier.preprocess(points)).detach()
    distances = classifier.head(states)[..., 0] / classifier.head.weight.norm()
    np.testing.assert_allclose(moving.points[..., 0], distances.detach().numpy(), atol=1e-12)
    left, right, bottom, top = moving.box()
    assert right - left == pytest.approx(top - bottom)
    assert left < moving.points[..., 0].min()
    assert moving.points[..., 1].max() < top


def test_without_a_boundary_the_plane_shows_the_most_variance(points: Tensor) -> None:
    classifier = model(3)
    states = classifier.network.trajectory(classifier.preprocess(points)).detach()
    variances = np.sort(np.linalg.eigvalsh(np.cov(states.numpy().reshape(-1, 4).T)))[::-1]
    shares = plots.flow(classifier, points).shares
    assert shares == pytest.approx(tuple(variances[:2] / variances.sum()))
