"""Tapes: kept activations change no bit, are bounded in all, and are given back."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

import hdnn
from catalogue import every_name
from hdnn.backends import activation_pool


def gradients(net: hdnn.HamiltonianNetwork, y: torch.Tensor) -> list[torch.Tensor]:
    out = net(y)
    return [out, *torch.autograd.grad(out, [y, *net.parameters()], torch.ones_like(out))]


def bytes_taken() -> int:
    gc.collect()
    return activation_pool.bytes_held()


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    monkeypatch.setattr(activation_pool, "_rooms", {})


@every_name
@pytest.mark.parametrize("ensemble", [None, 3])
def test_the_same_bits_with_and_without(
    name: str, ensemble: int | None, empty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = 0.1 if hdnn.zoo.ARCHITECTURES[name].scheme.uses_step else None
    net = hdnn.network(name, features=4, layers=9, step=step, ensemble=ensemble, backend="fused")
    lead = () if ensemble is None else (ensemble,)
    y = torch.randn(*lead, 300, 4, requires_grad=True)
    taped = gradients(net, y)
    assert bytes_taken() > 0
    monkeypatch.setattr(activation_pool, "LARGEST", 0)
    assert all(torch.equal(a, b) for a, b in zip(taped, gradients(net, y), strict=True))


def test_graphs_alive_share_the_limit(empty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many graphs are kept: those without a tape recompute, and get the same gradients."""
    net = hdnn.network("H1", features=4, layers=8, step=0.1, backend="fused")
    y = torch.randn(64, 4, requires_grad=True)
    expected = gradients(net, y)
    one = bytes_taken()
    monkeypatch.setattr(activation_pool, "LIMIT", 3 * one)
    graphs = [net(y) for _ in range(10)]
    assert bytes_taken() == 3 * one
    for out in graphs:
        found = torch.autograd.grad(out, [y, *net.parameters()], torch.ones_like(out))
        assert all(torch.equal(a, b) for a, b in zip(found, expected[1:], strict=True))


def test_room_is_used_again_and_passes_to_other_shapes(
    empty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = hdnn.network("MS3", features=4, layers=8, step=0.1, backend="fused")
    y = torch.randn(64, 4, requires_grad=True)
    for _ in range(5):
        gradients(net, y)
    one = bytes_taken()
    monkeypatch.setattr(activation_pool, "LIMIT", one)
    other = torch.randn(32, 4, requires_grad=True)
    gradients(net, other)
    assert 0 < bytes_taken() < one


def test_nothing_is_kept_without_a_graph(empty: None) -> None:
    net = hdnn.network("H1", features=4, layers=8, step=0.1, backend="fused")
    with torch.no_grad():
        net(torch.randn(64, 4))
    frozen = hdnn.network("H1", features=4, layers=8, step=0.1, backend="fused")
    frozen.requires_grad_(False)
    frozen(torch.randn(64, 4))
    assert bytes_taken() == 0


def test_backward_passes_of_one_graph_at_once() -> None:
    """A tape also holds the working rows of a backward pass, so passes take turns."""
    net = hdnn.network("H1", features=4, layers=32, step=0.1, backend="fused")
    y = torch.randn(250, 4, requires_grad=True)
    out = net(y)
    weights = [torch.randn(250, 4) for _ in range(8)]
    expected = [torch.autograd.grad(out, y, w, retain_graph=True)[0] for w in weights]
    found: list[torch.Tensor | None] = [None] * len(weights)

    def pull(k: int) -> None:
        for _ in range(20):
            found[k] = torch.autograd.grad(out, y, weights[k], retain_graph=True)[0]

    threads = [threading.Thread(target=pull, args=(k,)) for k in range(len(weights))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for a, b in zip(found, expected, strict=True):
        assert a is not None
        assert torch.equal(a, b)


def test_a_network_notices_other_parts() -> None:
    """The lowered program is kept only while every entry of every module is the same object."""
    net = hdnn.network("H1", features=4, layers=8, step=0.1)
    twin = hdnn.network("H1", features=4, layers=8, step=0.1)
    y = torch.randn(10, 4)
    net(y)
    net.field.weights = twin.field.weights
    assert torch.equal(net(y), twin(y))
    torch.nn.utils.parametrize.register_parametrization(twin.field.weights, "theta", Half())
    halved = twin(y)
    twin.field.weights.parametrizations.theta.original.data.mul_(2.0)
    assert not torch.equal(twin(y), halved)


class Half(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / 2
