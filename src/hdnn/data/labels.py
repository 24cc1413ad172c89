"""The column to predict: its type, its task, its classes, and class numbers to and fro."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hdnn.data.columns import ColumnType, Place, infer, is_missing
from hdnn.data.files import listed, short
from hdnn.errors import HdnnError

Label = str | int | float | bool

TASKS = ("classification", "regression")
MOST_CLASSES = 20
ROWS_PER_CLASS = 5

_INTEGER = re.compile(r"[+-]?\d{1,18}")  # longer ones may have no place in 64 bits
_ZERO_FIRST = re.compile(r"[+-]?0\d+")
_BOOLEANS = {"true": True, "false": False}


def typed(cells: Sequence[str]) -> list[Label]:
    """Texts of one column as booleans, integers, floats or texts: the first that fits all of them.

    Texts such as 007 are names, not numbers, and stay as they are.

    >>> typed(["1", "2"]), typed(["1", "2.5"]), typed(["01", "02"]), typed(["true", "False"])
    ([1, 2], [1.0, 2.5], ['01', '02'], [True, False])
    """
    texts = [cell.strip() for cell in cells]
    if any(_ZERO_FIRST.fullmatch(text) for text in texts):
        return list(texts)
    if all(text.lower() in _BOOLEANS for text in texts):
        return [_BOOLEANS[text.lower()] for text in texts]
    if all(_INTEGER.fullmatch(text) for text in texts):
        return [int(text) for text in texts]
    kind = ColumnType("", "number")
    try:
        return [kind.parse_number(text) for text in texts]
    except ValueError:
        return list(texts)


def read_target(
    name: str, column: pd.Series, place: Place, from_texts: bool, decimal_comma: bool
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The known values of a column to predict, of one type, and where they are.

    Args:
        name: of the column.
        column: as its source has it.
        place: names the row of a cell, for errors.
        from_texts: whether it is of a file of texts, so that its cells have no types yet.
        decimal_comma: as `hdnn.data.columns.infer` takes it.

    Returns:
        Texts, booleans, integers or floats, and ``(rows,)``: which cells hold them.

    Raises:
        HdnnError: the cells are of several kinds, or of one that is no target.
    """
    cells = column.astype(object).to_numpy()
    known = ~is_missing(cells)
    values = cells[known].tolist()
    if from_texts:
        kind = infer(name, cells[known], None, decimal_comma)
        if kind.kind == "number" and not kind.is_plain and len(set(values)) > 2:
            rows = np.flatnonzero(known)
            return kind.parse(cells[known], lambda i: place(rows[i])), known
        values = typed(values)
    return _as_array(name, values), known


def _as_array(name: str, values: Sequence[Any]) -> NDArray[Any]:
    """Values as one numpy array of texts, booleans, integers or floats."""
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    plain = [float(value) if isinstance(value, Decimal) else value for value in plain]
    kinds = {type(value) for value in plain}
    if not any(kinds <= allowed for allowed in ({str}, {bool}, {int, float})):
        names = sorted(kind.__name__ for kind in kinds)
        raise HdnnError(
            f"the target {short(name)} holds {' and '.join(names)}; its values must be all texts, "
            "all booleans or all numbers"
        )
    try:
        array = np.asarray(plain, dtype=object if kinds == {str} else None)
        return array.astype(np.float64) if array.dtype == object and kinds != {str} else array
    except OverflowError:
        raise HdnnError(
            f"the target {short(name)} holds an integer that is too large for a floating-point "
            "number; correct it"
        ) from None


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


def classes_of(y: NDArray[Any]) -> tuple[Label, ...]:
    """The distinct labels, sorted, as Python's own texts, booleans, integers or floats.

    >>> classes_of(np.array(["b", "a", "b"]))
    ('a', 'b')
    """
    return tuple(np.unique(y).tolist())


def regression_target(name: str, y: NDArray[Any], place: Place) -> NDArray[np.float64]:
    """The target as float64, or an error that names the first value that is no finite number."""
    kind, values = ColumnType(name, "number"), np.full(len(y), np.nan)
    for i, value in enumerate(y.tolist()):
        with suppress(ValueError, OverflowError):
            values[i] = kind.parse_number(value) if isinstance(value, str) else float(value)
        if not np.isfinite(values[i]):
            raise HdnnError(
                f"the target {short(name)} holds {short(value)} ({place(i)}), but regression "
                "needs finite numbers; correct it, or set the task to classification (--task)"
            )
    return values


def check_labels(name: str, y: NDArray[Any], place: Place) -> None:
    """Raise an error where a numeric target was read as texts because of a few bad cells.

    Without it, one "12.5x" in a column of prices would make every price a class of its own.
    """
    if y.dtype.kind not in "OU" or len(set(y.tolist())) <= MOST_CLASSES:
        return
    bad = [i for i, text in enumerate(y.tolist()) if isinstance(typed([text])[0], str)]
    if 0 < len(bad) <= len(y) / 2:
        cells = [f"{place(i)}: {short(y[i])}" for i in bad]
        raise HdnnError(
            f"the target {short(name)} holds numbers, except {listed(cells, 3)}; correct it, or, "
            "if these are labels, set the task to classification (--task)"
        )


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
    position = {str(label): i for i, label in enumerate(classes)}
    exact: dict[Any, int] = {label: i for i, label in enumerate(classes)}
    if len(exact) < len(classes):
        raise HdnnError(f"classes must differ from each other, got {short(list(classes))}")
    values = labels.tolist() if isinstance(labels, np.ndarray) else list(labels)
    numbers = np.empty(len(values), np.int64)
    for row, label in enumerate(values):
        number = exact.get(label, position.get(str(label)))
        if number is None:
            missing = is_missing(np.array([label], object))[0]
            what = "a missing label" if missing else f"unknown label {short(label)}"
            known = listed([short(each) for each in classes], MOST_CLASSES)
            raise HdnnError(
                f"{what} in row {row + 1}: known are {known}; correct the label, or leave out its "
                "rows"
            )
        numbers[row] = number
    return numbers
