"""Run configs: what a file says is what is built; and what is built comes back from a file."""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import hdnn
from hdnn.data import load
from hdnn.errors import HdnnError
from hdnn.models import TableStem
from hdnn.training import TrainingConfig, toml
from hdnn.training.prepare import build, prepare
from hdnn.training.run_config import RunConfig
from hdnn.training.settings import DataConfig, ModelConfig, RecordConfig, is_image

KINDS: dict[str, Any] = {
    "data": DataConfig,
    "model": ModelConfig,
    "training": TrainingConfig,
    "record": RecordConfig,
}
OTHER: dict[str, dict[str, Any]] = {
    "data": {
        "source": 'C:\\tables\\"my" Zürich\t[1].csv',
        "split": "independent",
        "size": 400,
        "target": "naïve 'label'",
        "drop": ("a", 'b"', "c\\"),
        "categorical": ("d",),
        "numeric": ("e", "é"),
        "task": "regression",
        "test": 0.35,
        "pixels": 32,
        "strict": True,
        "digest": "00ff",
        "seed": 7,
    },
    "model": {
        "architecture": "MS1",
        "layers": 5,
        "T": 0.1 + 0.2,
        "step": 1e-07,
        "width": 8,
        "augmentation": "spread",
        "projection": "on",
        "activation": "relu",
        "time_invariant": True,
        "standardize": False,
        "dtype": "float64",
        "seed": 9,
        "scale": 1e22,
    },
    "training": {
        "method": "joint",
        "epochs": 3,
        "batch_size": 7,
        "learning_rate": 1e-300,
        "betas": (0.5, 0.25),
        "schedule": "cosine",
        "decay": 0.8,
        "alpha": 0.0,
        "alpha_c": 3.0,
        "solver": "adam",
        "solver_iterations": 4,
        "optimizer": "SGD",
        "weight_decay": 2e-4,
        "clip": 1.5,
        "class_weight": (0.5, 2.0),
        "validation": 0.2,
        "early_stopping": 3,
        "seed": 4,
        "loop": "autograd",
        "device": "auto",
        "warmup": 1.5,
        "label_smoothing": 0.1,
        "averaging": 0.99,
        "shift": 2,
        "rotate": 10.0,
        "zoom": 0.1,
        "flip": True,
        "erase": 4,
    },
    "record": {"every": 3, "depths": (0, 2), "samples": 5},
}


NEEDS: dict[str, dict[str, Any]] = {
    "early_stopping": {"validation": 0.2},
}
"""Settings that a setting is allowed with only."""


def config_with(table: str, **values: Any) -> RunConfig:
    return replace(RunConfig(), **{table: KINDS[table](**values)})


# --- TOML -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "name"), [(table, f.name) for table, kind in KINDS.items() for f in fields(kind)]
)
def test_every_setting_comes_back(table: str, name: str) -> None:
    value = OTHER[table][name]
    field = next(f for f in fields(KINDS[table]) if f.name == name)
    assert value != (field.default if field.default is not MISSING else ())
    needs = NEEDS.get(name, {})
    config = config_with(table, **{name: value}, **needs)
    assert config != RunConfig()
    again = RunConfig.from_toml(config.to_toml())
    assert again == config
    assert getattr(getattr(again, table), name) == value
    assert type(getattr(getattr(again, table), name)) is type(value)


def test_all_settings_at_once_come_back() -> None:
    config = RunConfig(*(kind(**OTHER[table]) for table, kind in KINDS.items()))
    assert RunConfig.from_toml(config.to_toml()) == config


def test_the_defaults_are_the_paper() -> None:
    for config in (RunConfig(), RunConfig.from_toml(""), RunConfig.from_toml("[model]\n")):
        assert config.data == DataConfig("swiss-roll", "paper", 10_000)
        assert (config.model.architecture, config.model.T, config.model.step) == ("H1", 1.2, None)
        assert (config.training.epochs, config.training.batch_size) == (50, 125)
        assert RunConfig.from_toml(config.to_toml()) == config


