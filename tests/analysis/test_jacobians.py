"""d y_N / d y_l of every layer: several ways to compute them agree, in every layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import jacrev, vmap

import hdnn
from catalogue import build, each
from hdnn.analysis import (
    layer_factors,
    sensitivities,
    velocity_jacobians,
)
from hdnn.errors import HdnnError
from skips import needs_kernels
from twins import CATALOGUE, OWN_ONLY, error, stepped, twin

FUSED = pytest.param("fused", marks=needs_kernels)
every_backend = pytest.mark.parametrize("backend", [FUSED, "reference"])


def close(a: Tensor, b: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@each
def test_factors_multiply_to_sensitivities(name: str, scheme: str) -> None:
    net, y = build(name, scheme, layers=4, scale=0.5), torch.randn(3, 4)
    factors = layer_factors(net, y)
    backward = sensitivities(net, y)
    assert not backward.requires_grad
    assert torch.equal(backward[-1], torch.eye(4).expand(3, 4, 4))
    close(backward[0], vmap(jacrev(net))(y).detach())
    for l in range(4):
        close(backward[l + 1] @ factors[l], backward[l])


@needs_kernels
@settings(max_examples=60)
@given(data=st.data(), label=st.sampled_from(OWN_ONLY), layers=st.integers(1, 40))
def test_kernels_and_reference_agree_in_every_layout(
    data: st.DataObject, label: str, layers: int
) -> None:
    layout = data.draw(st.sampled_from(("features", "channels")))
    ensemble = data.draw(st.sampled_from((None, 2, 9)))
    n = data.draw(st.sampled_from((2, 4, 10)))
    options: dict[str, Any] = {
        layout: n,
        "layers": layers,
        "ensemble": ensemble,
        "dtype": torch.float64,
        "time_invariant": data.draw(st.booleans()),
        "scale": n**-0.5,
    }
    if stepped(label):
        options |= {"T": 1.0}
    net = CATALOGUE[label](**options)
    lead = () if ensemble is None else (ensemble,)
    batch = tuple(data.draw(st.lists(st.integers(1, 9), max_size=2)))
    shape = (*lead, *batch, n) if layout == "features" else (*lead, 3, n, *batch)
    samples = (*lead, *batch) if layout == "features" else (*lead, 3, *batch)
    y = torch.randn(shape, dtype=torch.float64)
    fused, plain = (sensitivities(twin(net, b), y) for b in ("fused", "reference"))
    assert fused.shape == plain.shape == (layers + 1, *samples, n, n)
    assert error(fused, plain) <= 1e-11


@every_backend
@pytest.mark.parametrize("name", ["H2", "MS1"])
def test_images_and_ensembles_are_rows_on_other_axes(name: str, backend: str) -> None:
    net = build(name, layers=3, backend=backend)
    images = build(name, channels=4, layers=3, backend=backend)
    images.load_state_dict(net.state_dict())
    y = torch.randn(5, 4, 2, 3)
    rows = y.movedim(1, -1)
    together = build(name, layers=3, ensemble=2, backend=backend)
    own = torch.randn(2, 5, 4)
    for function in (sensitivities, layer_factors):
        close(function(images, y), function(net, rows))
    with torch.no_grad():
        for mine, theirs in zip(net.parameters(), together.parameters(), strict=True):
            mine.copy_(theirs[1])
    for function in (sensitivities, layer_factors):
        close(function(together, own)[:, 1], function(net, own[1]))
        close(function(together, own[:1])[:, 1], function(net, own[0]))  # one batch for all


@needs_kernels
@pytest.mark.parametrize("layers", [200, 700])
def test_at_depth(layers: int) -> None:
    """In segments, with fewer saved states than segments; the network is volume-preserving."""
    net = build("MS3", features=16, layers=layers, T=1.0, scale=0.25, backend="fused")
    y = torch.randn(20, 16)
    found = sensitivities(net, y)
    assert error(found, sensitivities(twin(net, "reference"), y)) <= 1e-11
    close(torch.linalg.det(found), torch.ones(layers + 1, 20), 1e-9)


@needs_kernels
def test_float32_is_as_accurate_as_the_reference() -> None:
    for name in ("H1", "MS1", "FCNN"):
        options = {} if name == "FCNN" else {"T": 1.2}
        net = build(name, layers=64, scale=0.5, dtype=torch.float32, **options)
        y = torch.randn(125, 4, dtype=torch.float32)
        exact = sensitivities(twin(net, "reference", dtype=torch.float64), y.double())
        mine, plain = (sensitivities(twin(net, b), y) for b in ("fused", "reference"))
        assert error(mine, exact) <= 3 * error(plain, exact) + 1e-6


@every_backend
def test_a_sample_that_is_not_finite_spoils_no_other(backend: str) -> None:
    net, y = build("H1", layers=3, backend=backend), torch.randn(37, 4)
    good = sensitivities(net, y)
    y[[3, 36]] = torch.nan
    found = sensitivities(net, y)
    others = [k for k in range(37) if k not in (3, 36)]
    close(found[:, others], good[:, others])
    assert bool(found[:3, [3, 36]].isnan().any(-1).all())


@pytest.mark.parametrize(
    "options",
    [
        {"step": [0.1, 0.3, 0.2]},
        {"T": 1.0, "learn_steps": True},
        {"T": 1.0, "time_invariant": True},
    ],
    ids=["steps", "learned-steps", "time-invariant"],
)
def test_layers_as_an_ensemble_are_the_layers(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, y = hdnn.network("H1", features=4, layers=3, **options), torch.randn(5, 4)
    monkeypatch.setattr("hdnn.analysis.jacobians.ENTRIES", 100)  # two samples at a time
    backward, factors = sensitivities(net, y), layer_factors(net, y)
    A, h = velocity_jacobians(net, y), torch.as_tensor(net.h).detach().expand(3)
    for l in range(3):
        close(backward[l + 1] @ factors[l], backward[l])
        close(factors[l], torch.eye(4) + h[l] * A[l])  # forward Euler
        K, b = net.K[l].detach(), net.b[l].detach()
        D = 1 - torch.tanh(net.trajectory(y)[l].detach() @ K.mT + b) ** 2
        close(A[l], net.J @ K.mT @ torch.diag_embed(D) @ K)  # equation (16), transposed


def test_flows_and_networks_without_work() -> None:
    net, y = build("H1", "RK4"), torch.randn(3, 4)
    close(sensitivities(net, y)[0], vmap(jacrev(net))(y).detach(), 1e-9)
    empty = build("H1", layers=0)
    assert sensitivities(build("H1"), torch.randn(0, 4)).shape == (4, 0, 4, 4)
    assert layer_factors(empty, y).shape == (0, 3, 4, 4)
    assert torch.equal(sensitivities(empty, y), torch.eye(4).expand(1, 3, 4, 4))


@pytest.mark.parametrize("backend", ["auto", FUSED, "reference"])
def test_states_that_do_not_fit_raise(backend: str) -> None:
    net = build("H1", backend=backend)
    for y in (torch.randn(3, 5), torch.randn(3, 4, dtype=torch.float32)):
        with pytest.raises(HdnnError):
            sensitivities(net, y)
    with pytest.raises(HdnnError, match="watch"):
        sensitivities(build("H1", channels=4, kernel=3), torch.randn(2, 4, 5, 5))
    with pytest.raises(HdnnError, match="no step size"):
        velocity_jacobians(build("FCNN"), torch.randn(3, 4))
    flow = build("H1", "RK4")
    flow.backend = "fused"
    with pytest.raises(HdnnError, match="flow"):
        sensitivities(flow, torch.randn(3, 4))


@needs_kernels
def test_the_state_may_have_any_strides_and_a_graph() -> None:
    net, y = build("H1", backend="fused"), torch.randn(4, 40, requires_grad=True).t()
    close(sensitivities(net, y), sensitivities(net, y.detach().contiguous()))
    assert all(parameter.grad is None for parameter in net.parameters())
