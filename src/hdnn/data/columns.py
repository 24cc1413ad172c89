"""Types of columns: numbers, dates and categories."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import ConfigDict

from hdnn.config import one_of
from hdnn.errors import HdnnError, shown

Values = NDArray[Any]
"""A column: float64 (NaN where missing), datetime64 (NaT) or objects (None)."""

RowName = Callable[[int], str]
"""Names the row of a cell: "line 17"."""

MISSING = frozenset(
    {"", "?", "-", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NaN", "nan", "NAN", "null", "NULL"}
    | {"None", "NaT"}
)
"""Texts that stand for a missing value, also with spaces around them."""

KINDS = ("number", "date", "category")
WORDS = {"true": 1.0, "false": 0.0}

FORMATS = (
    "ISO8601",
    *("%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%d-%m-%Y", "%d %b %Y", "%b %d, %Y"),
    *("%Y/%m/%d %H:%M", "%d.%m.%Y %H:%M", "%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M"),
    *("%Y/%m/%d %H:%M:%S", "%d.%m.%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%d/%m/%Y %H:%M:%S"),
)
"""Formats of dates, as `pandas.to_datetime` names them; the first that fits best is used."""

MOST_CODES = 20
"""A column with more distinct texts than this, most of them numbers, is numeric."""

DATE_SHARE = 0.8
"""A column where at least this share of the distinct texts are dates is a column of dates."""

TRAINING_REMEDY = (
    "correct it or leave the cell empty, or read the column as texts (--categorical, in Python "
    "categorical=) or not at all (--drop, drop=)"
)
PREDICTION_REMEDY = (
    "correct it, or leave the cell empty: the model takes the column as its training data had it"
)

# Digits and at least one more of what dates consist of: pandas would read 1999 as a date, too.
_DATE = re.compile(r"(?=.*\d.*\d)[\w .,/:+-]{6,40}")
# 08001 is a code, of which a number would lose the zero.
_CODE = re.compile(r"\s*0\d+\s*")
_DATES = ("datetime64", "datetime", "date")
_NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal", "boolean")
"""What `pandas.api.types.infer_dtype` calls dates and numbers."""


@dataclass(frozen=True)
class ColumnType:
    """How the cells of a column are read.

    Args:
        name: of the column.
        kind: "number", "date" or "category".
        format: of dates that are text, one of `FORMATS`.

    >>> import numpy as np
    >>> from hdnn.data import ColumnType
    >>> cells = np.array(["1.5", "NA", "true"], object)
    >>> ColumnType("price", "number").parse(cells, "row {}".format)
    array([1.5, nan, 1. ])
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    name: str
    kind: Annotated[str, one_of(*KINDS)]
    format: Annotated[str, one_of(*FORMATS)] = "ISO8601"

    def parse(self, values: Values, row_name: RowName, remedy: str = "correct it") -> Values:
        """Convert the cells to float64, datetime64, or texts.

        Args:
            values: as `as_values` gives them.
            row_name: names the row of a cell, for the error.
            remedy: what a user can do about a cell of another type.

        Returns:
            The column; NaN, NaT or None where missing.

        Raises:
            HdnnError: some cells are not finite numbers, or not dates.
        """
        if self.kind == "category":
            return as_texts(values)
        if self.kind == "number":
            parsed, expected = to_numbers(values), "needs finite numbers"
        else:
            day = datetime.datetime(2021, 12, 31)
            example = "2021-12-31" if self.format == "ISO8601" else day.strftime(self.format)
            parsed, expected = to_dates(values, self.format), f"needs dates such as {example}"
        lost = np.flatnonzero(~np.isfinite(parsed) & ~pd.isna(values))
        wrong = lost[~is_missing(values[lost])]
        if not len(wrong):
            return parsed
        cells = [f"{row_name(int(i))} holds {shown(values[i])}" for i in wrong[:3]]
        more = f" and {len(wrong) - 3} more cells" if len(wrong) > 3 else ""
        raise HdnnError(f"column {shown(self.name)} {expected}: {', '.join(cells)}{more}; {remedy}")


# --- cells and columns ----------------------------------------------------------------------------


def is_missing(values: Values) -> NDArray[np.bool_]:
    """Where a column has no value: None, NaN, or a text of `MISSING`."""
    missing = np.asarray(pd.isna(values), bool)
    if values.dtype.kind == "O":
        missing |= np.array([isinstance(v, str) and v.strip() in MISSING for v in values], bool)
    return missing


def to_numbers(values: Values) -> NDArray[np.float64]:
    """A column as float64, 1 and 0 for true and false; NaN for missing and for other texts."""
    try:
        # One call for the whole column, where every cell is a number; `_number` reads the others.
        # It would read 1_000 as a number, too: one search through all texts is enough to know.
        if values.dtype.kind == "f" or "_" not in "".join(values):
            return values.astype(np.float64, copy=False)
    except (TypeError, ValueError):  # a cell is no text, or no number
        pass
    return _map_distinct(_number, values, np.nan)


def _number(cell: Any) -> float:
    text = str(cell).strip().lower()
    try:
        # Python reads 1_000 as a number; in a data file it is a code.
        return WORDS[text] if text in WORDS else float(text.replace("_", "x"))
    except ValueError:
        return np.nan


def to_dates(values: Values, format: str) -> Values:
    """A column as datetime64 in UTC; NaT for missing and for other texts."""
    if values.dtype.kind == "M":
        return values
    codes, distinct = pd.factorize(values)
    texts = pd.Series([str(value).strip() for value in distinct], dtype=object)
    dates = pd.to_datetime(texts, format=format, errors="coerce", utc=True)
    return np.append(_without_zone(dates), np.datetime64("NaT"))[codes]


