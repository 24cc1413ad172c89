"""The depth profile of a network is the norms of its sensitivities, and its energy."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hdnn
from catalog import build, every_name
from hdnn.analysis import Norms, norms, profile, sensitivities
from hdnn.analysis.norms import SMALL
from hdnn.errors import HdnnError

COLUMNS = ("mean", "minimum", "maximum", "smallest", "of_mean")


def same(a: Norms, b: Norms, columns: tuple[str, ...] = COLUMNS) -> None:
    for name in columns:
        torch.testing.assert_close(
            getattr(a, name), getattr(b, name), rtol=1e-12, atol=1e-12, msg=name
        )


def energies(net: hdnn.HamiltonianNetwork, y: Tensor) -> Tensor:
    path, last = net.trajectory(y), net.layers - 1
    H = [net.field.energy(path[l], min(l, last)).mean() for l in range(last + 2)]
    return torch.stack(H).detach()


@every_name
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_profile_is_the_norms_of_the_sensitivities(name: str, backend: str) -> None:
    """Also of networks whose singular values LAPACK computes."""
    for n, samples in ((2, 1), (2, 40), (SMALL + 8, 5)):
        net = build(name, features=n, layers=7, scale=0.5, backend=backend)
        y = torch.randn(samples, n)
        norms_by_depth = profile(net, y)
        same(norms_by_depth, norms(sensitivities(net, y)))
        assert norms_by_depth.layers == tuple(range(8))
        if name in ("FCNN", "ResNet"):
            assert norms_by_depth.energy is None
        else:
            torch.testing.assert_close(norms_by_depth.energy, energies(net, y))


def test_an_ensemble_at_a_few_depths_is_its_networks() -> None:
    many, y = build("H2", layers=6, ensemble=3), torch.randn(3, 40, 4)
    whole = profile(many, y, [1, 6])
    assert whole.mean.shape == (3, 2)
    one = build("H2", layers=6)
    with torch.no_grad():
        for mine, theirs in zip(one.parameters(), many.parameters(), strict=True):
            mine.copy_(theirs[2])
    part = profile(one, y[2], [1, 6])
    for name in (*COLUMNS, "energy"):
        torch.testing.assert_close(getattr(whole, name)[2], getattr(part, name), rtol=1e-12, atol=0)


def test_pixels_are_samples_and_the_energy_is_that_of_an_image() -> None:
    net, y = build("H1", channels=4, layers=4), torch.randn(2, 4, 3, 3)
    pixels = profile(net, y, 3)
    assert pixels.samples == 18
    same(pixels, norms(sensitivities(net, y)[[0, 2, 4]]))
    torch.testing.assert_close(pixels.energy, energies(net, y)[[0, 2, 4]])


@pytest.mark.parametrize("depths", [[0, 4], [1, 3], [4]])
def test_norms_of_convolutions_are_estimated(depths: list[int]) -> None:
    """To the output, whatever the depths."""
    net, y = build("H1", channels=4, kernel=3, layers=4), torch.randn(2, 4, 3, 3)
    estimates = profile(net, y, depths)
    assert estimates.layers == tuple(depths)
    torch.testing.assert_close(estimates.energy, energies(net, y)[depths])
    state = net.trajectory(y)[depths[0]].detach()
    rest = build("H1", channels=4, kernel=3, layers=4 - depths[0], step=0.25)
    rest.load_state_dict(
        {k: v[depths[0] :] for k, v in net.state_dict().items() if "weights" in k}, strict=False
    )
    M = [torch.autograd.functional.jacobian(rest, x[None]).reshape(36, 36) for x in state]
    sizes = torch.linalg.matrix_norm(torch.stack(M), 2)
    assert float(estimates.maximum[0]) == pytest.approx(float(sizes.max()), rel=0.02)
    assert float(estimates.maximum[0]) <= float(sizes.max()) * (1 + 1e-12)


@pytest.mark.parametrize("depths", [[], [3, 2], [-1, 2], [7]])
def test_depths_that_do_not_exist_raise(depths: list[int]) -> None:
    with pytest.raises(HdnnError, match="depths increase from 0 to at most 6"):
        profile(build("H1", layers=6), torch.zeros(2, 4), depths)
