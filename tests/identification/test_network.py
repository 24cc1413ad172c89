"""Units and units of measurement: what they change, and what they leave."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hdnn.data.recordings import Scaling
from hdnn.identification.levenberg import weights_of
from hdnn.identification.network import in_units, rest_state, with_units
from hdnn.statespace import StateSpace


def linear_model(seed: int, n: int = 4, d: int = 2, q: int = 2) -> StateSpace:
    draw = torch.Generator().manual_seed(seed)
    A = torch.randn(n, n, generator=draw)
    A *= 0.95 / float(torch.linalg.eigvals(A).abs().max())
    if seed == 0:
        A = -0.9 * torch.eye(n) + 0.01 * A  # its damping h M leaves no room for units
    B, C, D = (torch.randn(*s, generator=draw) for s in ((n, d), (q, n), (q, d)))
    return StateSpace.from_linear(A, B, C, D, learn_initial=True, dtype=torch.float64)


@pytest.mark.parametrize("units", [3, 12])
@pytest.mark.parametrize("seed", range(5))
@torch.no_grad()
def test_units_leave_small_signals_unchanged(seed: int, units: int) -> None:
    linear = linear_model(seed)
    net, rest = with_units(linear, units, size=2.0, seed=seed, spread=1.0)
    small = 1e-5
    u, x = small * torch.randn(3, 50, 2), small * torch.randn(3, 4)
    y, change = net(u, x / 2.0 + rest)[0], linear(u, x)[0]
    assert float((y - change).abs().max()) < 1e-2 * float(change.abs().max())
    assert float(weights_of(net).K.norm()) > 1e-4  # there are units
    large = net(1e6 * u, rest.expand(3, -1))[0] - linear(1e6 * u, 0 * x)[0]
    assert float(large.abs().max()) > 1e-2  # of large signals they change something
    assert torch.allclose(rest_state(net), rest, atol=1e-6)
    assert net.rate < 1


@pytest.mark.parametrize("units", [0, 6])
@torch.no_grad()
def test_in_units_is_the_same_network_with_the_gain_and_rate_of_the_data(units: int) -> None:
    sizes = {"inputs": 2, "outputs": 2, "states": 3, "units": units}
    model = StateSpace(**sizes, scale=0.8, learn_initial=True)
    torch.nn.init.normal_(weights_of(model).D)
    torch.nn.init.normal_(weights_of(model).c)
    scaling = Scaling(
        *(np.array(v) for v in ([3.0, -200.0], [0.5, 90.0], [1e3, 0.1], [40.0, 0.01]))
    )
    out = in_units(model, scaling, sampling_time=0.02)
    v = torch.tensor(scaling.mean_u) + torch.tensor(scaling.std_u) * torch.randn(200, 2)
    u = (v - torch.tensor(scaling.mean_u)) / torch.tensor(scaling.std_u)
    y = model(u, rest_state(model))[0] * torch.tensor(scaling.std_y) + torch.tensor(scaling.mean_y)
    assert torch.allclose(out(v)[0], y, rtol=1e-9, atol=1e-9)
    assert (out.h, out.rate) == (0.02, pytest.approx(model.rate, rel=1e-12))
    w = v + 0.1 * torch.tensor(scaling.std_u) * torch.randn(200, 2)
    assert float((out(w)[0] - out(v)[0]).norm()) <= out.gain * float((w - v).norm())


@torch.no_grad()
def test_the_model_begins_at_rest_under_the_mean_input() -> None:
    model = StateSpace(inputs=1, outputs=1, states=3, units=5, scale=0.8, learn_initial=True)
    scaling = Scaling(*(np.array([v]) for v in (3.0, 0.5, 7.0, 2.0)))
    out = in_units(model, scaling, 1.0)
    y = out(torch.full((20, 1), 3.0))[0]
    assert float((y - y[0]).abs().max()) < 1e-6
