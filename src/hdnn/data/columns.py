"""Columns as people have them: numbers, dates and categories, whatever way they are written."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hdnn.data.reading import short
from hdnn.errors import HdnnError

Values = NDArray[Any]
"""A column: float64 (NaN where missing), datetime64 (NaT) or objects (None)."""

MISSING = frozenset(
    {"", "?", "-", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NaN", "nan", "NAN", "null", "NULL"}
    | {"None", "NaT"}
)
"""The texts that stand for a missing value, also with spaces around them."""

KINDS = ("number", "date", "category")
WORDS = {"true": 1.0, "false": 0.0}
STYLES = (".", ",.", ".,", " .", " ,", "'.")
"""How numbers are written: the decimal sign, and before it that between thousands, if any."""

FORMATS = (
    "ISO8601",
    *("%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%d-%m-%Y", "%d %b %Y", "%b %d, %Y"),
    *("%Y/%m/%d %H:%M", "%d.%m.%Y %H:%M", "%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M"),
    *("%Y/%m/%d %H:%M:%S", "%d.%m.%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%d/%m/%Y %H:%M:%S"),
)
"""How dates are written, the first that fits all of a column; the names are those of strftime."""

MOST_STRAY = 20
"""A column of more different texts than this, most of them numbers, is one of numbers."""

_DATE = re.compile(r"(?=.*\d.*\d)[\w .,/:+-]{6,40}")
_NUMBERS = (int, float, Decimal, np.number, np.bool_)
_DATES = (datetime.date, np.datetime64)


class Block(NamedTuple):
    """Some rows of a table.

    Attributes:
        values: the columns by name.
        rows: the number of every row, for messages.
        raw: the cells as they are in the file, of a CSV file.
    """

    values: dict[str, Values]
    rows: Sequence[int]
    raw: list[list[str]] | None = None


@dataclass(frozen=True)
class ColumnType:
    """How the cells of a column are read.

    Args:
        name: of the column.
        kind: "number", "date" or "category".
        style: of numbers, one of `STYLES`.
        format: of dates that are texts, one of `FORMATS`.

    Raises:
        HdnnError: kind, style or format is unknown.

    >>> from hdnn.data import ColumnType
    >>> ColumnType("joined", "date", format="ISO8601").kind
    'date'
    """

    name: str
    kind: str
    style: str = "."
    format: str = "ISO8601"

    def __post_init__(self) -> None:
        allowed = {"kind": KINDS, "style": STYLES, "format": FORMATS}
        for field, known in allowed.items():
            if getattr(self, field) not in known:
                raise HdnnError(f"{field} of a column is one of {known}, got {short(self)}")
        if not isinstance(self.name, str):
            raise HdnnError(f"the name of a column is a text, got {short(self.name)}")

    def parse(self, values: Values, rows: Sequence[int], unit: str) -> Values:
        """The cells as float64, datetime64, or texts with None.

        Args:
            values: as a source gives them.
            rows: the number of every cell's row, for the error.
            unit: what these numbers count: "line" or "row".

        Returns:
            As many as were given; NaN, NaT or None where missing.

        Raises:
            HdnnError: a cell is no number, infinite, or no date.
        """
        if self.kind == "category":
            return as_texts(values)
        read = as_numbers if self.kind == "number" else as_dates
        parsed = read(values, self)
        lost = pd.isna(parsed) & ~pd.isna(values)
        if lost.any():
            lost &= [not is_missing(value) for value in values]
        for i in np.flatnonzero(lost)[:1]:
            raise self._wrong(values[i], f"{unit} {rows[i]}")
        if self.kind == "number":
            refuse_infinite(self.name, parsed, rows, unit)
        return parsed

    def _wrong(self, value: Any, place: str) -> HdnnError:
        what = "not numeric" if self.kind == "number" else "no date"
        name = self.name[:60]
        return HdnnError(
            f"column {short(name)} is {what}: {place} holds {short(value)}; correct it, take the "
            "column as texts (categorical), leave it out (drop), or, if it is what to predict, say "
            "so (target)"
        )


# --- cells ----------------------------------------------------------------------------------------


def is_missing(value: Any) -> bool:
    """Whether a cell holds no value: None, NaN, or a text of `MISSING`.

    >>> is_missing(" NA "), is_missing(float("nan")), is_missing(0)
    (True, True, False)
    """
    if isinstance(value, str):
        return value.strip() in MISSING
    missing = pd.isna(value)
    return missing if isinstance(missing, bool) else False


def as_number(value: Any, style: str = ".") -> float:
    """A cell as a float: NaN where missing, 1 and 0 for true and false; else a ValueError.

    >>> as_number("1.5e3"), as_number(" ? "), as_number("True"), as_number("1.234,5", ".,")
    (1500.0, nan, 1.0, 1234.5)
    """
    if is_missing(value):
        return float("nan")
    if not isinstance(value, str):
        if not isinstance(value, _NUMBERS) or isinstance(value, np.complexfloating):
            raise ValueError(value)
        return float(value)
    text = value.strip()
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    if style != ".":
        pattern, separator = _pattern(style)
        if not pattern.fullmatch(text):
            raise ValueError(value)
        text = re.sub(separator, "", text).replace(style[-1], ".") if separator else text
    elif "_" in text:  # Python reads 1_000 as a number; data files do not mean it
        raise ValueError(value)
    return float(text)


@cache
def _pattern(style: str) -> tuple[re.Pattern[str], str]:
    """Of the numbers of a style, and of what is between their thousands."""
    separator = {" ": "[ \u00a0\u202f]"}.get(style[0], re.escape(style[0]))
    whole = rf"\d{{1,3}}(?:{separator}\d{{3}})+|\d+"
    end = rf"(?:{re.escape(style[-1])}\d+)?(?:[eE][+-]?\d+)?"
    return re.compile(rf"[+-]?(?:{whole}){end}"), separator


# --- columns --------------------------------------------------------------------------------------


def plain(column: Any) -> Values:
    """A column of pandas as float64, datetime64, or objects with None where missing."""
    column = pd.Series(column) if not isinstance(column, pd.Series) else column
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return as_texts(np.asarray(column.astype(object)))
    if pd.api.types.is_datetime64_any_dtype(dtype):
        return _without_zone(column)
    if pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_complex_dtype(dtype):
        return column.to_numpy(np.float64, na_value=np.nan)
    return _from_objects(column.to_numpy(object))


def objects(column: Any) -> Values:
    """A column of pandas as Python's own values, None where missing."""
    return _with_none(pd.Series(column).to_numpy(object))


