"""Margins are those of classifiers whose boundary is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import hdnn
from hdnn.analysis import margins, robustness
from hdnn.errors import HdnnError


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    model = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        model.weight.copy_(weight)
        model.bias.copy_(bias)
    return model


@pytest.mark.parametrize("features", [1, 2, 3, 6])
def test_two_classes_and_a_hyperplane(features: int) -> None:
    w, b = torch.randn(1, features), torch.randn(1)
    X = torch.randn(40, features)
    distance, point = margins(linear(w, b), X, reach=20.0)
    right = (X @ w[0] + b).abs() / w.norm()
    torch.testing.assert_close(distance, right, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close((point - X).norm(dim=1), right, rtol=1e-7, atol=1e-9)


def test_three_classes_in_the_plane() -> None:
    W, b = torch.randn(3, 2), torch.randn(3)
    X = torch.randn(50, 2)
    values = X @ W.T + b
    own = values.argmax(1)
    gaps = values.gather(1, own[:, None]) - values
    sizes = (W[own][:, None] - W[None]).norm(dim=2)
    faces = torch.where(sizes > 0, gaps / sizes.clamp_min(1e-9), torch.inf)
    distance, _ = margins(linear(W, b), X, reach=100.0)
    # Where the nearest face is met outside the other class, the boundary is elsewhere: not nearer.
    assert bool((distance >= faces.amin(1) - 1e-8).all())
    nearest = faces.argmin(1)
    foot = X - (faces.amin(1) / sizes.gather(1, nearest[:, None])[:, 0])[:, None] * (
        W[own] - W[nearest]
    )
    beyond = foot + (foot - X) * 1e-9
    honest = (beyond @ W.T + b).argmax(1) == nearest
    assert int(honest.sum()) > 20
    torch.testing.assert_close(distance[honest], faces.amin(1)[honest], rtol=1e-6, atol=1e-9)


class Circles(nn.Module):
    """Class 1 in a disc of radius 1, and in a small one of radius 0.2 at (3, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        far = (x - x.new_tensor([3.0, 0.0])).norm(dim=1)
        return torch.maximum(1 - x.norm(dim=1), 0.2 - far)[:, None]


def test_curved_boundaries_of_several_pieces() -> None:
    X = torch.tensor([[0.3, 0.4], [2.0, 0.0], [2.5, 0.0], [1.89, 0.1], [3.0, 0.01], [0.0, -7.0]])
    distance, _ = margins(Circles(), X)
    first = (X.norm(dim=1) - 1).abs()
    second = ((X - torch.tensor([3.0, 0.0])).norm(dim=1) - 0.2).abs()
    torch.testing.assert_close(distance, torch.minimum(first, second), rtol=1e-6, atol=1e-8)


def test_the_perturbation_changes_the_class_of_a_network_and_a_shorter_one_does_not() -> None:
    net = hdnn.network("H1", features=4, layers=8, T=2.0, dtype=torch.float32)
    model = hdnn.Model(net, 1, hdnn.Augmentation(2, 4))
    with torch.no_grad():
        model.head.weight.normal_()
    X = torch.randn(60, 2, dtype=torch.float32)
    distance, point = margins(model, X, reach=3.0)
    wide = model.double()
    here = wide.predict(X.double())
    some = distance.isfinite()
    assert int(some.sum()) > 30
    assert bool((wide.predict(point)[some] != here[some]).all())
    angles = torch.linspace(0, 2 * torch.pi, 721)
    circle = torch.stack([angles.cos(), angles.sin()], 1)
    for share in (0.5, 0.9, 0.999):
        ring = X[:, None].double() + share * distance.clamp_max(3.0)[:, None, None] * circle
        assert bool((wide.predict(ring) == here[:, None]).all())


def test_accuracy_under_perturbation_of_points_beside_a_line() -> None:
    X = torch.stack([torch.linspace(-1, 1, 201), torch.zeros(201)], 1)
    y = (X[:, 0] > 0).long()
    y[0] = 1  # classified wrongly
    found = robustness(
        linear(torch.tensor([[1.0, 0.0]]), torch.zeros(1)), X, y, [0.0, 0.5, 3.0], draws=200
    )
    assert found.worst[1] == pytest.approx((201 - 101 - 1) / 201, abs=0.011)
    assert found.worst[2] == 0.0
    assert found.random[0] == pytest.approx(200 / 201)
    # A step of 0.5 in a random direction crosses from distance m with chance arccos(2m) / pi.
    m = X[:, 0].abs().clamp_max(0.5)
    crossing = torch.arccos((2 * m).clamp_max(1)) / torch.pi
    right = torch.where(y == (X[:, 0] > 0).long(), 1 - crossing, crossing).mean()
    assert found.random[1] == pytest.approx(float(right), abs=0.01)
    assert float(found.margins[0]) == pytest.approx(-1.0)


def test_no_boundary_within_reach_is_infinite() -> None:
    model = linear(torch.zeros(1, 2), torch.ones(1))
    assert bool(margins(model, torch.randn(3, 2), reach=2.0)[0].isinf().all())
    gap = torch.full((3, 2), torch.nan)
    for X, reach in ((gap[0], 1.0), (gap[:0], 1.0), (torch.zeros(3, 2), 0.0), (gap, 1.0)):
        with pytest.raises(HdnnError):
            margins(model, X, reach)
