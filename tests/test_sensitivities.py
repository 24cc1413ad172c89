"""d y_N / d y_l of every layer: three ways to compute them, and what must hold for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import jacrev, vmap

from catalogue import build
from hdnn.analysis import sensitivities
from hdnn.backends import reference
from hdnn.errors import HdnnError
from twins import CATALOGUE, OWN_ONLY, Net, error, stepped, twin


def close(a: Tensor, b: Tensor, tolerance: float = 1e-11) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def by_products(net: Net, y: Tensor) -> Tensor:
    """M_l = D_{N-1} ... D_l with the Jacobians D_j of the layers, for rows of features."""
    advance = reference.layer_map(net.program())
    M = torch.eye(y.shape[-1]).expand(*y.shape, y.shape[-1])
    found = [M]
    for layer, state in reversed(list(enumerate(net.trajectory(y)[:-1]))):
        D = vmap(jacrev(lambda x, j=layer: advance(j, x.unsqueeze(0)).squeeze(0)))(state)
        found.append(found[-1] @ D)
    return torch.stack(found[::-1]).detach()


@pytest.mark.parametrize("label", CATALOGUE)
def test_three_ways_agree(label: str) -> None:
    net, y = CATALOGUE[label](features=6, layers=5, scale=0.5), torch.randn(7, 6)
    fused, plain = (sensitivities(twin(net, b), y) for b in ("fused", "reference"))
    products = by_products(net, y)
    assert fused.shape == plain.shape == (6, 7, 6, 6)
    close(fused, products)
    close(plain, products)
    close(fused[0], vmap(jacrev(net))(y).detach())
    assert torch.equal(fused[-1], torch.eye(6).expand(7, 6, 6))
    assert not fused.requires_grad


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
        options |= {"T": 1.0, "learn_steps": data.draw(st.booleans())}
    net = CATALOGUE[label](**options)
    lead = () if ensemble is None else (ensemble,)
    batch = tuple(data.draw(st.lists(st.integers(1, 9), max_size=2)))
    shape = (*lead, *batch, n) if layout == "features" else (*lead, 3, n, *batch)
    samples = (*lead, *batch) if layout == "features" else (*lead, 3, *batch)
    y = torch.randn(shape, dtype=torch.float64)
    fused, plain = (sensitivities(twin(net, b), y) for b in ("fused", "reference"))
    assert fused.shape == plain.shape == (layers + 1, *samples, n, n)
    assert error(fused, plain) <= 1e-11


@pytest.mark.parametrize("backend", ["fused", "reference"])
@pytest.mark.parametrize("name", ["H2", "MS1"])
def test_images_and_ensembles_are_rows_on_other_axes(name: str, backend: str) -> None:
    net = build(name, layers=3, backend=backend)
    images = build(name, channels=4, layers=3, backend=backend)
    images.load_state_dict(net.state_dict())
    y = torch.randn(5, 4, 2, 3)
    close(sensitivities(images, y), sensitivities(net, y.movedim(1, -1)))
    together = build(name, layers=3, ensemble=2, backend=backend)
    own, shared = torch.randn(2, 5, 4), torch.randn(1, 5, 4)
    for e in range(2):
        with torch.no_grad():
            for mine, theirs in zip(net.parameters(), together.parameters(), strict=True):
                mine.copy_(theirs[e])
        close(sensitivities(together, own)[:, e], sensitivities(net, own[e]))
        close(sensitivities(together, shared)[:, e], sensitivities(net, shared[0]))


@pytest.mark.parametrize("layers", [200, 700])
def test_at_depth(layers: int) -> None:
    """In segments, with fewer saved states than segments; the network is volume-preserving."""
    net = build("MS3", features=16, layers=layers, T=1.0, scale=0.25, backend="fused")
    y = torch.randn(20, 16)
    found = sensitivities(net, y)
    assert error(found, sensitivities(twin(net, "reference"), y)) <= 1e-11
    close(torch.linalg.det(found), torch.ones(layers + 1, 20), 1e-9)


def test_float32_is_as_accurate_as_the_reference() -> None:
    for name in ("H1", "MS1", "FCNN"):
        options = {} if name == "FCNN" else {"T": 1.2}
        net = build(name, layers=64, scale=0.5, dtype=torch.float32, **options)
        y = torch.randn(125, 4, dtype=torch.float32)
        exact = sensitivities(twin(net, "reference", dtype=torch.float64), y.double())
        mine, plain = (sensitivities(twin(net, b), y) for b in ("fused", "reference"))
        assert error(mine, exact) <= 3 * error(plain, exact) + 1e-6


@pytest.mark.parametrize("backend", ["fused", "reference"])
def test_a_sample_that_is_not_finite_spoils_no_other(backend: str) -> None:
    net, y = build("H1", layers=3, backend=backend), torch.randn(37, 4)
    good = sensitivities(net, y)
    y[[3, 36]] = torch.nan
    found = sensitivities(net, y)
    others = [k for k in range(37) if k not in (3, 36)]
    close(found[:, others], good[:, others])
    assert bool(found[:3, [3, 36]].isnan().any(-1).all())


def test_flows_and_networks_without_work() -> None:
    net, y = build("H1", "RK4"), torch.randn(3, 4)
    close(sensitivities(net, y)[0], vmap(jacrev(net))(y).detach(), 1e-9)
    assert sensitivities(build("H1"), torch.randn(0, 4)).shape == (4, 0, 4, 4)
    assert torch.equal(sensitivities(build("H1", layers=0), y), torch.eye(4).expand(1, 3, 4, 4))


@pytest.mark.parametrize("backend", ["auto", "fused", "reference"])
def test_states_that_do_not_fit(backend: str) -> None:
    net = build("H1", backend=backend)
    for y in (torch.randn(3, 5), torch.randn(3, 4, dtype=torch.float32)):
        with pytest.raises(HdnnError):
            sensitivities(net, y)
    flow = build("H1", "RK4")
    flow.backend = "fused"
    with pytest.raises(HdnnError, match="flow"):
        sensitivities(flow, torch.randn(3, 4))


def test_the_state_may_have_any_strides_and_a_graph() -> None:
    net, y = build("H1", backend="fused"), torch.randn(4, 40, requires_grad=True).t()
    close(sensitivities(net, y), sensitivities(net, y.detach().contiguous()))
    assert all(parameter.grad is None for parameter in net.parameters())
