"""Tables from files and arrays: what is read, what is remarked on, and every error."""

from __future__ import annotations

import csv
import gzip
import math
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdnn.data import ColumnType, iter_rows, read_table
from hdnn.data.labels import encode, guess_task
from hdnn.data.loading import bundled
from hdnn.errors import FileFormatError, HdnnError

Write = Callable[..., Path]
IRISES = "width,length,kind\n1.5,2,setosa\n2.5,NA,virginica\n3.5,4,setosa\n"
nan = math.nan


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def save(content: str | bytes, name: str = "data.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return save


def same(values: Any, expected: Any) -> bool:
    return np.array_equal(np.asarray(values, float), np.asarray(expected, float), equal_nan=True)


def matrix(values: dict[str, Any]) -> Any:
    return np.stack(list(values.values()), 1)


# --- files ----------------------------------------------------------------------------------------


def test_a_csv_file_with_text_labels_and_a_missing_value(write: Write) -> None:
    table = read_table(write(IRISES), "kind")
    assert same(matrix(table.columns), [[1.5, 2], [2.5, nan], [3.5, 4]])
    assert list(table.columns) == ["width", "length"]
    assert table.classes == ("setosa", "virginica")
    assert table.targets.tolist() == [0, 1, 0]
    assert table.notes == ("missing values among 3 rows: length 1",)
    assert repr(table) == "Table(3 rows, 2 features, classification of kind)"


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_delimiters_line_ends_and_byte_order_marks(
    write: Write, delimiter: str, end: str, mark: str
) -> None:
    text = mark + IRISES.replace(",", delimiter).replace("\n", end) + end + end
    table = read_table(write(text), "kind")
    assert same(matrix(table.columns), [[1.5, 2], [2.5, nan], [3.5, 4]])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
def test_encodings(write: Write, encoding: str) -> None:
    table = read_table(write("größe,y\n1,für\n2,à\n".encode(encoding)), "y")
    assert list(table.columns) == ["größe"]
    assert table.classes == ("für", "à")
    assert any("Latin-1" in note for note in table.notes) == (encoding == "latin-1")


def test_compressed_files_quotes_spaces_and_words(write: Write) -> None:
    text = '"a ""x"", b", flag, label\n 1 , True, "two, three"\n"2",false, one \n'
    table = read_table(write(gzip.compress(text.encode()), "data.csv.gz"), "label")
    assert {name: values.tolist() for name, values in table.columns.items()} == {
        'a "x", b': [1.0, 2.0],
        "flag": [1.0, 0.0],
    }
    assert table.classes == ("one", "two, three")


@pytest.mark.parametrize(
    "text",
    [
        ",a,y\n0,2,3\n1,5,4\n",  # pandas
        '"","a","y"\n"1",2,3\n"2",5,4\n',  # write.csv of R
        '"a","y"\n"1",2,3\n"2",5,4\n',  # write.table of R
        "a,y\n2,3,\n5,4,\n",  # a comma too many on every line
    ],
)
def test_an_index_without_a_name_is_left_out(write: Write, text: str) -> None:
    table = read_table(write(text), "y")
    assert {name: values.tolist() for name, values in table.columns.items()} == {"a": [2.0, 5.0]}
    assert ("taken as an index" in " ".join(table.notes)) == (not text.endswith(",\n"))


@pytest.mark.parametrize("token", ["", "NA", "NaN", "nan", "null", "None", "?", " NA ", "NAN"])
def test_every_missing_token(write: Write, token: str) -> None:
    table = read_table(write(f"a,b,y\n1,{token},0.5\n2,3,1.5\n3,4,{token}\n"), "y")
    assert same(matrix(table.columns), [[1, nan], [2, 3]])
    assert "1 of 3 rows left out: no value in the target 'y'" in table.notes


def test_columns_can_be_chosen_and_dropped(write: Write) -> None:
    path = write("id,a,b,label\nu1,1,2,x\nu2,3,4,y\n")
    assert list(read_table(path, "label", drop=["id"]).columns) == ["a", "b"]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"drop": "id"}, "list of column names"),
        ({"drop": ["c"], "numeric": ["d"]}, r"2 problems:\n.*'c'.*\n.*'d'"),
        ({"numeric": ["a"], "categorical": ["a"]}, "both numeric and categorical"),
    ]
    for options, message in wrong:
        with pytest.raises(HdnnError, match=message):
            read_table(path, "label", **options)


