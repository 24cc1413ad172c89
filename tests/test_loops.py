"""One epoch in three ways: the kernels give what autograd gives, which does what the paper says."""

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
from hdnn.schemes import Leapfrog
from hdnn.training import TrainingConfig, compiled, loops
from hdnn.training.compiled import CompiledLoop, CompiledTraining, coordinate_obstacle
from hdnn.training.loops import (
    Batches,
    CoordinateLoop,
    Epoch,
    JointLoop,
    Loop,
    make_loop,
    make_optimizer,
)
from skips import needs_kernels

SAMPLES = 50
# Two batches of 20 and one of 10. Rounding grows in ill-conditioned output layers: not too little
# regularization, where it is to be told from error.
CONFIG = TrainingConfig(batch_size=20, alpha_c=1e-2)
OUTPUTS = {"logistic": 1, "softmax": 3, "squared": 2}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batches(
    loss: str, width: int = 4, dtype: torch.dtype = torch.float64, seed: int = 0
) -> Batches:
    states = torch.randn(SAMPLES, width, generator=seeded(seed), dtype=torch.float64)
    scores = states @ torch.randn(width, 3, generator=seeded(seed + 1), dtype=torch.float64)
    scores += torch.randn(SAMPLES, 3, generator=seeded(seed + 2), dtype=torch.float64)
    target = {
        "logistic": (scores[:, 0] > 0).long(),
        "softmax": scores.argmax(1),
        "squared": scores[:, :2].to(dtype),
    }[loss]
    return Batches(states.to(dtype), target, torch.ones(SAMPLES, dtype=dtype))


def model(network: Any, loss: str) -> Model:
    task = "regression" if loss == "squared" else "classification"
    return Model(network, OUTPUTS[loss], task=task)


def orders(count: int) -> list[Tensor]:
    return [torch.randperm(SAMPLES, generator=seeded(100 + k)) for k in range(count)]


def run(loop: Loop, epochs: int = 3) -> list[Epoch]:
    return [loop.epoch(order, number) for number, order in enumerate(orders(epochs))]


def close(found: Any, exact: Any, tolerance: float) -> None:
    torch.testing.assert_close(found, exact, rtol=tolerance, atol=tolerance)


def assert_direct_is_autograd(
    network: hdnn.HamiltonianNetwork,
    data: Batches,
    loss: str,
    config: TrainingConfig = CONFIG,
    tolerance: float = 1e-11,
) -> None:
    """Three epochs in kernels and through the autograd of the reference backend, side by side."""
    direct = model(network, loss)
    plain = copy.deepcopy(direct)
    plain.network.backend = "reference"
    assert coordinate_obstacle(direct, data, config) is None
    before = copy.deepcopy(direct.state_dict())
    found = run(CompiledLoop(direct, data, config))
    exact = run(CoordinateLoop(plain, data, config))
    for ours, theirs in zip(found, exact, strict=True):
        close(ours.loss, theirs.loss, tolerance)
        close(ours.penalized, theirs.penalized, tolerance)
        assert ours.accuracy == theirs.accuracy
    state = direct.state_dict()
    for name, value in plain.state_dict().items():
        close(state[name], value, tolerance)
        if name.endswith(("theta", "beta")):
            assert not torch.equal(value, before[name])


# --- the kernels against autograd -----------------------------------------------------------------


@needs_kernels
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("solver", ["newton", "adam"])
def test_every_architecture_loss_and_solver(name: str, loss: str, solver: str) -> None:
    config = replace(CONFIG, solver=solver)
    assert_direct_is_autograd(build(name), batches(loss), loss, config)


VARIANTS: dict[str, Callable[..., hdnn.HamiltonianNetwork]] = {
    "time-invariant H1": lambda: build("H1", time_invariant=True),
    "time-invariant MS1": lambda: build("MS1", time_invariant=True),
    "leapfrog MS1": lambda: build("MS1", "Leapfrog"),
    "leapfrog HS": lambda: build("HS", "Leapfrog"),
    "Yoshida MS3": lambda: build("MS3", "Yoshida4"),
    "steps of their own": lambda: build("H1", step=[0.1, 0.5, 0.2]),
    "steps of their own, leapfrog": lambda: build("MS3", "Leapfrog", step=[0.1, 0.5, 0.2]),
    "one layer": lambda: build("H2", layers=1),
    "seventeen layers": lambda: build("MS2", layers=17),
    "relu": lambda: build("H1", activation="relu"),
    "sigmoid FCNN": lambda: build("FCNN", activation="sigmoid"),
    "HS with X": lambda: build("HS", X=torch.tensor([[1.0, 2.0], [0.0, -1.0]])),
}


