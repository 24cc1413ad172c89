"""One definition of each setting: flags, groups and the documentation come from it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import hdnn.cli.train  # noqa: F401 (registers the command)
from hdnn.cli import app
from hdnn.cli.flags import setting_flags
from hdnn.cli.settings_page import RECORDS, fill
from hdnn.errors import HdnnError
from hdnn.models import image_model
from hdnn.training.run_config import RunConfig
from hdnn.training.schema import GROUPS, check_value, settings_of
from hdnn.training.settings import ImageModelConfig, TrainingConfig

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
ALL = [(table, s) for table, kind in RECORDS.items() for s in settings_of(kind)]
each_setting = pytest.mark.parametrize(("table", "setting"), ALL, ids=lambda v: str(v)[:40])


def test_the_page_of_settings_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert fill(text) == text, "run: python -m hdnn.cli.settings_page docs/settings.md"
    assert fill(text.replace("Samples in an iteration.", "?")) == text
    for _, setting in ALL:
        assert f"| `{setting.name}` |" in text


@each_setting
def test_every_setting_has_a_line_of_help_and_a_default_that_is_allowed(
    table: str, setting: Any
) -> None:
    assert setting.help.endswith(".")
    assert "\n" not in setting.help + setting.allowed
    assert setting.group in GROUPS
    if setting.default is not None:
        assert check_value(RECORDS[table], setting.name, setting.default) == setting.default
    with pytest.raises(HdnnError, match=setting.name):
        check_value(RECORDS[table], setting.name, object())


def parameters() -> dict[str, Any]:
    train = get_command(app).commands["train"]  # type: ignore[attr-defined]
    return {option: p for p in train.params for option in (*p.opts, *p.secondary_opts)}


def test_every_setting_has_a_flag_in_its_group_unless_a_config_file_only_has_it() -> None:
    known = parameters()
    for _, setting in ALL:
        for flag in setting.flags:
            assert known[flag].help
        if setting.flags and "Network" not in setting.group:  # where tables and images may differ
            assert known[setting.flags[0]].rich_help_panel == setting.group
    panels = dict.fromkeys(
        p.rich_help_panel for p in known.values() if p.name not in ("help", "source")
    )
    assert tuple(panels) == GROUPS
    without = {setting.name for _, setting in ALL if not setting.flags}
    assert without == {
        "source",
        "digest",
        "betas",
        "solver_iterations",
        "loop",
        "depths",
        "samples",
    }


FLAGS = """
--T --activation --alpha --alpha-c --architecture --augmentation --averaging --balanced
--batch-size --block --categorical --checkpoint-seconds --clip --config --connector --data
--data-dir --decay --device --drop --dtype --early-stopping --epochs --erase --flip --head --json
--kernel --label-smoothing --layers --learning-rate --lr --method
--no-flip --no-overwrite --no-standardize --no-strict --no-time-invariant --norm --numeric
--optimizer --out --overwrite --pixels --preset --projection --protocol --record --report
--resume --rotate --scale --schedule --seed --shift --size --solver --split --standardize --step
--strict --target --task --test --time-invariant --validation --warmup
--weight-decay --width --widths --zoom
"""


def test_the_flags_of_train_stay() -> None:
    assert {name for name in parameters() if name.startswith("--")} - {"--help"} == set(
        FLAGS.split()
    )


def test_help_shows_default_and_range() -> None:
    found = parameters()
    assert "at least 1" in found["--batch-size"].help
    assert found["--batch-size"].show_default == "125"
    assert found["--architecture"].show_default == "H1; images: H2"
    assert not found["--record"].show_default  # without the flag nothing is recorded


def test_one_flag_sets_a_setting_in_every_table_that_has_it() -> None:
    flags = {flag.names[0]: flag for flag in setting_flags()}
    assert flags["--seed"].read(3) == {t: {"seed": 3} for t in ("data", "model", "training")}
    assert flags["--layers"].read("4,2") == {"model": {"layers": [4, 2]}}
    assert flags["--balanced"].read(True) == {"training": {"class_weight": "balanced"}}
    assert flags["--balanced"].read(False) == {}
    assert flags["--record"].read(5) == {"record": {"every": 5}}
    assert flags["--flip"].read(False) == {"training": {"flip": False}}


@pytest.mark.parametrize("name", RECORDS)
def test_a_config_file_knows_the_same_settings(name: str) -> None:
    tables: dict[str, dict[str, Any]] = {"data": {"source": "digits"}} if name == "images" else {}
    tables.setdefault("model" if name == "images" else name, {})["x_y_z"] = 1
    with pytest.raises(HdnnError, match="unknown setting 'x_y_z'") as caught:
        RunConfig.from_tables(tables)
    named = re.findall(r"\w+", str(caught.value))
    assert {s.name for s in settings_of(RECORDS[name])} <= set(named)


def test_images_have_the_defaults_of_their_model() -> None:
    given, parameters = ImageModelConfig().options(), inspect.signature(image_model).parameters
    for name in given.keys() - {"step", "dtype"}:
        default = parameters[name].default
        assert given[name] == ((default,) if name in ("widths", "layers") else default)


@pytest.mark.parametrize("value", ["4", True, 4.0, None, [4]])
def test_types_are_strict(value: Any) -> None:
    with pytest.raises(HdnnError, match="epochs is an integer of at least 0, got"):
        TrainingConfig(epochs=value)


def test_a_message_is_short_whatever_was_given() -> None:
    for value in ("x" * 10**6, 10**5000, [0] * 10**5, {"a": "b" * 10**5}):
        with pytest.raises(HdnnError, match="epochs") as caught:
            TrainingConfig(epochs=value)  # type: ignore[arg-type]
        assert len(str(caught.value)) < 200
