"""How a wrong initial state is forgotten: the theorem on the numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hdnn.data import load_recordings
from hdnn.identification import SystemIdentifier
from hdnn.identification.responses import energies
from hdnn.statespace import Bounds, StateSpace

TANKS, _ = load_recordings("two-tanks")


def model_of(case: str) -> StateSpace:
    if case == "fitted":
        fitted = SystemIdentifier(2, 4, iterations=5, restarts=1, random_state=0)
        return fitted.fit(TANKS.inputs[0], TANKS.outputs[0]).model_
    units, scale = {"linear": (0, 0.5), "small": (5, 0.2), "large": (8, 1.5)}[case]
    return StateSpace(inputs=1, outputs=1, states=4, units=units, scale=scale)


def forgotten(model: StateSpace, bounds: Bounds) -> np.ndarray:
    """Energies of two runs, while the inputs of the data move the model."""
    x0, other = model.x0.detach() + torch.randn(2, model.states)
    return energies(model, TANKS.inputs[0][:400], x0, other, bounds.T)


@pytest.mark.parametrize("case", ["fitted", "linear", "small", "large"])
def test_no_energy_is_above_the_proved_bound(case: str) -> None:
    """In no sample, from whatever initial states, in both norms of which the rate is proved."""
    model = model_of(case)
    for (bounds,) in model.bounds():
        for _ in range(5):
            found, rate = forgotten(model, bounds), float(bounds.rho)
            assert len(found) > 5
            assert (found[1:] <= rate**2 * found[:-1] * (1 + 1e-6)).all()
            assert (found <= rate ** (2 * np.arange(len(found))) * found[0] * (1 + 1e-6)).all()


def test_the_bound_is_reached_where_nothing_bends() -> None:
    """One state without units shrinks by its rate, no more, no less."""
    model = StateSpace(inputs=1, outputs=1, states=1, units=0)
    ((bounds,), _) = model.bounds()
    found = forgotten(model, bounds)
    assert np.allclose(found[1:] / found[:-1], float(bounds.rho) ** 2, rtol=1e-6)


def test_energies_are_those_of_a_loop_until_they_are_rounding() -> None:
    model, T, u = model_of("large"), torch.randn(4, 4), TANKS.inputs[0][:2000]
    x, other = torch.randn(2, 4)
    found, cell = energies(model, u, x, other, T), model.assemble()
    expected = []
    start = torch.stack([x, other])
    with torch.no_grad():
        for v in torch.tensor(u):
            expected.append(float((T @ (x - other)).square().sum()) / 2)
            x, other = cell.step(x, v)[0], cell.step(other, v)[0]
    assert 10 < len(found) < len(u)
    assert np.allclose(found, expected[: len(found)], rtol=1e-6)
    assert expected[len(found)] < 1e-12 * expected[0]
    assert len(energies(model, u, start[0], start[0], T)) == 0