def _with_none(values: Values) -> Values:
    values = values.copy()
    values[pd.isna(values)] = None
    return values


def _from_objects(values: Values) -> Values:
    values = _with_none(values)
    kinds = {type(value) for value in values} - {type(None)}
    if all(issubclass(kind, str) for kind in kinds) and kinds:
        return values
    numeric = all(issubclass(k, _NUMBERS) and not issubclass(k, np.complexfloating) for k in kinds)
    try:
        if numeric:
            return np.array([np.nan if v is None else float(v) for v in values], np.float64)
        if all(issubclass(kind, _DATES) for kind in kinds):
            return _without_zone(pd.Series(pd.to_datetime(pd.Series(values), utc=True)))
    except (OverflowError, ValueError):
        pass
    return values


def _without_zone(column: pd.Series) -> Values:
    if getattr(column.dtype, "tz", None) is not None:
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    return column.to_numpy().astype("M8[us]")


def as_texts(values: Values) -> Values:
    """Any column as texts without spaces around them, None where missing.

    A whole number has no decimals, whatever the other cells made it.
    """
    if values.dtype.kind == "M":
        texts = np.datetime_as_string(values, unit="s").astype(object)
        texts[np.isnat(values)] = None
        return texts
    codes, distinct = pd.factorize(values)
    texts = np.array([*(_text(value) for value in distinct), None], object)
    return texts[codes]


def _text(value: Any) -> str | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return None if is_missing(value) else str(value).strip()


def as_numbers(values: Values, kind: ColumnType) -> NDArray[np.float64]:
    """A column as float64; NaN also for what is no number."""
    if values.dtype.kind == "f":
        return values

    def number(value: Any) -> float:
        try:
            return as_number(value, kind.style)
        except (ValueError, OverflowError, TypeError):
            return np.nan

    codes, distinct = _factorized(values)
    return np.array([*map(number, distinct), np.nan], np.float64)[codes]


