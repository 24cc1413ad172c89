"""Run configs: what a file says is what is built; and what is built comes back from a file."""

from __future__ import annotations

import copy
import json
import tomllib
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import hdnn
from hdnn.errors import FileFormatError, HdnnError
from hdnn.models import Augmentation, Model, Scaler
from hdnn.training import TrainingConfig, toml
from hdnn.training.prepare import build, prepare
from hdnn.training.recorder import RecordConfig
from hdnn.training.run_config import RunConfig
from hdnn.training.settings import DataConfig, ModelConfig, is_image

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
        "levels": (4, 16),
        "level_epochs": (2, 1),
        "seed": 4,
        "loop": "autograd",
        "device": "auto",
        "warmup": 1.5,
        "label_smoothing": 0.1,
        "averaging": 0.99,
        "n_init": 4,
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
    "level_epochs": {"levels": (4, 16)},
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
        hdnn.training.Trainer(build(config, data), config.training).fit(data.X_train, data.y_train)

    with pytest.raises(HdnnError):
        whole()


# --- data and model of a run config ---------------------------------------------------------------


@pytest.mark.parametrize("split", ["paper", "independent"])
def test_planar_data(split: str) -> None:
    data = prepare(RunConfig(DataConfig("Double_Moons", split, size=100, seed=3)))
    expected = hdnn.data.split("double-moons", split, 100, 3)
    assert torch.equal(data.X_train, expected.X_train.float())
    assert torch.equal(data.y_test, expected.y_test)
    assert (data.task, data.classes, data.feature_names) == ("classification", [0, 1], None)


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
    assert model.augmentation is not None
    assert model.augmentation.mode == "spread"
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
    pinned = prepare(RunConfig(DataConfig("t.csv", target="y"))).config
    assert pinned.source == str((tmp_path / "t.csv").resolve())
    assert prepare(RunConfig(pinned)).config == pinned
    (tmp_path / "t.csv").write_text("a,y\n1,0\n2,1\n3,0\n5,1\n")
    with pytest.raises(HdnnError, match="has changed"):
        prepare(RunConfig(pinned))
    assert prepare(RunConfig()).config == DataConfig("swiss-roll")
    with pytest.raises(HdnnError, match="did you mean 'swiss-roll'"):
        prepare(RunConfig(DataConfig("swis-roll")))


def test_the_held_out_share_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,y\n" + "".join(f"{k},{k % 2}\n" for k in range(40)))
    for share, count in ((0.0, 0), (0.25, 10), (0.5, 20)):
        data = prepare(RunConfig(DataConfig(str(path), target="y", test=share)))
        assert (len(data.X_test), len(data.X_train)) == (count, 40 - count)
        everything = torch.cat([data.X_train, data.X_test])[:, 0]
        assert sorted(everything.tolist()) == list(range(40))


# --- models come back from files ------------------------------------------------------------------


def model_with(outputs: int = 1, **options: Any) -> Model:
    net = hdnn.network("MS1", features=6, layers=2, T=1.0)
    model = Model(net, outputs, **{"augmentation": Augmentation(3, 6), **options})
    torch.nn.init.normal_(model.head.weight)
    torch.nn.init.normal_(model.head.bias)
    return model


def scaler() -> Scaler:
    return Scaler.fit(torch.randn(9, 3) * 4 + 2)


