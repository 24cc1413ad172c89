"""Types of columns: what is a number, a date, a category, and which cells are errors."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hdnn.data import ColumnEncoder, read_table
from hdnn.data.columns import infer, to_numbers
from hdnn.errors import HdnnError

Write = Callable[..., Path]


def test_missing_values(write: Write) -> None:
    tokens = ["", "NA", "N/A", "NaN", "nan", "null", "None", "?", "-", " NA "]
    table = read_table(write("a,b,y\n2,3,1\n3,4,\n" + "".join(f"1,{t},0\n" for t in tokens)), "y")
    np.testing.assert_array_equal(table.columns["b"], [3, *[nan] * len(tokens)])
    assert "1 of 12 rows left out: no value in the target 'y'" in table.notes


def test_numbers() -> None:
    cells = np.array([" 1.5", "-2E-1", "true", "FALSE", None, "NA", "1_0", "1,5", "$5"], object)
    np.testing.assert_array_equal(to_numbers(cells), [1.5, -0.2, 1, 0, *[nan] * 5])
    objects = np.array([2.5, True, 3, "4"], object)
    assert to_numbers(objects).tolist() == [2.5, 1, 3, 4]


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1", "2", "NA"], "number"),
        ([None, None], "number"),
        (["1", "2", "x"], "category"),
        ([*map(str, range(30)), "x", "y"], "number"),  # x and y are errors
        ([*map(str, range(16)), *"abcdefghijklmno"], "number"),  # 16 of 31, and
        ([*map(str, range(15)), *"abcdefghijklmno"], "category"),  # 15 of 30
        ([*map(str, range(15)), *"abcde"], "category"),  # 20 different texts may be codes
        (["2021-01-01"] * 2, "date"),
        (["2021-01-01", "2021-01-02", "2021-01-03", "2021-01-04", "soon"], "date"),
        (["2021-01-01", "soon"], "category"),
        (["1999", "2000", "x"], "category"),
        (["08001", "12345"], "category"),
        (["0", "0.5", "-03"], "number"),
    ],
)
def test_inferred_types(cells: list[str | None], kind: str) -> None:
    assert infer("a", np.array(cells, object)).kind == kind


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
def test_date_formats(write: Write, cells: list[str]) -> None:
    text = "when,y\n" + "".join(f"{cell},{k}\n" for k, cell in enumerate(cells))
    table = read_table(write(text), "y", task="regression")
    first, second, missing = table.columns["when"].astype("M8[D]").tolist()
    assert (first.month, first.day, second.month, second.day) == (3, 1, 12, 31)
    assert missing is None


def test_bad_dates_raise_with_their_lines(write: Write) -> None:
    days = pd.date_range("2020-01-01", periods=400).strftime("%d.%m.%Y").tolist()
    days[7], days[300] = "31.13.2020", "unknown"
    path = write("when,y\n" + "".join(f"{day},{k % 2}\n" for k, day in enumerate(days)))
    with pytest.raises(
        HdnnError, match=r"such as 31.12.2021: line 9 holds '31.13.2020', line 302 holds 'unknown'"
    ):
        read_table(path, "y")
    assert read_table(path, "y", categorical=["when"]).types[0].kind == "category"


def test_declared_types(write: Write) -> None:
    path = write("zip,code,y\n08001,1,0.5\n03002,x,1.5\n08001,3,2\n")
    table = read_table(path, "y", categorical=["zip"])
    assert table.columns["zip"].tolist() == ["08001", "03002", "08001"]
    with pytest.raises(HdnnError, match="'code' needs finite numbers: line 3 holds 'x'"):
        read_table(path, "y", numeric=["code"])
    days = pd.to_datetime(["2021-01-01", None, "2021-01-02"])
    frame = pd.DataFrame({"c": pd.Categorical([3, 1, 3]), "v": [1, 2.5, 3], "d": days})
    table = read_table(frame, categorical=["v", "d"])
    assert table.columns["c"].tolist() == ["3", "1", "3"]
    assert table.columns["v"].tolist() == ["1", "2.5", "3"]
    assert table.columns["d"].tolist() == ["2021-01-01T00:00:00", None, "2021-01-02T00:00:00"]


def test_integers_in_a_column_of_categories_are_its_levels() -> None:
    """Also codes that are rare or new: each row is read as it would be among the others."""
    codes = [k for k in range(40) for _ in range(80 - k)]
    table = read_table({"code": codes}, categorical=["code"])
    encoder = ColumnEncoder.fit(table.columns, table.types)
    (column,) = encoder.columns
    assert (column.levels[:2], column.rare) == (("0", "1"), True)
    for code, feature in ((0, 0), (31, 31), (35, 32), (99, 32)):
        new = encoder.transform(encoder.read_frame(pd.DataFrame({"code": [code]})))
        assert np.flatnonzero(new[0]).tolist() == [feature]


def test_numbers_in_a_column_of_categories_raise() -> None:
    """pandas reads 08001 as 8001, which no row of the training data had."""
    frame = pd.DataFrame({"zip": ["08001", "12345"] * 3, "size": ["S", "L"] * 3})
    table = read_table(frame)
    encoder = ColumnEncoder.fit(table.columns, table.types)
    assert encoder.read_frame(frame)["zip"].tolist() == frame["zip"].tolist()
    for column in ("zip", "size"):
        with pytest.raises(HdnnError, match=f"{column}' holds numbers, but texts such as"):
            encoder.read_frame(frame.assign(**{column: 8001}))