def as_texts(values: Values) -> Values:
    """A column as stripped texts, None where missing; whole numbers have no decimals."""
    if values.dtype.kind == "M":
        values = np.datetime_as_string(values, unit="s").astype(object)  # NaT is in `MISSING`
    return _map_distinct(_text, values, None)


def _text(value: Any) -> str | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    return None if text in MISSING else text


def _map_distinct(function: Callable[[Any], Any], values: Values, missing: Any) -> Values:
    """Apply a function to a column, once for every distinct value."""
    codes, distinct = pd.factorize(values)
    dtype = object if missing is None else np.float64
    return np.array([*map(function, distinct), missing], dtype)[codes]  # -1 is a missing one


def as_values(name: str, column: pd.Series, row_name: RowName) -> Values:
    """A column of pandas as float64, datetime64, or objects with None where missing.

    Args:
        name: of the column.
        column: of any dtype.
        row_name: names the row of a cell, for the error.

    Returns:
        The values; a pandas category, whatever it holds, is text.

    Raises:
        HdnnError: it holds lists or other objects.
    """
    kind = pd.api.types.infer_dtype(column, skipna=True)
    try:
        if kind in _DATES:
            return _without_zone(pd.to_datetime(column, utc=True))
        if kind in _NUMBERS:
            return column.to_numpy(np.float64, na_value=np.nan)
    except (OverflowError, ValueError):  # an integer or a date out of range
        pass
    values = column.astype(object).to_numpy(copy=True)
    for row, value in enumerate(values if kind.startswith("mixed") else ()):
        if not pd.api.types.is_scalar(value):
            raise HdnnError(
                f"column {shown(name)} holds {shown(value)} ({row_name(row)}), which is neither a "
                "number, a text nor a date; leave the column out"
            )
    values[pd.isna(values)] = None
    return as_texts(values) if kind == "categorical" else values


def _without_zone(column: pd.Series) -> Values:
    return column.dt.tz_localize(None).to_numpy().astype("M8[us]")


# --- what a column is -----------------------------------------------------------------------------


def infer(name: str, values: Values, declared: str | None = None) -> ColumnType:
    """The type of a column: as declared, by its dtype, or by its texts.

    Args:
        name: of the column.
        values: all of it.
        declared: "number" or "category", where the user says so.

    Returns:
        The type. In a column of mostly numbers, or dates, the other cells are errors.
    """
    if declared is not None:
        return ColumnType(name, declared)
    if values.dtype.kind != "O":
        return ColumnType(name, "date" if values.dtype.kind == "M" else "number")
    if _has_codes(pd.unique(values)):
        return ColumnType(name, "category")
    if np.isfinite(to_numbers(values)).all():
        return ColumnType(name, "number")
    distinct = [text for text in pd.unique(as_texts(values)) if text is not None]
    numbers = to_numbers(np.array(distinct, object))
    share = 1.0 if not distinct else np.mean(~np.isnan(numbers))
    if share == 1:
        return ColumnType(name, "number")
    if format := _date_format(distinct):
        return ColumnType(name, "date", format)
    return ColumnType(name, "number" if len(distinct) > MOST_CODES and share > 0.5 else "category")


def _has_codes(distinct: Iterable[Any]) -> bool:
    """Whether some are digits after a zero, as postcodes are."""
    return any(isinstance(text, str) and _CODE.fullmatch(text) for text in distinct)


def _are_numbers(levels: Sequence[str]) -> bool:
    """Whether numbers may be such texts: pandas reads 08001 as 8001, which no training row had."""
    texts = np.array(levels, object)
    numbers = to_numbers(texts)
    known = ~np.isnan(numbers)
    return bool(known.any() and (as_texts(numbers[known]) == texts[known]).all())


def _date_format(distinct: Sequence[str]) -> str | None:
    """The format that fits most of these texts, the first of several; None if it is too few."""
    likely = np.array([text for text in distinct if _DATE.fullmatch(text)], object)
    if len(likely) < DATE_SHARE * len(distinct):
        return None
    # The first texts rule out most formats without reading the whole column.
    formats = [f for f in FORMATS if not np.isnat(to_dates(likely[:50], f)).all()]
    counts = {f: np.sum(~np.isnat(to_dates(likely, f))) for f in formats}
    best = max(counts, key=lambda f: counts[f], default=None)
    return best if best and counts[best] >= DATE_SHARE * len(distinct) else None


def read_column(
    name: str, column: pd.Series, row_name: RowName, declared: ColumnType | str | None = None
) -> tuple[ColumnType, Values]:
    """The type of a column and its values.

    Args:
        name: of the column.
        column: of any dtype.
        row_name: names the row of a cell, for the error.
        declared: the type that a model knows, or "number" or "category" where the user says so.

    Raises:
        HdnnError: some cells are of another type.
    """
    values = as_values(name, column, row_name)
    if isinstance(declared, ColumnType):
        levels = getattr(declared, "levels", ())
        numbers = values.dtype.kind == "f" and not np.isnan(values).all()
        if levels and numbers and not _are_numbers(levels):
            raise HdnnError(
                f"column {shown(name)} holds numbers, but texts such as {shown(levels[0])} in the "
                "training data; read it as text, as by pandas.read_csv(dtype=str)"
            )
        return declared, declared.parse(values, row_name, PREDICTION_REMEDY)
    if declared is None and isinstance(column.dtype, pd.CategoricalDtype):
        declared = "category"
    kind = infer(name, values, declared)
    return kind, kind.parse(values, row_name, TRAINING_REMEDY)