def test_only_networks_with_a_step_get_a_final_time() -> None:
    assert ModelConfig("FCNN").T is None
    assert ModelConfig("H1", step=0.1).T is None
    assert ModelConfig("h2").architecture == "H2"


@settings(max_examples=200)
@given(text=st.text())
def test_any_text_comes_back(text: str) -> None:
    tables = {"data": {"source": text, "drop": [text, text]}}
    assert tomllib.loads(toml.dumps(tables)) == tables
    assume(not is_image(text))  # a folder, as ".", is of images, and wants another model
    config = RunConfig(DataConfig(source=text, target=text, drop=(text,)))
    assert RunConfig.from_toml(config.to_toml()) == config


@pytest.mark.parametrize(
    "character",
    [
        '"',
        "\\",
        "'",
        "\n",
        "\r",
        "\t",
        "\0",
        "\x1f",
        "\x7f",
        "\x85",
        "\u2028",
        "é",
        "漢",
        "😀",
        "#",
        "=",
    ],
)
def test_every_kind_of_character_comes_back(character: str, tmp_path: Path) -> None:
    text = f"a{character}b{character}"
    path = tmp_path / "config.toml"
    path.write_text(toml.dumps({"data": {"source": text}}))
    assert tomllib.loads(path.read_text()) == {"data": {"source": text}}


@given(value=st.floats(allow_nan=False) | st.integers(-(2**63), 2**63 - 1) | st.booleans())
def test_any_number_comes_back(value: float | int | bool) -> None:
    found = tomllib.loads(toml.dumps({"t": {"x": value, "nothing": None, "many": [value]}}))
    assert found == {"t": {"x": value, "many": [value]}}
    assert type(found["t"]["x"]) is type(value)


def test_what_toml_cannot_say_is_refused() -> None:
    assert "nan" in toml.dumps({"t": {"x": float("nan")}})
    with pytest.raises(HdnnError, match="cannot write"):
        toml.dumps({"t": {"x": {1, 2}}})


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = [", "not TOML"),
        ("[modell]", "did you mean 'model'"),
        ("model = 4", "model in here is a table, got 4"),
        ("[model]\nlayer = 4", "did you mean 'layers'"),
        ("[data]\nsorce = 'x'", "did you mean 'source'"),
        ("[training]\nepoch = 4", "did you mean 'epochs'"),
        ("[model]\narchitecture = 'H11'", "unknown architecture 'H11'"),
        ("[model]\ndtype = 'float16'", "unknown dtype 'float16'"),
        ("[data]\nsplit = 'papre'", "did you mean 'paper'"),
        ("[data]\ntest = 1.0", r"test is a share in \[0, 1\), got 1.0"),
        ("[data]\ntest = 'x'", r"test is a share in \[0, 1\), got 'x'"),
        ("[training]\nbetas = 5", "betas"),
        ("[training]\nepochs = -1", "epochs"),
        ("[training]\nearly_stopping = 3", "validation"),
    ],
    ids=lambda value: value.replace("\n", " "),
)
def test_errors_name_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(HdnnError, match=words):
        RunConfig.from_toml(text, "here")


@pytest.mark.parametrize(
    "text",
    [
        "[data]\nsource = 5",
        "[data]\ndrop = 'abc'",  # not the columns a, b and c
        "[data]\nsize = 'x'",
        "[data]\nseed = 'x'",
        "[model]\nlayers = 'x'",
        "[model]\nlayers = 4.5",
        "[model]\nT = 'x'",
        "[model]\nwidth = 0",
        "[model]\nscale = 'x'",
        "[model]\nseed = 'x'",
        "[model]\nseed = -1",
        "[model]\nstandardize = 'no'",
        "[model]\ntime_invariant = 'no'",
        "[training]\noptimizer = 4",
        "[training]\nclass_weight = 5",
        "[training]\nclass_weight = ['a', 'b']",
    ],
    ids=lambda text: text.replace("\n", " "),
)
def test_values_of_the_wrong_kind_are_refused(text: str) -> None:
    """When the config is read, or at the latest when what it describes is built; never later."""

    def whole() -> None:
        config = RunConfig.from_toml(f"{text}\n")
        if "size" not in text:
            config = replace(config, data=replace(config.data, size=100))
        data = prepare(config)
        hdnn.training.Trainer(build(config, data), config.training).fit(data)

    with pytest.raises(HdnnError):
        whole()


