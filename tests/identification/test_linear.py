"""Linear models: exact systems are found again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hdnn.data import Recordings
from hdnn.identification.linear import (
    RADIUS,
    LinearSystem,
    arx,
    ho_kalman,
    impulse_response,
    realize,
)


def system(n: int, d: int, q: int, seed: int, radius: float = 0.9) -> LinearSystem:
    draw = torch.Generator().manual_seed(seed)
    A = torch.randn(n, n, generator=draw)
    A *= radius / float(torch.linalg.eigvals(A).abs().max())
    B, C, D = (torch.randn(*s, generator=draw) for s in ((n, d), (q, n), (q, d)))
    return LinearSystem(A, B, C, D)


def response(system: LinearSystem, length: int) -> torch.Tensor:
    A, B, C, D = system
    return torch.stack([D, *(C @ torch.matrix_power(A, k) @ B for k in range(length - 1))])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("d", "q"), [(1, 1), (2, 3)])
def test_a_realization_has_the_impulse_response_it_was_made_of(d: int, q: int, seed: int) -> None:
    g = response(system(4, d, q, seed), 41)
    found = ho_kalman(g, 4)
    assert found.A.shape == (4, 4)
    assert torch.allclose(response(found, 41), g, atol=1e-8)


def test_an_unstable_mode_is_pulled_inside_and_the_others_stay() -> None:
    unstable = LinearSystem(torch.diag(torch.tensor([1.02, 0.5])), torch.ones(2, 1),
                            torch.ones(1, 2), torch.zeros(1, 1))  # fmt: skip
    values = torch.linalg.eigvals(ho_kalman(response(unstable, 41), 2).A).real.sort().values
    assert torch.allclose(values, torch.tensor([0.5, RADIUS]), atol=1e-6)


def simulated(system: LinearSystem, length: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    u = np.random.default_rng(seed).standard_normal((length, system.B.shape[1]))
    A, B, C, D = (part.numpy() for part in system)
    x, y = np.zeros(len(A)), []
    for v in u:
        y.append(C @ x + D @ v)
        x = A @ x + B @ v
    return u, np.array(y)


def test_arx_of_exact_data_has_the_impulse_response_of_the_system() -> None:
    true = system(3, 2, 2, 1)
    parts = [simulated(true, 400, seed) for seed in range(2)]
    data = Recordings(*(tuple(part) for part in zip(*parts, strict=True)))
    g = impulse_response(*arx(data, 6), 30)
    assert torch.allclose(g, response(true, 30), atol=1e-3)


def test_realize_finds_an_exact_system() -> None:
    true = system(3, 1, 1, 2)
    u, y = simulated(true, 600)
    found = realize(Recordings((u,), (y,)), 3)
    expected = torch.linalg.eigvals(true.A).abs().sort().values
    assert torch.allclose(torch.linalg.eigvals(found.A).abs().sort().values, expected, atol=1e-3)
