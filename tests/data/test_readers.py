"""CSV and Parquet files and Python objects: every format gives the same table, or a clear error."""

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

from hdnn.data import ColumnType, read_blocks, read_table, readers
from hdnn.errors import HdnnError

Write = Callable[..., Path]
IRISES = "width,length,kind\n1.5,2,setosa\n2.5,NA,virginica\n3.5,4,setosa\n"
nan = math.nan


def matrix(columns: dict[str, Any]) -> Any:
    return np.stack(list(columns.values()), 1)


@pytest.mark.parametrize(
    ("delimiter", "end", "mark"), [(",", "\n", ""), (";", "\r\n", "\ufeff"), ("\t", "\r", "")]
)
def test_delimiters_line_ends_and_byte_order_marks(
    write: Write, delimiter: str, end: str, mark: str
) -> None:
    text = mark + IRISES.replace(",", delimiter).replace("\n", end) + end + end
    table = read_table(write(text), "kind")
    np.testing.assert_array_equal(matrix(table.columns), [[1.5, 2], [2.5, nan], [3.5, 4]])
    assert (table.classes, table.targets.tolist()) == (("setosa", "virginica"), [0, 1, 0])
    assert table.notes == ("missing values among 3 rows: length 1",)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16"])
def test_encodings(write: Write, encoding: str) -> None:
    table = read_table(write("größe,y\n1,für\n2,à\n".encode(encoding)), "y")
    assert list(table.columns) == ["größe"]
    assert table.classes == ("für", "à")
    assert any("Latin-1" in note for note in table.notes) == (encoding == "latin-1")


def test_compression_quotes_spaces_and_booleans(write: Write) -> None:
    text = '"a ""x"", b", flag, label\n 1 , True, "two, three"\n"2",false, one \n'
    table = read_table(write(gzip.compress(text.encode()), "data.csv.gz"), "label")
    columns = {name: values.tolist() for name, values in table.columns.items()}
    assert columns == {'a "x", b': [1.0, 2.0], "flag": [1.0, 0.0]}
    assert table.classes == ("one", "two, three")


def test_decimal_commas_unless_the_delimiter_is_a_comma(write: Write) -> None:
    table = read_table(write("a;b;y\n1,5;x;0,5\n-,25;1,2,3;1,5e3\n3;x;-7\n"), "y")
    assert table.columns["a"].tolist() == [1.5, -0.25, 3]
    assert table.columns["b"].tolist() == ["x", "1,2,3", "x"]
    assert table.targets.tolist() == [0.5, 1500, -7]
    quoted = read_table(write('a,y\n"1,5",1\n"2,5",2\n'), "y")
    assert quoted.columns["a"].tolist() == ["1,5", "2,5"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; expected a line of column names"),
        ("\n \n", "is empty"),
        ("a,b,y\n1,2,3,4\n", "3 fields, as in the header, in line 2, saw 4"),
        ("a,b,y\n1,2,3\n\n1,2,3,4\n", r"3 fields in line 4, saw 4; close every quote, and put"),
        ('a,y\n1,2\n"1,2\n3,4\n', "EOF inside string starting at row 2; close every quote"),
        ("a,a,y,y\n1,2,3,4\n", "several columns are named 'a', 'y'; rename all but one"),
    ],
)
def test_malformed_csv_raises_with_the_line(write: Write, text: str, message: str) -> None:
    with pytest.raises(HdnnError, match=f"data.csv.*{message}"):
        read_table(write(text), "y")


def test_lines_count_blank_lines_and_line_breaks_in_cells(write: Write) -> None:
    path = write('a,t,y\n\n1,"two\nlines",2\n\nx,b,3\n')
    with pytest.raises(HdnnError, match="'a' needs finite numbers: line 6 holds 'x'"):
        read_table(path, "y", numeric=["a"])
    with pytest.raises(HdnnError, match="'a' needs finite numbers: line 5 holds 'x'"):
        read_table(write('a\n1\n""\n \nx\n'), numeric=["a"])  # "" is a row, as for pandas
    with pytest.raises(HdnnError, match="'a' needs finite numbers: line 4 holds 'x'"):
        read_table(write("a\tb\n1\t2\n\t\nx\t1\n"), numeric=["a"])