# --- data and model of a run config ---------------------------------------------------------------


@pytest.mark.parametrize("split", ["paper", "independent"])
def test_planar_data(split: str) -> None:
    data = prepare(RunConfig(DataConfig("Double_Moons", split, size=100, seed=3)))
    expected = hdnn.data.split("double-moons", split, 100, 3)
    assert torch.equal(data.X, expected.X_train.float())
    assert torch.equal(data.y_test, expected.y_test)
    assert (data.task, data.classes, data.feature_names) == ("classification", (0, 1), None)


def test_what_is_asked_for_is_what_is_built() -> None:
    given_ = ModelConfig(
        "MS2",
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
    config = RunConfig(DataConfig("peaks", size=100), given_)
    data = prepare(config)
    model = build(config, data)
    assert model.network.name == "MS2"
    assert (model.network.layers, model.network.h, model.network.features) == (5, 0.25, 6)
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
    config = RunConfig(DataConfig(size=100))
    data = prepare(config)
    first = build(config, data)
    torch.manual_seed(99)
    assert torch.equal(build(config, data).network.K, first.network.K)
    other = replace(config, model=replace(config.model, seed=1))
    assert not torch.equal(build(other, data).network.K, first.network.K)


@pytest.mark.parametrize(("features", "width"), [(1, 2), (3, 6), (40, 72)])
def test_the_default_width(features: int, width: int, tmp_path: Path) -> None:
    path = tmp_path / "table.npz"
    np.savez(path, X=np.random.default_rng(0).normal(size=(20, features)), y=np.arange(20) % 2)
    config = RunConfig(DataConfig(str(path), target="y"), ModelConfig(layers=2))
    model = build(config, prepare(config))
    assert model.network.features == width
    assert model.scaler is not None  # tables are standardized unless told otherwise
    plain = replace(config, model=ModelConfig(layers=2, standardize=False))
    assert build(plain, prepare(plain)).scaler is None


def test_a_table_is_pinned_by_path_and_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.csv").write_text("a,y\n1,0\n2,1\n3,0\n4,1\n")
    monkeypatch.chdir(tmp_path)
    config = DataConfig("t.csv", target="y")
    data = load(config)
    assert data.source == str((tmp_path / "t.csv").resolve())
    pinned = replace(config, source=data.source, digest=data.digest)
    assert load(pinned).digest == data.digest
    (tmp_path / "t.csv").write_text("a,y\n1,0\n2,1\n3,0\n5,1\n")
    with pytest.raises(HdnnError, match="has changed"):
        load(pinned)
    assert (load(DataConfig()).source, load(DataConfig()).digest) == ("swiss-roll", None)
    with pytest.raises(HdnnError, match="did you mean 'swiss-roll'"):
        load(DataConfig("swis-roll"))


def test_the_held_out_share_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,y\n" + "".join(f"{k},{k % 2}\n" for k in range(40)))
    for share, count in ((0.0, 0), (0.25, 10), (0.5, 20)):
        data = load(DataConfig(str(path), target="y", test=share))
        assert (len(data.X_test), len(data.X)) == (count, 40 - count)
        everything = torch.cat([data.X, data.X_test])[:, 0]
        assert sorted(everything.tolist()) == list(range(40))


def test_every_setting_is_in_the_tables_above() -> None:
    assert {table: set(OTHER[table]) for table in KINDS} == {
        table: {f.name for f in fields(kind)} for table, kind in KINDS.items()
    }
    assert set(asdict(RunConfig())) == set(KINDS)
