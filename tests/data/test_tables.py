"""Tables: columns by name, all problems at once, and blocks for prediction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from hdnn.data import ColumnType, read_blocks, read_table
from hdnn.errors import HdnnError

Write = Callable[..., Path]
TYPES = ColumnType("a", "number"), ColumnType("b", "number"), ColumnType("c", "date")


def test_columns_can_be_dropped(write: Write) -> None:
    path = write("id,a,b,label\nu1,1,2,x\nu2,3,4,y\n")
    assert list(read_table(path, "label", drop=["id"]).columns) == ["a", "b"]
    assert "label" not in read_table(path, "label", categorical=["label"]).columns
    with pytest.raises(HdnnError, match=r"2 problems:\n.*'c'.*\n.*'d'"):
        read_table(path, "label", drop=["c"], numeric=["d"])
    with pytest.raises(HdnnError, match="has no feature columns"):
        read_table(path, "label", drop=["id", "a", "b"])


def test_all_problems_at_once_with_their_remedies(write: Write) -> None:
    rows = "".join(f"{i},{i}.5,2021-01-{1 + i:02},{i / 7:.3f}\n" for i in range(30))
    bad = "oops,1,2021-02-01,2.5\n3,inf,2021-02-30,4.5\n5,6,soon,bad\n"
    path = write(f"a,b,day,y\n{rows}{bad}")
    with pytest.raises(HdnnError) as caught:
        read_table(path, "y")
    for part in (
        "data.csv: 4 problems",
        "'a' needs finite numbers: line 32 holds 'oops'; correct it or leave the cell empty, or",
        "'b' needs finite numbers: line 33 holds 'inf'",
        "'day' needs dates such as 2021-12-31: line 33 holds '2021-02-30', line 34 holds 'soon'",
        "--categorical",
        "'y' needs finite numbers: line 34 holds 'bad'",
        "set the task to classification",
    ):
        assert part in str(caught.value)


def test_the_error_of_an_unknown_column_shows_the_nearest(write: Write) -> None:
    names = [f"pixel{j}" for j in range(784)] + ["label"]
    text = ",".join(names) + "\n" + ",".join("1" for _ in names) + "\n"
    with pytest.raises(HdnnError, match=r"line 1: unknown column.*did you mean 'label'") as caught:
        read_table(write(text), "lable")
    assert len(str(caught.value)) < 700
    with pytest.raises(HdnnError, match=r"line 1: unknown column 'y': known are .*1\.5"):
        read_table(write("1.5,red,no\n2.5,blue,yes\n"), "y")


# --- for a model ----------------------------------------------------------------------------------


def test_data_for_a_model_keep_its_classes_and_types(write: Write) -> None:
    path = write("b,text,a,label\n1,?,2,1\n")
    types = ColumnType("a", "number"), ColumnType("b", "category")
    table = read_table(path, "label", types=types, classes=["0", "1", "x"])
    assert [values.tolist() for values in table.columns.values()] == [[2.0], ["1"]]
    assert (table.classes, table.targets.tolist()) == (("0", "1", "x"), [1])
    with pytest.raises(HdnnError, match="unknown label '1' in row 1: known are 'a', 'b'"):
        read_table(path, "label", types=types, classes=["a", "b"])


def test_blocks_are_read_by_name_and_checked_as_they_come(write: Write) -> None:
    rows = "".join(f"r{i};{i};x;{-i}\n" for i in range(25))
    blocks = list(read_blocks(write("id; b;label;a\n" + rows), TYPES[:2], rows=10))
    assert [len(frame) for frame, _ in blocks] == [10, 10, 5]
    frame, values = blocks[2]
    assert frame.iloc[4].to_dict() == {"id": "r24", "b": "24", "label": "x", "a": "-24"}
    assert {name: column[4] for name, column in values.items()} == {"a": -24, "b": 24}
    bad = read_blocks(write("a\n1\n2\n3\nx\n"), TYPES[:1], rows=2)
    assert next(bad)[1]["a"].tolist() == [1, 2]
    with pytest.raises(HdnnError, match="'a' needs finite numbers: line 5 holds 'x'"):
        next(bad)
    ((empty, _),) = read_blocks(write("a,b\n"), TYPES[:1])
    assert isinstance(empty, pd.DataFrame)
    assert (list(empty), len(empty)) == (["a", "b"], 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,when\n1,2\n", r"lacks 'b', 'c', on which .* has a, when; .*add it with empty cells"),
        ("", "is empty"),
        ("a,b,c\n1,much,2021-12-31\n", "'b' needs finite numbers: line 2 holds 'much'; correct it"),
        ("a,b,c\n1,2,31.12.2021\n", "'c' needs dates such as 2021-12-31: line 2 holds '31.12"),
        ("a,b,c\n1,2,,4\n", "in line 2, saw 4"),
    ],
)
def test_errors_of_prediction_mention_no_flags_of_training(
    write: Write, text: str, message: str
) -> None:
    with pytest.raises(HdnnError, match=message) as caught:
        list(read_blocks(write(text), TYPES))
    assert "data.csv" in str(caught.value)
    assert "--" not in str(caught.value)
