"""The values of settings that were not set, and the model that is built of them."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from commands import write_rows
from hdnn.analysis import advise
from hdnn.config import KINDS, Config, Setting, all_settings
from hdnn.data import Dataset, load
from hdnn.errors import HdnnError
from hdnn.training.build import build
from hdnn.training.resolve import (
    resolve,
    table_epochs,
    table_penalty,
    table_width,
)
from hdnn.training.runs import prepare
from hdnn.training.trainer import Trainer

MODEL = {"layers", "width", "T", "step", "architecture", "dtype", "projection"}


def table(rows: int = 100, features: int = 10, task: str = "classification") -> Dataset:
    X = np.random.default_rng(0).normal(size=(rows, features))
    return Dataset.from_arrays(X, np.arange(rows) % 2 * 1.0, task=task)


IMAGES = Dataset.from_arrays(
    np.random.default_rng(0).integers(0, 256, size=(12, 1, 8, 8), dtype=np.uint8),
    np.arange(12) % 3,
    task="classification",
)


def settings(data: Dataset, protocol: str | None = None, **values: Any) -> Any:
    """All settings of model and training, by name."""
    model = {name: value for name, value in values.items() if name in MODEL}
    training = {name: value for name, value in values.items() if name not in MODEL}
    config = resolve(Config(model=model, training=training, protocol=protocol), data)
    return SimpleNamespace(**{**vars(config.training), **vars(config.model)})


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "features", "width"),
    [(100, 1, 8), (400, 13, 26), (600, 13, 40), (400, 65, 64), (800, 1, 32), (10**6, 20_000, 64)],
)
def test_width_by_rows_and_features(rows: int, features: int, width: int) -> None:
    assert table_width(rows, features) == width


RULES: list[tuple[Dataset, dict[str, Any], dict[str, Any]]] = [
    (table(), {}, {"method": "joint", "schedule": "cosine", "epochs": 35, "alpha_c": 0.1}),
    (table(), {}, {"layers": 8, "width": 20, "T": 2.0, "step": None, "scale": 20**-0.5}),
    (table(rows=1000), {}, {"epochs": 50, "alpha_c": 0.01, "alpha": 1e-3, "standardize": True}),
    (table(rows=5), {}, {"epochs": 35, "alpha_c": 1.0}),
    (table(task="regression"), {"width": 10}, {"alpha_c": 0.01, "T": 1.2, "learning_rate": 0.04}),
    (table(task="regression"), {}, {"epochs": 50}),
    (table(), {"step": 0.1, "alpha": 0.5}, {"T": None, "alpha": 0.5}),
    (table(), {"architecture": "MS1"}, {"T": 1.2}),
    (table(), {"architecture": "FCNN"}, {"T": None}),
    (table(rows=201), {}, {"batch_size": 200}),
    (table(rows=500), {"method": "coordinate"}, {"batch_size": 500, "schedule": "constant"}),
    (table(rows=501), {"method": "coordinate"}, {"batch_size": 200}),
    (table(), {"width": 9}, {"learning_rate": 0.03}),  # made even
    (table(), {"width": 10, "schedule": "constant"}, {"learning_rate": 0.02}),
    (table(features=100), {"projection": "off"}, {"width": 132}),
    (table(rows=1000), {}, {"dtype": "float64"}),
    (table(rows=1001), {}, {"dtype": "float32"}),
    (replace(table(rows=1001), X=table(rows=1001).X + 1e6), {}, {"dtype": "float64"}),
    (table(), {"protocol": "paper"}, {"method": "coordinate", "layers": 16, "T": 1.2}),
    (table(), {"protocol": "paper"}, {"learning_rate": 0.05, "alpha": 5e-3, "dtype": "float32"}),
    (IMAGES, {}, {"architecture": "H2", "layers": (4,), "width": (8,), "step": 0.05}),
    (IMAGES, {"layers": 2, "width": 4}, {"layers": (2,), "width": (4,), "decay": 0.8}),
    (IMAGES, {"architecture": "MS1"}, {"step": 0.4}),
    (IMAGES, {"architecture": "ResNet", "T": 0.5}, {"step": None}),
    (IMAGES, {"protocol": "convolutional"}, {"architecture": "MS1", "step": 0.5, "rotate": 10.0}),
    (IMAGES, {"protocol": "convolutional", "T": 1.0}, {"step": None}),
    (IMAGES, {"protocol": "convolutional-flipped", "shift": 0}, {"flip": True, "shift": 0}),
]


@pytest.mark.parametrize(("data", "values", "expected"), RULES, ids=lambda v: str(v)[:50])
def test_rules_for_tables_and_images(
    data: Dataset, values: dict[str, Any], expected: dict[str, Any]
) -> None:
    resolved = settings(data, **values)
    for name, value in expected.items():
        exact = pytest.approx(value) if isinstance(value, float) else value
        assert getattr(resolved, name) == exact, name


def check_near(tables: list[tuple[int, int]]) -> None:
    """Tables of a row, or a feature, more and more: epochs, penalty and width have no step."""
    for (rows, features), (more_rows, more_features) in itertools.pairwise(tables):
        before, after = rows / features, more_rows / more_features
        change = abs(math.log(after / before))  # beside which two numbers are rounded
        assert abs(math.log(table_penalty(after) / table_penalty(before))) <= change + 1e-9
        assert abs(table_epochs(after) - table_epochs(before)) <= 15 / math.log(10) * change + 1
        wider = table_width(more_rows, more_features) - table_width(rows, features)
        assert 0 <= wider <= 2 + 4 * (more_features - features) + 96 * change


@pytest.mark.parametrize("features", [1, 4, 20, 90])
def test_a_row_more_changes_the_training_of_a_table_little(features: int) -> None:
    check_near([(rows, features) for rows in range(20, 12_000)])


@pytest.mark.parametrize("rows", [50, 300, 640, 5000])
def test_a_column_more_changes_the_training_of_a_table_little(rows: int) -> None:
    check_near([(rows, features) for features in range(1, 600)])


@pytest.mark.parametrize("rows", [60, 150, 400, 1500])
@pytest.mark.parametrize("features", [2, 10, 40])
def test_the_step_of_a_new_network_for_a_table_is_one_that_advise_allows(
    rows: int, features: int
) -> None:
    data = table(rows, features)
    model = build(resolve(Config(), data).model, data)
    with torch.no_grad():
        advice = advise(model.network, model.preprocess(data.X[:30].to(model.head.weight.dtype)))
    assert advice.ok, advice.remedy


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"layers": 30}, ("cosine", 0.1, 1.0, "spread")),  # the nearest cell of Table 1
        ({"layers": 32, "T": 0.3, "learning_rate": 0.01}, ("cosine", 0.01, 0.3, "spread")),
        ({"layers": 32, "protocol": "paper"}, ("constant", 0.05, 0.6, "append")),
        ({"layers": 32, "method": "joint"}, ("constant", 0.05, 1.2, "append")),
        ({"layers": 32, "step": 0.1}, ("cosine", 0.1, None, "spread")),
        ({"architecture": "FCNN"}, ("cosine", 0.05, None, "append")),
    ],
)
def test_planar_problems_have_the_settings_of_table_1(
    values: dict[str, Any], expected: tuple[object, ...]
) -> None:
    resolved = settings(load(Config(data={"size": 20}).data), **values)
    names = "schedule", "learning_rate", "T", "padding"
    assert tuple(getattr(resolved, name) for name in names) == expected
    assert (resolved.width, resolved.standardize, resolved.dtype) == (4, False, "float32")


def test_settings_for_other_data_raise() -> None:
    with pytest.raises(HdnnError, match=r"unknown protocol for tables 'convolutional'.*tuned"):
        settings(table(), "convolutional")
    with pytest.raises(HdnnError, match="layers is one number here"):
        settings(table(), layers=[2, 2])
    with pytest.raises(HdnnError, match="watch"):
        resolve(Config(record={}), IMAGES)


@pytest.mark.parametrize(
    ("data", "model"),
    [
        (table(features=70), {}),  # projected, so that there is no padding
        (table(), {"time_invariant": True}),  # without a smoothness penalty
        (table(), {"architecture": "FCNN", "projection": "off"}),
        (IMAGES, {"block": "convolution"}),
    ],
)
def test_resolving_again_changes_nothing(data: Dataset, model: Any) -> None:
    once = resolve(Config(model=model), data)
    assert resolve(once, data) == once
    smooth = "time_invariant" not in model and "block" not in model
    assert once.training.alpha == (1e-3 if smooth else 0.0)


@pytest.mark.parametrize("data", [table(), IMAGES], ids=["table", "images"])
def test_resolved_config_is_complete_and_stays(data: Dataset) -> None:
    once = resolve(Config(training={"epochs": 3}), data)
    assert resolve(once, data) == once
    assert {"alpha", "schedule", "loop", "epochs"} <= once.training.model_fields_set
    assert {"layers", "width", "dtype"} <= once.model.model_fields_set
    assert ("kernel" in once.model.model_fields_set) == (data is IMAGES)  # else it would do nothing


# --- a setting applies, or it is an error ---------------------------------------------------------

OTHER: dict[str, Any] = {
    **{"split": "independent", "size": 50, "target": "a", "drop": ["b"], "categorical": ["a"]},
    **{"numeric": ["code"], "task": "regression", "test": 0.5, "pixels": 4, "digest": "0"},
    **{"architecture": "ResNet", "layers": 3, "width": 6, "T": 0.7, "step": 0.3, "scheme": "RK4"},
    **{"projection": "on", "padding": "spread", "activation": "sigmoid", "scale": 0.3},
    **{"time_invariant": True, "kernel": 3, "block": "convolution", "norm": "batch"},
    **{"method": "joint", "epochs": 3, "batch_size": 7, "learning_rate": 0.02, "decay": 0.5},
    **{"schedule": "one-cycle", "alpha": 0.3, "alpha_c": 0.3, "solver": "adam", "clip": 1e-3},
    **{"optimizer": "SGD", "weight_decay": 0.1, "warmup": 1.0, "averaging": 0.9, "shift": 1},
    **{"rotate": 9.0, "zoom": 0.2, "flip": True, "class_weight": [1.0, 9.0], "validation": 0.3},
    **{"early_stopping": 1, "seed": 7, "standardize": False, "dtype": "float64"},
}
"""A value of every setting that is not its default."""
ELSEWHERE = {"source", "loop", "device"}
"""Which data, which is given here, and how a training is computed, which changes rounding."""
USUAL = {"model": {"layers": 2, "width": 8}, "training": {"epochs": 2, "learning_rate": 0.1}}
DIFFERENT: dict[tuple[str, str], Any] = {
    ("table", "method"): "coordinate",
    ("table", "dtype"): "float32",
    ("table", "schedule"): "constant",
    ("planar", "schedule"): "constant",
    ("planar", "padding"): "append",
    ("images", "method"): "coordinate",
    ("planar", "standardize"): True,
}
"""Where that value is the default of a kind of data."""
BESIDE: dict[str, dict[str, Any]] = {
    "decay": {"schedule": "exponential"},
    "early_stopping": {"validation": 0.3, "epochs": 9, "learning_rate": 0.9},
}
"""What a setting needs, whatever the data."""

RAISES = {
    **dict.fromkeys([("table", "digest"), ("images", "digest")], "has changed"),
    **dict.fromkeys([("images", "method"), ("images", "solver")], "trained with method='joint'"),
}
"""Values that no data of a kind have."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Small data of every kind: a problem, a table with codes, a folder of images."""
    folder = tmp_path_factory.mktemp("sources")
    draw = np.random.default_rng(0)
    a, b = draw.normal(size=(2, 40))
    label, code = (a + b > 0).astype(int), [f"0{k % 3}" for k in range(40)]
    write_rows(folder / "table.csv", a=a, b=b, code=code, label=label)
    for k in range(30):
        path = folder / "images" / f"class{k % 2}" / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (6, 6), dtype=np.uint8)).save(path)
    return {
        "planar": "swiss-roll",
        "table": str(folder / "table.csv"),
        "images": str(folder / "images"),
    }


