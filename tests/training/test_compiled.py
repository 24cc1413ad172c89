"""Epochs in kernels give what autograd gives, for one network and for many side by side."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hdnn
from catalogue import NAMES, build
from hdnn.errors import HdnnError
from hdnn.fields import EnergyField, HamiltonianField, Weights
from hdnn.kernels.native import LOSSES
from hdnn.models import Model, Projection
from hdnn.training import TrainingConfig, compiled, output_solver
from hdnn.training.compiled import CompiledLoop, CompiledTraining, obstacle
from hdnn.training.loops import AutogradLoop, Batches, Epoch, Loop, make_loop
from skips import needs_kernels
from tasks import OUTPUTS, SAMPLES, batches, model_for, seeded

# Two batches of 20 and one of 10. Rounding grows in ill-conditioned output layers: not too little
# regularization, where it is to be told from error.
CONFIG = TrainingConfig(batch_size=20, alpha_c=1e-2)
JOINT = replace(CONFIG, method="joint", batch_size=60, learning_rate=0.02)
MANY = 150  # in batches of 60, 60 and 30: several chunks, of which some are not full


def run(loop: Loop, epochs: int = 3, first: int = 0) -> list[Epoch]:
    samples, numbers = len(loop.data.weight), range(first, first + epochs)
    return [loop.epoch(torch.randperm(samples, generator=seeded(k)), k) for k in numbers]


def close(found: Any, exact: Any, tolerance: float) -> None:
    torch.testing.assert_close(found, exact, rtol=tolerance, atol=tolerance)


def check(net: Model, data: Batches, config: TrainingConfig, tolerance: float = 1e-10) -> None:
    """Epochs in kernels and through the autograd of the reference backend, side by side."""
    plain, before = copy.deepcopy(net), copy.deepcopy(net.state_dict())
    plain.network.backend = "reference"
    found = run(make_loop(net, data, replace(config, loop="compiled")))
    exact = run(AutogradLoop(plain, data, config))
    for ours, theirs in zip(found, exact, strict=True):
        close(ours[:2], theirs[:2], tolerance)
        assert ours.accuracy == theirs.accuracy
    for name, value in plain.state_dict().items():
        close(net.state_dict()[name], value, tolerance)
        if name.endswith(("theta", "beta", "weight", "bias")):
            assert not torch.equal(value, before[name])


def joint_batches(loss: str, width: int, dtype: torch.dtype = torch.float64) -> Batches:
    parts = [batches(loss, width, dtype, seed) for seed in (0, 10, 20)]
    states, target, _ = (torch.cat(part) for part in zip(*parts, strict=True))
    return Batches(states, target, torch.rand(MANY, generator=seeded(3)).to(dtype))


def joint_model(network: Any, loss: str, features: int | None = None) -> Model:
    projection = None
    if features is not None:
        dtype = network.field.weights.theta.dtype
        projection = Projection(features, network.features, seeded(0), dtype)
    made = model_for(network, loss, projection=projection)
    with torch.no_grad():  # else the hidden layers have no gradient in the first step
        made.head.weight.normal_(generator=seeded(5))
    return made


# --- the kernels against autograd -----------------------------------------------------------------


@needs_kernels
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("way", ["newton", "adam", "joint"])
def test_every_architecture_loss_and_method(name: str, loss: str, way: str) -> None:
    if way == "joint":
        check(joint_model(build(name), loss), joint_batches(loss, 4), JOINT)
    else:
        config = replace(CONFIG, solver=way)
        check(model_for(build(name), loss), batches(loss), config, 1e-11)


VARIANTS: dict[str, Callable[..., hdnn.HamiltonianNetwork]] = {
    "time-invariant H1": lambda: build("H1", time_invariant=True),
    "time-invariant MS1": lambda: build("MS1", time_invariant=True),
    "leapfrog HS": lambda: build("HS", "Leapfrog"),
    "Yoshida MS3": lambda: build("MS3", "Yoshida4"),
    "steps of their own, leapfrog": lambda: build("MS3", "Leapfrog", step=[0.1, 0.5, 0.2]),
    "one layer": lambda: build("H2", layers=1),
    "seventeen layers": lambda: build("MS2", layers=17),
    "relu": lambda: build("H1", activation="relu"),
    "sigmoid FCNN": lambda: build("FCNN", activation="sigmoid"),
    "HS with X": lambda: build("HS", X=torch.tensor([[1.0, 2.0], [0.0, -1.0]])),
    "width 3": lambda: build("H2", features=3),
    # Smaller weights: else gradients grow so much that sums in another order show after an epoch.
    "width 9": lambda: build("H2", features=9, scale=0.3),
    "a graph with more rows than columns": lambda: hdnn.HamiltonianNetwork(
        HamiltonianField(
            "J2", Weights(np.random.default_rng(0).random((5, 4)) < 0.6, features=4, layers=3)
        ),
        step=0.3,
    ),
}


@needs_kernels
@pytest.mark.parametrize("label", VARIANTS)
def test_every_kind_of_network(label: str) -> None:
    network = VARIANTS[label]()
    width = network.features or 4
    check(model_for(network, "softmax"), batches("softmax", width), CONFIG)
    check(joint_model(VARIANTS[label](), "softmax"), joint_batches("softmax", width), JOINT)


SETTINGS: list[dict[str, Any]] = [
    {"clip": 1e-2},
    {"clip": 1e9},
    {"alpha": 0.0},
    {"alpha": 1.0, "alpha_c": 1.0},
    {"alpha_c": 0.0, "solver": "adam"},
    {"schedule": "cosine", "epochs": 3},
    {"solver": "adam", "schedule": "exponential", "decay": 0.5},
    {"batch_size": 1},
    {"batch_size": 1000},
]


@needs_kernels
@pytest.mark.parametrize("options", SETTINGS, ids=str)
@pytest.mark.parametrize("name", ["H1", "MS1"])
def test_every_setting_of_coordinate_descent(name: str, options: dict[str, Any]) -> None:
    check(model_for(build(name), "logistic"), batches("logistic"), replace(CONFIG, **options))


JOINT_SETTINGS: list[dict[str, Any]] = [
    {"optimizer": "AdamW", "weight_decay": 0.1},
    {"weight_decay": 0.1},
    {"clip": 0.1},
    {"alpha": 0.0, "alpha_c": 0.0},
    {"schedule": "one-cycle", "warmup": 1.0},
    {"batch_size": 150},
    {"batch_size": 7},
]


@needs_kernels
@pytest.mark.parametrize("options", JOINT_SETTINGS, ids=str)
@pytest.mark.parametrize("features", [None, 9])
def test_every_setting_of_joint_descent(options: dict[str, Any], features: int | None) -> None:
    net = joint_model(build("MS2", features=6), "softmax", features)
    check(net, joint_batches("softmax", features or 6), replace(JOINT, **options))


@needs_kernels
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", ["weights", "some are 0"])
def test_sample_weights(loss: str, kind: str) -> None:
    """Samples of weight 0 still count as right or wrong."""
    some = (torch.arange(SAMPLES) % 3 > 0).double()
    weight = some if kind == "some are 0" else torch.rand(SAMPLES) + 0.1
    check(model_for(build("H1"), loss), batches(loss)._replace(weight=weight), CONFIG)


@needs_kernels
@pytest.mark.parametrize("loss", LOSSES)
def test_single_precision(loss: str) -> None:
    network = build("MS1", dtype=torch.float32)
    check(model_for(network, loss), batches(loss, dtype=torch.float32), CONFIG, 2e-3)
    network = build("H1", dtype=torch.float32)
    check(joint_model(network, loss, 5), joint_batches(loss, 5, torch.float32), JOINT, 1e-3)


@needs_kernels
def test_newton_begins_at_the_head_and_ends_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """One iteration from the minimizer of the last batch is not one iteration from zero."""
    for module in (compiled, output_solver):
        monkeypatch.setattr(module, "ITERATIONS", 1)
    config, data = CONFIG, batches("logistic")
    warm = model_for(build("H1", generator=seeded(0)), "logistic")
    cold = copy.deepcopy(warm)
    nn.init.ones_(warm.head.weight)
    check(warm, data, config)
    loop = CompiledLoop(cold, data, config)
    run(loop)
    assert not torch.allclose(cold.network.K, warm.network.K)
    V = torch.cat([cold.head.weight, cold.head.bias[:, None]], 1).detach()
    assert torch.equal(V, torch.from_numpy(loop.compiled.V[0]))


@needs_kernels
@pytest.mark.parametrize("features", [None, 9])
def test_threads_slices_and_resuming_change_no_bit(
    features: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = joint_batches("softmax", features or 4)
    net = joint_model(build("H1"), "softmax", features)
    ends = []
    for threads, seconds, stop in ((1, 10.0, False), (3, 10.0, False), (2, 0.0, True)):
        monkeypatch.setattr(compiled, "SLICE", seconds)
        monkeypatch.setattr(torch, "get_num_threads", lambda count=threads: count)
        copied = copy.deepcopy(net)
        loop = make_loop(copied, data, JOINT)
        assert isinstance(loop, CompiledLoop)
        run(loop, 1)
        if stop:
            state, copied = loop.state(), copy.deepcopy(copied)
            loop = make_loop(copied, data, JOINT)
            loop.restore(state)
        run(loop, 1, first=1)
        ends.append(copied.state_dict())
    for other in ends[1:]:
        assert all(torch.equal(other[name], value) for name, value in ends[0].items())


@needs_kernels
@pytest.mark.parametrize("config", [CONFIG, JOINT], ids=["coordinate", "joint"])
def test_batches_without_weight_are_no_steps_and_infinity_is_nan(config: TrainingConfig) -> None:
    data, net = joint_batches("squared", 4), joint_model(build("H1"), "squared")
    loop = make_loop(net, data._replace(weight=torch.zeros(MANY)), config)
    before = copy.deepcopy(net.state_dict())
    assert run(loop, 1)[0].penalized == 0
    assert all(torch.equal(net.state_dict()[name], value) for name, value in before.items())
    assert int(loop.state()["taken"]) == 0
    data.target[0] = math.inf
    assert math.isnan(run(make_loop(net, data, config), 1)[0].penalized)


class Watcher:
    """An observer of every second iteration."""

    every = 2

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def observe(
        self, iteration: int, network: hdnn.HamiltonianNetwork, states: Tensor, norms: np.ndarray
    ) -> None:
        theta = network.field.weights.theta.detach().clone()
        self.seen.append((iteration, theta, states, torch.from_numpy(norms)))


@needs_kernels
@pytest.mark.parametrize("config", [replace(CONFIG, batch_size=60), JOINT], ids=lambda c: c.method)
def test_an_observer_sees_what_that_of_autograd_sees(config: TrainingConfig) -> None:
    data, net = joint_batches("softmax", 4), joint_model(build("H2"), "softmax")
    plain, watched = copy.deepcopy(net), copy.deepcopy(net)
    looks = []
    for one, kind in ((watched, "compiled"), (plain, "autograd")):
        loop = make_loop(one, data, replace(config, loop=kind))
        loop.observer = observer = Watcher()
        run(loop, 2)
        looks.append(observer.seen)
    run(make_loop(net, data, config), 2)
    assert all(torch.equal(watched.state_dict()[k], v) for k, v in net.state_dict().items())
    assert [seen[0] for seen in looks[0]] == [0, 2, 4]
    for ours, theirs in zip(*looks, strict=True):
        close(ours, theirs, 1e-9)


# --- networks side by side ------------------------------------------------------------------------

MEMBERS = 5
STEPS = torch.linspace(0.1, 0.9, MEMBERS * 3).reshape(MEMBERS, 3)


def together(name: str, **options: Any) -> hdnn.HamiltonianNetwork:
    generators = [seeded(e) for e in range(MEMBERS)]
    return build(name, ensemble=MEMBERS, generator=generators, **options)


def train_together(
    network: hdnn.HamiltonianNetwork, parts: list[Batches], orders: Tensor, config: TrainingConfig
) -> tuple[CompiledTraining, list[list[Epoch]]]:
    weights = network.field.weights
    states, targets, weight = (torch.stack(part) for part in zip(*parts, strict=True))
    training = CompiledTraining(
        network,
        [weights.theta, weights.beta],
        Batches(states, targets.unsqueeze(-1), weight),
        config,
        outputs=OUTPUTS["softmax"],
        loss="softmax",
    )
    return training, [training.epoch(orders[:, k], k) for k in range(orders.shape[1])]


@needs_kernels
@pytest.mark.parametrize("threads", [1, 7])
@pytest.mark.parametrize("own_data", [False, True], ids=["shared data", "own data"])
@pytest.mark.parametrize("own_steps", [False, True], ids=["one step", "own steps"])
@pytest.mark.parametrize("name", ["H1", "MS1"])
def test_members_are_single_trainings_bit_for_bit(
    name: str, own_steps: bool, own_data: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that diverges stops alone."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    loss, config, count = "softmax", replace(CONFIG, clip=0.5), MEMBERS if own_data else 1
    parts = [batches(loss, seed=10 * e)._replace(weight=torch.rand(SAMPLES)) for e in range(count)]
    lost = 2 if own_data else None
    if lost is not None:
        parts[lost] = parts[lost]._replace(states=torch.full((SAMPLES, 4), torch.nan))
    orders = torch.stack([torch.stack([torch.randperm(SAMPLES) for _ in "ab"]) for _ in parts])
    network = together(name, **({"step": STEPS} if own_steps else {}))
    begin = network.K.detach().clone()
    training, found = train_together(network, parts, orders, config)
    for e in range(MEMBERS):
        if e == lost:
            assert math.isnan(found[0][e].loss)
            assert torch.equal(network.K[e], begin[e])
            continue
        steps = {"step": STEPS[e].tolist()} if own_steps else {}
        alone = build(name, generator=seeded(e), **steps)
        loop = CompiledLoop(model_for(alone, loss), parts[e % count], config)
        assert [epoch[e] for epoch in found] == [
            loop.epoch(orders[e % count][k], k) for k in range(2)
        ]
        assert torch.equal(network.K[e], alone.K)
        assert torch.equal(network.b[e], alone.b)
        assert np.array_equal(training.V[e], loop.compiled.V[0])


# --- which loop -----------------------------------------------------------------------------------


def _frozen() -> hdnn.HamiltonianNetwork:
    network = build("H1")
    network.field.weights.beta.requires_grad_(False)
    return network


def _time_varying() -> hdnn.HamiltonianNetwork:
    J = torch.randn(3, 4, 4)
    field = HamiltonianField(J - J.mT, Weights("dense", features=4, layers=3))
    return hdnn.HamiltonianNetwork(field, T=1.0)


class _Energy(nn.Module):
    """An energy with a parameter, so that there is something to train."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor, t: Tensor | float) -> Tensor:
        return (self.scale * x).cosh().log().sum(-1)


