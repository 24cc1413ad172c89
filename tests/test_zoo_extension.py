"""A new architecture is five lines, and every tool that walks the catalogue takes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import hdnn
import test_network
from catalogue import build, jacobian
from hdnn.errors import HdnnError
from hdnn.fields import Pattern, canonical
from hdnn.schemes import SCHEMES, Leapfrog
from hdnn.zoo import ARCHITECTURES, Architecture, register


def ring(n: int) -> Pattern:
    """Every unit sees itself and its neighbor on a ring."""
    return hdnn.fields.patterns.masked(np.eye(n) + np.roll(np.eye(n), 1, axis=1) > 0)


NEW = (
    Architecture("Ring", "y += h J2 K' tanh(K y + b),  K on a ring", ring, "J2"),
    Architecture(
        "Twisted",
        "HS with a twist and leapfrog",
        "block-diagonal",
        lambda n: canonical(n, torch.ones(n // 2, n // 2).triu()),
        Leapfrog("z"),
    ),
)


@pytest.fixture(autouse=True)
def catalogue() -> Iterator[None]:
    before = dict(ARCHITECTURES)
    for row in NEW:
        register(row)
    yield
    ARCHITECTURES.clear()
    ARCHITECTURES.update(before)


every_new = pytest.mark.parametrize("name", [row.name for row in NEW])


def test_a_new_architecture_is_what_it_says() -> None:
    net, y = hdnn.network("ring", features=4, layers=5, T=1.0), torch.randn(3, 4)
    expected = y
    for K, b in zip(net.K, net.b, strict=True):
        force = torch.tanh(expected @ K.mT + b) @ K
        expected = expected + net.h * force @ hdnn.fields.signs(4).mT
    torch.testing.assert_close(net(y), expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(net.K[0] != 0, torch.from_numpy(ring(4).support))
    assert net.field.weights.parameters_per_layer == 8 + 4


@every_new
def test_every_test_of_networks_takes_it(name: str, generator: torch.Generator) -> None:
    test_network.test_gradients_of_state_and_parameters(name, "own", "reference")
    test_network.test_functional_transforms_see_the_same_network(name, "own")
    test_network.test_channels_are_features_on_another_axis(name, "own", (2, 3))
    test_network.test_an_ensemble_is_its_members_side_by_side(name, "own", "channels")
    test_network.test_a_trajectory_is_all_the_prefixes(name)
    test_network.test_initialization_is_standard_normal_and_reproducible(name, generator)
    test_network.test_fits_into_a_sequence_and_learns(name)


@every_new
def test_it_is_saved_and_loaded(name: str, tmp_path: Path) -> None:
    net, y = build(name), torch.randn(3, 4)
    hdnn.save(net, tmp_path / "net")
    other = hdnn.load(tmp_path / "net")
    assert torch.equal(other(y), net(y))
    assert repr(other) == repr(net)


def test_it_keeps_what_its_scheme_declares() -> None:
    net, y = build("Twisted", layers=10), torch.randn(4)
    M = jacobian(net, y)
    torch.testing.assert_close(M @ net.J @ M.mT, net.J, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(net.inverse(net(y)), y, rtol=0, atol=1e-12)
    assert not torch.equal(net.J, canonical(4))


def test_it_meets_every_scheme() -> None:
    for name in SCHEMES:
        assert build("Twisted", name)(torch.randn(2, 4)).shape == (2, 4)
        if SCHEMES[name]().needs_separable:
            with pytest.raises(HdnnError, match="separable"):
                build("Ring", name)


def test_an_unknown_name_lists_it() -> None:
    with pytest.raises(HdnnError, match=r"Twisted.*did you mean 'Ring'"):
        hdnn.network("Rings", features=4, layers=2, T=1.0)


def test_an_architecture_need_not_be_registered() -> None:
    row = Architecture("Private", "H2 with a skew K", "skew", "J2")
    net = hdnn.network(row, features=4, layers=2, T=1.0)
    assert net.name == "Private"
    assert torch.equal(net.K, -net.K.mT)