def as_dates(values: Values, kind: ColumnType) -> Values:
    """A column as datetime64; NaT also for what is no date."""
    if values.dtype.kind == "M":
        return values
    codes, distinct = _factorized(values)
    texts = [value.strip() if isinstance(value, str) else None for value in distinct]
    found = pd.to_datetime(
        pd.Series(texts, dtype=object), format=kind.format, errors="coerce", utc=True
    )
    dates = np.append(_without_zone(found), np.datetime64("NaT"))
    return dates[codes]


def _factorized(values: Values) -> tuple[NDArray[np.intp], Values]:
    """Where every cell is among the different ones; -1 where missing."""
    return pd.factorize(values)


def refuse_infinite(name: str, column: NDArray[np.float64], rows: Sequence[int], unit: str) -> None:
    """Raise an error that names the first infinite value of a column, if there is one."""
    infinite = np.flatnonzero(np.isinf(column))
    if len(infinite):
        raise HdnnError(
            f"column {short(name)} holds an infinite value ({unit} {rows[infinite[0]]}); "
            "replace it by a number, or leave the cell empty to mark it as missing"
        )


# --- what a column is -----------------------------------------------------------------------------


def infer(
    name: str, values: Values, declared: str | None = None, comma: bool = False
) -> ColumnType:
    """What a column is: as declared, by its type, or by its texts.

    Args:
        name: of the column.
        values: all of it.
        declared: "number" or "category", where the user says so.
        comma: whether 1,234 is rather a number with decimals than one with thousands.
    """
    if declared == "category" or (values.dtype.kind == "O" and not _is_text(values)):
        return ColumnType(name, "category" if declared == "category" else "number")
    if values.dtype.kind != "O":
        return ColumnType(name, "date" if values.dtype.kind == "M" and not declared else "number")
    distinct = [str(cell).strip() for cell in pd.unique(values) if not is_missing(cell)]
    styles = (".", ".,", *STYLES) if comma else STYLES
    for style in styles:
        if all(_parses(text, style) for text in distinct):
            return ColumnType(name, "number", style)
    if declared == "number":
        return ColumnType(name, "number", max(styles, key=lambda s: _share(distinct, s)))
    if format := _date_format(distinct):
        return ColumnType(name, "date", format=format)
    best = max(styles, key=lambda style: _share(distinct, style))
    stray = len(distinct) > MOST_STRAY and _share(distinct, best) > 0.5
    return ColumnType(name, "number", best) if stray else ColumnType(name, "category")


def _is_text(values: Values) -> bool:
    kinds = {type(value) for value in values} - {type(None)}
    return all(
        issubclass(kind, (str, *_NUMBERS)) and not issubclass(kind, np.complexfloating)
        for kind in kinds
    )


def _parses(text: str, style: str) -> bool:
    try:
        as_number(text, style)
    except (ValueError, OverflowError):
        return False
    return True


def _share(distinct: Sequence[str], style: str) -> float:
    return sum(_parses(text, style) for text in islice(distinct, 1000)) / min(len(distinct), 1000)


def _date_format(distinct: Sequence[str]) -> str | None:
    """The first format that fits all of these texts."""
    if not distinct or not all(_DATE.fullmatch(text) for text in distinct):
        return None
    for format in FORMATS:
        for some in (distinct[:10], distinct):  # most formats fail at once
            try:
                pd.to_datetime(pd.Series(some, dtype=object), format=format, utc=True)
            except (ValueError, OverflowError):
                break
        else:
            return format
    return None


def typed_columns(
    values: Mapping[str, Values], types: Sequence[ColumnType], rows: Sequence[int], unit: str
) -> tuple[dict[str, Values], list[HdnnError]]:
    """Columns as their types say, and the problem of each whose cells are not what it says."""
    columns, problems = {}, []
    for kind in types:
        try:
            columns[kind.name] = kind.parse(values[kind.name], rows, unit)
        except HdnnError as error:
            problems.append(error)
    return columns, problems


def raise_all(problems: Sequence[HdnnError], most: int = 10) -> None:
    """Raise the only error as it is, or several as one of the first one's type."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        lines = [f"\n  - {error.args[0]}" for error in problems[:most]]
        more = f"\n  - and {len(problems) - most} more" * (len(problems) > most)
        raise type(problems[0])(f"{len(problems)} problems:{''.join(lines)}{more}")