def test_data_for_a_model_keep_its_classes_and_types(write: Write) -> None:
    path = write("b,text,a,label\n1,?,2,1\n")
    types = ColumnType("a", "number"), ColumnType("b", "category")
    table = read_table(path, "label", types=types, classes=["0", "1", "x"])
    assert [values.tolist() for values in table.columns.values()] == [[2.0], ["1"]]
    assert (table.classes, table.targets.tolist()) == (("0", "1", "x"), [1])
    with pytest.raises(HdnnError, match="unknown label 1 in row 1: known are 'a', 'b'"):
        read_table(path, "label", types=types, classes=["a", "b"])


def test_parquet(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "whole": pyarrow.array([1, None, 3]),
        "flag": pyarrow.array([True, False, None]),
        "money": pyarrow.array([Decimal("1.5"), None, Decimal("2.5")]),
        "kind": pyarrow.array(["a", "b", "a"]).dictionary_encode(),
        "day": pyarrow.array([0, 1, 2], pyarrow.date32()),
        "list": pyarrow.array([[1], [2], [3]]),
    }
    path = tmp_path / "data.PARQUET"
    parquet.write_table(pyarrow.table(columns), path)
    table = read_table(path, "kind", drop=["list", "day"])
    assert same(matrix(table.columns), [[1, 1, 1.5], [nan, 0, nan], [3, nan, 2.5]])
    assert table.classes == ("a", "b")
    assert read_table(path, "flag", drop=["list"]).classes == (False, True)
    assert read_table(path, "kind", drop=["list"]).types[-1].kind == "date"
    with pytest.raises(HdnnError, match=r"column 'list' holds .* neither a number, a text nor"):
        read_table(path, "kind")
    (_, values), (rest, _) = iter_rows(path, ["whole"], chunk=2)[1]
    assert same(values["whole"], [1, nan])
    assert len(rest) == 1


