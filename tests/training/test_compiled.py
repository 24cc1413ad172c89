"""Epochs in kernels give what autograd gives; `test_ensemble.py` has many networks at once."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hdnn
from catalog import NAMES, build
from hdnn.errors import HdnnError
from hdnn.fields import HamiltonianField, Weights
from hdnn.kernels.native import LOSSES
from hdnn.models import Model, Projection
from hdnn.training import TrainingConfig, compiled, output_solver
from hdnn.training.compiled import CompiledLoop, obstacle
from hdnn.training.loops import AutogradLoop, Epoch, Loop, make_loop
from hdnn.training.samples import Samples
from skips import needs_kernels
from tasks import SAMPLES, batches, model_for, seeded

# Two batches of 20 and one of 10. Rounding grows in ill-conditioned output layers: not too little
# regularization, where it is to be told from error.
CONFIG = TrainingConfig(batch_size=20, alpha_c=1e-2)
JOINT = CONFIG.replace(method="joint", batch_size=60, learning_rate=0.02)
MANY = 150  # in batches of 60, 60 and 30: several chunks, of which some are not full


def run(loop: Loop, epochs: int = 3, first: int = 0) -> list[Epoch]:
    samples, numbers = len(loop.data.weight), range(first, first + epochs)
    return [loop.epoch(torch.randperm(samples, generator=seeded(k)), k) for k in numbers]


def close(ours: Any, exact: Any, tolerance: float) -> None:
    torch.testing.assert_close(ours, exact, rtol=tolerance, atol=tolerance)


def check(net: Model, data: Samples, config: TrainingConfig, tolerance: float = 1e-10) -> None:
    """Epochs in kernels and through the autograd of the reference backend, side by side."""
    plain, before = copy.deepcopy(net), copy.deepcopy(net.state_dict())
    plain.network.backend = "reference"
    ours = run(make_loop(net, data, config.replace(loop="compiled")))
    exact = run(AutogradLoop(plain, data, config))
    for mine, theirs in zip(ours, exact, strict=True):
        close(mine[:2], theirs[:2], tolerance)
        assert mine.accuracy == theirs.accuracy
    for name, value in plain.state_dict().items():
        close(net.state_dict()[name], value, tolerance)
        if name.endswith(("theta", "beta", "weight", "bias")):
            assert not torch.equal(value, before[name])


def joint_batches(loss: str, width: int, dtype: torch.dtype = torch.float64) -> Samples:
    parts = [batches(loss, width, dtype, seed) for seed in (0, 10, 20)]
    states, target, _ = (torch.cat(part) for part in zip(*parts, strict=True))
    return Samples(states, target, torch.rand(MANY, generator=seeded(3)).to(dtype))


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


CASES = [
    *((name, "softmax", way) for name in NAMES for way in ("newton", "joint")),
    *(("MS1", loss, way) for loss in LOSSES for way in ("newton", "adam", "joint")),
]


@needs_kernels
@pytest.mark.parametrize(("name", "loss", "way"), CASES)
def test_every_architecture_loss_and_method(name: str, loss: str, way: str) -> None:
    if way == "joint":
        check(joint_model(build(name), loss), joint_batches(loss, 4), JOINT)
    else:
        config = CONFIG.replace(solver=way)
        check(model_for(build(name), loss), batches(loss), config, 1e-11)


VARIANTS: dict[str, Callable[..., hdnn.HamiltonianNetwork]] = {
    "time-invariant MS1": lambda: build("MS1", time_invariant=True),
    "Yoshida MS3": lambda: build("MS3", "Yoshida4"),
    "steps of their own, leapfrog": lambda: build("MS3", "Leapfrog", step=[0.1, 0.5, 0.2]),
    "one layer": lambda: build("H2", layers=1),
    "relu": lambda: build("H1", activation="relu"),
    "sigmoid FCNN": lambda: build("FCNN", activation="sigmoid"),
    "HS with X": lambda: build("HS", X=torch.tensor([[1.0, 2.0], [0.0, -1.0]])),
    "width 3": lambda: build("H2", features=3),
    "width 9": lambda: build("H2", features=9),
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
    {"alpha": 0.0},
    {"alpha": 1.0, "alpha_c": 1.0},
    {"alpha_c": 0.0, "solver": "adam"},
    {"solver": "adam", "schedule": "exponential", "decay": 0.5},
    {"batch_size": 1},
    {"batch_size": 1000},
    {"method": "joint", "optimizer": "AdamW", "weight_decay": 0.1},
    {"method": "joint", "weight_decay": 0.1},
    {"method": "joint", "clip": 0.1},
    {"method": "joint", "alpha": 0.0, "alpha_c": 0.0},
    {"method": "joint", "schedule": "one-cycle", "warmup": 1.0},
    {"method": "joint", "batch_size": 150},
    {"method": "joint", "batch_size": 7},
]


@needs_kernels
@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_every_setting(options: dict[str, Any]) -> None:
    if "method" not in options:
        config = CONFIG.replace(**options)
        check(model_for(build("MS1"), "logistic"), batches("logistic"), config)
        return
    for features in (None, 9):  # without and with a projection
        net = joint_model(build("MS2", features=6), "softmax", features)
        check(net, joint_batches("softmax", features or 6), JOINT.replace(**options))


@needs_kernels
@pytest.mark.parametrize("loss", LOSSES)
def test_sample_weights_and_single_precision(loss: str) -> None:
    """Samples of weight 0 still count as right or wrong."""
    weight = torch.rand(SAMPLES) * (torch.arange(SAMPLES) % 3 > 0)
    check(model_for(build("H1"), loss), batches(loss)._replace(weight=weight), CONFIG)
    network = build("MS1", dtype=torch.float32)
    check(model_for(network, loss), batches(loss, dtype=torch.float32), CONFIG, 2e-3)
    network = build("H1", dtype=torch.float32)
    check(joint_model(network, loss, 5), joint_batches(loss, 5, torch.float32), JOINT, 1e-3)


@needs_kernels
def test_newton_starts_from_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
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
        monkeypatch.setattr(compiled, "CALL_SECONDS", seconds)
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
def test_batch_without_weight_is_no_step_and_infinity_is_nan(config: TrainingConfig) -> None:
    data, net = joint_batches("squared", 4), joint_model(build("H1"), "squared")
    loop = make_loop(net, data._replace(weight=torch.zeros(MANY)), config)
    before = copy.deepcopy(net.state_dict())
    assert run(loop, 1)[0].penalized == 0
    assert all(torch.equal(net.state_dict()[name], value) for name, value in before.items())
    assert int(loop.state()["adam_steps"]) == 0
    data.target[0] = math.inf
    assert math.isnan(run(make_loop(net, data, config), 1)[0].penalized)


# --- which loop -----------------------------------------------------------------------------------


def _time_varying() -> hdnn.HamiltonianNetwork:
    J = torch.randn(3, 4, 4)
    field = HamiltonianField(J - J.mT, Weights("dense", features=4, layers=3))
    return hdnn.HamiltonianNetwork(field, T=1.0)


OBSTACLES: dict[str, tuple[Callable[[], hdnn.HamiltonianNetwork], dict[str, Any], str]] = {
    "another optimizer": (lambda: build("H1"), {"optimizer": "SGD"}, "know Adam.* not SGD"),
    "learned steps": (lambda: build("H1", learn_steps=True), {}, "other parameters"),
    "J(t)": (_time_varying, {}, "differ by layer"),
    "a flow": (lambda: build("H1", "RK4"), {}, "flow"),
    "reference": (lambda: build("H1", backend="reference"), {}, "requested"),
    "too wide": (lambda: build("H1", features=514), {"method": "joint"}, "width 514"),
}


@needs_kernels
@pytest.mark.parametrize("label", OBSTACLES)
def test_what_the_kernels_cannot_do_goes_through_autograd(label: str) -> None:
    make, options, reason = OBSTACLES[label]
    network, config = make(), CONFIG.replace(**options)
    data, net = batches("logistic", network.features or 4), model_for(network, "logistic")
    with pytest.raises(HdnnError, match=f"loop='compiled' cannot serve.*{reason}.*'auto'"):
        make_loop(net, data, config.replace(loop="compiled"))
    loop = make_loop(net, data, config)
    assert isinstance(loop, AutogradLoop)
    assert math.isfinite(run(loop, 1)[0].penalized)


@needs_kernels
def test_large_output_layers_and_projections_go_through_autograd() -> None:
    data = batches("logistic", 32)
    reason = obstacle(Model(build("H1", features=32), 5), data, CONFIG)
    assert "165 unknowns" in str(reason)
    assert obstacle(Model(build("H1", features=32), 4), data, CONFIG) is None
    net, data = joint_model(build("H1"), "logistic", 9), batches("logistic", 9)
    assert isinstance(make_loop(net, data, CONFIG), AutogradLoop)
    assert isinstance(make_loop(net, data, JOINT), CompiledLoop)


@needs_kernels
def test_an_epoch_begins_with_calls_as_long_as_the_last_one_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of the first epoch grow from one step; the third epoch is one call."""
    data = joint_batches("squared", 4)
    steps = -(-MANY // CONFIG.batch_size)
    loop = make_loop(joint_model(build("H1"), "squared"), data, CONFIG)
    assert isinstance(loop, CompiledLoop)
    lengths: list[int] = []
    epochs: list[list[int]] = []
    run_batches = loop.compiled.training.run

    def count(*args: Any) -> Any:
        lengths.append(len(args[3]))
        return run_batches(*args)

    monkeypatch.setattr(compiled, "CALL_SECONDS", 10.0)
    monkeypatch.setattr(loop.compiled.training, "run", count)
    for number in range(3):
        del lengths[:]
        run(loop, 1, first=number)
        epochs.append([*lengths])
    assert all(sum(each) == steps for each in epochs)
    assert epochs[0][:2] == [1, 2]
    assert epochs[2] == [steps]
    monkeypatch.setattr(compiled, "CALL_SECONDS", 0.0)  # no call may last any longer
    run(loop, 1, first=3)
    del lengths[:]
    run(loop, 1, first=4)
    assert lengths == [1] * steps
