"""The network as a torch module: derivatives, shapes, layouts, ensembles, transforms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.utils.flop_counter import FlopCounterMode

import hdnn
from catalogue import BACKENDS, OWN, PAIRS, build, every_name, every_pair, jacobian

Net = hdnn.HamiltonianNetwork


def close(a: Tensor, b: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def as_function(net: Net) -> tuple[Any, tuple[Tensor, ...]]:
    """The network as a function of the state and all parameters."""
    names = [name for name, _ in net.named_parameters()]

    def function(y: Tensor, *values: Tensor) -> Tensor:
        return functional_call(net, dict(zip(names, values, strict=True)), (y,))

    return function, tuple(p.detach().clone().requires_grad_() for p in net.parameters())


# --- derivatives ----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@every_pair()
def test_gradients_of_state_and_parameters(name: str, scheme: str, backend: str) -> None:
    step: Any = {} if not _stepped(name, scheme) else {"step": [0.2, 0.3], "learn_steps": True}
    net = build(name, scheme, features=2, layers=2, backend=backend, **step)
    function, parameters = as_function(net)
    y = torch.randn(2, 2, requires_grad=True)
    assert torch.autograd.gradcheck(function, (y, *parameters))


def _stepped(name: str, scheme: str) -> bool:
    return build(name, scheme).scheme.uses_step


@every_pair([p for p in PAIRS if p[1] == OWN or p in (("H2", "RK4"), ("H2", "ImplicitMidpoint"))])
def test_second_derivatives(name: str, scheme: str) -> None:
    function, parameters = as_function(build(name, scheme, features=2, layers=2))
    y = torch.randn(1, 2, requires_grad=True)
    # Sharper than the default, which lets a midpoint without its second derivatives pass.
    assert torch.autograd.gradgradcheck(function, (y, *parameters), atol=1e-6, rtol=1e-6)


@every_pair()
def test_functional_transforms_see_the_same_network(name: str, scheme: str) -> None:
    net, y = build(name, scheme, scale=0.5), torch.randn(3, 4)
    close(vmap(net)(y), net(y))
    M = vmap(jacrev(net))(y)
    for k in range(3):
        close(M[k], jacobian(net, y[k]), 1e-10)


@every_name
def test_vmap_over_parameters_is_an_ensemble(name: str) -> None:
    together = build(name, ensemble=3)
    single, y = build(name), torch.randn(5, 4)
    stacked = dict(together.named_parameters())
    buffers = dict(single.named_buffers())

    def call(parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(single, parameters | buffers, (y,))

    close(vmap(call)(stacked), together(y.unsqueeze(0)))


@pytest.mark.parametrize("name", ["MS3", "H1"])
def test_compiles(name: str) -> None:
    torch.compiler.reset()  # torch counts compilations of the whole process
    net, y = build(name, backend="reference"), torch.randn(3, 4, requires_grad=True)
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    close(compiled(y), net(y))
    expected = torch.autograd.grad(net(y).square().sum(), [y, *net.parameters()])
    found = torch.autograd.grad(compiled(y).square().sum(), [y, *net.parameters()])
    for a, b in zip(found, expected, strict=True):
        close(a, b)


# --- shapes and layouts ---------------------------------------------------------------------------


@every_name
@given(batch=st.lists(st.integers(0, 3), max_size=3))
def test_any_batch_shape_is_rows_one_by_one(name: str, batch: list[int]) -> None:
    net = build(name, dtype=torch.float64)
    y = torch.randn(*batch, 4, dtype=torch.float64)
    out = net(y)
    assert out.shape == y.shape
    assert net.trajectory(y).shape == (4, *y.shape)
    for row, expected in zip(y.reshape(-1, 4), out.reshape(-1, 4), strict=True):
        close(net(row), expected)
    if net.invertible:
        close(net.inverse(out), y, 1e-10)


@every_pair()
def test_an_empty_batch_and_no_layers(name: str, scheme: str) -> None:
    net = build(name, scheme)
    empty = torch.randn(0, 4, requires_grad=True)
    net(empty).sum().backward()
    assert empty.grad is not None
    identity, y = build(name, scheme, layers=0), torch.randn(3, 4)
    assert torch.equal(identity(y), y)
    assert torch.equal(identity.trajectory(y), y.unsqueeze(0))
    if identity.invertible:
        assert torch.equal(identity.inverse(y), y)


@pytest.mark.parametrize("spatial", [(), (5,), (2, 3), (2, 1, 3), (0, 2)], ids=str)
@every_pair()
def test_channels_are_features_on_another_axis(
    name: str, scheme: str, spatial: tuple[int, ...]
) -> None:
    features, channels = build(name, scheme, scale=0.5), build(name, scheme, channels=4)
    channels.load_state_dict(features.state_dict())
    y = torch.randn(2, 4, *spatial)
    expected = features.trajectory(y.movedim(1, -1)).movedim(-1, 2)
    close(channels.trajectory(y), expected)
    close(channels(y), expected[-1])
    if channels.invertible:
        close(channels.inverse(channels(y)), y, 1e-10)


@every_name
def test_a_trajectory_is_all_the_prefixes(name: str) -> None:
    net, y = build(name, layers=5), torch.randn(3, 4)
    path = net.trajectory(y)
    assert torch.equal(path[0], y)
    close(path[-1], net(y))
    for k in range(1, 5):
        options = {"step": net.h} if net.scheme.uses_step else {}
        prefix = build(name, layers=k, **options)
        state = net.state_dict()
        for key in ("field.weights.theta", "field.weights.beta"):
            state[key] = state[key][:k]
        prefix.load_state_dict(state)
        close(path[k], prefix(y))


@pytest.mark.parametrize("layout", ["features", "channels"])
@every_pair()
def test_an_ensemble_is_its_members_side_by_side(name: str, scheme: str, layout: str) -> None:
    steps: Any = {}
    if _stepped(name, scheme):
        steps = {"step": 0.1 + torch.rand(3, 2) / 4}
    together = build(name, scheme, layers=2, ensemble=3, scale=0.5, **{layout: 4}, **steps)
    y = torch.randn(3, 2, 4) if layout == "features" else torch.randn(3, 2, 4, 5)
    out, shared, path = together(y), together(y[:1]), together.trajectory(y)
    assert path.shape == (3, *y.shape)
    for e in range(3):
        own = {"step": steps["step"][e]} if steps else {}
        member = build(name, scheme, layers=2, **{layout: 4}, **own)
        with torch.no_grad():
            for target, source in zip(member.parameters(), together.parameters(), strict=True):
                target.copy_(source[e])
        close(out[e], member(y[e]))
        close(shared[e], member(y[0]))
        close(path[:, e], member.trajectory(y[e]))
        if member.invertible:
            close(together.inverse(out)[e], y[e], 1e-10)


def test_members_of_an_ensemble_with_a_learned_X_are_independent() -> None:
    """E networks at once are E networks: no parameter is shared between members."""
    net = build("HS", ensemble=3, X="learned")
    out = net(torch.randn(3, 5, 4))
    gradients = torch.autograd.grad(out[1].sum(), list(net.parameters()))
    for gradient in gradients:
        assert gradient.shape[0] == 3
        assert bool((gradient[[0, 2]] == 0).all())
        assert bool((gradient[1] != 0).any())


@every_name
def test_members_are_drawn_as_they_would_be_alone(name: str) -> None:
    seeds = [torch.Generator().manual_seed(s) for s in (5, 6)]
    together = build(name, ensemble=2, generator=seeds)
    for e, seed in enumerate((5, 6)):
        alone = build(name, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(together.K[e], alone.K)
        assert torch.equal(together.b[e], alone.b)


# --- parameters -----------------------------------------------------------------------------------


@every_name
def test_initialization_is_standard_normal_and_reproducible(
    name: str, generator: torch.Generator
) -> None:
    before = torch.get_rng_state()
    net = build(name, layers=500, generator=generator)
    theta = net.field.weights.theta.detach().clone()
    assert float(theta.mean()) == pytest.approx(0, abs=5 / theta.numel() ** 0.5)
    assert float(theta.std()) == pytest.approx(1, abs=5 / theta.numel() ** 0.5)
    net.reset_parameters(torch.Generator().manual_seed(1))
    assert torch.equal(net.field.weights.theta, theta)
    net.reset_parameters(torch.Generator().manual_seed(1), scale=0.25)
    close(net.field.weights.theta, theta / 4)
    net.reset_parameters(generator, init="uniform")
    assert 0.95 < float(net.field.weights.theta.detach().abs().max()) <= 1
    net.reset_parameters(init="zeros")
    assert not net.K.any()
    assert not net.b.any()
    assert torch.equal(torch.get_rng_state(), before)


@every_name
def test_fits_into_a_sequence_and_learns(name: str) -> None:
    net = build(name, features=6)
    model = nn.Sequential(hdnn.Augmentation(3, 6), net, nn.Linear(6, 1))
    x, target = torch.randn(20, 3), torch.randn(20, 1)
    optimizer = torch.optim.Adam(model.parameters(), 0.03)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]


# --- counting -------------------------------------------------------------------------------------

COUNTED = [pair for pair in PAIRS if pair[1] != "ImplicitMidpoint"]


@pytest.mark.parametrize("layout", [{}, {"channels": 4}, {"channels": 4, "kernel": 3}], ids=str)
@every_pair(COUNTED)
def test_flops_are_those_that_torch_counts(name: str, scheme: str, layout: dict[str, int]) -> None:
    net = build(name, scheme, **layout)
    y = torch.randn(5, 4, *((3, 6) if layout else ()))
    with FlopCounterMode(display=False) as counter:
        net(y)
    assert net.flops(*y.shape) == counter.get_total_flops() > 0


def test_flops_are_two_for_every_multiply_add() -> None:
    B, n, L = 7, 6, 5
    cost = {
        name: build(name, features=n, layers=L, backend="fused").flops(B, n)
        for name in ("FCNN", "MS1", "H1")
    }
    assert cost["FCNN"] == 2 * L * B * n**2
    assert cost["MS1"] == 2 * L * B * 2 * (n // 2) ** 2
    assert cost["H1"] == 2 * L * (2 * B * n**2 + n**3)  # K y, (J K') s, and J K' once
    assert build("FCNN", channels=n, kernel=3, layers=L).flops(B, n, 4, 5) == (
        2 * L * B * n**2 * 9 * 20
    )
