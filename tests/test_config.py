"""The record of a training's settings: defaults of the paper, checks, plain values and back."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from hdnn.errors import HdnnError
from hdnn.training import TrainingConfig


def test_the_defaults_are_appendix_B1() -> None:
    config = TrainingConfig()
    assert (config.method, config.solver, config.solver_iterations) == ("coordinate", "newton", 10)
    assert (config.epochs, config.batch_size) == (50, 125)
    assert (config.learning_rate, config.betas) == (0.05, (0.9, 0.999))
    assert (config.alpha, config.alpha_c) == (5e-3, 1e-4)
    assert [config.learning_rate_at(epoch) for epoch in (0, 49)] == [0.05, 0.05]


INVALID: dict[str, list[Any]] = {
    "method": ["coordinat", "", None, 1, ["joint"]],
    "solver": ["lbfgs", None],
    "schedule": ["linear", None],
    "loop": ["fast", None],
    "epochs": [-1, 2.0, "3", None, True, math.inf],
    "batch_size": [0, -5, 2.5, "3", None, True],
    "solver_iterations": [0, -1, 1.0, None, True],
    "learning_rate": [0, 0.0, -0.1, math.nan, math.inf, "0.1", None, True],
    "decay": [0.0, -1.0, math.nan, math.inf, "1", None, True],
    "alpha": [-1e-9, math.nan, math.inf, "0", None, True],
    "alpha_c": [-1e-9, math.nan, math.inf, "0", None, True],
    "weight_decay": [-1e-9, math.nan, math.inf, "0", None, True],
    "betas": [
        (0.9,),
        (0.9, 0.99, 0.999),
        (0.9, 1.0),
        (-0.1, 0.9),
        (math.nan, 0.9),
        0.9,
        None,
        ("a", "b"),
        "ab",
    ],
    "clip": [0.0, -1.0, math.nan, math.inf, "1", True],
    "class_weight": ["balance", 5, (1.0, -1.0), (1.0, math.nan), (1.0, math.inf), ("a", "b"), ()],
    "validation": [-0.1, 1.0, 1, math.nan, "0.1", None, True],
    "early_stopping": [0, -1, 1.5, "3", True],
    "seed": [-1, 0.0, "0", None, True, 2**64],
    "optimizer": [5, None],
    "warmup": [-1.0, math.nan, math.inf, "1", None, True],
    "label_smoothing": [-0.1, 1.0, math.nan, "0", None, True],
    "averaging": [-0.1, 1.0, math.nan, "0", None, True],
    "shift": [-1, 1.0, "1", None, True],
    "rotate": [-1.0, math.nan, math.inf, "1", None, True],
    "zoom": [-0.1, 1.0, math.nan, "0", None, True],
    "flip": [1, 0.0, "yes", None],
    "erase": [-1, 1.0, "1", None, True],
    "device": ["gpu", "", None, 0],
}


def test_every_setting_has_invalid_values() -> None:
    assert INVALID.keys() == {field.name for field in fields(TrainingConfig)}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in INVALID.items() for value in values],
    ids=lambda v: v if isinstance(v, str) else repr(v),
)
def test_an_invalid_value_is_an_error_that_names_the_setting(name: str, value: Any) -> None:
    options = {"validation": 0.1} if name == "early_stopping" else {}
    with pytest.raises(HdnnError, match=name) as caught:
        TrainingConfig(**options, **{name: value})
    if name not in ("betas", "class_weight"):  # those may show it as a tuple
        assert repr(value) in str(caught.value)


def test_early_stopping_needs_something_to_watch() -> None:
    with pytest.raises(HdnnError, match=r"early_stopping needs a validation part.*validation=0.1"):
        TrainingConfig(early_stopping=3)
    assert TrainingConfig(early_stopping=3, validation=0.1).early_stopping == 3


def test_a_near_miss_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(HdnnError, match=r"unknown solver 'newtom'.*did you mean 'newton'"):
        TrainingConfig(solver="newtom")
    with pytest.raises(HdnnError, match=r"unknown schedule 'cosin'.*did you mean 'cosine'"):
        TrainingConfig(schedule="cosin")


@pytest.mark.parametrize(
    "options",
    [
        {"epochs": 0},
        {"alpha": 0},
        {"alpha_c": 0.0},
        {"learning_rate": 1},
        {"clip": 2},
        {"class_weight": "balanced"},
        {"class_weight": (1.0, 2.0)},
        {"betas": (0, 0)},
        {"betas": [0.5, 0.9]},
    ],
    ids=str,
)
def test_values_at_the_edge_are_allowed(options: dict[str, Any]) -> None:
    TrainingConfig(**options)


def test_settings_cannot_be_changed_but_replaced() -> None:
    config = TrainingConfig()
    with pytest.raises(FrozenInstanceError):
        config.epochs = 3  # type: ignore[misc]
    assert replace(config, epochs=3).epochs == 3
    with pytest.raises(HdnnError, match="epochs"):
        replace(config, epochs=-1)


ODD = TrainingConfig(
    method="joint",
    epochs=7,
    batch_size=3,
    learning_rate=0.01,
    betas=(0.8, 0.99),
    schedule="exponential",
    decay=0.8,
    alpha=0.0,
    alpha_c=1.0,
    solver="adam",
    solver_iterations=2,
    optimizer="SGD",
    weight_decay=2e-4,
    clip=1.5,
    class_weight=(1.0, 2.0),
    validation=0.2,
    early_stopping=4,
    seed=9,
    loop="autograd",
    warmup=2.0,
    label_smoothing=0.1,
    averaging=0.9,
    shift=2,
    rotate=10.0,
    zoom=0.1,
    flip=True,
    erase=4,
    device="auto",
)
"""Every setting other than its default."""


def test_odd_is_odd_everywhere() -> None:
    default = TrainingConfig()
    assert all(getattr(ODD, f.name) != getattr(default, f.name) for f in fields(TrainingConfig))


@pytest.mark.parametrize(
    "config",
    [TrainingConfig(), ODD, replace(ODD, class_weight="balanced"), replace(ODD, clip=None)],
    ids=["defaults", "odd", "balanced", "no clip"],
)
def test_plain_values_and_back(config: TrainingConfig) -> None:
    plain = config.to_dict()
    assert None not in plain.values()  # TOML has no null
    assert TrainingConfig.from_dict(plain) == config
    assert TrainingConfig.from_dict(json.loads(json.dumps(plain))) == config


def test_what_is_left_out_is_the_default() -> None:
    assert TrainingConfig.from_dict({}) == TrainingConfig()
    assert TrainingConfig.from_dict({"epochs": 3}) == TrainingConfig(epochs=3)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("epoch", "epochs"),
        ("learning-rate", "learning_rate"),
        ("Solver", "solver"),
        ("alphac", "alpha_c"),
        ("optimiser", "optimizer"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(given: str, meant: str) -> None:
    with pytest.raises(HdnnError, match=f"{given!r}.*did you mean {meant!r}"):
        TrainingConfig.from_dict({given: 1})


def test_from_dict_checks_as_the_constructor_does() -> None:
    with pytest.raises(HdnnError, match="epochs"):
        TrainingConfig.from_dict({"epochs": "many"})


# --- schedules ------------------------------------------------------------------------------------


def test_the_schedule_of_appendix_B2_decays_with_every_epoch() -> None:
    config = TrainingConfig(schedule="exponential", learning_rate=0.04, decay=0.8, epochs=40)
    assert [config.learning_rate_at(k) for k in range(3)] == pytest.approx([0.04, 0.032, 0.0256])


def test_the_cosine_schedule_goes_from_the_rate_towards_nothing() -> None:
    config = TrainingConfig(schedule="cosine", learning_rate=0.1, epochs=4)
    expected = [0.1 * (1 + math.cos(math.pi * k / 4)) / 2 for k in range(4)]
    assert [config.learning_rate_at(k) for k in range(4)] == pytest.approx(expected)
    assert config.learning_rate_at(0) == 0.1
    assert config.learning_rate_at(4) == 0.0
    assert TrainingConfig(schedule="cosine", epochs=0).learning_rate_at(0) == 0.05
