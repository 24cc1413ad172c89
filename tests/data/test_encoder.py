"""Columns become numbers, the same ones after the encoder went through JSON and through a model."""

from __future__ import annotations

import csv
import io
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hdnn
from commands import done, fails
from hdnn.data import ColumnEncoder, Table, read_table
from hdnn.errors import HdnnError


def encoded(table: Table, **options: Any) -> ColumnEncoder:
    return ColumnEncoder.fit(table.columns, table.types, **options)


def test_columns_without_use_are_left_out_and_mentioned() -> None:
    columns = {
        "constant": [1] * 30,
        "empty": [None] * 30,
        "mail": [f"u{i}@x" for i in range(30)],
        "user_id": list(range(100, 130)),
        "Unnamed: 0": list(range(30)),
        "grid": np.arange(30.0),
        "v": np.arange(30) % 7,
    }
    encoder = encoded(read_table(columns))
    assert encoder.feature_names == ["grid", "v"]
    constant, empty, *ids = encoder.notes
    assert (constant, empty) == (
        "left out, constant: constant",
        "left out, without any value: empty",
    )
    assert [note.rpartition("): ")[2] for note in ids] == ["mail", "user_id, Unnamed: 0"]
    encoder = encoded(read_table(columns, categorical=["mail"]), keep=["mail", "user_id"])
    assert {"user_id", "mail=u0@x"} <= {*encoder.feature_names}
    with pytest.raises(HdnnError, match=r"constant: x0, x1, .*x9 and 15 more"):
        encoded(read_table(np.ones((3, 25))))


def test_dates_become_elapsed_days_and_what_recurs() -> None:
    days = pd.date_range("2020-01-01", periods=800, freq="12h")
    encoder = encoded(read_table({"when": days.to_series(), "v": np.arange(800.0)}))
    assert encoder.feature_names[:3] == ["when.days", "when.year.sin", "when.year.cos"]
    X = encoder.transform({"when": days.to_numpy()[:15], "v": np.zeros(15)})
    assert X[:4, 0].tolist() == [0, 0.5, 1, 1.5]
    week = encoder.feature_names.index("when.week.sin")
    assert X[14, week] == pytest.approx(X[0, week], abs=1e-9)


def test_categories_unseen_missing_and_rare() -> None:
    few = encoded(read_table({"c": ["b", "a", "b", None], "v": [1, 2, 3, 4]}))
    assert few.feature_names == ["c=b", "c=a", "v"]
    X = few.transform({"c": np.array(["a", "new", None], object), "v": np.zeros(3)})
    assert X[:, :2].tolist() == [[0, 1], [0, 0], [0, 0]]
    assert few.notes == ()
    many = encoded(read_table({"c": [f"t{i % 40}" for i in range(500)]}))
    assert len(many.feature_names) == 33
    (note,) = many.notes
    assert note.endswith("the 32 most frequent texts, and one for the others: c (40 texts)")
    assert many.feature_names[32] == "c=(rare)"
    X = many.transform({"c": np.array(["t0", "t39", "new", None], object)})
    assert X.sum(1).tolist() == [1, 1, 1, 0]
    assert X[:, 32].tolist() == [0, 1, 1, 0]


def test_free_text_is_left_out_and_mentioned() -> None:
    """Where most texts occur once, a feature for each of the most frequent tells of few rows."""
    rng = np.random.default_rng(0)
    comments = [f"{a} {b}" for a, b in rng.integers(25, size=(500, 2))]
    columns = {"comment": comments, "v": np.arange(500.0)}
    encoder = encoded(read_table(columns))
    assert encoder.feature_names == ["v"]
    assert encoder.notes == (
        "left out, free text (in fewer than two rows each, on average): comment",
    )
    kept = encoded(read_table(columns, categorical=["comment"]), keep=["comment"])
    assert len(kept.feature_names) == 34
    often = encoded(read_table({**columns, "comment": comments[:200] * 2 + comments[:100]}))
    assert len(often.feature_names) == 34
    small = {name: values[:32] for name, values in columns.items()}
    small["comment"][:5] = ["again"] * 5
    assert len(encoded(read_table(small)).feature_names) > 20


def test_gaps_get_an_indicator_where_there_are_many() -> None:
    columns = {name: np.arange(1000.0) for name in ("few", "many")}
    columns["few"][:49], columns["many"][:50] = np.nan, np.nan
    encoder = encoded(read_table(columns))
    assert encoder.feature_names == ["few", "many", "many is missing"]
    assert encoder.transform(columns)[:, 2].sum() == 50


cell = st.none() | st.text(max_size=5) | st.sampled_from(["2020-01-01", "1.5", "inf", "a", "?"])


Rows = list[tuple[str | None, str | None]]


@given(st.lists(st.tuples(cell, cell), min_size=1, max_size=30))
def test_any_columns_are_encoded_and_restored_or_raise(rows: Rows) -> None:
    with suppress(HdnnError):
        encode_and_restore(rows)