def test_unreadable_files_raise(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder.csv").mkdir()
    write("nonsense", "bad.csv.gz")
    for name, message in (
        ("none.csv", "none.csv: No such file"),
        ("none.parquet", "none.parquet: No such file"),
        ("folder.csv", "not a regular file"),
        ("bad.csv.gz", r"cannot read .*bad.csv.gz as CSV"),
        ("data.xlsx", r"unknown kind of file; save the table as one of \.csv"),
        ("data.parquet.gz", "unknown kind of file"),
    ):
        with pytest.raises(HdnnError, match=message):
            read_table(tmp_path / name)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(HdnnError, match=r"needs pyarrow: pip install 'hdnn\[data\]'"):
        read_table(write("not parquet", "data.parquet"))


def test_compressed_files_hold_at_most_a_hundred_times_their_size(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "FREE", 1000)
    numbers = "".join(f"{x}\n" for x in np.random.default_rng(0).random(1000))
    for name in ("data.csv.gz", "data.CSV.GZ"):
        for text in (f"a\n{numbers}", "a\n" + 499 * "1\n"):  # far above 1000 bytes, and 1000
            assert len(read_table(write(gzip.compress(text.encode()), name))) > 400
        bomb = gzip.compress(b"a\n" + 10**5 * b"1\n")
        with pytest.raises(HdnnError, match=r"100 times its size; .* decompress it first"):
            read_table(write(bomb, name))
        with pytest.raises(HdnnError, match="100 times its size"):
            next(read_blocks(write(bomb, name), ()))


def test_parquet_files_hold_as_much_as_compressed_ones(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "data.parquet"
    pd.DataFrame({"a": np.zeros(readers.FREE // 2 + 1, bool)}).to_parquet(path)
    with pytest.raises(HdnnError, match="more than 16 MB, 100 times its size"):
        read_table(path)
    pd.DataFrame({"a": np.zeros(10**6)}).to_parquet(path)
    assert path.stat().st_size * 100 < 2 * 10**6  # below the floor, any ratio will do
    assert len(read_table(path)) == 10**6


def test_parquet(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "whole": [1, None, 3],
        "flag": [True, False, None],
        "money": [Decimal("1.5"), None, Decimal("2.5")],
        "kind": pyarrow.array(["a", "b", "a"]).dictionary_encode(),
        "day": pyarrow.array([0, 1, 2], pyarrow.date32()),
        "list": [[1], [2], [3]],
    }
    path = tmp_path / "data.PARQUET"
    parquet.write_table(pyarrow.table(columns), path)
    table = read_table(path, "kind", drop=["list", "day"])
    expected = [[1, 1, 1.5], [nan, 0, nan], [3, nan, 2.5]]
    np.testing.assert_array_equal(matrix(table.columns), expected)
    assert table.classes == ("a", "b")
    assert read_table(path, "flag", drop=["list"]).classes == (False, True)
    assert read_table(path, "kind", drop=["list"]).types[-1].kind == "date"
    with pytest.raises(HdnnError, match=r"column 'list' holds .* neither a number, a text nor"):
        read_table(path, "kind")
    blocks = list(read_blocks(path, [ColumnType("whole", "number")], rows=2))
    assert [len(frame) for frame, _ in blocks] == [2, 1, 0]
    np.testing.assert_array_equal(blocks[0][1]["whole"], [1, nan])


@pytest.mark.parametrize("name", ["data.csv", "data.parquet"])
def test_rows_of_later_blocks_keep_their_numbers(name: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    cells = [str(k) for k in range(30)]
    cells[23] = "x"
    frame, path = pd.DataFrame({"a": cells}), tmp_path / name
    frame.to_csv(path, index=False) if name == "data.csv" else frame.to_parquet(path)
    place = "line 25" if name == "data.csv" else "row 24"  # the header is a line
    with pytest.raises(HdnnError, match=f"column 'a' needs finite numbers: {place} holds 'x'"):
        list(read_blocks(path, [ColumnType("a", "number")], rows=7))


def test_arrays_frames_and_dicts() -> None:
    X = np.arange(6.0).reshape(3, 2)
    assert list(read_table(X, "x1").columns) == ["x0"]
    assert read_table({"a": X[:, 0], "y": [False, True, False]}, "y").classes == (False, True)
    frame = pd.DataFrame({0: ["1", None], "v": [2.5, "?"]}, index=["u", "u"])
    np.testing.assert_array_equal(matrix(read_table(frame).columns), [[1, 2.5], [nan, nan]])
    wrong: list[tuple[Any, str]] = [
        ([[1.0, 2.0]], "a 2-D numpy array or a dict of columns, got list"),
        (np.zeros(3), "got ndarray"),
        ({"a": np.zeros(3), "y": np.zeros(4)}, "make no table: .*same length"),
        ({"a": []}, "has no rows"),
        ({"a": [1.0, np.inf]}, "'a' needs finite numbers: row 2 holds"),
        (pd.DataFrame({"a": [1, 2], "tags": [["x"], []]}), r"'tags' holds \['x'\] \(row 1\)"),
    ]
    for source, message in wrong:
        with pytest.raises(HdnnError, match=message):
            read_table(source)


# --- round trip -----------------------------------------------------------------------------------

finite = st.floats(allow_nan=False, allow_infinity=False)
text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8).filter(
    lambda t: t.strip() == t and t[0].isalpha() and t.lower() not in ("na", "nan", "null", "none")
)


@given(
    names=st.lists(text, min_size=2, max_size=4, unique=True),
    rows=st.lists(st.tuples(*[st.none() | finite] * 3, text), min_size=2, max_size=20),
    delimiter=st.sampled_from(",;\t"),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    names: list[str],
    rows: list[tuple[Any, ...]],
    delimiter: str,
    quoting: Any,
) -> None:
    path, width = tmp_path_factory.mktemp("csv") / "data.csv", len(names) - 1
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter, quoting=quoting)
        writer.writerow(names)
        for *numbers, label in rows:
            writer.writerow([*("" if v is None else repr(v) for v in numbers[:width]), label])
    labels = [row[-1] for row in rows]
    expected = np.array([[nan if v is None else v for v in row[:width]] for row in rows])
    table = read_table(path, drop=[names[-1]])
    np.testing.assert_array_equal(matrix(table.columns), expected)
    if len(set(labels)) > 1 and not {t.lower() for t in labels} <= {"true", "false"}:
        table = read_table(path, names[-1], task="classification")
        assert table.classes is not None
        assert [table.classes[k] for k in table.targets] == labels
    types = [ColumnType(name, "number") for name in names[-2::-1]]
    blocks = [matrix(values) for _, values in read_blocks(path, types, rows=3)]
    np.testing.assert_array_equal(np.concatenate(blocks), expected[:, ::-1])
