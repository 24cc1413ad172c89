"""What a setting is that was not given, and the model that is built of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import hdnn
from hdnn.config import Config
from hdnn.data import Dataset, load
from hdnn.errors import HdnnError
from hdnn.fields import HamiltonianField
from hdnn.models import Model, TableStem
from hdnn.schemes import ForwardEuler
from hdnn.training.build import build, statistics
from hdnn.training.resolve import resolve, table_width
from hdnn.zoo import Architecture


def table(rows: int = 100, features: int = 10, task: str = "classification") -> Dataset:
    X = np.random.default_rng(0).normal(size=(rows, features))
    return Dataset.from_arrays(X, np.arange(rows) % 2 * 1.0, task=task)


def chosen(data: Dataset | None = None, protocol: str | None = None, **given: Any) -> Any:
    """All settings of model and training for a table of 10 columns, by name."""
    names = {"layers", "width", "T", "step", "architecture", "dtype", "projection"}
    model = {name: value for name, value in given.items() if name in names}
    training = {name: value for name, value in given.items() if name not in names}
    config = Config(model=model, training=training, protocol=protocol)
    found = resolve(config, table() if data is None else data)
    return type("All", (), {**vars(found.training), **vars(found.model)})


# --- tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "features", "width"),
    [
        *((100, 1, 8), (100, 4, 8), (799, 13, 26), (799, 33, 64), (799, 64, 64), (799, 65, 64)),
        *((800, 1, 32), (800, 8, 32), (800, 13, 52), (800, 16, 64), (10**6, 20_000, 64)),
    ],
)
def test_width_by_rows_and_features(rows: int, features: int, width: int) -> None:
    assert table_width(rows, features) == width


def test_the_rules_for_tables() -> None:
    usual = chosen()
    assert (usual.method, usual.schedule, usual.epochs) == ("joint", "cosine", 35)
    assert (usual.layers, usual.width, usual.T, usual.step) == (8, 20, 3.0, None)
    assert (usual.alpha, usual.alpha_c, usual.standardize) == (1e-3, 0.1, True)
    assert [chosen(table(rows=n)).epochs for n in (249, 250)] == [35, 50]
    assert chosen(table(task="regression")).alpha_c == 0.01
    assert [chosen(table(rows=n)).alpha_c for n in (249, 250)] == [0.1, 0.01]
    assert usual.scale == pytest.approx(20**-0.5)
    assert chosen(step=0.1).T is None
    assert chosen(architecture="MS1").T == 1.2
    assert chosen(architecture="FCNN").T is None
    assert chosen(table(task="regression")).T == 1.2
    assert chosen(table(rows=200)).batch_size == 200
    assert chosen(table(rows=201)).batch_size == 200
    assert chosen(table(rows=500), method="coordinate").batch_size == 500
    assert chosen(table(rows=501), method="coordinate").batch_size == 200
    assert chosen(method="coordinate").schedule == "constant"
    assert chosen(width=10).learning_rate == pytest.approx(0.03)
    assert chosen(width=9).learning_rate == pytest.approx(0.03)  # made even
    assert chosen(width=10, schedule="constant").learning_rate == pytest.approx(0.02)
    assert chosen(table(task="regression"), width=10).learning_rate == pytest.approx(0.04)
    assert chosen(alpha=0.5).alpha == 0.5
    assert chosen(table(features=100), projection="off").width == 132


def test_the_precision_of_tables() -> None:
    assert chosen(table(rows=1000)).dtype == "float64"
    large = table(rows=1001)
    assert chosen(large).dtype == "float32"
    assert chosen(replace(large, X=large.X + 1e6)).dtype == "float64"
    values = replace(table(rows=1001, task="regression"), y=torch.randn(1001) + 1e6)
    assert chosen(values).dtype == "float64"


def test_the_paper_s_protocol_on_a_table() -> None:
    found = chosen(protocol="paper")
    assert (found.method, found.layers, found.T, found.width) == ("coordinate", 16, 1.2, 20)
    assert (found.learning_rate, found.alpha, found.dtype) == (0.05, 5e-3, "float32")


# --- planar problems ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"layers": 32}, ("cosine", 0.1, 1.0, "spread")),  # a cell of Table 1
        ({"layers": 30}, ("cosine", 0.1, 1.0, "spread")),  # the nearest one
        ({"layers": 32, "T": 0.3, "learning_rate": 0.01}, ("cosine", 0.01, 0.3, "spread")),
        ({"layers": 32, "protocol": "paper"}, ("constant", 0.05, 0.6, "append")),
        ({"layers": 32, "method": "joint"}, ("constant", 0.05, 1.2, "append")),
        ({"layers": 32, "step": 0.1}, ("cosine", 0.1, None, "spread")),
        ({"architecture": "FCNN"}, ("cosine", 0.05, None, "append")),
    ],
)
def test_a_planar_problem_has_the_settings_of_table_1(
    given: dict[str, Any], expected: tuple[object, ...]
) -> None:
    data = load(Config(data={"size": 20}).data)
    found = chosen(data, **given)
    assert (found.schedule, found.learning_rate, found.T, found.augmentation) == expected
    assert (found.width, found.standardize, found.dtype) == (4, False, "float32")


# --- images ---------------------------------------------------------------------------------------

IMAGES = Dataset.from_arrays(
    np.random.default_rng(0).integers(0, 256, size=(12, 1, 8, 8), dtype=np.uint8),
    np.arange(12) % 3,
    task="classification",
)


def test_the_protocols_of_images() -> None:
    usual = chosen(IMAGES)
    assert (usual.architecture, usual.layers, usual.width, usual.step) == ("H2", (4,), (8,), 0.05)
    assert (usual.method, usual.epochs, usual.decay, usual.alpha) == ("joint", 40, 0.8, 1e-3)
    assert chosen(IMAGES, layers=2, width=4).width == (4,)
    assert chosen(IMAGES, architecture="MS1").step == 0.4
    assert chosen(IMAGES, architecture="ResNet", T=0.5).step is None
    convolutional = chosen(IMAGES, "convolutional")
    assert (convolutional.architecture, convolutional.step) == ("MS1", 0.5)
    assert (convolutional.optimizer, convolutional.rotate) == ("AdamW", 10.0)
    assert chosen(IMAGES, "convolutional", T=1.0).step is None
    assert chosen(IMAGES, "convolutional-flipped").flip
    assert chosen(IMAGES, "convolutional-flipped", epochs=3, shift=0).shift == 0


def test_a_protocol_goes_with_its_data() -> None:
    with pytest.raises(HdnnError, match=r"unknown protocol for a table 'convolutional'.*tuned"):
        chosen(protocol="convolutional")
    with pytest.raises(HdnnError, match=r"unknown protocol for images 'tuned'.*convolutional"):
        chosen(IMAGES, "tuned")
    with pytest.raises(HdnnError, match="layers is one number here"):
        chosen(layers=[2, 2])
    with pytest.raises(HdnnError, match="watch"):
        resolve(Config(record={}), IMAGES)


@pytest.mark.parametrize("data", [table(), IMAGES], ids=["table", "images"])
def test_a_resolved_config_has_everything_and_stays(data: Dataset) -> None:
    once = resolve(Config(training={"epochs": 3}), data)
    assert resolve(once, data) == once
    assert {"alpha", "schedule", "loop", "epochs"} <= once.training.given
    assert {"layers", "width", "dtype", "kernel"} <= once.model.given
    assert once.protocol is None


# --- building -------------------------------------------------------------------------------------


def built(data: Dataset, **model: Any) -> Model:
    return build(resolve(Config(model=model), data).model, data)


def test_what_is_asked_for_is_what_is_built() -> None:
    data = load(Config(data={"source": "peaks", "size": 100}).data)
    model = built(
        data,
        architecture="MS2",
        layers=5,
        step=0.25,
        width=6,
        augmentation="spread",
        activation="relu",
        time_invariant=True,
        standardize=True,
        dtype="float64",
        scale=0.0,
    )
    assert (model.network.name, model.network.layers, model.network.h) == ("MS2", 5, 0.25)
    assert model.network.features == 6
    assert isinstance(model.network.field, HamiltonianField)
    assert model.network.field.activation.name == "relu"
    assert model.network.field.weights.time_invariant
    assert isinstance(model.stem, TableStem)
    assert model.stem.augmentation is not None
    assert model.stem.augmentation.mode == "spread"
    assert model.scaler is not None
    assert model.head.out_features == 5
    assert model.head.weight.dtype == torch.float64
    assert not model.network.K.any()


def test_weights_depend_on_the_seed_only() -> None:
    data = table()

    def weights(seed: int) -> Tensor:
        torch.manual_seed(int(torch.randint(1000, ())))
        return built(data, seed=seed).network.K

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


def test_an_architecture_of_one_s_own() -> None:
    own = Architecture("own", "y += h J K' tanh(K y)", J="J2", scheme=ForwardEuler())
    model = built(table(), architecture=own, layers=2)
    assert (model.network.name, model.network.features) == ("own", 20)
    with pytest.raises(HdnnError, match="cannot be written to a config file"):
        Config(model={"architecture": own}).to_toml()


def test_what_cannot_be_built_is_an_error() -> None:
    with pytest.raises(HdnnError, match="weights; at most"):
        built(table(), layers=10**6, width=10**4)
    gaps = table()
    gaps.X[0, 0] = torch.nan
    with pytest.raises(HdnnError, match="standardize"):
        built(gaps, standardize=False)
    with pytest.raises(HdnnError, match="FCNN"):
        built(table(), architecture="FCNN", T=1.0)
    with pytest.raises(HdnnError):
        built(IMAGES, layers=[1, 1], width=[4])
    with pytest.raises(HdnnError, match=r"hdnn\.training\.resolve"):
        build(hdnn.config.ModelConfig(), table())


def test_statistics_of_images_are_exact() -> None:
    mean, std = statistics(IMAGES.X)
    scaled = IMAGES.X.double() / 255
    assert mean[0] == pytest.approx(float(scaled.mean()), rel=1e-12)
    assert std[0] == pytest.approx(float(scaled.std(correction=0)), rel=1e-12)