def test_columns_of_every_kind_are_encoded_and_restored() -> None:
    encode_and_restore([("1.5", "a"), (None, "?"), ("2", "b"), ("-1", "a")])
    encode_and_restore([("2020-01-01", None), ("2021-06-30", "a"), ("?", "b"), (None, "a")])


def encode_and_restore(rows: Rows) -> None:
    columns = {"a": [a for a, _ in rows], "b": [b for _, b in rows]}
    table = read_table(columns)
    encoder = encoded(table)
    X = encoder.transform(table.columns)
    assert X.shape == (len(rows), len(encoder.feature_names))
    assert not np.isinf(X).any()
    again = ColumnEncoder.from_list(json.loads(json.dumps(encoder.to_list())))
    assert again.columns == encoder.columns
    read = again.transform(again.read_frame(pd.DataFrame(columns)))
    assert np.array_equal(read, X, equal_nan=True)


def test_values_that_describe_no_encoder_raise() -> None:
    wrong: list[Any] = ["x", [{"name": "a"}], [{"name": 1, "kind": "number"}]]
    for more in ({"kind": "x"}, {"format": "x"}, {"rare": 1}, {"periods": ["eon"]}, {"more": 1}):
        wrong.append([{"name": "a", "kind": "date"} | more])
    for described in wrong:
        with pytest.raises(HdnnError, match="describe no columns"):
            ColumnEncoder.from_list(described)


# --- with a model ---------------------------------------------------------------------------------


def customers(rows: int) -> str:
    lines = ["customer_id,city,since,income,active,churned"]
    for i in range(rows):
        income = "" if i % 5 == 0 else f"{1000 + 37 * i % 911}.5"
        since = f"20{10 + i % 9}-0{1 + i % 9}-1{i % 9}"
        city, active = ("Zürich", "Genève", "Bern")[i % 3], ("true", "false")[i % 2]
        lines.append(f"C{i:05d},{city},{since},{income},{active},{'yes' if i % 3 else 'no'}")
    return "\n".join(lines) + "\n"


def test_a_table_as_people_have_it_trains_predicts_and_evaluates(tmp_path: Path) -> None:
    """With no option but the target; the encoding is that of the run, and saved with it."""
    path, run = tmp_path / "data.csv", tmp_path / "run"
    path.write_text(customers(400))
    settings = ("--epochs", 1, "--layers", 2)
    trained = done("train", path, "--target", "churned", "--out", run, *settings)
    said = " ".join(trained.stderr.split())
    assert "columns: 2 numbers (income, active), 1 date (since), 1 category (city)" in said
    assert trained.stderr.count("note:") <= 4
    model = hdnn.load(run / "model.safetensors")
    assert {"city=Zürich", "income is missing"} <= {*model.feature_names}
    assert not any("customer_id" in name for name in model.feature_names)

    shown = done("predict", run, path)
    rows = list(csv.reader(io.StringIO(shown.stdout)))
    assert rows[0][-3:] == ["prediction", "p_no", "p_yes"]
    assert [row[:6] for row in rows] == list(csv.reader(io.StringIO(customers(400))))
    encoder = ColumnEncoder.from_list(model.columns)
    table = read_table(path, "churned", types=encoder.columns, classes=model.classes)
    X = torch.from_numpy(encoder.transform(table.columns)).to(model.head.weight.dtype)
    assert [row[-3] for row in rows[1:]] == [model.classes[k] for k in model.predict(X).tolist()]

    strange = tmp_path / "new.csv"
    strange.write_text(customers(3).replace("Bern", "Ürümqi"))
    done("predict", run, strange)
    strange.write_text(customers(3).replace("2010-01-10", "soon"))
    fails(2, ("predict", run, strange), "line 2 holds 'soon'")


@pytest.mark.filterwarnings("ignore:left out")  # the command line has a note
@pytest.mark.parametrize(("target", "rows"), [("churned", 1200), ("income", 300)])
def test_command_line_and_estimator_give_the_same_model(
    tmp_path: Path, target: str, rows: int
) -> None:
    path = tmp_path / "data.csv"
    path.write_text(customers(rows).replace("Bern", "", 7))
    words = ("train", path, "--target", target, "--test", 0, "--seed", 5, "--epochs", 3)
    done(*words, "--out", tmp_path / "run")
    model = hdnn.load(tmp_path / "run" / "model.safetensors")
    frame = pd.read_csv(path, parse_dates=["since"]).dropna(subset=[target])
    y = frame.pop(target)
    kind = hdnn.HDNNClassifier if target == "churned" else hdnn.HDNNRegressor
    fitted = kind(max_iter=3, random_state=5).fit(frame, y).model_
    assert model.feature_names == fitted.feature_names
    mine, other = model.state_dict(), fitted.state_dict()
    assert mine.keys() == other.keys()
    assert all(torch.equal(mine[name], other[name]) for name in mine)