def trained(kind: str, source: str, *changes: dict[str, dict[str, Any]]) -> list[torch.Tensor]:
    """The test data and the weights of a short training."""
    data: dict[str, Any] = {"source": source}
    data |= {"planar": {"size": 40}, "table": {"target": "label"}, "images": {}}[kind]
    tables = {"data": data, **USUAL}
    for change in changes:
        tables = {name: {**tables[name], **change.get(name, {})} for name in tables}
    prepared = prepare(Config(**tables))
    Trainer(prepared.model, prepared.config.training).fit(prepared.data)
    return [prepared.data.X_test, *prepared.model.state_dict().values()]


WALK = [each for each in all_settings() if each.table in USUAL or each.table == "data"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("each", WALK, ids=lambda each: f"{each.table}.{each.name}")
def test_every_setting_changes_the_training_or_raises(
    each: Setting, kind: str, sources: dict[str, str]
) -> None:
    if each.name in ELSEWHERE:
        return
    needs = BESIDE.get(each.name, {}) | (
        {each.when[0]: each.when[1]} if each.when and each.table == "training" else {}
    )
    change = {each.table: {each.name: DIFFERENT.get((kind, each.name), OTHER[each.name])}}
    begin = {"training": needs}
    words = RAISES.get((kind, each.name))
    if kind not in each.data:
        words = f"^{each.name}.* is for .*, not for {KINDS[kind]}"
    if words is not None:
        with pytest.raises(HdnnError, match=words):
            trained(kind, sources[kind], begin, change)
        return
    usual, changed = (
        trained(kind, sources[kind], begin),
        trained(kind, sources[kind], begin, change),
    )
    pairs = zip(usual, changed, strict=False)
    same = len(usual) == len(changed) and all(torch.equal(*pair) for pair in pairs)
    assert not same, "it changes nothing"


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"model": {"block": "convolution", "activation": "relu"}}, "activation.*block='hamilton"),
        ({"model": {"block": "convolution", "step": 0.1}}, "step .*block='hamilton"),
        ({"model": {"activation": "nonsense"}}, "unknown activation"),
        ({"training": {"solver": "adam"}}, "solver .*method='coordinate', not for 'joint'"),
        ({"training": {"decay": 0.5, "schedule": "cosine"}}, "decay .*schedule='exponential'"),
    ],
)
def test_settings_that_another_one_rules_out_raise(tables: Any, words: str) -> None:
    with pytest.raises(HdnnError, match=words):
        build(resolve(Config(**tables), IMAGES).model, IMAGES)


@pytest.mark.parametrize(
    ("data", "model", "training", "words"),
    [
        (table(), {"padding": "append", "projection": "on"}, {}, "padding is for projection='off"),
        (table(features=70), {"padding": "append"}, {}, "padding is for projection='off'"),
        (table(), {"time_invariant": True}, {"alpha": 0.1}, "alpha .* shares its weights"),
        (IMAGES, {"block": "convolution"}, {"alpha": 0.1}, "alpha .* has plain convolutions"),
        (IMAGES, {}, {"method": "coordinate"}, "an image classifier is trained with method='joint"),
        (table(), {}, {"method": "coordinate", "schedule": "one-cycle"}, "one-cycle"),
    ],
)
def test_what_does_nothing_beside_the_data_or_another_table_raises(
    data: Dataset, model: Any, training: Any, words: str
) -> None:
    with pytest.raises(HdnnError, match=words):
        resolve(Config(model=model, training=training), data)


# --- building -------------------------------------------------------------------------------------
