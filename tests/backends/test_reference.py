"""The reference: plain torch in any dtype, with less memory where that is asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from catalog import EACH, IMPLICIT, as_function, build, each, every_pair
from hdnn.backends import reference
from twins import Net, agree, derivatives, error, twin


def lean(net: Net) -> Net:
    return twin(net, "reference", "lean")


@each
def test_trajectory_and_inverse_follow_the_layers(name: str, scheme: str) -> None:
    net, y = build(name, scheme, layers=4, scale=0.5), torch.randn(6, 4)
    program, values = net.program, net.values()
    states, advance = (
        reference.trajectory(program, values, y),
        reference.layer_map(program, values, 2),
    )
    for j in range(4):
        assert torch.equal(states[j + 1], advance(j, states[j]))
    assert torch.equal(states[0], y)
    torch.testing.assert_close(states[4], reference.run(program, values, y))
    if program.invertible:
        assert error(reference.inverse(program, values, states[4]), y) <= 1e-9


# --- memory="lean" --------------------------------------------------------------------------------


@each
def test_lean_is_the_same_at_any_depth(name: str, scheme: str) -> None:
    """Also where the last segment is shorter than the others."""
    for layers in (1, 3, 10 if scheme in IMPLICIT else 70):
        net = build(name, scheme, layers=layers, scale=0.5)
        y, weight = torch.randn(2, 6, 4)
        agree(derivatives(lean(net), y, weight), derivatives(twin(net, "reference"), y, weight))


@pytest.mark.parametrize("name", ["H1", "MS1"])
def test_lean_serves_convolutions(name: str) -> None:
    net = build(name, channels=4, kernel=3, scale=2.0, layers=6)
    y, weight = torch.randn(2, 2, 4, 3, 3)
    agree(derivatives(lean(net), y, weight), derivatives(net, y, weight), 1e-10)


# Torch's own, when forward-mode differentiation is first used in a process.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("transform", [torch.func.jacrev, torch.func.jacfwd, lambda net: net])
def test_lean_stands_aside_for_transforms(transform: Any) -> None:
    net, y = twin(build("H1"), "reference"), torch.randn(3, 4)
    mine, plain = (torch.func.vmap(transform(n))(y) for n in (lean(net), net))
    torch.testing.assert_close(mine, plain)


def test_lean_can_be_differentiated_twice() -> None:
    function, parameters = as_function(lean(build("MS3", features=2, layers=5)))
    y = torch.randn(2, 2, requires_grad=True)
    assert torch.autograd.gradgradcheck(function, (y, *parameters))


def saved_bytes(net: Net, y: Tensor) -> int:
    """What the graph of a forward pass keeps of states."""
    saved: list[Tensor] = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t)
    with hooks:
        net(y.detach().requires_grad_())
    return sum(t.nbytes for t in saved if len(y) in t.shape)


@pytest.mark.parametrize("name", ["H1", "MS3", "FCNN"])
def test_lean_memory_hardly_grows_with_depth(name: str) -> None:
    """As the square root: a state for every segment of layers."""
    y, nets = torch.randn(37, 4), [build(name, layers=layers) for layers in (16, 1024)]
    shallow, deep = (saved_bytes(lean(net), y) for net in nets)
    assert deep <= 9 * shallow
    assert deep < saved_bytes(twin(nets[1], "reference"), y) / 30


# --- precision ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lower", "memory"), [(torch.bfloat16, "fast"), (torch.float16, "lean")])
@every_pair([pair for pair in EACH if pair[1] not in IMPLICIT])
def test_a_low_precision_network_computes_in_its_own_dtype(
    name: str, scheme: str, lower: torch.dtype, memory: str
) -> None:
    """Nothing in float32 behind one's back: result and gradients have the network's dtype."""
    net = build(name, scheme, dtype=torch.float32, memory=memory)
    y = torch.randn(5, 4, dtype=torch.float32) / 2
    exact = net(y).detach()
    net.to(lower)
    out = net(y.to(lower))
    assert out.dtype == lower
    assert not torch.equal(out.detach().float(), exact)
    # At most three layers, each with a few roundings of its own.
    assert error(out.float(), exact) < 20 * torch.finfo(lower).eps
    out.sum().backward()
    assert all(p.grad is not None and p.grad.dtype == lower for p in net.parameters())
