"""Cells to numbers: what counts as a number, what as missing, and where a column goes wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hdnn.data.reading import short
from hdnn.errors import HdnnError

MISSING = frozenset({"", "NA", "NaN", "nan", "null", "None", "?"})
"""The texts that stand for a missing value, also with spaces around them."""

WORDS = {"true": 1.0, "false": 0.0}
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*")


def is_missing(value: Any) -> bool:
    """Whether a cell holds no value: None, NaN, or a text of `MISSING`.

    >>> is_missing(" NA "), is_missing(float("nan")), is_missing(0)
    (True, True, False)
    """
    if isinstance(value, str):
        return value.strip() in MISSING
    try:
        return value is None or bool(value != value)  # NaN, and no other number, is not itself
    except TypeError:  # pandas.NA compares to nothing, not even to itself
        return True


def number(value: Any) -> float:
    """A cell as a float: NaN where missing, 1 and 0 for true and false; else a ValueError.

    >>> number("1.5e3"), number(" ? "), number("True")
    (1500.0, nan, 1.0)
    """
    if is_missing(value):
        return float("nan")
    if isinstance(value, str):
        word = value.strip().lower()
        if word in WORDS:
            return WORDS[word]
        if "_" in word:  # Python reads 1_000 as a number; data files do not mean it
            raise ValueError(value)
    elif not isinstance(value, (int, float, Decimal, np.number, np.bool_)) or isinstance(
        value, np.complexfloating
    ):
        raise ValueError(value)
    return float(value)


def numbers(name: str, cells: Sequence[Any], rows: Sequence[int], unit: str) -> NDArray[np.float64]:
    """One column as float64, NaN where missing.

    Args:
        name: the column's name, for the error.
        cells: texts or scalars.
        rows: the number of every cell's row, for the error.
        unit: what these numbers count: "line" or "row".

    >>> numbers("age", ["31", "NA"], [2, 3], "line")
    array([31., nan])
    """
    try:
        # Most columns are plain numerals, for which float() is all that is needed.
        if "_" in "".join(cells):
            raise ValueError
        column = np.fromiter(map(float, cells), np.float64, len(cells))
    except (ValueError, TypeError):
        column = np.fromiter(
            (_number(name, *one, unit) for one in zip(cells, rows, strict=True)),
            np.float64,
            len(cells),
        )
    refuse_infinite(name, column, rows, unit)
    return column


def refuse_infinite(name: str, column: NDArray[np.float64], rows: Sequence[int], unit: str) -> None:
    """Raise an error that names the first infinite value of a column, if there is one."""
    infinite = np.flatnonzero(np.isinf(column))
    if len(infinite):
        raise HdnnError(
            f"column {short(name)} holds an infinite value ({unit} {rows[infinite[0]]}); "
            "replace it by a number, or leave the cell empty to mark it as missing"
        )


def _number(name: str, value: Any, row: int, unit: str) -> float:
    try:
        return number(value)
    except (ValueError, OverflowError):
        if isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value):
            remedy = "write decimals with a point"
        else:
            remedy = (
                f"drop the column (drop=[{short(name)}]), turn it into numbers, or, if it is what "
                f"to predict, make it the target (target={short(name)})"
            )
        raise HdnnError(
            f"column {short(name)} is not numeric: {unit} {row} holds {short(value)}; {remedy}"
        ) from None
