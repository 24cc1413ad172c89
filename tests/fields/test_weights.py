"""The weights of all layers: stacks, shared layers, ensembles, and how they are drawn."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from catalog import build, every_name
from hdnn.errors import HdnnError
from hdnn.fields import STRUCTURES, Weights

every_structure = pytest.mark.parametrize("structure", STRUCTURES)


@every_structure
def test_time_invariant_layers_share_one_set_of_parameters(structure: str) -> None:
    weights = Weights(structure, features=4, layers=5, time_invariant=True)
    assert weights.theta.shape[0] == weights.beta.shape[0] == 1
    assert torch.equal(weights.K, weights.K[:1].expand(5, 4, 4))
    weights.K.sum().backward()
    single = Weights(structure, features=4, layers=1)
    single.K.sum().backward()
    torch.testing.assert_close(weights.theta.grad, 5 * single.theta.grad)


def test_nan_parameters_leave_the_zeros_of_the_structure() -> None:
    weights = Weights("off-diagonal", features=4, layers=1)
    with torch.no_grad():
        weights.theta.fill_(torch.nan)
    assert torch.equal(weights.K[0].isnan(), torch.from_numpy(weights.pattern.support))
    assert bool((weights.K[0][:2, :2] == 0).all())


def test_initialization_is_standard_normal_and_reproducible(generator: torch.Generator) -> None:
    before = torch.get_rng_state()
    net = build("H1", layers=500, generator=generator)
    theta = net.field.weights.theta.detach().clone()
    assert float(theta.mean()) == pytest.approx(0, abs=5 / theta.numel() ** 0.5)
    assert float(theta.std()) == pytest.approx(1, abs=5 / theta.numel() ** 0.5)
    net.reset_parameters(torch.Generator().manual_seed(1), scale=0.25)
    torch.testing.assert_close(net.field.weights.theta, theta / 4, rtol=1e-15, atol=0)
    net.reset_parameters(generator, scale=0)
    assert not net.K.any()
    assert not net.b.any()
    assert torch.equal(torch.get_rng_state(), before)


@every_name
def test_members_are_drawn_as_they_would_be_alone(name: str) -> None:
    seeds = [torch.Generator().manual_seed(s) for s in (5, 6)]
    together = build(name, ensemble=2, generator=seeds)
    for e, seed in enumerate((5, 6)):
        alone = build(name, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(together.K[e], alone.K)
        assert torch.equal(together.b[e], alone.b)


def test_kernels_are_drawn_smaller_by_the_root_of_what_they_sum(
    generator: torch.Generator,
) -> None:
    """1 / sqrt(n k^2), times the scale; matrices over channels 1, as documented."""
    weights = Weights("dense", channels=16, kernel=5, layers=8, generator=generator, scale=3.0)
    assert float(weights.theta.detach().std()) * 20 == pytest.approx(3, abs=0.06)
    assert float(weights.beta.detach().std()) * 20 == pytest.approx(3, abs=0.6)
    pointwise = Weights("dense", channels=64, kernel=1, layers=8, generator=generator)
    assert float(pointwise.theta.detach().std()) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": 4, "kernel": 3}, "give channels=n"),
        ({"channels": 4, "kernel": 3, "ensemble": 2}, "without features and ensemble"),
        ({"features": 4, "ensemble": 2, "generator": [torch.Generator()]}, "1 generators"),
        *(({"channels": 4, "kernel": k}, "odd and positive") for k in (0, 2, -3, 3.0, True)),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else "",
)
def test_impossible_arguments_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(HdnnError, match=message):
        Weights("dense", **({"layers": 2} | options))


# --- rectangular K --------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("units", [2, 6])
@pytest.mark.parametrize("name", ["H1", "H2", "MS3", "HS"])
def test_any_number_of_hidden_units(name: str, units: int, kernel: int) -> None:
    size: dict[str, Any] = {"features": 4} if kernel == 1 else {"channels": 4, "kernel": kernel}
    net = build(name, units=units, **size)
    assert net.K.shape[1:3] == (units, 4)
    assert net.b.shape == (3, units)
    entries = units * 4 * kernel**2 // (1 if name in ("H1", "H2") else 2)
    assert net.parameters_per_layer == entries + units
    assert net.field.separable is (name in ("MS3", "HS"))
    assert net(torch.randn(2, 4, *([5, 5] if kernel > 1 else []))).shape[1] == 4
    assert f"units={units}" in repr(net)


def test_as_many_units_as_features_is_what_it_was() -> None:
    for name in ("H1", "MS3", "HS"):
        plain, square = (
            build(name, generator=torch.Generator().manual_seed(0), **options)
            for options in ({}, {"units": 4})
        )
        assert torch.equal(plain.K, square.K)
        assert repr(plain) == repr(square)


def test_units_that_a_structure_cannot_have_raise() -> None:
    for name in ("MS1", "MS2"):
        with pytest.raises(HdnnError, match=r"dense, off-diagonal, block-diagonal .*H1, H2, MS3"):
            build(name, units=6)
    for name in ("ResNet", "FCNN"):
        with pytest.raises(HdnnError, match="as many units as features"):
            build(name, units=6)
    with pytest.raises(HdnnError, match="units are even, got 5"):
        build("MS3", units=5)
    for wrong in (0, -2, 2.5, True):
        with pytest.raises(HdnnError, match="units must be a positive integer"):
            build("H1", units=wrong)
    with pytest.raises(HdnnError, match="a structure of your own says itself"):
        Weights([[1, 1], [0, 1]], features=2, units=3, layers=1)
