"""Every setting once: defaults of the paper, checks, TOML and back, flags, the page of settings."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hdnn.cli.train  # noqa: F401 (registers the command)
from hdnn.config import TABLES, Config, DataConfig, ModelConfig, TrainingConfig, all_settings
from hdnn.errors import HdnnError

OPTIONAL = {each.name for each in all_settings() if each.default is None}
"""Settings that may be None, which TOML does not have."""


# --- defaults, and what is set --------------------------------------------------------------------


def test_the_defaults_are_appendix_B1() -> None:
    config = TrainingConfig()
    assert (config.method, config.epochs, config.batch_size) == ("coordinate", 50, 125)
    assert (config.learning_rate, config.alpha, config.alpha_c) == (0.05, 5e-3, 1e-4)
    assert [config.learning_rate_at(epoch) for epoch in (0, 49)] == [0.05, 0.05]


def test_none_counts_as_not_set() -> None:
    config = Config(model={"layers": None, "width": 4}, training={"alpha": 5e-3})
    assert config.model.model_fields_set == {"width"}
    assert config.training.model_fields_set == {"alpha"}  # though it is the default
    assert config.data.model_fields_set == set()
    assert Config(model=ModelConfig(width=4)).model.model_fields_set == {"width"}


def test_replace_sets_what_it_is_given_and_checks_it() -> None:
    config = TrainingConfig(epochs=5)
    assert config.replace(alpha=0.1).model_fields_set == {"epochs", "alpha"}
    assert config.replace(alpha=None) == config
    with pytest.raises(HdnnError, match="epochs should be greater"):
        config.replace(epochs=-1)
    with pytest.raises(TypeError):  # by name only: a second "source" cannot vanish
        DataConfig("iris", source="wine")  # type: ignore[call-arg, misc]


def test_schedules() -> None:
    def rates(schedule: str, *epochs: float, **options: Any) -> list[float]:
        config = TrainingConfig(schedule=schedule, learning_rate=0.1, epochs=4, **options)
        return [config.learning_rate_at(epoch) for epoch in epochs]

    assert rates("exponential", 0, 1, 2, decay=0.8) == pytest.approx([0.1, 0.08, 0.064])
    assert rates("cosine", 0, 1, 2, 4) == pytest.approx([0.1, 0.1 * (2 + 2**0.5) / 4, 0.05, 0])
    assert rates("one-cycle", 0.5, 1, 2.5, 4, warmup=1.0) == pytest.approx([0.05, 0.1, 0.05, 0])


# --- TOML -----------------------------------------------------------------------------------------


def test_every_setting_comes_back(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "data": {"source": 'C:\\"my" Zürich\t[1].csv', "drop": ("a", 'b"', "c\\"), "target": "é"},
        "model": {"architecture": "ms1", "layers": (5, 2), "T": 0.1 + 0.2, "scale": 1e22},
        "training": {"learning_rate": 1e-300, "class_weight": (0.5, 2.0), "flip": True},
        "record": {"depths": (0, 2)},
    }
    tables = {name: kind(**{**dict(kind()), **values[name]}) for name, kind in TABLES.items()}
    for table in tables.values():
        assert table.model_fields_set >= type(table).model_fields.keys() - OPTIONAL
    config = Config(**tables, protocol="paper")
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    again = Config.from_toml(path)
    assert again == config
    assert again.training.model_fields_set == config.training.model_fields_set


@given(text=st.text(st.characters(codec="utf-8")), number=st.floats(0, 1, exclude_max=True))
def test_any_text_and_number_come_back(
    tmp_path_factory: pytest.TempPathFactory, text: str, number: float
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    config = Config(data={"source": text, "drop": [text], "test": number})
    path.write_bytes(config.to_toml().encode())
    assert Config.from_toml(path) == config


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = [", "not TOML"),
        ('x = "\udcff"', "not TOML"),
        ("[modell]", "did you mean 'model'"),
        ("model = 4", "model is a table of settings, got 4"),
        ("[model]\nlayer = 4", "did you mean 'layers'"),
        ("[model]\narchitecture = 'H11'", "unknown architecture 'H11'.*did you mean 'H1'"),
        ("[model]\nlayers = 0", "layers should be greater than or equal to 1, got 0"),
        ("[model]\nT = 0.0", "T should be greater than 0, got 0.0"),
        ("[data]\nsplit = 'papre'", "unknown split.*did you mean 'paper'"),
        ("[data]\ndrop = 'abc'", "drop should be a valid tuple, got 'abc'"),
        ("[data]\ntest = 1.0", "test should be less than 1, got 1.0"),
        ("[training]\nclass_weight = [1.0, -1.0]", "class_weight"),
        ("[training]\nlearning_rate = nan", "learning_rate should be a finite number"),
        ("[training]\nearly_stopping = 3", "needs a part for validation: --validation 0.1"),
        ("[training]\nepochs = 2\nwarmup = 3.0", "longer than the 2 epochs"),
        (f"[training]\nseed = {2**64}", "seed should be less than"),
    ],
)
def test_errors_name_file_setting_and_what_is_allowed(
    text: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "my.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(HdnnError, match=f"(?s)my.toml.*{words}"):
        Config.from_toml(path)


@pytest.mark.parametrize("value", ["4", True, 4.5, [0] * 10**5, "x" * 10**6, {"a": "b" * 10**5}])
def test_types_are_strict_and_messages_short(value: Any) -> None:
    with pytest.raises(HdnnError, match="epochs should be a valid integer, got") as caught:
        TrainingConfig().replace(epochs=value)
    assert len(str(caught.value)) < 200


# --- flags and documentation ----------------------------------------------------------------------


def test_the_page_of_settings_is_up_to_date() -> None:
    page = Path(__file__).parent.parent / "docs" / "settings.md"
    text = page.read_text(encoding="utf-8")
    filled = runpy.run_path(str(page.with_name("settings_page.py")))["filled"]
    assert filled(text) == text, "run: python docs/settings_page.py"
