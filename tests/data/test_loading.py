"""What a config names is what is loaded, and a setting for other data is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from commands import write_rows
from hdnn.config import DataConfig
from hdnn.data import load
from hdnn.errors import HdnnError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images by class."""
    for k in range(8):
        path = tmp_path / "images" / f"class{k % 2}" / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (6, 6), k).save(path)
    return tmp_path / "images"


def test_settings_of_tables_reach_those_of_scikit_learn() -> None:
    iris = load(DataConfig(source="iris", drop=["petal width (cm)"]))
    assert iris.feature_names is not None
    assert len(iris.feature_names) == 3
    widths = load(DataConfig(source="iris", target="petal width (cm)"))
    assert (widths.task, widths.target_names) == ("regression", ("petal width (cm)",))
    assert "target=setosa" in (widths.feature_names or ())
    with pytest.raises(HdnnError, match="unknown column 'nonsense'"):
        load(DataConfig(source="iris", target="nonsense"))
    with pytest.raises(HdnnError, match="needs finite numbers"):
        load(DataConfig(source="iris", task="regression"))
    with pytest.raises(HdnnError, match="has changed"):
        load(DataConfig(source="iris", digest="0"))


def test_held_out_rows_do_not_decide_how_columns_are_encoded(tmp_path: Path) -> None:
    rows = range(60)
    codes = [f"c{row // 2}" for row in rows]
    path = write_rows(tmp_path / "t.csv", row=rows, code=codes, y=[row % 2 for row in rows])
    data = load(DataConfig(source=str(path), target="y", numeric=["row"], test=0.4))
    assert data.encoder is not None
    _, code = data.encoder.columns
    trained_on = {codes[int(row)] for row in data.X[:, 0]}
    assert set(code.levels) == trained_on
    assert trained_on < set(codes)


@pytest.mark.parametrize(
    ("source", "values", "words"),
    [
        ("swiss-roll", {"target": "x"}, r"target \(--target\) is for tables, not for planar"),
        ("swiss-roll", {"pixels": 3}, r"pixels \(--pixels\) is for images, not for planar"),
        (
            "swiss-roll",
            {"test": 0.2},
            r"test \(--test\) is for tables, not for planar",
        ),  # the default
        ("iris", {"size": 5}, r"size \(--size\) is for planar problems, not for tables"),
        ("digits", {"test": 0.5}, r"test \(--test\) is for tables, not for images"),
        ("digits", {"pixels": 3}, "those of digits have one size"),
        ("folder", {"drop": ["a"]}, r"drop \(--drop\) is for tables, not for images"),
    ],
)
def test_settings_of_other_data_raise(
    source: str, values: dict[str, Any], words: str, folder: Path
) -> None:
    with pytest.raises(HdnnError, match=words):
        load(DataConfig(source=str(folder) if source == "folder" else source, **values))
