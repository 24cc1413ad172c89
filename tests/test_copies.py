"""Copies and conversions keep J, the steps and everything else."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import hdnn
from catalogue import BACKENDS, PAIRS, build, skew
from hdnn.fields import ACTIVATIONS, EnergyField, HamiltonianField, Weights

Net = hdnn.HamiltonianNetwork


def variants() -> dict[str, Any]:
    """Networks that hold something which a copy could lose."""
    weights = {"features": 4, "layers": 3}
    options: dict[str, Any] = {
        "X given": lambda: build("HS", X=torch.randn(2, 2)),
        "X learned": lambda: build("HS", X="learned"),
        "steps": lambda: build("H1", step=[0.1, 0.2, 0.3]),
        "learned steps": lambda: build("H1", learn_steps=True),
        "ensemble": lambda: build("MS1", ensemble=2),
        "channels": lambda: build("H2", channels=4),
        "time-invariant": lambda: build("MS2", time_invariant=True),
        "J(t)": lambda: Net(HamiltonianField(skew(4, 3), Weights("skew", **weights)), T=1.0),
        "damped": lambda: Net(
            HamiltonianField(skew(4), Weights("dense", **weights), dissipation=torch.eye(4)), T=1.0
        ),
        "graph": lambda: Net(
            HamiltonianField("J2", Weights(torch.eye(4).tolist(), **weights)), T=1.0
        ),
        "energy": lambda: Net(EnergyField(skew(4), energy, features=4), layers=3, T=1.0),
    }
    options |= {f"{n}-{s}": lambda n=n, s=s: build(n, s, scale=0.5) for n, s in PAIRS}
    return options | {a: lambda a=a: build("H1", activation=a) for a in ACTIVATIONS}


def energy(x: Tensor, t: Tensor | float) -> Tensor:
    return x.cos().sum(-1)


VARIANTS = variants()


def sample(net: Net) -> Tensor:
    shape = (3, 4, 2) if net.channels else (3, 4)
    return torch.randn(*shape if net.ensemble is None else (net.ensemble, *shape))


def pickled(net: Net) -> Net:
    return pickle.loads(pickle.dumps(net))


def stored(net: Net) -> Net:
    """A fresh network of the same make, with everything else from a file of plain tensors."""
    buffer = io.BytesIO()
    torch.save(net.state_dict(), buffer)
    buffer.seek(0)
    other = copy.deepcopy(net)
    with torch.no_grad():
        for tensor in other.state_dict().values():
            tensor.fill_(0.5)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    return other


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, stored], ids=lambda f: f.__name__)
@pytest.mark.parametrize("variant", VARIANTS)
def test_copies_keep_everything(variant: str, copied: Any) -> None:
    net = VARIANTS[variant]()
    y = sample(net)
    other = copied(net)
    assert repr(other) == repr(net)
    assert torch.equal(other(y), net(y))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    if list(other.parameters()):
        assert not torch.equal(other(y), net(y))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_to_another_dtype_moves_everything(variant: str, backend: str) -> None:
    net = VARIANTS[variant]()
    net.backend = backend
    y = sample(net)
    expected = net(y)
    net.to(torch.float32)
    out = net(y.to(torch.float32))
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.to(torch.float64), expected, rtol=1e-3, atol=1e-3)
    assert all(t.dtype == torch.float32 for t in net.state_dict().values())


def in_place(net: Net) -> None:
    """What an optimizer and load_state_dict do."""
    with torch.no_grad():
        for tensor in net.state_dict().values():
            tensor.mul_(1.25)


def applied(net: Net) -> None:
    """What .to() does: new data for parameters, new tensors for buffers."""
    kept = {id(tensor) for tensor in net.state_dict(keep_vars=True).values()}
    net._apply(lambda tensor: tensor * 1.25 if id(tensor) in kept else tensor.clone())


@pytest.mark.parametrize("change", [in_place, applied], ids=lambda f: f.__name__)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_network_follows_its_tensors(variant: str, backend: str, change: Any) -> None:
    """Whatever is kept between calls, the weights and the J of now are those that count."""
    net = VARIANTS[variant]()
    net.backend = backend
    y = sample(net)
    with torch.no_grad():
        before = net(y)
    if parameters := list(net.parameters()):
        for _ in range(2):
            torch.autograd.grad(net(y).sum(), parameters)
    change(net)
    fresh = copy.deepcopy(net)
    assert not torch.allclose(net(y), before)
    torch.testing.assert_close(net(y), fresh(y), rtol=1e-13, atol=1e-13)
    if parameters:
        mine = torch.autograd.grad(net(y).sum(), parameters)
        theirs = torch.autograd.grad(fresh(y).sum(), list(fresh.parameters()))
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