MODELS: dict[str, Any] = {
    "plain": model_with,
    "no augmentation": lambda: model_with(augmentation=None),
    "spread": lambda: model_with(augmentation=Augmentation(3, 6, "spread")),
    "scaler": lambda: model_with(scaler=scaler()),
    "texts": lambda: model_with(classes=['say "no"', "naïve\n漢"]),
    "integers": lambda: model_with(3, classes=[-1, 0, 2**60]),
    "booleans": lambda: model_with(classes=[False, True]),
    "floats": lambda: model_with(classes=[0.1, 1e300]),
    "names": lambda: model_with(feature_names=["a", 'b "c"', "é"]),
    "regression": lambda: model_with(2, task="regression", scaler=scaler()),
    "float32": lambda: Model(
        hdnn.network("H1", features=4, layers=2, T=1.0, dtype=torch.float32), 1
    ),
    "own pattern": lambda: Model(
        hdnn.HamiltonianNetwork(
            hdnn.fields.HamiltonianField(
                "J2",
                hdnn.fields.Weights([[1, 0, 1, 0], [0, 1, 1, 0]], features=4, layers=3),
            ),
            T=1.0,
        ),
        1,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_comes_back(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    hdnn.save(model, tmp_path / "model")
    other = hdnn.load(tmp_path / "model")
    assert isinstance(other, Model)
    assert repr(other) == repr(model)
    for field in ("task", "classes", "feature_names", "features"):
        assert getattr(other, field) == getattr(model, field)
    assert [type(c) for c in other.classes or ()] == [type(c) for c in model.classes or ()]
    mine, theirs = model.state_dict(), other.state_dict()
    assert list(mine) == list(theirs)
    assert all(torch.equal(mine[k], theirs[k]) and mine[k].dtype == theirs[k].dtype for k in mine)
    x = torch.randn(5, model.features, dtype=model.head.weight.dtype)
    assert torch.equal(other(x), model(x))
    assert torch.equal(other.predict(x), model.eval().predict(x))


def test_a_missing_value_is_the_mean_also_in_a_loaded_model(tmp_path: Path) -> None:
    model = model_with(scaler=scaler())
    hdnn.save(model, tmp_path / "model")
    assert model.scaler is not None
    x = model.scaler.mean.clone()
    gap = x.clone()
    gap[1] = float("nan")
    assert torch.equal(hdnn.load(tmp_path / "model")(gap), model(x))


def test_a_trained_run_config_comes_back(tmp_path: Path) -> None:
    config = RunConfig(DataConfig("peaks", size=100), ModelConfig(layers=2))
    data = prepare(config)
    model = build(config, data)
    hdnn.save(model, tmp_path / "model")
    assert torch.equal(hdnn.load(tmp_path / "model")(data.X_test), model(data.X_test))


# --- hostile descriptions of models ---------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], Any]:
    path = tmp_path_factory.mktemp("hostile") / "model"
    model = model_with(3, classes=["a", "b", "c"], feature_names=["x", "y", "z"], scaler=scaler())
    hdnn.save(model, path)
    with safe_open(path, framework="pt") as file:
        description = json.loads(file.metadata()["hdnn"])
    del description["sha256"]  # else every change would be detected by its checksum
    return path.with_name("other"), description, load_file(path)


HOSTILE: dict[str, tuple[tuple[str, ...], Any]] = {
    "outputs a text": (("outputs",), "3"),
    "outputs too many": (("outputs",), 10**9),
    "outputs negative": (("outputs",), -3),
    "outputs a fraction": (("outputs",), 3.0),
    "outputs nothing": (("outputs",), None),
    "task unknown": (("task",), "regresion"),
    "task a list": (("task",), ["classification"]),
    "classes a number": (("classes",), 3),
    "classes a text": (("classes",), "abc"),
    "classes too few": (("classes",), ["a"]),
    "classes of lists": (("classes",), [["a"], ["b"], ["c"]]),
    "classes of nothing": (("classes",), [None, None, None]),
    "names a number": (("feature_names",), 3),
    "names a text": (("feature_names",), "xyz"),
    "names too few": (("feature_names",), ["x", "y"]),
    "names of numbers": (("feature_names",), [1, 2, 3]),
    "augmentation a list": (("augmentation",), [3, 6]),
    "augmentation too wide": (("augmentation", "width"), 10**12),
    "augmentation of another width": (("augmentation", "width"), 8),
    "augmentation of other features": (("augmentation", "features"), 2),
    "augmentation unknown": (("augmentation", "mode"), "prepend"),
    "network nothing": (("network",), None),
    "network a text": (("network",), "MS1"),
    "layers other": (("network", "layers"), 3),
    "layers huge": (("network", "layers"), 10**12),
    "step infinite": (("network", "step"), float("inf")),
    "scheme a text": (("network", "scheme"), "Verlet"),
    "width huge": (("network", "field", "features"), 10**9),
    "kind network": (("kind",), "network"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_description_is_refused(name: str, hostile: Any) -> None:
    path, description, tensors = hostile
    keys, value = HOSTILE[name]
    changed = copy.deepcopy(description)
    place = changed
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    save_file(tensors, path, metadata={"hdnn": json.dumps(changed)})
    with pytest.raises(FileFormatError):
        hdnn.load(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("head.weight", None),
        ("head.weight", torch.ones(3, 7)),
        ("head.bias", torch.ones(2)),
        ("scaler.scale", None),
        ("scaler.mean", torch.ones(5)),
        ("scaler.scale", torch.ones(2, 3)),
        ("network.field.weights.theta", None),
        ("stranger", torch.ones(2)),
    ],
    ids=lambda value: value if isinstance(value, str) else str(getattr(value, "shape", "absent")),
)
def test_tensors_that_do_not_fit_are_refused(
    name: str, value: torch.Tensor | None, hostile: Any
) -> None:
    path, description, tensors = hostile
    changed = {k: v for k, v in tensors.items() if k != name}
    if value is not None:
        changed[name] = value
    save_file(changed, path, metadata={"hdnn": json.dumps(description)})
    with pytest.raises(FileFormatError):
        hdnn.load(path)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else ()
    return [path, *(leaf for key, child in children for leaf in leaves(child, (*path, key)))]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@settings(max_examples=300)
@given(data=st.data())
def test_any_description_is_read_or_refused(data: st.DataObject, hostile: Any) -> None:
    path, description, tensors = hostile
    keys = data.draw(st.sampled_from(leaves(description)[1:]))
    changed = copy.deepcopy(description)
    place = changed
    for key in keys[:-1]:
        place = place[key]
    if data.draw(st.booleans()):
        place[keys[-1]] = data.draw(JSON)
    else:
        del place[keys[-1]]
    save_file(tensors, path, metadata={"hdnn": json.dumps(changed)})
    try:
        model = hdnn.load(path)
    except FileFormatError:
        return
    assert isinstance(model, Model)
    x = torch.randn(2, model.features, dtype=model.head.weight.dtype)
    assert model(x).shape == (2, 3)


def test_every_setting_is_in_the_tables_above() -> None:
    assert {table: set(OTHER[table]) for table in KINDS} == {
        table: {f.name for f in fields(kind)} for table, kind in KINDS.items()
    }
    assert set(asdict(RunConfig())) == set(KINDS)
