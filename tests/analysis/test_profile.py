"""The depth profile of a network is the norms of its sensitivities, and its energy."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hdnn
from catalogue import build, every_name
from hdnn.analysis import Norms, norms, profile, sensitivities
from hdnn.analysis.norms import SMALL
from hdnn.errors import HdnnError

COLUMNS = ("mean", "minimum", "maximum", "smallest", "of_mean")


def same(found: Norms, right: Norms, tolerance: float = 1e-12) -> None:
    for name in COLUMNS:
        a, b = getattr(found, name), getattr(right, name)
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=name)


def energies(net: hdnn.HamiltonianNetwork, y: Tensor) -> Tensor:
    path, last = net.trajectory(y), net.layers - 1
    H = [net.field.energy(path[l], min(l, last)).mean() for l in range(last + 2)]
    return torch.stack(H).detach()


@every_name
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_profile_is_the_norms_of_the_sensitivities(name: str, backend: str) -> None:
    """Also of networks whose singular values LAPACK finds."""
    for n in (2, SMALL + 8):
        net = build(name, features=n, layers=7, scale=0.5, backend=backend)
        for samples in (1, 5, 40):
            y = torch.randn(samples, n)
            found = profile(net, y)
            same(found, norms(sensitivities(net, y)))
            assert found.layers == tuple(range(8))
            if name in ("FCNN", "ResNet"):
                assert found.energy is None
            else:
                torch.testing.assert_close(found.energy, energies(net, y))


def test_an_ensemble_at_a_few_depths_and_with_other_weights() -> None:
    many = build("H2", layers=6, ensemble=3)
    y = torch.randn(3, 40, 4)
    whole = profile(many, y, [1, 6])
    assert whole.mean.shape == (3, 2)
    for k in range(3):
        one, values = build("H2", layers=6), many.values()
        own = one.values()._replace(theta=values.theta[k], beta=values.beta[k])  # type: ignore[index]
        part = profile(one, y[k], [1, 6], values=own)
        for name in (*COLUMNS, "energy"):
            torch.testing.assert_close(
                getattr(whole, name)[k], getattr(part, name), rtol=1e-12, atol=0
            )


def test_images_by_pixel_and_convolutions() -> None:
    y = torch.randn(2, 4, 3, 3)
    pointwise = build("H1", channels=4, layers=4)
    found = profile(pointwise, y, 3)
    assert found.samples == 18
    same(found, norms(sensitivities(pointwise, y)[[0, 2, 4]]))
    convolved = build("H1", channels=4, kernel=3, layers=4)
    found = profile(convolved, y, 3)
    M = torch.stack(
        [torch.autograd.functional.jacobian(convolved, x[None]).reshape(36, 36) for x in y]
    )
    sizes = torch.linalg.matrix_norm(M, 2)
    assert float(found.maximum[0]) == pytest.approx(float(sizes.max()), rel=1e-6)
    H = convolved.field.energy(y, 0).mean()  # type: ignore[operator]
    torch.testing.assert_close(found.energy[0], H.detach())  # type: ignore[index]


@pytest.mark.parametrize("depths", [[], [3, 2], [-1, 2], [7]])
def test_depths_that_do_not_exist_raise(depths: list[int]) -> None:
    with pytest.raises(HdnnError, match="depths increase from 0 to at most 6"):
        profile(build("H1", layers=6), torch.zeros(2, 4), depths)