def test_npz_arrays_and_columns(tmp_path: Path) -> None:
    X, labels = np.arange(6.0).reshape(3, 2), np.array(["a", "b", "a"])
    np.savez(tmp_path / "pair.npz", X=X, y=labels)
    table = read_table(tmp_path / "pair.npz", "y")
    assert same(matrix(table.columns), X)
    assert (list(table.columns), table.classes) == (["x0", "x1"], ("a", "b"))
    np.savez(tmp_path / "columns.npz", u=X[:, 0], label=labels)
    assert list(read_table(tmp_path / "columns.npz", "label").columns) == ["u"]
    np.savez(tmp_path / "objects.npz", y=np.array(["a", None], object))
    with pytest.raises(HdnnError, match=r"as NPZ.*dtype str and not object"):
        read_table(tmp_path / "objects.npz")
    np.savez(tmp_path / "shapes.npz", X=X, y=X)
    with pytest.raises(HdnnError, match=r"shapes.npz cannot be made of these: .*; X is 2-D"):
        read_table(tmp_path / "shapes.npz")

    table = read_table({"X": X, "y": [False, True, False]}, "y")
    assert table.classes == (False, True)
    assert list(read_table(X, "x1").columns) == ["x0"]
    objects = np.array([["1", None], ["?", 2.5]], dtype=object)
    assert same(matrix(read_table(objects).columns), [[1, nan], [nan, 2.5]])
    gaps = read_table({"a": [1, 2, 3], "y": [1.5, None, nan]}, "y", task="regression")
    assert same(gaps.targets, [1.5])


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([[1.0, 2.0]], "DataFrame.*got list"),
        (np.zeros(3), "X is 2-D"),
        ({"X": np.zeros((3, 2)), "y": np.zeros(4)}, "same length.*one value for each row"),
        ({"a": np.zeros((2, 2))}, "1-dimensional.*one value for each row"),
        ({}, "no feature columns"),
        ({"a": []}, "has no rows"),
        (pd.DataFrame({"a": [1, 2], "tags": [["x"], []]}), r"'tags' holds \['x'\] \(row 1\)"),
        ({"a": [1, 1j]}, "neither a number, a text nor a date"),
        ({"a": [1.0, np.inf]}, "'a' has infinite values: row 2 holds"),
        ({"a": [1, 10**400]}, "'a' is not numeric: row 2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arrays_that_are_no_table(source: Any, message: str) -> None:
    with pytest.raises(HdnnError, match=message):
        read_table(source, numeric=["a"] if "numeric" in message else ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\ufeff\n\n", "is empty"),
        ("a,y\n", "has no rows"),
        ("a,y\n1,\n2,?\n", "has no rows"),
        ("1,2\n3,4\n", r"no header: its first line is '1,2'; add a line of column names"),
        ("1.5;NA\n3;4\n", "no header"),
        ("a,b\n1,2\n", r"data.csv: unknown column 'y': known are a, b"),
        ("a,yy\n1,2\n", "did you mean 'yy'"),
        ("y\n1\n2\n", "no feature columns beside the target 'y'"),
        ("a,b,y\n1,2,3\n4,5\n", "line 3: 2 fields, but the header has 3"),
        ("a,b,y\n\n1,2,3,4\n", "line 3: 4 fields, but the header has 3"),
        ('a,b,y\n"1\n2",2,3\n1,2\n4,5\n1,2,3\n', "line 4: 2 fields, line 5: 2 fields, but"),
        ("a,a,y\n1,2,3\n2,3,4\n", "2 columns are named 'a'"),
        ("a,y,y\n1,2,3\n2,3,4\n", "2 columns are named 'y'"),
        ("a,,y\n0,2,3\n1,2,4\n", "column 2 has no name; name it or remove it"),
        ("a,y\n1,2\ninf,3\n", "'a' has infinite values: line 3"),
        ("a,y\n1,2\n-1e999,3\n", "'a' has infinite values: line 3"),
        ("a,y\n1,2\n1,Infinity\n", "'y' has infinite values: line 3"),
        ("a,y\n1,u\n2,u\n", r"every row has the label 'u' in 'y'.*two classes"),
        ('a,y\n"1,2\n3,4\n', "close every quote"),
        ('a,b,y\n1,2,3\n4,"5,6\n7,8,9\n1,2,3\n', "lines 3 to 5: 2 fields"),
        ("1.5,red,no\n2.5,blue,yes\n", "if the first line is a row, add a line of column names"),
        (
            "a,y\n" + "".join(f"{k % 3},u{k}\n" for k in range(30)),
            "every row has a label of its own",
        ),
        ("a,y\n1\0,2\n", "NUL characters"),
    ],
    ids=lambda value: repr(value[:30]),
)
def test_a_file_that_is_no_table(write: Write, text: str, message: str) -> None:
    with pytest.raises(HdnnError, match=message) as caught:
        read_table(write(text), "y")
    assert "data.csv" in str(caught.value)


def test_labels_that_differ_in_case_only_are_noted(write: Write) -> None:
    table = read_table(write("a,y\n1,yes\n2,Yes\n3,no\n4,yes\n5,Yes\n6,no\n"), "y")
    assert any("differ in case only" in note and "'Yes', 'yes'" in note for note in table.notes)


