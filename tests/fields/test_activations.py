"""Activations: each is the derivative of its energy, with the parity it declares."""

from __future__ import annotations

import numpy as np
import pytest
import torch

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
