"""The column to predict: its values, its task, its classes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hdnn.data.columns import WORDS, ColumnType, as_values, infer, is_missing, plain_numbers
from hdnn.data.files import RawTable, listed, short
from hdnn.errors import HdnnError

Label = str | int | float | bool

TASKS = ("classification", "regression")
MOST_CLASSES = 20
ROWS_PER_CLASS = 5

TARGET_REMEDY = "correct it, or, if these are labels, set the task to classification (--task)"

_INTEGER = re.compile(r"[+-]?\d{1,18}")  # longer ones may have no place in 64 bits
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
        HdnnError: the cells are of several kinds, or of one that is no target.
    """
    task = "classification" if classes is not None else task
    values = _values(raw, name, task)
    if (task or guess_task(values)) == "regression":
        return values.astype(np.float64), "regression", None
    known = tuple(np.unique(values).tolist() if classes is None else classes)
    if len(known) < 2:
        raise HdnnError(
            f"every row has the label {short(known[0])} in {short(name)}, and a classifier needs "
            "two classes or more; choose another target or add rows of other classes"
        )
    if classes is None and len(known) == len(values) > MOST_CLASSES:
        raise HdnnError(
            f"every row has a label of its own in {short(name)}, such as {short(known[0])}: "
            "nothing can be learned from one row of a class; choose another target"
        )
    return encode(values, known), "classification", known


def _values(raw: RawTable, name: str, task: str | None) -> NDArray[Any]:
    """Texts, booleans, integers or floats: one kind for the whole column."""
    cells = raw.frame[name].astype(object).to_numpy()
    kind = pd.api.types.infer_dtype(cells)
    if kind == "string":
        codes, distinct = pd.factorize(cells)
        if task != "classification":
            declared = None if task is None else "number"
            style = infer(name, distinct, declared, raw.has_decimal_comma)
            if style.kind == "number":
                # One "12.5x" in a column of prices must not make every price a class of its own.
                numbers = style.parse(cells, raw.place, TARGET_REMEDY)
                if task == "regression" or not style.is_plain:
                    return numbers
        return cells if raw.csv is None else typed(distinct)[codes]
    if kind == "boolean":
        return cells.astype(bool)
    if kind not in ("integer", "floating", "mixed-integer-float", "decimal"):
        raise HdnnError(
            f"the target {short(name)} holds values of the kind {kind!r}; they must be all texts, "
            "all booleans or all numbers"
        )
    if kind == "integer" and max(map(abs, cells)) < 2**63:
        return cells.astype(np.int64)
    numbers = as_values(name, raw.frame[name], raw.place)
    return ColumnType(name, "number").parse(numbers, raw.place, TARGET_REMEDY)


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
    if all(_INTEGER.fullmatch(text) for text in texts):
        return texts if any(map(_ZERO_FIRST.fullmatch, texts)) else texts.astype(np.int64)
    numbers = plain_numbers(texts)
    if numbers is None or not np.isfinite(numbers).all() or any(map(_ZERO_FIRST.fullmatch, texts)):
        return texts
    return numbers


def guess_task(y: NDArray[Any]) -> str:
    """Classification for texts, booleans, and whole numbers of few different values.

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
    """Labels to class numbers: position in ``classes``, ``(rows,)``.

    A label that is written like a class but of another type counts as that class ("1" for 1):
    types read from a text file depend on what else is in the file.

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
        raise HdnnError(f"classes must differ from each other, got {short(list(classes))}")
    numbers = {str(label): k for k, label in enumerate(classes)}
    numbers |= {label: k for k, label in enumerate(classes)}  # type: ignore[misc]
    values = labels.tolist() if isinstance(labels, np.ndarray) else list(labels)
    found = np.array([numbers.get(v, numbers.get(str(v), -1)) for v in values], np.int64)
    if len(unknown := np.flatnonzero(found < 0)):
        row = int(unknown[0])
        missing = is_missing(np.array([values[row]], object))[0]
        what = "a missing label" if missing else f"unknown label {short(values[row])}"
        known = listed([short(each) for each in classes], MOST_CLASSES)
        raise HdnnError(
            f"{what} in row {row + 1}: known are {known}; correct it, or leave out the row"
        )
    return found