def test_files_that_cannot_be_read(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("none.csv", "none.npz", "none.parquet"):
        with pytest.raises(HdnnError, match=f"cannot read .*{name}: No such file"):
            read_table(tmp_path / name)
        (tmp_path / f"folder.{name}").mkdir()
        with pytest.raises(HdnnError, match="not a regular file"):
            read_table(str(tmp_path / f"folder.{name}"))
        with pytest.raises(FileFormatError, match=r"cannot read .*bad\.csv\.gz|as NPZ|as Parquet"):
            read_table(write("nonsense", name.replace("none", "bad").replace("csv", "csv.gz")))
    with pytest.raises(HdnnError, match=r"kind of file '\.xlsx'; save the table as one of \.csv"):
        read_table(write("a,b\n", "data.xlsx"))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(HdnnError, match=r"needs pyarrow: pip install 'hdnn\[data\]'"):
        read_table(write("not parquet", "data.parquet"))


def test_all_problems_at_once_with_their_remedies(write: Write) -> None:
    rows = "".join(f"{i},{i}.5,2021-01-{1 + i:02},{i / 7:.3f}\n" for i in range(30))
    bad = "oops,1,2021-02-01,2.5\n3,inf,2021-02-30,4.5\n5,6,soon,bad\n"
    path = write(f"a,b,day,y\n{rows}{bad}")
    with pytest.raises(HdnnError) as caught:
        read_table(path, "y")
    for part in (
        "data.csv: 4 problems",
        "'a' is not numeric: line 32 holds 'oops'; correct it or leave the cell empty, or",
        "'b' has infinite values: line 33",
        "'day' is no date such as 2021-12-31: line 33 holds '2021-02-30', line 34 holds 'soon'",
        "--categorical",
        "'y' is not numeric: line 34 holds 'bad'",
        "set the task to classification",
    ):
        assert part in str(caught.value)


def test_columns_that_pandas_numbered_are_a_header(write: Write) -> None:
    assert list(read_table(write("0,1,2\n5,6,7\n8,9,9\n"), "2").columns) == ["0", "1"]
    assert list(read_table(write("7,8\n5,6\n8,9\n"), "8").columns) == ["7"]
    with pytest.raises(HdnnError, match="unknown column"):
        read_table(write("0,1,2\n5,6,7\n"), "y")


def test_of_many_columns_the_nearest_are_shown(write: Write) -> None:
    names = [f"pixel{j}" for j in range(784)] + ["label"]
    text = ",".join(names) + "\n" + ",".join("1" for _ in names) + "\n"
    with pytest.raises(HdnnError, match=r"of 785, .*did you mean 'label'") as caught:
        read_table(write(text), "lable")
    assert len(str(caught.value)) < 700


# --- types of columns -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        ("1,5 2,25 3", [1.5, 2.25, 3]),
        ("1.234,5 2.000 7", [1234.5, 2000, 7]),
        ("1.234.567 2.000.000 7", [1234567, 2000000, 7]),
        ("1,234.5 2,000 7", [1234.5, 2000, 7]),
        ("$5 $1,200 -$3", [5, 1.2, -3]),  # where numbers are between semicolons
        ("5% 12.5% NA", [5, 12.5, nan]),
        ("true FALSE 0.5", [1, 0, 0.5]),
        ("1e3 -2E-1 NA", [1000, -0.2, nan]),
    ],
)
def test_numbers_as_people_write_them(write: Write, cells: str, values: list[float]) -> None:
    rows = "".join(f"{cell};{k}\n" for k, cell in enumerate(cells.split(" ")))
    table = read_table(write(f"a;y\n{rows}"), "y", task="regression")
    assert same(table.columns["a"], values)


def test_thousands_units_and_targets_with_decimal_commas(write: Write) -> None:
    path = write('a,b,y\n"1,234","$1,200",1\n"12,345.5",$7,2\n')
    table = read_table(path, "y", task="regression")
    assert same(matrix(table.columns), [[1234, 1200], [12345.5, 7]])
    assert "read as numbers without their sign: b ($)" in table.notes
    prices = read_table(write("a;y\n1;1,5\n2;2,25\n3;12,5\n"), "y")
    assert same(prices.targets, [1.5, 2.25, 12.5])


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
    first, second, missing = table.columns["when"].astype("M8[D]").tolist()
    assert (first.month, first.day, second.month, second.day) == (3, 1, 12, 31)
    assert missing is None


