"""The gain that a sampled plant bears, against formulas; and loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import hdnn
from hdnn.control import (
    LinearPlant,
    _touches,
    feedback,
    gain_limit,
    limit_of_response,
    sampled,
)
from hdnn.errors import HdnnError


def test_sampling_is_exact() -> None:
    """Against the formula of an oscillator with a held input."""
    w, h = 1.7, 0.3
    plant = sampled([[0.0, w], [-w, 0.0]], [[0.0], [w]], [[1.0, 0.0]], step=h)
    turn = torch.tensor([[math.cos(w * h), math.sin(w * h)], [-math.sin(w * h), math.cos(w * h)]])
    torch.testing.assert_close(plant.A, turn)
    torch.testing.assert_close(plant.B[:, 0], torch.tensor([1 - math.cos(w * h), math.sin(w * h)]))


def test_limits_with_formulas() -> None:
    """y_t = a u_{t-1} lacks a; a first-order lag b / (z - a) lacks b / (1 + a)."""
    for a in (0.2, 3.0):
        delay = gain_limit([[0.0]], [[1.0]], [[a]])
        assert delay.gain == pytest.approx(1 / a, rel=1e-9)
        assert delay.proved
    lag = gain_limit([[0.6]], [[1.0]], [[2.0]])
    assert lag.gain == pytest.approx(1.6 / 2, rel=1e-9)
    assert lag.frequency == pytest.approx(math.pi)
    passive = gain_limit([[0.6]], [[1.0]], [[2.0]], [[2.0]])
    assert (passive.gain, passive.shortage, passive.proved) == (math.inf, 0.0, True)


def test_friction_hardly_changes_the_limit_of_a_mass() -> None:
    """2 m / h of the robots: 40 for a mass of 1 and 0.05 s."""
    A, B, C = [[0.0, 1.0], [-1.0, -0.2]], [[0.0], [1.0]], [[0.0, 1.0]]
    assert gain_limit(A, B, C, step=0.05).gain == pytest.approx(40, rel=1e-3)


def random_plant(seed: int) -> LinearPlant:
    draw = torch.Generator().manual_seed(seed)
    n, ports = (int(torch.randint(1, high, (), generator=draw)) for high in (7, 4))
    A = torch.randn(n, n, generator=draw)
    A *= 0.98 * float(torch.rand((), generator=draw)) / float(torch.linalg.eigvals(A).abs().max())
    rest = ((n, ports), (ports, n), (ports, ports))
    return LinearPlant(A, *(torch.randn(shape, generator=draw) for shape in rest))


@pytest.mark.parametrize("seed", range(40))
def test_no_frequency_lacks_more_and_one_lacks_as_much(seed: int) -> None:
    plant = random_plant(seed)
    limit = gain_limit(*plant)
    A, B, C, D = (M.to(torch.complex128) for M in plant)

    def least(w: Tensor) -> Tensor:
        z = torch.exp(1j * w)[:, None, None]
        G = C @ torch.linalg.solve(z * torch.eye(len(A)) - A, B.expand(len(w), *B.shape)) + D
        return torch.linalg.eigvalsh((G + G.mH) / 2)[:, 0]

    everywhere = least(math.pi * torch.rand(5000))
    assert float(everywhere.min()) >= -limit.shortage - 1e-6 * max(1, limit.shortage)
    if limit.shortage:
        assert -float(least(torch.tensor([limit.frequency]))) == pytest.approx(limit.shortage)
    assert limit.proved
    assert _touches(plant, 0.999 * limit.shortage - 1e-6) or not limit.shortage


def test_a_coarse_grid_is_no_proof() -> None:
    """A narrow resonance between the points of a grid is found out by the eigenvalues."""
    w, r = 1.234567, 0.999999
    A = r * torch.tensor([[math.cos(w), math.sin(w)], [-math.sin(w), math.cos(w)]])
    B, C = torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0, 0.0]])
    coarse = gain_limit(A, B, C, points=3)
    fine = gain_limit(A, B, C, points=200_000)
    assert fine.shortage > 2 * coarse.shortage
    assert not coarse.proved


def test_plants_without_a_limit_are_errors() -> None:
    for A in (1.0, 1.01):
        with pytest.raises(HdnnError, match="unstable or integrating"):
            gain_limit([[A]], [[1.0]], [[1.0]])
    with pytest.raises(HdnnError, match="as many outputs as inputs"):
        gain_limit([[0.5]], [[1.0, 0.0]], [[1.0]])
    with pytest.raises(HdnnError, match=r"A \(n, n\)"):
        sampled([[0.5]], [[1.0], [0.0]], [[1.0]], step=1.0)
    with pytest.raises(HdnnError, match="finite"):
        gain_limit([[math.nan]], [[1.0]], [[1.0]])
    with pytest.raises(HdnnError, match="frequency response is finite"):
        limit_of_response(lambda w: torch.ones(len(w), 1, 2, dtype=torch.complex128))


def test_a_loop_is_its_equations() -> None:
    plant = sampled([[0.0, 1.0], [-1.0, -0.2]], [[0.0], [1.0]], [[0.0, 1.0]], step=0.05)
    model = hdnn.StateSpace(inputs=1, states=3, units=4, step=0.05, passive=True, gain=30.0)
    push = torch.randn(20, 2, 1)
    loop = feedback(plant, model, torch.randn(2, 2), steps=20, disturbance=push)
    z, x = loop.plant[0], torch.zeros(2, 3)
    for t in range(20):
        x, y = model.step(x, z[:, 1:])
        z = z @ plant.A.mT + (push[t] - y) @ plant.B.mT
        torch.testing.assert_close(loop.plant[t + 1], z)
        torch.testing.assert_close(loop.controller[t + 1], x)
    loop.plant[-1].sum().backward()
    assert model.weights[0].G.grad is not None


def test_any_controller_with_a_step_closes_a_loop() -> None:
    """u = -2 w on a mass without a spring: w+ = (1 - 2 h / m) w."""

    class Damper:
        def initial(self, batch: int) -> Tensor:
            return torch.zeros(batch, 0)

        def step(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
            return x, 2 * u

    mass = sampled([[0.0]], [[1.0]], [[1.0]], step=0.1)
    loop = feedback(mass, Damper(), torch.ones(3, 1), steps=5)
    torch.testing.assert_close(loop.plant[:, 0, 0], 0.8 ** torch.arange(6.0))
    torch.testing.assert_close(loop.applied, -2 * loop.measured)


@pytest.mark.parametrize("wrong", ["controller", "starts"])
def test_a_loop_has_one_dtype(wrong: str) -> None:
    mass = sampled([[0.0, 1.0], [-1.0, -0.2]], [[0.0], [1.0]], [[0.0, 1.0]], step=0.05)
    controller = hdnn.StateSpace(inputs=1, states=2, units=2, step=0.05, passive=True, gain=1.0)
    starts = torch.ones(1, 2, dtype=torch.float64)
    controller, starts = (
        (controller.float(), starts)
        if wrong == "controller"
        else (controller.double(), starts.float())
    )
    with pytest.raises(HdnnError, match=r"one dtype.*float32.*\.double\(\)"):
        feedback(mass, controller, starts, steps=2)


def test_an_algebraic_loop_is_an_error() -> None:
    plant = LinearPlant(*(torch.eye(1) for _ in range(4)))
    model = hdnn.StateSpace(inputs=1, states=2, units=2, passive=True)
    with pytest.raises(HdnnError, match="algebraic loop"):
        feedback(plant, model, torch.ones(1, 1), steps=2)
