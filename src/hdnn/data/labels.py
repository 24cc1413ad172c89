"""The column to predict: its values, its task, its classes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hdnn.data.columns import WORDS, ColumnType, as_texts, as_values, infer, to_numbers
from hdnn.data.readers import RawTable
from hdnn.errors import HdnnError, listed, shown

Label = str | int | float | bool

TASKS = ("classification", "regression")
MOST_CLASSES = 20
ROWS_PER_CLASS = 5

TARGET_REMEDY = "correct it, or, if these are labels, set the task to classification (--task)"

_INTEGER = re.compile(r"[+-]?\d{1,18}")  # longer ones may not fit into 64 bits
_ZERO_FIRST = re.compile(r"[+-]?0\d+")


def read_target(
    raw: RawTable, name: str, task: str | None, classes: Sequence[Label] | None
) -> tuple[NDArray[Any], str, tuple[Label, ...] | None]:
    """What a network is trained on: class numbers with the labels, or numbers.

    Args:
        raw: a table without missing values in this column.
        name: of the column.
        task: "classification" or "regression"; None decides by `guess_task`.
        classes: the labels that a model knows; None takes those of the column, sorted.

    Returns:
        Class numbers (int64) or values (float64), ``(rows,)``; the task; the classes, if any.

    Raises:
        HdnnError: the cells are of several types, or of one that is no target.
    """
    if classes is not None:  # cells of new data are read as the labels that the model knows
        return encode(raw.column(name).astype(object), classes), "classification", tuple(classes)
    values = _values(raw, name, task)
    if (task or guess_task(values)) == "regression":
        return values.astype(np.float64), "regression", None
    labels = tuple(np.unique(values).tolist())
    if len(labels) < 2:
        raise HdnnError(
            f"every row has the label {shown(labels[0])} in {shown(name)}, and a classifier needs "
            "two classes or more; choose another target or add rows of other classes"
        )
    if len(labels) == len(values) > MOST_CLASSES:
        raise HdnnError(
            f"every row has a label of its own in {shown(name)}, such as {shown(labels[0])}: "
            "nothing can be learned from one row of a class; choose another target"
        )
    return encode(values, labels), "classification", labels


def _values(raw: RawTable, name: str, task: str | None) -> NDArray[Any]:
    """Texts, booleans, integers or floats: one type for the whole column."""
    cells = raw.column(name).astype(object).to_numpy()
    kind = pd.api.types.infer_dtype(cells)
    if kind == "string":
        codes, distinct = pd.factorize(cells)
        declared = "number" if task == "regression" else None
        if task != "classification" and infer(name, distinct, declared).kind == "number":
            # One "12.5x" in a column of prices must not make every price a class of its own.
            numbers = ColumnType(name, "number").parse(cells, raw.row_name, TARGET_REMEDY)
            if task == "regression":
                return numbers
        return typed(distinct)[codes] if raw.is_text else cells
    if kind == "boolean":
        return cells.astype(bool)
    if kind not in ("integer", "floating", "mixed-integer-float", "decimal"):
        raise HdnnError(
            f"the target {shown(name)} holds values of the type {kind!r}; they must be all texts, "
            "all booleans or all numbers"
        )
    if kind == "integer" and max(map(abs, cells)) < 2**63:
        return cells.astype(np.int64)
    numbers = as_values(name, raw.frame[name], raw.row_name)
    return ColumnType(name, "number").parse(numbers, raw.row_name, TARGET_REMEDY)


def typed(cells: NDArray[Any]) -> NDArray[Any]:
    """Texts of one column as booleans, integers or floats, if all of them are, else as they are.

    Texts such as 007 are names, not numbers.

    >>> for cells in (["1", "2"], ["1", "2.5"], ["01", "02"], ["true", "False"]):
    ...     print(typed(np.array(cells, object)).tolist())
    [1, 2]
    [1.0, 2.5]
    ['01', '02']
    [True, False]
    """
    texts = np.array([cell.strip() for cell in cells], object)
    if all(text.lower() in WORDS for text in texts):
        return np.array([text.lower() == "true" for text in texts])
    numbers = to_numbers(texts)
    if any(map(_ZERO_FIRST.fullmatch, texts)) or not np.isfinite(numbers).all():
        return texts
    return texts.astype(np.int64) if all(map(_INTEGER.fullmatch, texts)) else numbers


def guess_task(y: NDArray[Any]) -> str:
    """Classification for texts, booleans, and whole numbers with few distinct values.

    Few is two, or at most 20 with at least 5 rows a value on average; else it is regression.

    Args:
        y: the target without missing values, ``(rows,)``.

    Returns:
        "classification" or "regression".

    >>> guess_task(np.array([0, 1, 1, 0])), guess_task(np.arange(1000))
    ('classification', 'regression')
    """
    if y.dtype.kind not in "iuf":
        return "classification"
    distinct = np.unique(y)
    few = min(MOST_CLASSES, len(y) / ROWS_PER_CLASS)
    whole = bool(np.all(distinct == np.round(distinct)))
    return "classification" if whole and len(distinct) <= max(2, few) else "regression"


def encode(labels: Any, classes: Sequence[Label]) -> NDArray[np.int64]:
    """Labels to class numbers: positions in ``classes``.

    A label that is written like a class, or is the same number, counts as that class ("1" for 1,
    "TRUE" for True): types read from a file depend on what else is in the file.

    Args:
        labels: ``(rows,)``.
        classes: all labels that may occur, in order.

    Returns:
        ``(rows,)``, positions in ``classes``.

    Raises:
        HdnnError: a label is no class.

    >>> encode(["dog", "cat", "dog"], ["cat", "dog"])
    array([1, 0, 1])
    """
    if len(set(classes)) < len(classes):
        raise HdnnError(f"classes must differ from each other, got {shown(list(classes))}")
    by_value: dict[Any, int] = {label: k for k, label in enumerate(classes)}
    by_text = {str(label).strip(): k for k, label in enumerate(classes)}
    by_number = {float(label): k for k, label in enumerate(classes) if not isinstance(label, str)}

    def number(label: Any) -> int:
        # By value first, which wins where two classes are written alike: 1 and "1".
        cell = np.array([label], object)
        text, value = as_texts(cell)[0], float(to_numbers(cell)[0])
        return by_value.get(label, by_text.get(text, by_number.get(value, -1)))

    values = labels.tolist() if hasattr(labels, "tolist") else list(labels)
    known = {label: number(label) for label in {*values}}
    codes = np.array([known[label] for label in values], np.int64)
    if len(unknown := np.flatnonzero(codes < 0)):
        row = int(unknown[0])
        names = listed([shown(label) for label in classes], MOST_CLASSES)
        raise HdnnError(
            f"unknown label {shown(values[row])} in row {row + 1}: known are {names}; correct it, "
            "or leave out the row"
        )
    return codes