def test_two_bad_dates_among_400_are_named(write: Write) -> None:
    days = pd.date_range("2020-01-01", periods=400).strftime("%d.%m.%Y").tolist()
    days[7], days[300] = "31.13.2020", "unknown"
    path = write("when,y\n" + "".join(f"{day},{k % 2}\n" for k, day in enumerate(days)))
    with pytest.raises(HdnnError, match=r"line 9 holds '31.13.2020', line 302 holds 'unknown'"):
        read_table(path, "y")
    assert read_table(path, "y", categorical=["when"]).types[0].kind == "category"


def test_columns_declared_by_the_user(write: Write) -> None:
    path = write("zip,code,y\n08001,1,0.5\n03002,x,1.5\n08001,3,2\n")
    table = read_table(path, "y", categorical=["zip"])
    assert table.columns["zip"].tolist() == ["08001", "03002", "08001"]
    assert [kind.kind for kind in table.types] == ["category", "category"]
    with pytest.raises(HdnnError, match="'code' is not numeric: line 3 holds 'x'"):
        read_table(path, "y", numeric=["code"])
    frame = pd.DataFrame({"c": pd.Categorical([3, 1, 3]), "v": [1, 2, 3]})
    assert read_table(frame).columns["c"].tolist() == ["3", "1", "3"]


# --- target and task ------------------------------------------------------------------------------


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
        ("1 2 99999999999999999999", "regression", None),
        (" ".join("123" * 5), "classification", (1, 2, 3)),
        (" ".join("123" * 4), "regression", None),
    ],
)
def test_types_and_tasks(
    write: Write, cells: str, task: str, classes: tuple[Any, ...] | None
) -> None:
    rows = "".join(f"{i},{c}\n" for i, c in enumerate(cells.split()))
    table = read_table(write(f"a,y\n{rows}"), "y")
    assert (table.task, table.classes) == (task, classes)
    assert [type(c) for c in table.classes or ()] == [type(c) for c in classes or ()]


def test_the_task_can_be_chosen(write: Write) -> None:
    path = write("a,y\n1,1\n2,2\n3,3\n")
    assert read_table(path, "y", task="classification").classes == (1, 2, 3)
    assert repr(read_table(path, "y")) == "Table(3 rows, 1 features, regression of y)"
    assert same(read_table(write("a,y\n1,True\n2,No\n3,0\n"), drop=["y"]).columns["a"], [1, 2, 3])
    with pytest.raises(HdnnError, match="did you mean 'regression'"):
        read_table(path, "y", task="regresion")
    with pytest.raises(HdnnError, match=r"'y' is not numeric: line 3 holds 'x'.*--task"):
        read_table(write("a,y\n1,1\n2,x\n"), "y", task="regression")
    with pytest.raises(HdnnError, match="all texts, all booleans or all numbers"):
        read_table({"a": [1, 2], "y": [1, "x"]}, "y")
    assert guess_task(np.arange(1000) % 20) == "classification"
    assert guess_task(np.arange(1000) % 21) == "regression"
    assert guess_task(np.array([0.5, 1.5] * 50)) == "regression"


def test_several_targets_are_a_regression(write: Write) -> None:
    table = read_table(write("a,u,v\n1,2,3\n4,5,6\n7,,9\n"), ["u", "v"])
    assert (table.task, table.target) == ("regression", ("u", "v"))
    assert same(table.targets, [[2, 3], [5, 6]])


def test_labels_to_numbers_and_back() -> None:
    for classes in (["a", "b", "c"], [3, 1, 2], [0.5, 1.5, -1.0], [False, True]):
        labels = [*classes, *reversed(classes)]
        back = np.asarray(classes)[encode(labels, classes)].tolist()
        assert back == labels
        assert [type(label) for label in back] == [type(label) for label in labels]
    assert encode(["1", 2, "3.5"], [1, "2", 3.5]).tolist() == [0, 1, 2]
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: encode(["a", "z"], ["a", "b"]), "unknown label 'z' in row 2: known are 'a', 'b'"),
        (lambda: encode([None], ["a", "b"]), "a missing label in row 1"),
        (lambda: encode(["a"], ["a", "a"]), "must differ"),
    ]
    for call, message in wrong:
        with pytest.raises(HdnnError, match=message):
            call()


