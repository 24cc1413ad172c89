"""Networks side by side are trained as each would be alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import hdnn
from hdnn.errors import HdnnError
from hdnn.models import Padding
from hdnn.training import DivergenceError, Trainer, TrainingConfig, compiled, train_ensemble
from skips import needs_kernels
from tasks import make, moons, seeded

CONFIG = TrainingConfig(epochs=4, batch_size=20)
SEEDS = [3, 4, 5]
every_loop = pytest.mark.parametrize(
    "loop", [pytest.param("compiled", marks=needs_kernels), "autograd"]
)


def networks(seeds: list[int], **options: Any) -> hdnn.HamiltonianNetwork:
    settings = {"features": 4, "layers": 3, "T": 1.0, "ensemble": len(seeds)} | options
    return hdnn.network("H1", **settings, generator=[seeded(seed) for seed in seeds])


def states(count: int) -> tuple[Tensor, Tensor]:
    data = moons()
    return Padding(2, 4)(data.X).repeat(count, 1, 1), data.y.repeat(count, 1)


class Watcher:
    """Notes every third iteration."""

    every = 3

    def __init__(self) -> None:
        self.seen: dict[int, list[Tensor]] = {}

    def observe(self, iteration: int, network: Any, states: Tensor, gradients: np.ndarray) -> None:
        theta, norms = network.field.weights.theta.detach(), torch.from_numpy(gradients)
        parts = theta.flatten(-2), states.flatten(-2), norms
        self.seen.setdefault(iteration, []).append(torch.cat(parts, -1).clone())


@every_loop
@pytest.mark.parametrize("options", [{}, {"clip": 1e-2, "solver": "adam"}], ids=str)
def test_members_equal_networks_trained_alone(loop: str, options: dict[str, Any]) -> None:
    config = CONFIG.replace(loop=loop, **options)
    network = networks(SEEDS)
    V = train_ensemble(network, *states(3), SEEDS, config)
    for e, seed in enumerate(SEEDS):
        alone = make(seed)
        Trainer(alone, config.replace(seed=seed)).fit(moons())
        assert torch.equal(network.K[e], alone.network.K)
        assert torch.equal(network.b[e], alone.network.b)
        if not options:  # else its last output layer has less than fifty iterations of Newton
            head = torch.cat([alone.head.weight, alone.head.bias[:, None]], 1).detach()
            np.testing.assert_allclose(V[e], head, rtol=1e-6, atol=1e-6)


@needs_kernels
def test_both_loops_show_observers_the_same() -> None:
    steps = torch.linspace(0.1, 0.9, 9).reshape(3, 3)
    results = []
    for loop in ("compiled", "autograd"):
        network, watcher = networks(SEEDS, T=None, step=steps), Watcher()
        config = CONFIG.replace(loop=loop)
        V = train_ensemble(network, *states(3), SEEDS, config, observer=watcher)
        assert list(watcher.seen) == [0, 3, 6, 9]
        seen = [torch.stack(parts).reshape(3, -1) for parts in watcher.seen.values()]
        results.append((torch.from_numpy(V), network.K.detach(), torch.stack(seen)))
    torch.testing.assert_close(*results, rtol=1e-8, atol=1e-8)


@needs_kernels
def test_diverged_member_keeps_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """However an epoch is cut into calls of the kernel; one sample of one batch is no number."""
    X, y = states(2)
    X[1, 7] = torch.nan
    ends = []
    for seconds in (0.0, 10.0):
        monkeypatch.setattr(compiled, "CALL_SECONDS", seconds)
        network = networks([0, 1])
        train_ensemble(network, X, y, [0, 1], CONFIG, may_diverge=True)
        assert bool(torch.isfinite(network.K).all())
        ends.append(network.K)
    assert torch.equal(*ends)


@every_loop
def test_divergence_of_a_member_raises_unless_allowed(loop: str) -> None:
    X, y = states(2)
    X[1] = torch.nan
    config = CONFIG.replace(loop=loop)
    with pytest.raises(DivergenceError):
        train_ensemble(networks([0, 1]), X, y, [0, 1], config)
    network, alone = networks([0, 1]), make(0)
    V = train_ensemble(network, X, y, [0, 1], config, may_diverge=True)
    Trainer(alone, config.replace(seed=0)).fit(moons())
    assert torch.equal(network.K[0], alone.network.K)
    assert np.isfinite(V[0]).all()


@pytest.mark.parametrize(
    "options",
    [{"method": "joint"}, {"optimizer": "SGD"}, {"validation": 0.2}, {"device": "cuda"}],
    ids=str,
)
def test_settings_of_other_trainings_raise(options: dict[str, Any]) -> None:
    with pytest.raises(HdnnError, match="method='coordinate' and optimizer='Adam' on the CPU"):
        train_ensemble(networks([0, 1]), *states(2), [0, 1], CONFIG.replace(**options))


@needs_kernels
@pytest.mark.parametrize("loop", ["autograd", "compiled"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"averaging": 0.9}, "averaging is for method='joint'"),
        ({"warmup": 1.0}, "warmup is for method='joint'"),
        ({"weight_decay": 0.1}, "weight_decay is for method='joint'"),
        ({"schedule": "one-cycle"}, "one-cycle"),
        ({"shift": 2}, "shift is for images"),
    ],
    ids=str,
)
def test_settings_that_do_nothing_raise_with_kernels_and_without(
    options: dict[str, Any], words: str, loop: str
) -> None:
    config = CONFIG.replace(loop=loop, **options)
    with pytest.raises(HdnnError, match=words):
        train_ensemble(networks([0, 1]), *states(2), [0, 1], config)


def test_shapes_that_do_not_fit_raise() -> None:
    data = moons()
    with pytest.raises(HdnnError, match=r"2 seeds, \(50, 2\) and \(50,\)"):
        train_ensemble(networks([0, 1]), data.X, data.y, [0, 1], CONFIG)
    with pytest.raises(HdnnError, match="got 2 networks over 4, 1 seeds"):
        train_ensemble(networks([0, 1]), *states(2), [0], CONFIG)
    reference = networks([0, 1], backend="reference")
    with pytest.raises(HdnnError, match="cannot serve"):
        train_ensemble(reference, *states(2), [0, 1], CONFIG.replace(loop="compiled"))
