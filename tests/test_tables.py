"""Tables from files and arrays: what is read, what is remarked on, and every error."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import hdnn
from hdnn.cli import app
from hdnn.data import (
    BUNDLED,
    ColumnEncoder,
    Table,
    bundled,
    decode,
    encode,
    guess_task,
    iter_rows,
    read_table,
)
from hdnn.errors import FileFormatError, HdnnError

IRISES = "width,length,kind\n1.5,2,setosa\n2.5,NA,virginica\n3.5,4,setosa\n"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def save(content: str | bytes, name: str = "data.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return save


Write = Callable[..., Path]


def as_matrix(values: dict[str, Any]) -> Any:
    return np.stack(list(values.values()), 1)


def same(a: Any, b: Any) -> bool:
    return np.array_equal(np.asarray(a, float), np.asarray(b, float), equal_nan=True)


# ---------------------------------------------------------------------------------------- files
def test_a_csv_file_with_text_labels_and_a_missing_value(write: Write) -> None:
    table = read_table(write(IRISES), "kind")
    assert same(table.X, [[1.5, 2], [2.5, np.nan], [3.5, 4]])
    assert table.X.dtype == np.float64
    assert table.y is not None
    assert table.y.tolist() == ["setosa", "virginica", "setosa"]
    assert table.feature_names == ("width", "length")
    assert (table.target, table.task) == ("kind", "classification")
    assert table.classes == ("setosa", "virginica")
    assert table.targets.tolist() == [0, 1, 0]
    assert table.notes == (
        "missing values among 3 rows: length 1",
        "classes with one row only: 'virginica'",
    )
    assert repr(table) == "Table(3 rows, 2 features, 2 classes in 'kind')"


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_delimiters_line_ends_and_byte_order_marks(
    write: Write, delimiter: str, end: str, mark: str
) -> None:
    text = mark + IRISES.replace(",", delimiter).replace("\n", end) + end + end
    table = read_table(write(text), "kind")
    assert table.feature_names == ("width", "length")
    assert len(table.X) == 3


def test_a_comma_in_the_names_does_not_make_it_the_delimiter(write: Write) -> None:
    table = read_table(write("height, m;weight, kg;kind\n1;2;a\n3;4;b\n"), "kind")
    assert table.feature_names == ("height, m", "weight, kg")


def test_quotes_spaces_and_words(write: Write) -> None:
    text = '"a ""x"", b", flag, label\n 1 , True, "two, three"\n"2",false, one \n'
    table = read_table(write(text), "label")
    assert table.feature_names == ('a "x", b', "flag")
    assert same(table.X, [[1, 1], [2, 0]])
    assert table.classes == ("one", "two, three")


@pytest.mark.parametrize("token", ["", "NA", "NaN", "nan", "null", "None", "?", " NA ", "NAN"])
def test_every_missing_token(write: Write, token: str) -> None:
    table = read_table(write(f"a,b,y\n1,{token},0.5\n2,3,1.5\n3,4,{token}\n"), "y")
    assert same(table.X, [[1, np.nan], [2, 3]])
    assert table.task == "regression"
    assert "1 of 3 rows left out: no value in the target 'y'" in table.notes


def encoded(table: Table, **options: Any) -> ColumnEncoder:
    return ColumnEncoder.fit(table.columns, table.types, **options)


def test_constant_and_empty_columns_are_left_out_and_mentioned() -> None:
    table = read_table({"c": [1, 1, 1], "e": [None] * 3, "v": [1, 2, 3], "w": [1, 1, None]})
    assert table.feature_names == ("c", "e", "v", "w")
    assert table.notes == ("missing values among 3 rows: w 1",)
    encoder = encoded(table)
    assert encoder.feature_names == ["v", "w"]
    assert encoder.notes == ("left out, constant: c", "left out, without any value: e")
    with pytest.raises(HdnnError, match=r"constant: x0, x1, .*x9 and 15 more"):
        encoded(read_table(np.ones((3, 25))))


def test_a_table_without_a_target(write: Write) -> None:
    table = read_table(write("a,b\n1,2\n"))
    assert (table.y, table.target, table.task, table.classes) == (None, None, None, None)
    assert repr(table) == "Table(1 rows, 2 features, no target)"
    with pytest.raises(HdnnError, match="target="):
        _ = table.targets
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.X = table.X  # type: ignore[misc]


def test_columns_can_be_chosen_and_dropped(write: Write) -> None:
    path = write("id,a,b,label\nu1,1,2,x\nu2,3,4,y\n")
    assert read_table(path, "label", drop=["id"]).feature_names == ("a", "b")
    chosen = read_table(path, "label", features=["b", "a"])
    assert chosen.feature_names == ("b", "a")
    assert same(chosen.X, [[2, 1], [4, 3]])
    for wrong in ({"features": ["label"]}, {"features": ["a"], "drop": ["a"]}):
        with pytest.raises(HdnnError, match="neither the target nor dropped"):
            read_table(path, "label", **wrong)  # type: ignore[arg-type]
    for wrong in ({"features": "ab"}, {"drop": "id"}):
        with pytest.raises(HdnnError, match="lists of column names"):
            read_table(path, "label", **wrong)  # type: ignore[arg-type]
    for wrong in ({"features": ["c"]}, {"drop": ["c"]}):
        with pytest.raises(HdnnError, match="unknown column"):
            read_table(path, "label", **wrong)  # type: ignore[arg-type]


def test_data_for_a_model_keep_the_models_classes(write: Write) -> None:
    path = write("b,text,a,label\n1,?,2,1\n")
    table = read_table(path, "label", features=["a", "b"], classes=["0", "1", "x"])
    assert same(table.X, [[2, 1]])
    assert table.classes == ("0", "1", "x")
    assert table.y is not None
    assert table.y.tolist() == ["1"]
    assert table.targets.tolist() == [1]
    with pytest.raises(HdnnError, match="unknown label 1 in row 1: known are 'a', 'b'"):
        read_table(path, "label", features=["a"], classes=["a", "b"])


def test_large_files_are_read_in_blocks(write: Write) -> None:
    rows = 25_001
    text = "i,square,y\n" + "".join(f"{i},{i * i},{i / 2}\n" for i in range(rows))
    table = read_table(write(text), "y")
    assert same(table.X[:, 0], np.arange(rows))
    assert table.task == "regression"
    with pytest.raises(HdnnError, match="line 25003"):
        read_table(write(f"{text}x,1,1\n"), "y")


@pytest.mark.parametrize("name", ["data.parquet", "data.pq", "data.PARQUET"])
def test_parquet(tmp_path: Path, name: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "whole": pyarrow.array([1, None, 3]),
        "real": pyarrow.array([1.5, 2.5, float("nan")]),
        "flag": pyarrow.array([True, False, None]),
        "money": pyarrow.array([Decimal("1.5"), None, Decimal("2.5")]),
        "kind": pyarrow.array(["a", "b", "a"]).dictionary_encode(),
        "count": pyarrow.array([1, None, 2]),
        "price": pyarrow.array([Decimal("1.5"), Decimal("2.5"), None]),
        "day": pyarrow.array([0, 1, 2], pyarrow.date32()),
    }
    path = tmp_path / name
    parquet.write_table(pyarrow.table(columns), path)
    features = ["whole", "real", "flag", "money"]
    table = read_table(path, "kind", features=features)
    nan = np.nan
    assert same(table.X, [[1, 1.5, 1, 1.5], [nan, 2.5, 0, nan], [3, nan, nan, 2.5]])
    assert table.classes == ("a", "b")
    assert read_table(path, "count", features=features).classes == (1, 2)
    assert read_table(path, "flag", features=["real"]).classes == (False, True)
    assert same(read_table(path, "price", features=["real"]).y, [1.5, 2.5])
    dates = read_table(path, "kind", drop=[])
    assert [kind.kind for kind in dates.types][-1] == "date"
    assert dates.columns["day"].tolist()[2].day == 3
    with pytest.raises(HdnnError, match="column 'day' is not numeric: row 1"):
        _ = dates.X
    with pytest.raises(HdnnError, match="the target 'day' holds date"):
        read_table(path, "day", features=features)


def test_parquet_that_is_none(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow.parquet")
    with pytest.raises(FileFormatError, match="as Parquet"):
        read_table(write("not parquet", "data.parquet"))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(HdnnError, match=r"needs pyarrow: pip install 'hdnn\[data\]'"):
        read_table(write("not parquet", "data.parquet"))


def test_npz(tmp_path: Path) -> None:
    X, labels = np.arange(6.0).reshape(3, 2), np.array(["a", "b", "a"])
    np.savez(tmp_path / "pair.npz", X=X, y=labels)
    table = read_table(tmp_path / "pair.npz")
    assert same(table.X, X)
    assert table.feature_names == ("x0", "x1")
    assert (table.target, table.classes) == ("y", ("a", "b"))
    np.savez(tmp_path / "named.npz", X=X, y=labels, feature_names=np.array(["u", "v"]))
    assert read_table(tmp_path / "named.npz", "y").feature_names == ("u", "v")
    np.savez(tmp_path / "columns.npz", u=X[:, 0], v=X[:, 1], label=labels)
    table = read_table(tmp_path / "columns.npz", "label")
    assert same(table.X, X)
    assert table.feature_names == ("u", "v")


def test_npz_that_is_none(tmp_path: Path, write: Write) -> None:
    X = np.zeros((3, 2))
    np.savez(tmp_path / "more.npz", X=X, X_test=X)
    with pytest.raises(HdnnError, match="also X_test"):
        read_table(tmp_path / "more.npz")
    np.savez(tmp_path / "names.npz", X=X, feature_names=np.array(["u"]))
    with pytest.raises(HdnnError, match="2 features, but 1 feature names"):
        read_table(tmp_path / "names.npz")
    np.savez(tmp_path / "twice.npz", X=X, y=X[:, 0], feature_names=np.array(["y", "u"]))
    with pytest.raises(HdnnError, match="are both named 'y'"):
        read_table(tmp_path / "twice.npz")
    np.savez(tmp_path / "pickled.npz", y=np.array(["a", None], dtype=object))
    with pytest.raises(FileFormatError, match="dtype str and not object"):
        read_table(tmp_path / "pickled.npz")
    whole = (tmp_path / "more.npz").read_bytes()
    for content in (b"", b"not a zip", whole[: len(whole) // 2]):
        with pytest.raises(FileFormatError, match="as NPZ"):
            read_table(write(content, "broken.npz"))
    np.save(tmp_path / "one.npy", X)
    with pytest.raises(FileFormatError, match="it is one array"):
        read_table((tmp_path / "one.npy").rename(tmp_path / "one.npz"))


# --------------------------------------------------------------------------------------- arrays
def test_arrays_and_columns() -> None:
    X = np.arange(20).reshape(10, 2)
    table = read_table((X, np.arange(10) % 2 == 0))
    assert same(table.X, X)
    assert table.classes == (False, True)
    assert read_table(X, "x1").feature_names == ("x0",)
    assert read_table((X, X[:, :1] / 3)).task == "regression"
    objects = np.array([["1", None], ["?", 2.5]], dtype=object)
    assert same(read_table(objects).X, [[1, np.nan], [np.nan, 2.5]])
    gaps = read_table({"a": [1, 2, 3], "y": [1.5, None, math.nan]}, "y", task="regression")
    assert same(gaps.y, [1.5])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([[1.0, 2.0]], "DataFrame.*got list"),
        (np.zeros(3), r"2-D.*got shape \(3,\)"),
        ((np.zeros((3, 2)), np.zeros(4)), r"3 rows.*got shape \(4,\)"),
        ((np.zeros((3, 2)), np.zeros((3, 2))), r"got shape \(3, 2\)"),
        ({"a": [1, 2], "b": [1]}, "different lengths"),
        ({"a": np.zeros((2, 2))}, r"'a' has shape \(2, 2\)"),
        ({"a": [[1], [1, 2]]}, "'a' is not a sequence of single values"),
        ({1: [1, 2]}, "name is a text, got 1"),
        ({"": [1, 2]}, "column 1 has no name"),
        ({}, "no feature columns"),
        ({"a": []}, "too few rows: 0"),
        (np.zeros((0, 2)), "too few rows: 0"),
        ({"a": [1, "x"]}, "column 'a' is not numeric: row 2 holds 'x'"),
        ({"a": [1, 1j]}, "column 'a' is not numeric: row 1 holds"),
        ({"a": np.array([1, np.complex64(2)], dtype=object)}, "row 2 holds"),
        ({"a": np.array(["2020-01-01"], "M8[ns]")}, "column 'a' is not numeric: row 1"),
        ({"a": [1.0, np.inf]}, "'a' holds an infinite value .row 2"),
        ({"a": [1, 10**400]}, "column 'a' is not numeric: row 2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arrays_that_are_no_table(source: Any, message: str) -> None:
    with pytest.raises(HdnnError, match=message):
        _ = read_table(source).X


def test_a_target_of_many_kinds_or_infinite() -> None:
    with pytest.raises(HdnnError, match="holds int and str"):
        read_table({"a": [1, 2], "y": [1, "x"]}, "y")
    with pytest.raises(HdnnError, match=r"'y' holds an infinite value \(row 2"):
        read_table({"a": [1, 2], "y": [1.0, -math.inf]}, "y")


# ----------------------------------------------------------------------------- errors of a file
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\ufeff\n\n", "is empty"),
        ("a,y\n", "too few rows: 0"),
        ("a,y\n1,2\n", "too few rows: 1, and at least 2"),
        ("a,y\n1,\n2,?\n3,5\n", "too few rows: 1, and at least 2"),
        ("1,2\n3,4\n", r"no header: its first line is '1,2'; add a line of column names"),
        ("1.5;NA\n3;4\n", "no header"),
        ("a,b\n1,2\n", r"unknown column of .*data.csv 'y': known are a, b"),
        ("a,yy\n1,2\n", "did you mean 'yy'"),
        ("y\n1\n2\n", "no feature columns beside the target 'y'"),
        ("a,b,y\n1,2,3\n4,5\n", "line 3: 2 fields, but the header has 3"),
        ("a,b,y\n\n1,2,3,4\n", "line 3: 4 fields, but the header has 3"),
        ("a,a,y\n1,2,3\n", "2 columns are named 'a'"),
        ("a,y,y\n1,2,3\n", "2 columns are named 'y'"),
        (",a,y\n0,2,3\n", r"column 1 has no name.*index=False"),
        (
            "city,y\n1,2\n2,1\nRome,3\n",
            r"'city' is not numeric: line 4 holds 'Rome'; .*leave it out",
        ),
        ("a,y\n1_000,1\n2,2\n", "'a' is not numeric: line 2 holds '1_000'"),
        (f"a,y\n{'x' * 99},1\n2,2\n", r"line 2 holds 'x{56}\.\.\."),
        ("a,y\n1,2\ninf,3\n", "'a' holds an infinite value .line 3"),
        ("a,y\n1,2\n-1e999,3\n", "'a' holds an infinite value .line 3"),
        ("a,y\n1,2\n1,Infinity\n", "'y' holds an infinite value .line 3"),
        ("a,y\n1,u\n2,u\n", r"every row has the label 'u' in 'y'.*two classes"),
        ("a,y\n1,7\n2,7\n", "every row has the label 7"),
        ('a,y\n"1,2\n3,4\n', "check the quotes"),
        ('a,y\n"1"x,2\n', "check the quotes"),
    ],
    ids=lambda value: repr(value[:30]),
)
def test_a_file_that_is_no_table(write: Write, text: str, message: str) -> None:
    with pytest.raises(HdnnError, match=message):
        _ = read_table(write(text), "y").X


def test_files_that_cannot_be_read(write: Write, tmp_path: Path) -> None:
    for name in ("none.csv", "none.npz", "none.parquet"):
        with pytest.raises(HdnnError, match=f"cannot read .*{name}: No such file"):
            read_table(tmp_path / name)
        (tmp_path / f"folder.{name}").mkdir()
        with pytest.raises(HdnnError, match="not a regular file"):
            read_table(str(tmp_path / f"folder.{name}"))
    with pytest.raises(HdnnError, match=r"unknown kind of file '\.xlsx'; known are \.csv"):
        read_table(write("a,b\n", "data.xlsx"))
    with pytest.raises(FileFormatError, match="field limit"):
        read_table(write(f"a,y\n{'1' * 200_000},1\n"), "y")


def test_columns_that_pandas_numbered_are_a_header(write: Write) -> None:
    assert read_table(write("0,1,2\n5,6,7\n8,9,9\n"), "2").feature_names == ("0", "1")
    assert read_table(write("7,8\n5,6\n8,9\n"), "8").feature_names == ("7",)
    with pytest.raises(HdnnError, match="unknown column"):
        read_table(write("0,1,2\n5,6,7\n"), "y")


def test_of_many_columns_the_nearest_are_shown(write: Write) -> None:
    names = [f"pixel{j}" for j in range(784)] + ["label"]
    text = ",".join(names) + "\n" + ",".join("1" for _ in names) + "\n"
    with pytest.raises(HdnnError, match=r"785 columns.*did you mean 'label'") as caught:
        read_table(write(text), "lable")
    assert len(str(caught.value)) < 700


# ------------------------------------------------------------------------------ target and task
@pytest.mark.parametrize(
    ("cells", "task", "classes"),
    [
        ("a b a", "classification", ("a", "b")),
        ("true False true", "classification", (False, True)),
        ("1 0 1", "classification", (0, 1)),
        ("1.0 0 1", "classification", (0.0, 1.0)),
        ("01 02 01", "classification", ("01", "02")),
        ("1 2 b", "classification", ("1", "2", "b")),
        ("1_0 2_0 1_0", "classification", ("1_0", "2_0")),
        ("0.5 1 2", "regression", None),
        ("1 2 3", "regression", None),
        ("1 2 99999999999999999999", "regression", None),
        (" ".join("123" * 5), "classification", (1, 2, 3)),
        (" ".join("123" * 4), "regression", None),
    ],
)
def test_types_and_tasks(
    write: Write, cells: str, task: str, classes: tuple[Any, ...] | None
) -> None:
    table = read_table(
        write("a,y\n" + "".join(f"{i},{c}\n" for i, c in enumerate(cells.split()))), "y"
    )
    assert (table.task, table.classes) == (task, classes)
    if classes is not None and table.classes is not None:
        assert [type(label) for label in table.classes] == [type(label) for label in classes]
    else:
        assert table.targets.dtype == np.float64


def test_the_task_can_be_chosen(write: Write) -> None:
    path = write("a,y\n1,1\n2,2\n3,3\n")
    assert read_table(path, "y").task == "regression"
    assert read_table(path, "y", task="classification").classes == (1, 2, 3)
    assert repr(read_table(path, "y")) == "Table(3 rows, 1 features, regression of 'y')"
    binary = write("a,y\n1,True\n2,False\n")
    assert same(read_table(binary, "y", task="regression").y, [1, 0])
    with pytest.raises(HdnnError, match="did you mean 'regression'"):
        read_table(path, "y", task="regresion")
    texts = write("a,y\n1,1\n2,x\n")
    with pytest.raises(HdnnError, match=r"'y' holds 'x' \(line 3\), but regression needs"):
        read_table(texts, "y", task="regression")


def test_twenty_classes_are_the_most() -> None:
    assert guess_task(np.arange(1000) % 20) == "classification"
    assert guess_task(np.arange(1000) % 21) == "regression"
    assert guess_task(np.array([0.5, 1.5] * 50)) == "regression"


def test_one_bad_cell_does_not_make_prices_labels(write: Write) -> None:
    text = "a,y\n" + "".join(f"{i},{i / 7:.3f}\n" for i in range(50)) + "50,oops\n"
    with pytest.raises(HdnnError, match="'y' holds numbers, except line 52: 'oops'"):
        read_table(write(text), "y")
    chosen = read_table(write(text), "y", task="classification")
    assert chosen.classes is not None
    assert len(chosen.classes) == 51
    numerals = [str(i) for i in range(50)]  # texts by declaration, not for want of a type
    assert read_table({"a": range(50), "y": numerals}, "y").task == "classification"


def test_labels_to_numbers_and_back() -> None:
    for classes in (["a", "b", "c"], [3, 1, 2], [0.5, 1.5, -1.0], [False, True]):
        labels = [*classes, *reversed(classes)]
        numbers = encode(labels, classes)
        assert numbers.dtype == np.int64
        back = decode(numbers, classes).tolist()
        assert back == labels
        assert [type(label) for label in back] == [type(label) for label in labels]
        assert encode(np.array(labels), classes).tolist() == numbers.tolist()
    assert encode(["1", 2, "3.5"], [1, "2", 3.5]).tolist() == [0, 1, 2]
    assert decode([], ["a", "b"]).shape == (0,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: encode(["a", "z"], ["a", "b"]), "unknown label 'z' in row 2: known are 'a', 'b'"),
        (lambda: encode([None], ["a", "b"]), "a missing label in row 1"),
        (lambda: encode(["a"], ["a", "a"]), "must differ"),
        (lambda: decode([2], ["a", "b"]), "class number 2, but there are only 2"),
        (lambda: decode([-1], ["a", "b"]), "at least 0"),
        (lambda: decode([0.5], ["a", "b"]), "class numbers are integers"),
    ],
)
def test_labels_that_are_unknown(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(HdnnError, match=message):
        call()


# ----------------------------------------------------------------------------------- round trip
finite = st.floats(allow_nan=False, allow_infinity=False)
text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8).filter(
    lambda t: t.strip() == t and t[0].isalpha() and t.lower() not in ("na", "nan", "null", "none")
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[float | None]], list[str]]:
    names = draw(st.lists(text, min_size=2, max_size=5, unique=True))
    width = len(names) - 1
    row = st.lists(st.none() | finite, min_size=width, max_size=width)
    rows = draw(st.lists(row, min_size=2, max_size=20))
    labels = draw(st.lists(text, min_size=len(rows), max_size=len(rows)))
    return names, rows, labels


@given(
    data=tables(),
    delimiter=st.sampled_from(",;\t"),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    mark=st.booleans(),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    data: tuple[list[str], list[list[float | None]], list[str]],
    delimiter: str,
    quoting: Any,
    mark: bool,
) -> None:
    names, rows, labels = data
    path = tmp_path_factory.mktemp("csv") / "data.csv"
    encoding = "utf-8-sig" if mark else "utf-8"
    with open(path, "w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=delimiter, quoting=quoting)
        writer.writerow(names)
        for row, label in zip(rows, labels, strict=True):
            writer.writerow([*("" if v is None else repr(v) for v in row), label])
    expected = [[math.nan if v is None else v for v in row] for row in rows]
    if len(set(labels)) < 2 or {t.lower() for t in labels} <= {"true", "false", "inf", "infinity"}:
        labels, table = [], read_table(path, drop=[names[-1]])
    else:
        table = read_table(path, names[-1])
        assert table.y is not None
        assert table.y.tolist() == labels
        assert table.classes == tuple(sorted(set(labels)))
        assert decode(table.targets, table.classes).tolist() == labels
    assert table.feature_names == tuple(names[:-1])
    assert same(table.X, expected)
    chosen = names[:-1][::-1]
    blocks = list(iter_rows(path, chosen, chunk=3))
    assert same(
        np.concatenate([as_matrix(values) for _, values in blocks]), np.asarray(expected)[:, ::-1]
    )


# -------------------------------------------------------------------------------------- streams
def test_rows_are_streamed_by_name(write: Write) -> None:
    text = "id; b;label;a\n" + "".join(f"r{i};{i};x;{-i}\n" for i in range(25))
    stream = iter_rows(write(text), ["a", "b"], chunk=10)
    assert stream.header == ("id", "b", "label", "a")
    for _ in range(2):  # again from the start
        blocks = list(stream)
        assert [len(rows) for rows, _ in blocks] == [10, 10, 5]
        assert [as_matrix(values).shape for _, values in blocks] == [(10, 2), (10, 2), (5, 2)]
        assert blocks[2][0][4] == ["r24", "24", "x", "-24"]
        assert same(as_matrix(blocks[2][1])[4], [-24, 24])


def test_only_one_block_is_read_ahead(write: Write) -> None:
    stream = iter(iter_rows(write("a\n1\n2\nx\n"), ["a"], chunk=2))
    assert same(next(stream)[1]["a"], [1, 2])
    with pytest.raises(HdnnError, match="column 'a' is not numeric: line 4 holds 'x'"):
        next(stream)


def test_a_header_alone_gives_no_rows(write: Write) -> None:
    stream = iter_rows(write("a,b\n"), ["b"])
    assert stream.header == ("a", "b")
    assert list(stream) == []


def test_columns_that_do_not_matter_may_be_odd(write: Write) -> None:
    stream = iter_rows(write(",a,c,c\n0,1,x,y\n"), ["a"])
    assert [values["a"].tolist() for _, values in stream] == [[1.0]]


@pytest.mark.parametrize(
    ("text", "names", "message"),
    [
        ("a,b\n1,2\n", ["a", "c"], "unknown column of .* 'c': known are a, b"),
        ("a,a\n1,2\n", ["a"], "2 columns are named 'a'"),
        ("", ["a"], "is empty"),
    ],
)
def test_streams_are_checked_at_once(
    write: Write, text: str, names: list[str], message: str
) -> None:
    with pytest.raises(HdnnError, match=message):
        iter_rows(write(text), names)


def test_streams_are_csv_or_parquet(write: Write) -> None:
    with pytest.raises(HdnnError, match=r"CSV and Parquet.*not \.npz"):
        iter_rows(write("a\n", "data.npz"), ["a"])
    with pytest.raises(HdnnError, match="chunk is a positive"):
        iter_rows(write("a\n"), ["a"], chunk=0)


# -------------------------------------------------------------------------------------- bundled
@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("iris", (150, 4), 3),
        ("wine", (178, 13), 3),
        ("breast-cancer", (569, 30), 2),
        ("digits", (1797, 64), 10),
    ],
)
def test_bundled_data(name: str, shape: tuple[int, int], classes: int) -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    table = bundled(name)
    assert table.X.shape == shape
    assert table.classes is not None
    assert len(table.classes) == classes
    original = getattr(datasets, BUNDLED[name])()
    assert same(table.X, original.data)
    assert table.y is not None
    assert (table.y == original.target_names[original.target]).all()


def test_bundled_data_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HdnnError, match="did you mean 'breast-cancer'"):
        bundled("brest_cancer")
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(HdnnError, match=r"needs scikit-learn: pip install 'hdnn\[app\]'"):
        bundled("iris")


def test_tables_are_compared_by_identity() -> None:
    X = np.zeros((2, 1))
    assert Table({"a": X[:, 0]}, ()) != Table({"a": X[:, 0]}, ())


# -------------------------------------------------------------------------------------- columns
def kinds(table: Table) -> list[str]:
    return [kind.kind for kind in table.types]


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        ("1,5 2,25 3", [1.5, 2.25, 3]),
        ("1.234,5 2.000 7", [1234.5, 2000, 7]),
        ("1.234.567 2.000.000 7", [1234567, 2000000, 7]),
        ("1'234.5 2'000 7", [1234.5, 2000, 7]),
        ("1\u00a0234,5 2\u202f000 7", [1234.5, 2000, 7]),
        ("true FALSE 0.5", [1, 0, 0.5]),
        ("1e3 -2E-1 NA", [1000, -0.2, np.nan]),
    ],
)
def test_numbers_as_people_write_them(write: Write, cells: str, values: list[float]) -> None:
    rows = "".join(f"{cell};{k}\n" for k, cell in enumerate(cells.split(" ")))
    table = read_table(write(f"a;y\n{rows}"), "y", task="regression")
    assert same(table.columns["a"], values)


def test_thousands_in_quotes_are_no_decimals(write: Write) -> None:
    table = read_table(write('a,y\n"1,234",1\n"12,345.5",2\n'), "y", task="regression")
    assert same(table.columns["a"], [1234, 12345.5])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
def test_encodings(write: Write, encoding: str) -> None:
    table = read_table(write("größe,y\n1,für\n2,à\n".encode(encoding)), "y")
    assert table.feature_names == ("größe",)
    assert table.classes == ("für", "à")
    assert any("Latin-1" in note for note in table.notes) == (encoding == "latin-1")


@pytest.mark.parametrize(
    "cells",
    [
        ["2021-03-01", "2021-12-31", "NA"],
        ["2021-03-01T10:00:00Z", "2021-12-31T12:30:00+02:00", ""],
        ["01.03.2021", "31.12.2021", ""],
        ["03/01/2021", "12/31/2021", ""],
        ["01/03/2021", "31/12/2021", ""],
        ["2021/03/01 10:15", "2021/12/31 23:59", ""],
    ],
)
def test_dates_as_people_write_them(write: Write, cells: list[str]) -> None:
    text = "when,y\n" + "".join(f"{cell},{k}\n" for k, cell in enumerate(cells))
    table = read_table(write(text), "y", task="regression")
    assert kinds(table) == ["date"]
    first, second, missing = table.columns["when"].astype("M8[D]").tolist()
    assert (first.month, first.day, second.month, second.day) == (3, 1, 12, 31)
    assert missing is None


def test_dates_become_elapsed_days_and_what_recurs() -> None:
    days = pd.date_range("2020-01-01", periods=800, freq="12h")
    encoder = encoded(read_table({"when": days.to_series(), "v": np.arange(800.0)}))
    assert encoder.feature_names[:3] == ["when.days", "when.year.sin", "when.year.cos"]
    assert "when.day.sin" in encoder.feature_names
    X = encoder.transform({"when": days.to_numpy()[:4], "v": np.zeros(4)})
    assert same(X[:, 0], [0, 0.5, 1, 1.5])
    later = encoder.transform({"when": days.to_numpy()[:1] + np.timedelta64(7, "D"), "v": [0.0]})
    week = encoder.feature_names.index("when.week.sin")
    assert later[0, week] == pytest.approx(X[0, week], abs=1e-9)


def test_categories_unseen_missing_and_many() -> None:
    few = encoded(read_table({"c": ["b", "a", "b", None], "v": [1, 2, 3, 4]}))
    assert few.feature_names == ["c=b", "c=a", "v"]
    X = few.transform({"c": np.array(["a", "new", None], object), "v": np.zeros(3)})
    assert same(X[:, :2], [[0, 1], [0, 0], [0, 0]])
    texts = [f"t{i % 50}" for i in range(500)]
    many = encoded(read_table({"c": texts, "v": range(500)}))
    assert len(many.feature_names) == 32 + 16 + 1
    assert "c has 50 categories" in many.notes[0]
    X = many.transform({"c": np.array(["t0", "new"], object), "v": np.zeros(2)})
    assert (X[:, :-1].sum(1) == 1).all()  # one that is not known has its hash
    assert X[1, 32:48].sum() == 1


def test_gaps_get_an_indicator_where_there_are_many() -> None:
    column = np.arange(1000.0)
    column[:49] = np.nan
    table = {"a": column.copy(), "v": np.arange(1000.0)}
    assert encoded(read_table(table)).feature_names == ["a", "v"]
    table["a"][:50] = np.nan
    encoder = encoded(read_table(table))
    assert encoder.feature_names == ["a", "a is missing", "v"]
    assert encoder.transform(table)[:, 1].sum() == 50


def test_ids_are_left_out_unless_asked_for() -> None:
    columns = {
        "mail": [f"u{i}@x" for i in range(30)],
        "user_id": list(range(100, 130)),
        "grid": np.arange(30.0),
        "v": np.arange(30) % 7,
    }
    encoder = encoded(read_table(columns))
    assert encoder.feature_names == ["grid", "v"]
    assert [note.partition(" (")[0] for note in encoder.notes] == ["left out, like an id"] * 2
    kept = encoded(read_table(columns, categorical=["mail"]), keep=["mail", "user_id"])
    assert {"user_id", "mail=u0@x"} <= {*kept.feature_names}


def test_columns_declared_by_the_user(write: Write) -> None:
    path = write("zip,code,y\n08001,1,0.5\n03002,x,1.5\n08001,3,2\n")
    table = read_table(path, "y", categorical=["zip"])
    assert table.columns["zip"].tolist() == ["08001", "03002", "08001"]
    assert kinds(table) == ["category", "category"]
    with pytest.raises(HdnnError, match="'code' is not numeric: line 3 holds 'x'"):
        read_table(path, "y", numeric=["code"])
    with pytest.raises(HdnnError, match="both numeric and categorical"):
        read_table(path, "y", numeric=["zip"], categorical=["zip"])
    frame = pd.DataFrame({"c": pd.Categorical([3, 1, 3]), "v": [1, 2, 3]})
    assert read_table(frame).columns["c"].tolist() == ["3", "1", "3"]


def test_all_problems_at_once(write: Write) -> None:
    rows = "".join(f"{i},{i}.5,{i / 7:.3f}\n" for i in range(30))
    path = write(f"a,b,y\n{rows}oops,1,2.5\n3,inf,4.5\n5,6,bad\n")
    with pytest.raises(HdnnError) as caught:
        read_table(path, "y")
    message = str(caught.value)
    for part in (
        "3 problems",
        "'a' is not numeric: line 32",
        "'b' holds an infinite value (line 33",
    ):
        assert part in message
    assert "'y' holds numbers, except line 34: 'bad'" in message
    assert "leave it out (drop)" in message
    assert "set the task to classification" in message
    with pytest.raises(HdnnError, match=r"2 problems:\n.*'c'.*\n.*'d'"):
        read_table(path, "y", drop=["c", "d"])


def test_several_targets_are_a_regression(write: Write) -> None:
    table = read_table(write("a,u,v\n1,2,3\n4,5,6\n7,,9\n"), ["u", "v"])
    assert (table.task, table.target) == ("regression", ("u", "v"))
    assert same(table.targets, [[2, 3], [5, 6]])
    with pytest.raises(HdnnError, match=r"'v' holds 'x' \(line 3\)"):
        read_table(write("a,u,v\n1,2,3\n4,5,x\n"), ["u", "v"])


def test_a_column_that_turns_out_to_be_text_late(write: Write) -> None:
    rows = "".join(f"{'007' if i < 20_000 else 'x'},{i}\n" for i in range(20_010))
    table = read_table(write(f"a,y\n{rows}"), "y")
    assert set(table.columns["a"].tolist()) == {"007", "x"}


@pytest.mark.parametrize("scaling", ["robust", "quantile"])
def test_scalings_limit_heavy_tails_and_keep_the_order(scaling: str) -> None:
    values = np.exp(np.random.default_rng(0).normal(size=1000) * 3)
    encoder = encoded(read_table({"a": values}), scaling=scaling)
    x = encoder.transform({"a": np.sort(values)})[:, 0]
    assert (np.diff(x) >= 0).all()
    assert np.abs(x).max() < 3.2
    assert np.isnan(encoder.transform({"a": np.array([np.nan])})).all()
    with pytest.raises(HdnnError, match="unknown scaling"):
        encoded(read_table({"a": values}), scaling="log")


cell = (
    st.none() | st.text(max_size=5) | st.sampled_from(["2020-01-01", "1,5", "inf", "a", "b", "?"])
)


@given(st.lists(st.tuples(cell, cell), min_size=1, max_size=30))
def test_any_columns_are_encoded_and_restored(rows: list[tuple[str | None, str | None]]) -> None:
    columns = {"a": [a for a, _ in rows], "b": [b for _, b in rows]}
    try:
        table = read_table(columns)
        encoder = encoded(table)
    except HdnnError:
        return
    X = encoder.transform(table.columns)
    assert X.shape == (len(rows), len(encoder.feature_names))
    assert not np.isinf(X).any()
    again = ColumnEncoder.from_list(json.loads(json.dumps(encoder.to_list())))
    assert again.columns == encoder.columns
    assert same(again.transform(again.read_frame(pd.DataFrame(columns))), X)


@pytest.mark.parametrize(
    "described",
    [
        "x",
        [1],
        [{"name": "a"}],
        [{"name": "a", "kind": "x"}],
        [{"name": 1, "kind": "number"}],
        [{"name": "a", "kind": "category", "levels": [1]}],
        [{"name": "a", "kind": "category", "hashed": 10**9}],
        [{"name": "a", "kind": "date", "periods": ["eon"]}],
        [{"name": "a", "kind": "number", "more": "x"}],
    ],
)
def test_a_description_that_is_no_encoder(described: Any) -> None:
    with pytest.raises((HdnnError, TypeError)):
        ColumnEncoder.from_list(described)


# ------------------------------------------------------------------------------ with a model
def customers(rows: int) -> str:
    lines = ["customer_id,city,since,income,active,churned"]
    for i in range(rows):
        income = "" if i % 5 == 0 else f"{1000 + 37 * i % 911}.5"
        since = f"20{10 + i % 9}-0{1 + i % 9}-1{i % 9}"
        city, active = ("Zürich", "Genève", "Bern")[i % 3], ("true", "false")[i % 2]
        lines.append(f"C{i:05d},{city},{since},{income},{active},{'yes' if i % 3 else 'no'}")
    return "\n".join(lines) + "\n"


def test_a_table_as_people_have_it_trains_predicts_and_evaluates(
    write: Write, tmp_path: Path
) -> None:
    """With no option but the target; the encoding is that of the run, and saved with it."""

    def command(*words: object) -> Any:
        return CliRunner().invoke(app, list(map(str, words)))

    path, run = write(customers(400)), tmp_path / "run"
    settings = ("--epochs", 1, "--layers", 2)
    done = command("train", path, "--target", "churned", "--out", run, *settings)
    assert done.exit_code == 0, done.output
    model = hdnn.load(run / "model.safetensors")
    assert "city=Zürich" in model.feature_names
    assert "income is missing" in model.feature_names
    assert not any("customer_id" in name for name in model.feature_names)

    shown = command("predict", run, path)
    rows = list(csv.reader(io.StringIO(shown.stdout)))
    assert rows[0][-3:] == ["prediction", "p_no", "p_yes"]
    assert [row[:6] for row in rows] == list(csv.reader(io.StringIO(customers(400))))
    encoder = ColumnEncoder.from_list(model.columns)
    table = read_table(path, "churned", types=encoder.columns, classes=model.classes)
    X = torch.from_numpy(encoder.transform(table.columns)).to(model.head.weight.dtype)
    assert [row[-3] for row in rows[1:]] == [model.classes[k] for k in model.predict(X).tolist()]

    pytest.importorskip("pyarrow")
    read = pd.read_csv(path, parse_dates=["since"])
    read.to_parquet(tmp_path / "in.parquet")
    done = command("predict", run, tmp_path / "in.parquet", "--out", tmp_path / "out.parquet")
    assert done.exit_code == 0, done.output
    written = pd.read_parquet(tmp_path / "out.parquet")
    assert written["p_yes"].astype(str).tolist() == [row[-1] for row in rows[1:]]
    assert command("evaluate", run, path, "--json").exit_code == 0
    assert command("evaluate", run, tmp_path / "in.parquet", "--json").exit_code == 0

    strange = write(customers(3).replace("Bern", "Ürümqi"), "new.csv")
    assert command("predict", run, strange).exit_code == 0
    bad = write(customers(3).replace("1000.5", "much").replace("2010-01-10", "soon"), "bad.csv")
    refused = command("predict", run, bad)
    assert refused.exit_code == 2
    assert "column 'since' is no date: line 2 holds 'soon'" in refused.output


def test_several_targets_from_file_to_prediction(write: Write, tmp_path: Path) -> None:
    def command(*words: object) -> Any:
        done = CliRunner().invoke(app, list(map(str, words)))
        assert done.exit_code == 0, done.output
        return done.stdout

    path = write("a,u,v\n" + "".join(f"{i},{2 * i},{-i}\n" for i in range(60)))
    run = tmp_path / "run"
    command("train", path, "--target", "u", "--target", "v", "--out", run, "--epochs", 2)
    assert hdnn.load(run / "model.safetensors").target_names == ["u", "v"]
    header = command("predict", run, path).splitlines()[0]
    assert header == "a,u,v,prediction_u,prediction_v"
    measured = json.loads(command("evaluate", run, path, "--json"))
    assert [target["name"] for target in measured["targets"]] == ["u", "v"]


def test_the_command_line_is_told_the_remedy(write: Write) -> None:
    text = "a,y\n" + "".join(f"{i},{i / 7:.3f}\n" for i in range(30)) + "oops,1.5\n"
    done = CliRunner().invoke(app, ["train", str(write(text)), "--target", "y"])
    assert done.exit_code == 2
    assert "take the column as texts (categorical)" in " ".join(done.output.split())


@pytest.mark.parametrize("rows", [300, 1200])  # float64 and float32
@pytest.mark.parametrize("target", ["churned", "income"])
def test_command_line_and_estimator_give_the_same_model(
    write: Write, tmp_path: Path, rows: int, target: str
) -> None:
    path = write(customers(rows).replace("Bern", "", 7))
    words = ("train", path, "--target", target, "--test", 0, "--seed", 5, "--epochs", 3)
    done = CliRunner().invoke(app, list(map(str, (*words, "--out", tmp_path / "run"))))
    assert done.exit_code == 0, done.output
    model = hdnn.load(tmp_path / "run" / "model.safetensors")

    frame = pd.read_csv(path, parse_dates=["since"]).dropna(subset=[target])
    y = frame.pop(target)
    kind = hdnn.HDNNClassifier if target == "churned" else hdnn.HDNNRegressor
    fitted = kind(max_iter=3, random_state=5).fit(frame, y).model_
    assert model.feature_names == fitted.feature_names
    mine, other = model.state_dict(), fitted.state_dict()
    assert mine.keys() == other.keys()
    assert all(torch.equal(mine[name], other[name]) for name in mine)


def test_an_estimator_takes_data_frames_with_texts_and_dates() -> None:
    frame = pd.read_csv(io.StringIO(customers(60)), parse_dates=["since"])
    labels = frame.pop("churned")
    frame["city"] = frame["city"].astype("category")
    estimator = hdnn.HDNNClassifier(layers=2, max_iter=2, random_state=0).fit(frame, labels)
    assert estimator.feature_names_in_.tolist() == list(frame.columns)
    assert estimator.predict_proba(frame[::-1]).shape == (60, 2)
    assert (estimator.predict(frame.iloc[3:5]) == estimator.predict(frame)[3:5]).all()
    with pytest.raises(ValueError, match="feature names"):
        estimator.predict(frame.drop(columns="city"))