def test_bundled_tables() -> None:
    assert repr(bundled("wine")) == "Table(178 rows, 13 features, classification of target)"
    assert bundled("diabetes").task == "regression"


# --- round trip, and block by block ---------------------------------------------------------------

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
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    data: tuple[list[str], list[list[float | None]], list[str]],
    delimiter: str,
    quoting: Any,
) -> None:
    names, rows, labels = data
    path = tmp_path_factory.mktemp("csv") / "data.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter, quoting=quoting)
        writer.writerow(names)
        for row, label in zip(rows, labels, strict=True):
            writer.writerow([*("" if v is None else repr(v) for v in row), label])
    expected = [[nan if v is None else v for v in row] for row in rows]
    if len(set(labels)) < 2 or {t.lower() for t in labels} <= {"true", "false", "inf", "infinity"}:
        table = read_table(path, drop=[names[-1]])
    else:
        table = read_table(path, names[-1], task="classification")
        assert table.classes is not None
        assert [table.classes[k] for k in table.targets] == labels
    assert list(table.columns) == names[:-1]
    assert same(matrix(table.columns), expected)
    blocks = [matrix(values) for _, values in iter_rows(path, names[:-1][::-1], chunk=3)[1]]
    assert same(np.concatenate(blocks), np.asarray(expected)[:, ::-1])


def test_rows_are_streamed_by_name_and_checked_as_they_come(write: Write) -> None:
    rows = "".join(f"r{i};{i};x;{-i}\n" for i in range(25))
    header, stream = iter_rows(write("id; b;label;a\n" + rows), ["a", "b"], chunk=10)
    assert header == ["id", "b", "label", "a"]
    blocks = list(stream)
    assert [len(cells) for cells, _ in blocks] == [10, 10, 5]
    assert blocks[2][0][4] == ["r24", "24", "x", "-24"]
    assert same(matrix(blocks[2][1])[4], [-24, 24])
    _, bad = iter_rows(write("a\n1\n2\n3\nx\n"), ["a"], chunk=2)
    assert same(next(bad)[1]["a"], [1, 2])
    with pytest.raises(HdnnError, match="'a' is not numeric: line 5 holds 'x'"):
        next(bad)
    assert list(iter_rows(write("a,b\n"), ["b"])[1]) == []


def test_earlier_predictions_are_skipped_unless_the_model_takes_them(write: Write) -> None:
    path = write("a,prediction,p_no\n1,yes,0.2\n2,no,0.7\n")
    header, blocks = iter_rows(path, ["a"], skip=["prediction", "p_no", "p_yes"])
    assert header == ["a"]
    assert [cells for cells, _ in blocks] == [[["1"], ["2"]]]
    assert iter_rows(path, ["a", "p_no"], skip=["prediction", "p_no"])[0] == ["a", "p_no"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,when\n1,2\n", r"lacks 'b', 'c', on which .* has a, when; .*add it with empty cells"),
        ("a,a,b,c\n1,2,3,4\n", "2 columns are named 'a'"),
        ("", "is empty"),
        ("a,b,c\n1,much,2021-12-31\n", "'b' is not numeric: line 2 holds 'much'; correct it, or"),
        ("a,b,c\n1,2,31.12.2021\n", "'c' is no date such as 2021-12-31: line 2 holds '31.12"),
        ("a,b,c\n1,2\n", "line 2: 2 fields, but the header has 3"),
    ],
)
def test_errors_of_tables_to_predict_name_what_predict_has(
    write: Write, text: str, message: str
) -> None:
    types = ColumnType("a", "number"), ColumnType("b", "number"), ColumnType("c", "date")
    with pytest.raises(HdnnError, match=message) as caught:
        list(iter_rows(write(text), types)[1])
    assert "data.csv" in str(caught.value)
    assert "--" not in str(caught.value)
