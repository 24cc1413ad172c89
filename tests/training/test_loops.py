"""An epoch by autograd does what the paper says: by hand, with stubs, with every optimizer."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

from catalog import build
from hdnn.config import OPTIMIZERS
from hdnn.models import Model
from hdnn.training import TrainingConfig, output_solver
from hdnn.training.loops import AutogradLoop, Average, make_loop
from hdnn.training.samples import Samples
from tasks import SAMPLES, Stub, batches, model_for, seeded

CONFIG = TrainingConfig(batch_size=20, alpha_c=1e-2, loop="autograd")
METHODS = pytest.mark.parametrize("method", ["coordinate", "joint"])
DATA = Samples(
    torch.tensor([[1.0, 2.0], [3.0, 1.0], [0.5, -1.0]], dtype=torch.float64),
    torch.tensor([[1.0], [2.0], [0.5]], dtype=torch.float64),
    torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64),
)


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the solver of the output layer is called with; it sets every weight to 2."""
    calls: list[tuple[Any, ...]] = []

    def scripted(problem: output_solver.OutputProblem, V: Any, options: Any) -> int:
        calls.append((*problem[:3], V.copy(), *problem[3:], options))
        V[:] = 2.0
        return 0

    monkeypatch.setattr(output_solver, "solve", scripted)
    return calls


def test_coordinate_descent_longhand(solved: list[tuple[Any, ...]]) -> None:
    net = Model(Stub(), 1, task="regression")
    config = TrainingConfig(batch_size=2, optimizer="SGD", learning_rate=0.1, alpha_c=0.5)
    epoch = AutogradLoop(net, DATA, config).epoch(torch.tensor([2, 0, 1]), 0)
    assert net.network.calls == [2, 1]
    assert [call[0].tolist() for call in solved[:1]] == [[[0.5, -1.0, 1.0], [1.0, 2.0, 1.0]]]
    assert [call[1].ravel().tolist() for call in solved] == [[0.5, 1.0], [2.0]]
    assert [call[2].tolist() for call in solved] == [[2 / 3, 1 / 3], [1.0]]
    assert [call[3].tolist() for call in solved] == [[[0, 0, 0]], [[2, 2, 2]]]  # warm
    for call in solved:
        loss, alpha_c, options = call[4:]
        assert (loss, alpha_c, options.iterations) == ("squared", 0.5, 10)
    # By hand, with W = (2, 2), mu = 2: values 2 gain (y1 + y2) + 2.
    gain, losses = 1.0, []
    for rows in ([(0.5, -1.0, 0.5, 2 / 3), (1.0, 2.0, 1.0, 1 / 3)], [(3.0, 1.0, 2.0, 1.0)]):
        loss = gradient = 0.0
        for y1, y2, target, weight in rows:
            residual = 2 * gain * (y1 + y2) + 2 - target
            loss += weight * residual**2 / 2
            gradient += weight * residual * 2 * (y1 + y2)
        losses.append(loss)
        gain -= 0.1 * gradient
    assert float(net.network.gain.detach()) == pytest.approx(gain, rel=1e-13)
    assert epoch.loss == pytest.approx(sum(losses) / 2, rel=1e-13)
    assert epoch.penalized == pytest.approx(sum(losses) / 2 + 0.5 * 3 * 4, rel=1e-13)
    assert epoch.accuracy is None
    # The step on the hidden layers leaves the output layer alone.
    assert net.head.weight.tolist() == [[2.0, 2.0]]
    assert net.head.weight.grad is None


def test_joint_descent_longhand(solved: list[tuple[Any, ...]]) -> None:
    net = Model(Stub(), 1, task="regression")
    config = TrainingConfig(method="joint", optimizer="SGD", learning_rate=0.1, alpha_c=0.5)
    config = config.replace(batch_size=2, weight_decay=0.25)
    with torch.no_grad():
        net.head.weight.copy_(torch.tensor([[1.0, -1.0]]))
    AutogradLoop(net, DATA, config).epoch(torch.tensor([1]), 0)
    # By hand: value 3 - 1 = 2 is the target, so only the penalty and the decay act.
    assert net.network.calls == [1]
    assert solved == []
    assert float(net.network.gain.detach()) == pytest.approx(1 - 0.1 * 0.25)
    shrunk = 1 - 0.1 * (2 * 0.5 + 0.25)
    torch.testing.assert_close(net.head.weight.detach(), torch.tensor([[shrunk, -shrunk]]))
    assert net.head.bias.tolist() == [0.0]


@METHODS
def test_clipping_bounds_the_norm_of_the_gradient(method: str) -> None:
    config = CONFIG.replace(method=method, clip=1e-3, batch_size=100)
    net = model_for(build("H1"), "logistic")
    AutogradLoop(net, batches("logistic"), config).epoch(torch.arange(SAMPLES), 0)
    trained = net.parameters() if method == "joint" else net.network.parameters()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in trained))
    assert norm == pytest.approx(1e-3, rel=1e-4)


# --- optimizers of torch --------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_of_torch_trains_and_resumes(name: str) -> None:
    config = CONFIG.replace(method="joint", optimizer=name, learning_rate=0.01)
    data, net = batches("logistic"), model_for(build("H1", generator=seeded(0)), "logistic")
    loop = make_loop(net, data, config)
    assert type(loop.optimizer) is getattr(torch.optim, name)
    begin = net.network.K.detach().clone()
    for number in range(2):
        assert math.isfinite(loop.epoch(torch.arange(SAMPLES), number).penalized)
    assert not torch.equal(net.network.K, begin)
    twin = copy.deepcopy(net)
    other = make_loop(twin, data, config)
    other.restore(copy.deepcopy(loop.state()))
    assert loop.epoch(torch.arange(SAMPLES), 2) == other.epoch(torch.arange(SAMPLES), 2)
    assert torch.equal(net.network.K, twin.network.K)


def test_averages_longhand() -> None:
    line = nn.Linear(1, 1)
    average = Average(line, 0.5)
    expected = line.weight.detach().clone()
    for step in range(4):
        with torch.no_grad():
            line.weight += 1
        keep = min(0.5, (1 + step) / (10 + step))
        expected = keep * expected + (1 - keep) * line.weight.detach()
        average.update()
    torch.testing.assert_close(average.weights["weight"], expected)