def _energy() -> hdnn.HamiltonianNetwork:
    return hdnn.HamiltonianNetwork(EnergyField("J1", _Energy(), features=4), layers=2, T=0.5)


OBSTACLES: dict[str, tuple[Callable[[], hdnn.HamiltonianNetwork], dict[str, Any], str]] = {
    "another optimizer": (lambda: build("H1"), {"optimizer": "SGD"}, "know Adam.* not SGD"),
    "an energy": (_energy, {}, "energy of its own"),
    "frozen biases": (_frozen, {}, "not all of them"),
    "learned steps": (lambda: build("H1", learn_steps=True), {}, "other parameters"),
    "learned X": (lambda: build("HS", X="learned"), {}, "other parameters"),
    "J(t)": (_time_varying, {}, "constant J"),
    "a flow": (lambda: build("H1", "RK4"), {}, "flow"),
    "reference": (lambda: build("H1", backend="reference"), {}, "requested"),
    "too wide": (lambda: build("H1", features=98), {}, "width 98"),
}


@needs_kernels
@pytest.mark.parametrize("label", OBSTACLES)
@pytest.mark.parametrize("method", ["coordinate", "joint"])
def test_what_the_kernels_cannot_do_goes_through_autograd(label: str, method: str) -> None:
    make, options, reason = OBSTACLES[label]
    network, config = make(), replace(CONFIG, method=method, **options)
    data, net = batches("logistic", network.features or 4), model_for(network, "logistic")
    with pytest.raises(HdnnError, match=f"loop='compiled' cannot serve.*{reason}.*'auto'"):
        make_loop(net, data, replace(config, loop="compiled"))
    loop = make_loop(net, data, config)
    assert isinstance(loop, AutogradLoop)
    trained = [p for p in network.parameters() if p.requires_grad]
    begin = [p.detach().clone() for p in trained]
    assert math.isfinite(run(loop, 2)[1].penalized)
    assert not any(torch.equal(a, b) for a, b in zip(begin, trained, strict=True))


@needs_kernels
def test_large_output_layers_and_projections_of_coordinate_descent_go_through_autograd() -> None:
    data = batches("logistic", 32)
    reason = obstacle(Model(build("H1", features=32), 5), data, CONFIG)
    assert "165 unknowns" in str(reason)
    assert obstacle(Model(build("H1", features=32), 4), data, CONFIG) is None
    net, data = joint_model(build("H1"), "logistic", 9), batches("logistic", 9)
    begin = [p.detach().clone() for p in net.parameters()]
    loop = make_loop(net, data, CONFIG)
    assert isinstance(loop, AutogradLoop)
    run(loop, 1)
    assert not any(torch.equal(a, b) for a, b in zip(begin, net.parameters(), strict=True))


@needs_kernels
@pytest.mark.parametrize("method", ["coordinate", "joint"])
def test_the_loop_asked_for_is_the_loop_built(method: str) -> None:
    data, net = batches("logistic"), model_for(build("H1"), "logistic")
    kinds = {"auto": CompiledLoop, "compiled": CompiledLoop, "autograd": AutogradLoop}
    for name, kind in kinds.items():
        loop = make_loop(net, data, replace(CONFIG, method=method, loop=name))
        assert type(loop) is kind
