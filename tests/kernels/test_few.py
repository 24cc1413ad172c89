"""Few samples, for which lanes run over features and units, against the reference.

`test_variants` runs this file once more for every other instruction set that the machine has.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from catalog import as_function, build, skew
from hdnn.fields import ACTIVATIONS, HamiltonianField, Weights
from skips import needs_kernels
from twins import CATALOG, Net, Results, agree, derivatives, error, stepped, twin

pytestmark = needs_kernels

COMPILED = [name for name, row in ACTIVATIONS.items() if row.code is not None]
WIDTHS = (8, 16, 18, 34, 64, 70)  # of which halves fill vectors, and which end within one
SAMPLES = (1, 2, 3, 5, 8, 9)


def both(net: Net, y: Tensor, weight: Tensor | None = None) -> tuple[Results, Results]:
    """Values and derivatives by the kernels, and by the reference."""
    weight = torch.randn_like(y) if weight is None else weight
    mine, plain = (derivatives(twin(net, b), y, weight) for b in ("fused", "reference"))
    return mine, plain


def drawn(label: str, n: int, layers: int = 3, **options: Any) -> Net:
    step: dict[str, Any] = {"T": 1.2} if stepped(label) else {}
    net: Net = CATALOG[label](features=n, layers=layers, scale=n**-0.5, **step, **options)
    return net


@pytest.mark.parametrize("shared", [False, True], ids=["", "time-invariant"])
@pytest.mark.parametrize("label", CATALOG)
def test_values_and_gradients_are_those_of_the_reference(label: str, shared: bool) -> None:
    for n in WIDTHS:
        net = drawn(label, n, time_invariant=shared)
        for samples in SAMPLES:
            agree(*both(net, torch.randn(samples, n)), 1e-12)


@pytest.mark.parametrize("label", CATALOG)
def test_float32_is_as_accurate_as_the_reference(label: str) -> None:
    """The error against float64 is at most 3 x that of the reference in float32, plus 1e-6.

    On average over draws: of so few numbers, each of which may be lucky, single ones say little.
    """
    single, sizes = torch.float32, [(n, samples) for n in WIDTHS for samples in (1, 2, 3, 5)]
    found: dict[str, list[tuple[float, float]]] = {}
    for n, samples in sizes:
        net = drawn(label, n, layers=17, dtype=single)
        y, weight = torch.randn(2, samples, n, dtype=single)
        mine, plain = both(net, y, weight)
        wide = twin(net, "reference", dtype=torch.float64)
        for name, exact in derivatives(wide, y.double(), weight.double()).items():
            errors = error(mine[name], exact), error(plain[name], exact)
            found.setdefault(name, []).append(errors)
    for name, errors in found.items():
        own, reference = (sum(column) / len(sizes) for column in zip(*errors, strict=True))
        assert own <= 3 * reference + 1e-6, name


@pytest.mark.parametrize("label", CATALOG)
def test_ensembles(label: str) -> None:
    """Each network with its own parameters, its own samples and, where it has steps, its own h."""
    steps = {"step": torch.rand(3, 3) / 3} if stepped(label) else {}
    for n in (18, 64):
        net = CATALOG[label](features=n, layers=3, ensemble=3, scale=n**-0.5, **steps)
        for samples in (1, 3):
            agree(*both(net, torch.randn(3, samples, n)), 1e-12)


@pytest.mark.parametrize("name", ["MS1", "MS2", "MS3", "H1", "H2", "HS", "FCNN", "ResNet"])
def test_gradients_are_right_and_may_be_differentiated(name: str) -> None:
    net = build(name, features=16, layers=2, scale=0.25, backend="fused")
    function, values = as_function(net)
    inputs = (torch.randn(2, 16, requires_grad=True), *values)
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("activation", COMPILED)
def test_activations(activation: str) -> None:
    for name in ("H1", "MS3", "ResNet"):
        net = build(name, features=34, activation=activation, scale=0.2)
        agree(*both(net, torch.randn(3, 34)), 1e-12)


def permutation(n: int) -> Tensor:
    """A skew matrix with one entry in every row, of any size and in any place."""
    order, J = torch.randperm(n), torch.zeros(n, n)
    J[order[: n // 2], order[n // 2 :]] = torch.rand(n // 2) + 0.5
    return J - J.mT


STRUCTURES = {
    "a full J": lambda n: {"J": skew(n) / n**0.5},
    "a permutation": lambda n: {"J": permutation(n)},
    "dissipation": lambda n: {"J": "J2", "dissipation": torch.eye(n) / 10},
}


@pytest.mark.parametrize("units", [16, 34, 40])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_any_J_and_any_number_of_hidden_units(structure: str, units: int) -> None:
    n = 34
    graph = np.random.default_rng(0).random((units, n)) < 0.7
    for pattern in (graph, np.ones_like(graph)):
        weights = Weights(pattern, features=n, layers=3, scale=n**-0.5)
        net = Net(HamiltonianField(weights=weights, **STRUCTURES[structure](n)), T=1.0)
        for samples in (1, 4):
            agree(*both(net, torch.randn(samples, n)), 1e-12)


@pytest.mark.parametrize("name", ["H1", "MS1"])
def test_very_deep_networks(name: str) -> None:
    """Deeper than what is kept of the way forward."""
    net = build(name, features=64, layers=3500, T=1.0, scale=0.125)
    agree(*both(net, torch.randn(2, 64)))


# --- special values -------------------------------------------------------------------------------


@pytest.mark.parametrize("special", [1e4, 0.0, 1e-310, torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["H1", "H2", "MS1", "MS3", "FCNN", "ResNet"])
def test_special_values_stay_in_their_sample(name: str, special: float) -> None:
    """As in the reference, for a whole sample and for one entry; others keep their bits.

    Of gradients of weights it is the place that counts: what is NaN in one may be infinite in the
    other, and J1 and J2 are no products with zeros here.
    """
    n, samples = 70, 5
    net = build(name, features=n, layers=2, scale=n**-0.5)
    y, weight = torch.randn(2, samples, n)
    clean, _ = both(net, y, weight)
    for place in (slice(None), 0, 17, 63, 64, n - 1):
        x = y.clone()
        x[3, place] = special
        mine, plain = both(net, x, weight)
        for key, expected in plain.items():
            value = mine[key]
            tolerance = 1e-11 * max(1.0, float(expected.nan_to_num(0, 0, 0).abs().max()))
            if key not in ("value", "state"):
                assert torch.equal(value.isfinite(), expected.isfinite())
                value, expected = (t.nan_to_num(0, 0, 0) for t in (value, expected))
            torch.testing.assert_close(value, expected, rtol=1e-11, atol=tolerance, equal_nan=True)
        others = [k for k in range(samples) if k != 3]
        for key in ("value", "state"):
            assert torch.equal(mine[key][others], clean[key][others])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["H1", "H2", "MS1", "MS2", "MS3", "FCNN"])
def test_weights_that_are_not_finite_show_as_in_the_reference(name: str, bad: float) -> None:
    """In the same samples, and in the same gradients."""
    net = build(name, features=34, layers=2, scale=0.2)
    size = net.field.weights.theta.shape[-1]
    for place in (0, 30, size // 2, size - 1):  # the second where the last vectors of a row overlap
        poisoned = twin(net, "auto")
        with torch.no_grad():
            poisoned.field.weights.theta[1, place] = bad
        mine, plain = both(poisoned, torch.randn(2, 34))
        for key, expected in plain.items():
            if key in ("value", "state"):
                assert torch.equal(mine[key].isfinite().all(-1), expected.isfinite().all(-1)), key
            else:
                assert bool(mine[key].isfinite().all()) == bool(expected.isfinite().all()), key