@needs_kernels
@pytest.mark.parametrize("label", VARIANTS)
def test_every_kind_of_network(label: str) -> None:
    assert_direct_is_autograd(VARIANTS[label](), batches("softmax"), "softmax")


@needs_kernels
def test_a_graph_with_more_rows_than_columns() -> None:
    graph = np.random.default_rng(0).random((5, 4)) < 0.6
    weights = Weights(graph, features=4, layers=3)
    network = hdnn.HamiltonianNetwork(HamiltonianField("J2", weights), step=0.3)
    assert_direct_is_autograd(network, batches("logistic"), "logistic")


@needs_kernels
@pytest.mark.parametrize("width", [2, 3, 6, 9])
def test_every_width(width: int) -> None:
    name = "H2" if width % 2 else "H1"
    assert_direct_is_autograd(build(name, features=width), batches("softmax", width), "softmax")


@needs_kernels
@pytest.mark.parametrize(
    "options",
    [
        {"clip": 1e-2},
        {"clip": 1e9},
        {"alpha": 0.0},
        {"alpha": 1.0, "alpha_c": 1.0},
        {"alpha_c": 0.0, "solver": "adam"},
        {"schedule": "exponential", "decay": 0.5},
        {"schedule": "cosine", "epochs": 3},
        {"betas": (0.5, 0.9)},
        {"betas": (0.5, 0.9), "solver": "adam", "schedule": "exponential", "decay": 0.5},
        {"solver_iterations": 1},
        {"solver_iterations": 3, "solver": "adam"},
        {"learning_rate": 1e-3},
        {"batch_size": 1},
        {"batch_size": 50},
        {"batch_size": 1000},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["H1", "MS1"])
def test_every_setting(name: str, options: dict[str, Any]) -> None:
    config = replace(CONFIG, **options)
    assert_direct_is_autograd(build(name), batches("logistic"), "logistic", config)


@needs_kernels
@pytest.mark.parametrize("loss", LOSSES)
def test_sample_weights(loss: str) -> None:
    data = replace(batches(loss), weight=torch.rand(SAMPLES) + 0.1)
    assert_direct_is_autograd(build("H1"), data, loss)


@needs_kernels
@pytest.mark.parametrize("loss", LOSSES)
def test_samples_without_weight_still_count_as_right_or_wrong(loss: str) -> None:
    data = replace(batches(loss), weight=(torch.arange(SAMPLES) % 3 > 0).double())
    assert_direct_is_autograd(build("H1"), data, loss)


@pytest.mark.parametrize(
    "loop", [pytest.param(CompiledLoop, marks=needs_kernels), CoordinateLoop, JointLoop]
)
def test_a_batch_without_weight_changes_nothing(loop: type[Loop]) -> None:
    """Nothing is known about the hidden layers there; what is not finite would be a divergence."""
    weight = torch.ones(SAMPLES)
    order = torch.arange(SAMPLES)
    weight[:20] = 0
    data, net = replace(batches("logistic"), weight=weight), build("H1")
    epoch = loop(model(net, "logistic"), data, CONFIG).epoch(order, 0)
    assert math.isfinite(epoch.loss)
    assert math.isfinite(epoch.penalized)
    assert bool(torch.isfinite(net.K).all())


@needs_kernels
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", ["H1", "MS1", "FCNN"])
def test_single_precision(name: str, loss: str) -> None:
    network = build(name, dtype=torch.float32)
    data = batches(loss, dtype=torch.float32)
    assert_direct_is_autograd(network, data, loss, tolerance=2e-3)


@needs_kernels
def test_single_precision_is_double_precision_rounded() -> None:
    single = model(build("H1", dtype=torch.float32, generator=seeded(0)), "logistic")
    double = copy.deepcopy(single).double()
    found = run(CompiledLoop(single, batches("logistic", dtype=torch.float32), CONFIG))
    exact = run(CompiledLoop(double, batches("logistic"), CONFIG))
    close([e.loss for e in found], [e.loss for e in exact], 1e-3)
    close(single.network.K.double(), double.network.K, 1e-2)
    assert single.network.K.dtype == torch.float32


@needs_kernels
def test_the_head_holds_what_the_kernels_solved() -> None:
    net = model(build("H1"), "softmax")
    loop = CompiledLoop(net, batches("softmax"), CONFIG)
    run(loop, 1)
    V = torch.cat([net.head.weight, net.head.bias[:, None]], 1).detach()
    assert torch.equal(V, torch.from_numpy(loop.compiled.V[0]))


@needs_kernels
def test_a_warm_head_is_where_newton_begins() -> None:
    """One iteration from the minimizer of the last batch is not one iteration from zero."""
    config, data = replace(CONFIG, solver_iterations=1), batches("logistic")
    warm = model(build("H1", generator=seeded(0)), "logistic")
    cold = copy.deepcopy(warm)
    nn.init.ones_(warm.head.weight)
    plain = copy.deepcopy(warm)
    found, exact = CompiledLoop(warm, data, config), CoordinateLoop(plain, data, config)
    close(run(found)[0].loss, run(exact)[0].loss, 1e-10)
    close(warm.head.weight, plain.head.weight, 1e-10)
    run(CompiledLoop(cold, data, config))
    assert not torch.allclose(cold.network.K, warm.network.K)


# --- networks side by side ------------------------------------------------------------------------

MEMBERS = 5


def _single(e: int, name: str, **options: Any) -> hdnn.HamiltonianNetwork:
    return build(name, generator=seeded(e), **options)


def _together(name: str, **options: Any) -> hdnn.HamiltonianNetwork:
    generators = [seeded(e) for e in range(MEMBERS)]
    return build(name, ensemble=MEMBERS, generator=generators, **options)


def _train_together(
    network: hdnn.HamiltonianNetwork,
    parts: list[Batches],
    given: Tensor,
    loss: str,
    config: TrainingConfig,
    epochs: int = 2,
) -> tuple[CompiledTraining, list[list[Epoch]]]:
    targets = [part.target.double().reshape(SAMPLES, -1) for part in parts]
    weights = network.field.weights
    ensemble = CompiledTraining(
        network,
        [weights.theta, weights.beta],
        Batches(
            torch.stack([p.states for p in parts]),
            torch.stack(targets),
            torch.stack([p.weight for p in parts]),
        ),
        config,
        outputs=OUTPUTS[loss],
        loss=loss,
    )
    return ensemble, [ensemble.epoch(given[:, k], k) for k in range(epochs)]


STEPS = torch.linspace(0.1, 0.9, MEMBERS * 3).reshape(MEMBERS, 3)


@needs_kernels
@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("own_data", [False, True], ids=["shared data", "own data"])
@pytest.mark.parametrize("own_steps", [False, True], ids=["one step", "own steps"])
@pytest.mark.parametrize("name", ["H1", "MS1"])
def test_members_are_single_trainings_bit_for_bit(
    name: str, own_steps: bool, own_data: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    loss, config = "softmax", replace(CONFIG, clip=0.5)
    count = MEMBERS if own_data else 1
    parts = [replace(batches(loss, seed=10 * e), weight=torch.rand(SAMPLES)) for e in range(count)]
    given = torch.stack([torch.stack([torch.randperm(SAMPLES) for _ in range(2)]) for _ in parts])
    network = _together(name, **({"step": STEPS} if own_steps else {}))
    ensemble, found = _train_together(network, parts, given, loss, config)
    for e in range(MEMBERS):
        part, order = parts[e % count], given[e % count]
        alone = _single(e, name, **({"step": STEPS[e].tolist()} if own_steps else {}))
        loop = CompiledLoop(model(alone, loss), part, config)
        exact = [loop.epoch(order[k], k) for k in range(2)]
        assert [epoch[e] for epoch in found] == exact
        assert torch.equal(network.K[e], alone.K)
        assert torch.equal(network.b[e], alone.b)
        assert np.array_equal(ensemble.V[e], loop.compiled.V[0])


@needs_kernels
def test_single_precision_members_too() -> None:
    network = _together("H1", dtype=torch.float32)
    part = batches("logistic", dtype=torch.float32)
    _train_together(network, [part], torch.stack(orders(2))[None], "logistic", CONFIG)
    for e in range(MEMBERS):
        alone = _single(e, "H1", dtype=torch.float32)
        run(CompiledLoop(model(alone, "logistic"), part, CONFIG), 2)
        assert torch.equal(network.K[e], alone.K)


@needs_kernels
def test_a_member_that_diverges_stops_alone() -> None:
    parts = [batches("logistic") for _ in range(MEMBERS)]
    parts[2] = replace(parts[2], states=torch.full_like(parts[2].states, torch.nan))
    given = torch.stack(orders(2)).expand(MEMBERS, -1, -1)
    network = _together("H1")
    begin = network.K.detach().clone()
    _, found = _train_together(network, parts, given, "logistic", CONFIG)
    assert math.isnan(found[0][2].loss)
    assert torch.equal(network.K[2], begin[2])
    for e in (0, 1, 3, 4):
        alone = _single(e, "H1")
        exact = run(CompiledLoop(model(alone, "logistic"), parts[e], CONFIG), 2)
        assert [epoch[e] for epoch in found] == exact
        assert torch.equal(network.K[e], alone.K)


@needs_kernels
def test_the_state_of_an_ensemble_goes_out_and_back_in() -> None:
    part, given = batches("logistic"), torch.stack(orders(4))[None]
    whole, _ = _train_together(_together("H1"), [part], given, "logistic", CONFIG, 4)
    half_network = _together("H1")
    half, _ = _train_together(half_network, [part], given, "logistic", CONFIG, 2)
    rest, _ = _train_together(copy.deepcopy(half_network), [part], given, "logistic", CONFIG, 0)
    rest.restore(half.state())
    for k in (2, 3):
        rest.epoch(given[:, k], k)
    assert np.array_equal(rest.V, whole.V)
    assert torch.equal(rest.parts[0], whole.parts[0])
    assert rest.taken.tolist() == whole.taken.tolist() == [12] * MEMBERS


# --- joint descent in kernels ---------------------------------------------------------------------

JOINT = replace(CONFIG, method="joint", batch_size=60, learning_rate=0.02, loop="compiled")
MANY = 150  # in batches of 60, 60 and 30: several chunks, of which some are not full


def joint_batches(
    loss: str, width: int, dtype: torch.dtype = torch.float64, weighted: bool = False
) -> Batches:
    parts = [batches(loss, width, dtype, seed) for seed in (0, 10, 20)]
    fields = zip(*((part.states, part.target, part.weight) for part in parts), strict=True)
    states, target, weight = (torch.cat(list(field)) for field in fields)
    share = torch.rand(MANY, generator=seeded(3), dtype=torch.float64).to(dtype)
    return Batches(states, target, share if weighted else weight)


def joint_run(loop: Loop, epochs: int = 2, first: int = 0) -> list[Epoch]:
    turns = [torch.randperm(MANY, generator=seeded(k)) for k in range(first, first + epochs)]
    return [loop.epoch(order, first + k) for k, order in enumerate(turns)]


def joint_model(network: Any, loss: str, features: int | None = None, **options: Any) -> Model:
    task = "regression" if loss == "squared" else "classification"
    projection = None
    if features is not None:
        dtype = options.get("dtype", torch.float64)
        projection = Projection(features, network.features, seeded(0), dtype)
    made = Model(network, OUTPUTS[loss], task=task, projection=projection)
    with torch.no_grad():  # else the hidden layers have no gradient in the first step
        made.head.weight.normal_(generator=seeded(5))
    return made


def assert_joint_is_autograd(
    net: Model, data: Batches, config: TrainingConfig, tolerance: float = 1e-10
) -> None:
    plain = copy.deepcopy(net)
    plain.network.backend = "reference"
    before = copy.deepcopy(net.state_dict())
    found = joint_run(make_loop(net, data, config))
    exact = joint_run(JointLoop(plain, data, config))
    for ours, theirs in zip(found, exact, strict=True):
        close(ours.loss, theirs.loss, tolerance)
        close(ours.penalized, theirs.penalized, tolerance)
        assert ours.accuracy == theirs.accuracy
    for name, value in plain.state_dict().items():
        close(net.state_dict()[name], value, tolerance)
        if name.endswith(("theta", "beta", "weight", "bias")):
            assert not torch.equal(value, before[name])


@needs_kernels
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("loss", LOSSES)
def test_joint_descent_of_every_architecture_and_loss(name: str, loss: str) -> None:
    net = joint_model(build(name), loss)
    assert_joint_is_autograd(net, joint_batches(loss, 4), JOINT)


@needs_kernels
@pytest.mark.parametrize("label", VARIANTS)
def test_joint_descent_of_every_kind_of_network(label: str) -> None:
    net = joint_model(VARIANTS[label](), "softmax")
    assert_joint_is_autograd(net, joint_batches("softmax", 4), JOINT)


JOINT_SETTINGS: dict[str, dict[str, Any]] = {
    "AdamW": {"optimizer": "AdamW", "weight_decay": 0.1},
    "weight decay": {"weight_decay": 0.1},
    "clip": {"clip": 0.1},
    "no penalties": {"alpha": 0.0, "alpha_c": 0.0},
    "betas": {"betas": (0.5, 0.9)},
    "one-cycle": {"schedule": "one-cycle", "warmup": 1.0},
    "one batch": {"batch_size": 150},
    "small batches": {"batch_size": 7},
}


@needs_kernels
@pytest.mark.parametrize("label", JOINT_SETTINGS)
@pytest.mark.parametrize("features", [None, 9])
def test_joint_descent_with_every_setting(label: str, features: int | None) -> None:
    net = joint_model(build("MS2", features=6), "softmax", features)
    data = joint_batches("softmax", features or 6, weighted=True)
    assert_joint_is_autograd(net, data, replace(JOINT, **JOINT_SETTINGS[label]))


@needs_kernels
def test_joint_descent_in_single_precision() -> None:
    net = joint_model(build("H1", dtype=torch.float32), "softmax", 5, dtype=torch.float32)
    assert_joint_is_autograd(net, joint_batches("softmax", 5, torch.float32), JOINT, 1e-3)


@needs_kernels
def test_a_batch_without_weight_is_no_joint_step() -> None:
    data = joint_batches("logistic", 4)
    data = replace(data, weight=torch.zeros_like(data.weight))
    net = joint_model(build("H1"), "logistic")
    loop = make_loop(net, data, JOINT)
    before = copy.deepcopy(net.state_dict())
    assert joint_run(loop, 1)[0].penalized == 0
    assert all(torch.equal(net.state_dict()[name], value) for name, value in before.items())
    assert int(loop.state()["taken"]) == 0


@needs_kernels
@pytest.mark.parametrize("features", [None, 9])
def test_threads_slices_and_resuming_change_no_bit_of_joint_descent(
    features: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, net = (
        joint_batches("softmax", features or 4),
        joint_model(build("H1"), "softmax", features),
    )
    ends = []
    for threads, seconds, stop in ((1, 10.0, False), (3, 10.0, False), (2, 0.0, True)):
        monkeypatch.setattr(compiled, "SLICE", seconds)
        monkeypatch.setattr(torch, "get_num_threads", lambda count=threads: count)
        copied = copy.deepcopy(net)
        loop = make_loop(copied, data, JOINT)
        assert isinstance(loop, CompiledLoop)
        joint_run(loop, 1)
        if stop:
            state, copied = loop.state(), copy.deepcopy(copied)
            loop = make_loop(copied, data, JOINT)
            loop.restore(state)
        joint_run(loop, 1, first=1)
        ends.append(copied.state_dict())
    for other in ends[1:]:
        assert all(torch.equal(other[name], value) for name, value in ends[0].items())


@needs_kernels
def test_joint_descent_that_diverges_says_so() -> None:
    data = joint_batches("squared", 4)
    data.target[0] = math.inf
    net = joint_model(build("H1"), "squared")
    assert math.isnan(joint_run(make_loop(net, data, JOINT), 1)[0].penalized)


class _Watcher:
    """An observer of every second iteration."""

    def __init__(self, net: Model) -> None:
        self.net, self.seen = net, []  # type: ignore[var-annotated]

    def observes(self, iteration: int) -> bool:
        return iteration % 2 == 0

    def before_step(self, iteration: int, chosen: Tensor) -> None:
        theta = self.net.network.field.weights.theta.detach().clone()
        self.seen.append([iteration, chosen.clone(), theta])

    def after_gradients(self, norms: np.ndarray) -> None:
        self.seen[-1].append(torch.from_numpy(norms))

    def after_compiled_epoch(self, *_: Any) -> None:
        raise AssertionError


@needs_kernels
def test_an_observer_of_joint_descent_sees_what_that_of_autograd_sees() -> None:
    data, net = joint_batches("softmax", 4), joint_model(build("H2"), "softmax")
    plain, watched = copy.deepcopy(net), copy.deepcopy(net)
    looks = []
    for one, loop in ((watched, "compiled"), (plain, "autograd")):
        made = make_loop(one, data, replace(JOINT, loop=loop))
        made.observer = observer = _Watcher(one)
        joint_run(made)
        looks.append(observer.seen)
    joint_run(make_loop(net, data, JOINT))
    assert all(torch.equal(watched.state_dict()[k], v) for k, v in net.state_dict().items())
    assert [seen[0] for seen in looks[0]] == [0, 2, 4]
    for ours, theirs in zip(*looks, strict=True):
        assert torch.equal(ours[1], theirs[1])
        close(ours[2], theirs[2], 1e-10)
        close(ours[3], theirs[3], 1e-10)


def test_coordinate_descent_trains_a_projection_too() -> None:
    net, data = joint_model(build("H1"), "logistic", 9), batches("logistic", 9)
    begin = [p.detach().clone() for p in net.parameters()]
    loop = make_loop(net, data, CONFIG)
    assert isinstance(loop, CoordinateLoop)
    run(loop, 1)
    assert not any(torch.equal(a, b) for a, b in zip(begin, net.parameters(), strict=True))


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
    "reference": (lambda: build("H1", backend="reference"), {}, "asked for"),
    "too wide": (lambda: build("H1", features=98), {}, "width 98"),
}


@needs_kernels
@pytest.mark.parametrize("label", OBSTACLES)
def test_what_the_kernels_cannot_do_goes_through_autograd(label: str) -> None:
    make, options, reason = OBSTACLES[label]
    network, config = make(), replace(CONFIG, **options)
    data, net = batches("logistic", network.features or 4), model(network, "logistic")
    for method, kind in (("joint", JointLoop), ("coordinate", CoordinateLoop)):
        asked = replace(config, method=method)
        loop = make_loop(net, data, asked)
        assert isinstance(loop, kind)
        with pytest.raises(HdnnError, match=f"loop='compiled' cannot serve.*{reason}.*'auto'"):
            make_loop(net, data, replace(asked, loop="compiled"))
    begin = [p.detach().clone() for p in network.parameters() if p.requires_grad]
    epochs = run(loop, 1)
    assert math.isfinite(epochs[0].penalized)
    trained = [p for p in network.parameters() if p.requires_grad]
    assert not any(torch.equal(a, b) for a, b in zip(begin, trained, strict=True))


@needs_kernels
def test_large_output_layers_go_through_autograd() -> None:
    data = batches("softmax", 32)
    data = replace(data, target=data.target.clamp_max(1))
    net = Model(build("H1", features=32), 5)
    assert "unknowns" in str(coordinate_obstacle(net, data, CONFIG))
    assert coordinate_obstacle(Model(build("H1", features=32), 4), data, CONFIG) is None


@needs_kernels
def test_the_thing_asked_for_is_the_thing_built() -> None:
    data, net = batches("logistic"), model(build("H1"), "logistic")
    assert isinstance(make_loop(net, data, CONFIG), CompiledLoop)
    assert isinstance(make_loop(net, data, replace(CONFIG, loop="compiled")), CompiledLoop)
    assert isinstance(make_loop(net, data, replace(CONFIG, loop="autograd")), CoordinateLoop)
    joint = replace(CONFIG, method="joint")
    assert isinstance(make_loop(net, data, joint), CompiledLoop)
    assert isinstance(make_loop(net, data, replace(joint, loop="compiled")), CompiledLoop)
    assert isinstance(make_loop(net, data, replace(joint, loop="autograd")), JointLoop)


# --- coordinate and joint descent, with a stub ----------------------------------------------------


class Stub(nn.Module):
    """y -> gain y; counts its calls. Its weights and outputs are known by hand."""

    features = 2
    layers = 1
    field = scheme = None

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(gain))
        self.calls: list[int] = []

    def forward(self, y: Tensor) -> Tensor:
        self.calls.append(len(y))
        return self.gain * y


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the Newton solver is called with; it sets every weight to 2."""
    calls: list[tuple[Any, ...]] = []

    def scripted(Z: Any, target: Any, weight: Any, V: Any, *rest: Any) -> int:
        calls.append((Z.copy(), target.copy(), weight.copy(), V.copy(), *rest))
        V[:] = 2.0
        return 0

    monkeypatch.setattr(loops, "solve", scripted)
    return calls


STUB_DATA = Batches(
    torch.tensor([[1.0, 2.0], [3.0, 1.0], [0.5, -1.0]], dtype=torch.float64),
    torch.tensor([[1.0], [2.0], [0.5]], dtype=torch.float64),
    torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64),
)


def test_an_iteration_is_one_forward_pass_one_solve_and_one_step(
    solved: list[tuple[Any, ...]],
) -> None:
    stub = Stub()
    config = TrainingConfig(batch_size=2, optimizer="SGD", learning_rate=0.1, alpha_c=0.5)
    loop = CoordinateLoop(Model(stub, 1, task="regression"), STUB_DATA, config)
    epoch = loop.epoch(torch.tensor([2, 0, 1]), 0)
    assert stub.calls == [2, 1]
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
        loss = gradient_norm = 0.0
        for y1, y2, target, weight in rows:
            residual = 2 * gain * (y1 + y2) + 2 - target
            loss += weight * residual**2 / 2
            gradient_norm += weight * residual * 2 * (y1 + y2)
        losses.append(loss)
        gain -= 0.1 * gradient_norm
    assert float(stub.gain.detach()) == pytest.approx(gain, rel=1e-13)
    assert epoch.loss == pytest.approx(sum(losses) / 2, rel=1e-13)
    assert epoch.penalized == pytest.approx(sum(losses) / 2 + 0.5 * 3 * 4, rel=1e-13)
    assert epoch.accuracy is None


def test_the_step_on_the_hidden_layers_leaves_the_output_layer_alone(
    solved: list[tuple[Any, ...]],
) -> None:
    net = Model(Stub(), 1, task="regression")
    CoordinateLoop(net, STUB_DATA, TrainingConfig(alpha_c=0.5)).epoch(torch.arange(3), 0)
    assert net.head.weight.tolist() == [[2.0, 2.0]]
    assert net.head.bias.tolist() == [2.0]
    assert net.head.weight.grad is None
    assert len(solved) == 1


def test_joint_descent_is_one_forward_pass_and_one_step_on_everything(
    solved: list[tuple[Any, ...]],
) -> None:
    net = Model(Stub(), 1, task="regression")
    config = TrainingConfig(
        method="joint",
        batch_size=2,
        optimizer="SGD",
        learning_rate=0.1,
        alpha_c=0.5,
        weight_decay=0.25,
    )
    with torch.no_grad():
        net.head.weight.copy_(torch.tensor([[1.0, -1.0]]))
    JointLoop(net, STUB_DATA, config).epoch(torch.tensor([1]), 0)
    # By hand: value 3 - 1 = 2 is the target, so only the penalty and the decay act.
    assert net.network.calls == [1]
    assert solved == []
    assert float(net.network.gain.detach()) == pytest.approx(1 - 0.1 * 0.25)
    shrunk = 1 - 0.1 * (2 * 0.5 + 0.25)
    close(net.head.weight.detach(), torch.tensor([[shrunk, -shrunk]]), 1e-14)
    assert net.head.bias.tolist() == [0.0]


@pytest.mark.parametrize("method", ["coordinate", "joint"])
def test_steps_are_counted_and_use_the_rate_of_the_epoch(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(
        CONFIG, method=method, loop="autograd", schedule="exponential", decay=0.5, epochs=3
    )
    loop = make_loop(model(build("H1"), "logistic"), batches("logistic"), config)
    rates: list[float] = []
    step = loop.optimizer.step
    monkeypatch.setattr(
        loop.optimizer,
        "step",
        lambda: (rates.append(loop.optimizer.param_groups[0]["lr"]), step())[1],
    )
    run(loop)
    assert rates == [0.05] * 3 + [0.025] * 3 + [0.0125] * 3


@pytest.mark.parametrize("method", ["coordinate", "joint"])
def test_clipping_bounds_the_norm_of_the_gradient(method: str) -> None:
    limit = 1e-3
    config = TrainingConfig(method=method, loop="autograd", clip=limit, batch_size=100)
    net = model(build("H1"), "logistic")
    loop = make_loop(net, batches("logistic"), config)
    norms = []
    for number, order in enumerate(orders(3)):
        loop.epoch(order, number)
        trained = net.parameters() if method == "joint" else net.network.parameters()
        norms.append(math.sqrt(sum(float(p.grad.square().sum()) for p in trained)))
    assert norms == pytest.approx([limit] * 3, rel=1e-4)


@needs_kernels
def test_accuracy_counts_samples_before_their_step() -> None:
    net, data = model(build("H1", generator=seeded(0)), "softmax"), batches("softmax")
    config = TrainingConfig(batch_size=100)
    before = copy.deepcopy(net)
    epoch = CompiledLoop(net, data, config).epoch(torch.arange(SAMPLES), 0)
    with torch.no_grad():
        values = net.head(before.network(data.states))
    assert epoch.accuracy == float((values.argmax(1) == data.target).double().mean())
    assert epoch.loss == pytest.approx(
        float(nn.functional.cross_entropy(values, data.target)), rel=1e-12
    )


# --- optimizers of torch --------------------------------------------------------------------------

OPTIMISERS = sorted(
    name
    for name in dir(torch.optim)
    if isinstance(kind := getattr(torch.optim, name), type)
    and issubclass(kind, torch.optim.Optimizer)
    and kind is not torch.optim.Optimizer
)


# They need a closure, sparse gradients, matrices only.
UNFIT = {"coordinate": ("LBFGS", "SparseAdam"), "joint": ("LBFGS", "SparseAdam", "Muon")}


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("method", ["coordinate", "joint"])
def test_any_optimizer_of_torch_trains_or_is_refused_by_name(name: str, method: str) -> None:
    config = TrainingConfig(method=method, optimizer=name, loop="autograd", learning_rate=0.01)
    net = model(build("H1"), "logistic")
    begin = net.network.K.detach().clone()
    if name in UNFIT[method]:
        with pytest.raises(HdnnError, match=name):
            make_loop(net, batches("logistic"), config)
        return
    loop = make_loop(net, batches("logistic"), config)
    assert type(loop.optimizer) is getattr(torch.optim, name)
    assert all(math.isfinite(epoch.penalized) for epoch in run(loop, 2))
    assert not torch.equal(net.network.K, begin)


def test_optimizers_are_found_in_any_case_and_get_their_settings() -> None:
    config = TrainingConfig(optimizer="adamw", learning_rate=0.3, betas=(0.5, 0.6))
    found = make_optimizer([nn.Parameter(torch.ones(2))], config, weight_decay=0.7)
    assert type(found) is torch.optim.AdamW
    group = found.param_groups[0]
    assert (group["lr"], tuple(group["betas"]), group["weight_decay"]) == (0.3, (0.5, 0.6), 0.7)


def test_an_unknown_optimizer_is_answered_with_the_nearest() -> None:
    with pytest.raises(HdnnError, match=r"unknown optimizer 'Adan'.*did you mean 'Adam'"):
        make_loop(
            model(build("H1"), "logistic"), batches("logistic"), TrainingConfig(optimizer="Adan")
        )


@pytest.mark.parametrize("name", ["Adam", "SGD", "RMSprop", "NAdam"])
@pytest.mark.parametrize("method", ["coordinate", "joint"])
def test_the_state_of_an_optimizer_goes_out_and_back_in(name: str, method: str) -> None:
    config = replace(CONFIG, method=method, optimizer=name, loop="autograd")
    data, net = batches("logistic"), model(build("H1", generator=seeded(0)), "logistic")
    loop = make_loop(net, data, config)
    run(loop, 2)
    twin = copy.deepcopy(net)
    other = make_loop(twin, data, config)
    other.restore(loop.state())
    assert loop.epoch(torch.arange(SAMPLES), 2) == other.epoch(torch.arange(SAMPLES), 2)
    assert torch.equal(net.network.K, twin.network.K)


@needs_kernels
def test_leapfrog_is_lowered_to_kernels() -> None:
    net = model(build("MS1", "Leapfrog"), "logistic")
    assert net.network.scheme == Leapfrog()
    assert isinstance(make_loop(net, batches("logistic"), CONFIG), CompiledLoop)
