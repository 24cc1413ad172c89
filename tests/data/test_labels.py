"""Targets: task, classes and class numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hdnn.data import read_table
from hdnn.data.labels import encode
from hdnn.errors import HdnnError

Write = Callable[..., Path]


@pytest.mark.parametrize(
    ("cells", "task", "classes"),
    [
        ("a b a", "classification", ("a", "b")),
        ("true False true", "classification", (False, True)),
        ("1 0 1", "classification", (0, 1)),
        ("1.0 0 1", "classification", (0.0, 1.0)),
        (" ".join(str(k % 20) for k in range(100)), "classification", tuple(range(20))),
        (" ".join(str(k % 21) for k in range(1000)), "regression", None),
        ("01 02 01", "classification", ("01", "02")),
        ("1 2 b", "classification", ("1", "2", "b")),
        ("1_0 2_0 1_0", "classification", ("1_0", "2_0")),
        ("0.5 1 2", "regression", None),
        ("1 2 99999999999999999999", "regression", None),
        (" ".join("123" * 5), "classification", (1, 2, 3)),
        (" ".join("123" * 4), "regression", None),
    ],
)
def test_task_and_classes(
    write: Write, cells: str, task: str, classes: tuple[Any, ...] | None
) -> None:
    rows = "".join(f"{i},{c}\n" for i, c in enumerate(cells.split()))
    table = read_table(write(f"a,y\n{rows}"), "y")
    assert (table.task, table.classes) == (task, classes)
    assert [type(c) for c in table.classes or ()] == [type(c) for c in classes or ()]


@pytest.mark.parametrize(
    ("text", "task", "message"),
    [
        ("a,y\n1,1\n2,x\n", "regression", "'y' needs finite numbers: line 3 holds 'x'.*--task"),
        ("a,y\n1,2\n1,Infinity\n", None, "'y' needs finite numbers: line 3"),
        ("a,y\n1,u\n2,u\n", None, "every row has the label 'u' in 'y'.*two classes"),
        ("a,y\n" + "".join(f"1,u{k}\n" for k in range(30)), None, "every row has a label of its"),
        ("a,y\n1,1\n", "regresion", "did you mean 'regression'"),
    ],
)
def test_targets_that_cannot_be_learned_raise(
    write: Write, text: str, task: str | None, message: str
) -> None:
    with pytest.raises(HdnnError, match=message):
        read_table(write(text), "y", task=task)


def test_the_task_can_be_set(write: Write) -> None:
    assert read_table(write("a,y\n1,1\n2,2\n3,3\n"), "y", task="classification").classes == (
        1,
        2,
        3,
    )
    with pytest.raises(HdnnError, match="all texts, all booleans or all numbers"):
        read_table({"a": [1, 2], "y": [1, "x"]}, "y")
    gaps = read_table({"a": [1, 2, 3], "y": [1.5, None, np.nan]}, "y", task="regression")
    assert gaps.targets.tolist() == [1.5]


def test_several_targets_are_a_regression(write: Write) -> None:
    table = read_table(write("a,u,v\n1,2,3\n4,5,6\n7,,9\n"), ["u", "v"])
    assert (table.task, table.target_names) == ("regression", ("u", "v"))
    assert table.targets.tolist() == [[2, 3], [5, 6]]


@pytest.mark.parametrize(
    ("cells", "part"),
    [
        (["TRUE", "FALSE", "UNKNOWN"], ["FALSE", "TRUE", "FALSE"]),
        (["1.10", "1.2", "2.0b"], ["1.2", "1.10", "1.10"]),
        (["1", "2", "2.5"], ["1", "2", "1"]),
        (["true", "False", "true"], ["TRUE", "FALSE", "true"]),
        (["007", "08", "9"], ["08", "007", "08"]),
    ],
    ids=str,
)
def test_labels_of_new_data_are_read_as_those_of_the_model(
    write: Write, cells: list[str], part: list[str]
) -> None:
    """What else is in a file does not decide what its labels are."""
    rows = "".join(f"{k},{cell}\n" for k, cell in enumerate(cells))
    known = read_table(write(f"a,y\n{rows}"), "y", task="classification").classes
    assert known is not None
    rows = "".join(f"{k},{cell}\n" for k, cell in enumerate(part))
    new = read_table(write(f"a,y\n{rows}"), "y", classes=known)
    # The class of a cell, by the texts of the first file in the order of the classes.
    order = read_table(write("a,y\n" + "".join(f"0,{c}\n" for c in cells)), "y", classes=known)
    number = {cell.lower(): code for cell, code in zip(cells, order.targets.tolist(), strict=True)}
    assert new.targets.tolist() == [number[cell.lower()] for cell in part]
    assert new.classes == known
    with pytest.raises(HdnnError, match="unknown label 'other' in row 1"):
        read_table(write("a,y\n0,other\n"), "y", classes=known)


def test_labels_to_numbers_and_back() -> None:
    for classes in (["a", "b", "c"], [3, 1, 2], [0.5, 1.5, -1.0], [False, True]):
        labels = [*classes, *reversed(classes)]
        back = np.asarray(classes)[encode(labels, classes)].tolist()
        assert back == labels
        assert [type(label) for label in back] == [type(label) for label in labels]
    assert encode(["1", 2, "3.5"], [1, "2", 3.5]).tolist() == [0, 1, 2]
    assert encode([1.0, "2.0", " 3"], ["1", 2, 3]).tolist() == [0, 1, 2]
    assert encode(["1", 1], [1, "1"]).tolist() == [1, 0]  # first by value
    with pytest.raises(HdnnError, match="unknown label 'z' in row 2: known are 'a', 'b'"):
        encode(["a", "z"], ["a", "b"])
    with pytest.raises(HdnnError, match="must differ"):
        encode(["a"], ["a", "a"])
