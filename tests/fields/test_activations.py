"""Activations: each is the derivative of its energy, with the parity it declares."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from hdnn.fields import ACTIVATIONS, Activation, ActivationField, Weights
from hdnn.fields.activations import activation


@pytest.mark.parametrize("sigma", ACTIVATIONS)
def test_the_derivative_of_the_energy_is_the_activation(sigma: str) -> None:
    row = ACTIVATIONS[sigma]
    x = torch.cat([torch.linspace(-40, 40, 2002), torch.linspace(-2, 2, 1000)])
    gradient = torch.func.grad(lambda v: row.energy(v).sum())(x)
    torch.testing.assert_close(gradient, row.function(x), rtol=1e-10, atol=1e-12)
    assert row.odd == torch.allclose(row.function(-x), -row.function(x))


def test_log_cosh_neither_overflows_nor_loses_its_curvature() -> None:
    energy = activation("tanh").energy
    x = torch.tensor([-1e4, -1.5, 0.0, 1.5, 1e4])
    small, large = np.log(np.cosh(1.5)), 1e4 - np.log(2)
    expected = torch.tensor([large, small, 0.0, small, large])
    torch.testing.assert_close(energy(x), expected, rtol=1e-14, atol=1e-15)
    curvature = torch.func.vmap(torch.func.grad(torch.func.grad(energy)))(x)
    torch.testing.assert_close(curvature, 1 - torch.tanh(x) ** 2, rtol=1e-12, atol=1e-15)


def test_custom_activation() -> None:
    cube = Activation("cube", lambda x: x**3, lambda x: x**4 / 4)
    field = ActivationField(Weights("dense", features=2, layers=1), activation=cube)
    torch.testing.assert_close(field.velocity(torch.zeros(2)), field.weights.b[0] ** 3)


# --- means ----------------------------------------------------------------------------------------


def quadrature(sigma: Activation, a: Tensor, b: Tensor) -> Tensor:
    """The mean of sigma between a and b, on both sides of 0 by 8 pieces of 20 nodes."""
    nodes, weights = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(20))
    cut = torch.where(a * b < 0, 0.0, b)
    total = torch.zeros_like(a)
    for left, right in ((a, cut), (cut, b)):
        for piece in range(8):
            size = (right - left).unsqueeze(-1) / 8
            places = left.unsqueeze(-1) + size * (piece + (1 + nodes) / 2)
            total = total + (sigma.function(places) * weights * size / 2).sum(-1)
    return total / (b - a)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_mean_is_that_of_the_activation_at_any_distance(name: str) -> None:
    sigma, a = ACTIVATIONS[name], 3 * torch.randn(2000)
    a[::3] *= 1e-3
    distance = 10 ** torch.empty(2000).uniform_(-12, 1)
    b = a + distance * torch.randn(2000).sign()
    assert sigma.mean is not None
    mean = sigma.mean(a, b)
    torch.testing.assert_close(mean, quadrature(sigma, a, b), rtol=1e-13, atol=4e-15)
    torch.testing.assert_close(
        mean * (b - a), sigma.energy(b) - sigma.energy(a), rtol=0, atol=1e-14
    )
    torch.testing.assert_close(sigma.mean(b, a), mean, rtol=1e-14, atol=1e-15)
    torch.testing.assert_close(sigma.mean(a, a), sigma.function(a), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_derivatives_of_the_mean(name: str) -> None:
    """Those of (E(b) - E(a)) / (b - a) for b far from a, half of those of sigma for b = a."""
    sigma = ACTIVATIONS[name]
    a, far = torch.randn(200), 0.3 + torch.rand(200)
    for b in (a + far, a - far):
        b.requires_grad_()
        assert sigma.mean is not None
        (slope,) = torch.autograd.grad(sigma.mean(a, b).sum(), b)
        exact = (sigma.function(b) - sigma.mean(a, b)) / (b - a)
        torch.testing.assert_close(slope, exact.detach(), rtol=1e-11, atol=1e-13)
    both = [a.clone().requires_grad_() for _ in range(3)]
    halves = torch.autograd.grad(sigma.mean(both[0], both[1]).sum(), both[:2])
    (whole,) = torch.autograd.grad(sigma.function(both[2]).sum(), both[2])
    for half in halves:
        torch.testing.assert_close(half, whole / 2, rtol=1e-12, atol=1e-14)
