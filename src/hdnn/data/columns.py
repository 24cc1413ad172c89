"""Types of columns: numbers, dates and categories, as people write them."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import AfterValidator, ConfigDict

from hdnn.data.files import short
from hdnn.errors import HdnnError

Values = NDArray[Any]
"""A column: float64 (NaN where missing), datetime64 (NaT) or objects (None)."""

Place = Callable[[int], str]
"""Names the row of a cell: "line 17"."""

MISSING = frozenset(
    {"", "?", "-", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NaN", "nan", "NAN", "null", "NULL"}
    | {"None", "NaT"}
)
"""The texts that stand for a missing value, also with spaces around them."""

KINDS = ("number", "date", "category")
WORDS = {"true": 1.0, "false": 0.0}
UNITS = ("$", "€", "£", "¥", "%")
STYLES = ((".", ""), (".", ","), (",", ""), (",", "."))
"""How numbers are written: the decimal sign, and the sign between thousands, if any."""

FORMATS = (
    "ISO8601",
    *("%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%d-%m-%Y", "%d %b %Y", "%b %d, %Y"),
    *("%Y/%m/%d %H:%M", "%d.%m.%Y %H:%M", "%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M"),
    *("%Y/%m/%d %H:%M:%S", "%d.%m.%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%d/%m/%Y %H:%M:%S"),
)
"""How dates are written, the first that fits all of a column; the names are those of strftime."""

MOST_CODES = 20
"""A column of more different texts than this, most of them numbers, is one of numbers."""

DATE_SHARE = 0.8
"""A column is one of dates where at least this share of its different texts are."""

TRAINING_REMEDY = (
    "correct it or leave the cell empty, or read the column as texts (--categorical, in Python "
    "categorical=) or not at all (--drop, drop=)"
)
PREDICTION_REMEDY = (
    "correct it, or leave the cell empty: the model takes the column as its training data had it"
)

_DATE = re.compile(r"(?=.*\d.*\d)[\w .,/:+-]{6,40}")
_NUMBERS = (int, float, Decimal, np.integer, np.floating, np.bool_)
_DATES = (datetime.date, np.datetime64)


def one_of(*known: str) -> AfterValidator:
    """The values that a text of a stored column may have."""

    def check(value: str) -> str:
        if value not in known:
            raise ValueError(f"known are {', '.join(map(repr, known))}")
        return value

    return AfterValidator(check)


@dataclass(frozen=True)
class ColumnType:
    """How the cells of a column are read.

    Args:
        name: of the column.
        kind: "number", "date" or "category".
        decimal: of numbers, the decimal sign.
        thousands: of numbers, the sign between thousands, if any.
        unit: of numbers, a sign that may stand before or after them, such as $ or %.
        format: of dates that are texts, one of `FORMATS`.

    >>> from hdnn.data import ColumnType
    >>> ColumnType("price", "number", unit="$", thousands=",").parse_number("$1,200")
    1200.0
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    name: str
    kind: Annotated[str, one_of(*KINDS)]
    decimal: Annotated[str, one_of(".", ",")] = "."
    thousands: Annotated[str, one_of("", ".", ",")] = ""
    unit: Annotated[str, one_of("", *UNITS)] = ""
    format: Annotated[str, one_of(*FORMATS)] = "ISO8601"

    @property
    def is_plain(self) -> bool:
        """Whether it is of numbers as Python writes them."""
        style = (self.decimal, self.thousands, self.unit)
        return self.kind == "number" and style == (".", "", "")

    def parse_number(self, text: str) -> float:
        """A text as a float, 1 and 0 for true and false.

        Args:
            text: the cell.

        Returns:
            The number.

        Raises:
            ValueError: it is none.
        """
        text = text.strip()
        if text.lower() in WORDS:
            return WORDS[text.lower()]
        if self.unit:
            text = re.sub(rf"\s*{re.escape(self.unit)}\s*", "", text, count=1)
        if self.thousands:
            groups = rf"[+-]?(\d{{1,3}}(\{self.thousands}\d{{3}})+|\d+)(\{self.decimal}\d*)?"
            if not re.fullmatch(groups, text):
                raise ValueError(text)
            text = text.replace(self.thousands, "")
        if self.decimal == ",":
            if "." in text:
                raise ValueError(text)
            text = text.replace(",", ".")
        if "_" in text:  # a number to Python, not to the author of a data file
            raise ValueError(text)
        return float(text)

    def parse(self, values: Values, place: Place, remedy: str = TRAINING_REMEDY) -> Values:
        """The cells as float64, datetime64, or texts with None.

        Args:
            values: as `as_values` gives them.
            place: names the row of a cell, for the error.
            remedy: what a user can do about a cell that is none of this type.

        Returns:
            As many as were given; NaN, NaT or None where missing.

        Raises:
            HdnnError: cells are no numbers, infinite, or no dates.
        """
        if self.kind == "category":
            return as_texts(values)
        parsed = self._numbers(values) if self.kind == "number" else self._dates(values)
        lost = np.flatnonzero(pd.isna(parsed) & ~pd.isna(values))
        wrong = lost[~is_missing(values[lost])]
        what = "is not numeric"
        if self.kind == "date":
            what = f"is no date such as {self.example}"
        elif not len(wrong):
            wrong, what = np.flatnonzero(np.isinf(parsed)), "has infinite values"
        if not len(wrong):
            return parsed
        cells = [f"{place(int(i))} holds {short(values[i])}" for i in wrong[:3]]
        more = f" and {len(wrong) - 3} more cells" * (len(wrong) > 3)
        raise HdnnError(f"column {short(self.name)} {what}: {', '.join(cells)}{more}; {remedy}")

    @property
    def example(self) -> str:
        """A date as this column writes it."""
        day = datetime.datetime(2021, 12, 31)
        return "2021-12-31" if self.format == "ISO8601" else day.strftime(self.format)

    def _numbers(self, values: Values) -> NDArray[np.float64]:
        """A column as float64; NaN also for what is no number."""
        if values.dtype.kind == "f":
            return values
        if self.is_plain and (numbers := plain_numbers(values)) is not None:
            return numbers

        def number(value: Any) -> float:
            try:
                return self.parse_number(value) if isinstance(value, str) else float(value)
            except (ValueError, OverflowError, TypeError):
                return np.nan

        codes, distinct = pd.factorize(values)
        return np.array([*map(number, distinct), np.nan], np.float64)[codes]

    def _share(self, texts: Values) -> float:
        """How many of these texts are numbers of this style."""
        return float(np.mean(~np.isnan(self._numbers(texts))))

    def _dates(self, values: Values) -> Values:
        """A column as datetime64; NaT also for what is no date."""
        if values.dtype.kind == "M":
            return values
        codes, distinct = pd.factorize(values)
        texts = [value.strip() if isinstance(value, str) else None for value in distinct]
        return np.append(_read_dates(texts, self.format), np.datetime64("NaT"))[codes]


# --- cells and columns ----------------------------------------------------------------------------


def is_missing(values: Any) -> NDArray[np.bool_]:
    """Where a column has no value: None, NaN, or a text of `MISSING`."""
    missing = np.asarray(pd.isna(values), bool)
    if values.dtype.kind == "O":
        texts = np.flatnonzero(~missing)
        blank = [isinstance(v, str) and v.strip() in MISSING for v in values[texts]]
        missing[texts] = np.array(blank, bool)
    return missing


def plain_numbers(values: Values) -> NDArray[np.float64] | None:
    """A column whose every text is a number or missing, quickly; else None."""
    missing = pd.Series(values, dtype=object).isin(MISSING).to_numpy() | pd.isna(values)
    texts = np.where(missing, "nan", values)
    try:
        if "_" in "".join(texts):
            return None
        return texts.astype(np.float64)
    except (ValueError, TypeError, OverflowError):
        return None


def as_values(name: str, column: pd.Series, place: Place) -> Values:
    """A column of pandas as float64, datetime64, or objects with None where missing.

    Args:
        name: of the column.
        column: of any dtype.
        place: names the row of a cell, for the error.

    Returns:
        The values; a category, whatever it holds, is texts.

    Raises:
        HdnnError: it holds something else than numbers, texts and dates.
    """
    dtype = column.dtype
    if pd.api.types.is_datetime64_any_dtype(dtype):
        return _without_zone(column)
    if pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_complex_dtype(dtype):
        return column.to_numpy(np.float64, na_value=np.nan)
    values = column.astype(object).to_numpy(copy=True)
    values[pd.isna(values)] = None
    kinds = {type(value) for value in values} - {type(None)}
    for kind in kinds:
        if not issubclass(kind, (str, *_NUMBERS, *_DATES)):
            first = [type(value) for value in values].index(kind)
            raise HdnnError(
                f"column {short(name)} holds {short(values[first])} ({place(first)}), which is "
                "neither a number, a text nor a date; leave the column out"
            )
    if isinstance(dtype, pd.CategoricalDtype):
        return as_texts(values)
    try:
        if all(issubclass(kind, _NUMBERS) for kind in kinds):
            return np.array([np.nan if v is None else float(v) for v in values], np.float64)
        if all(issubclass(kind, _DATES) for kind in kinds):
            return _without_zone(pd.to_datetime(pd.Series(values), utc=True))
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
    return np.array([*map(_text, distinct), None], object)[codes]


def _text(value: Any) -> str | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    return None if text in MISSING else text


def _read_dates(texts: Sequence[str | None], format: str) -> Values:
    column = pd.Series(texts, dtype=object)
    return _without_zone(pd.to_datetime(column, format=format, errors="coerce", utc=True))


# --- what a column is -----------------------------------------------------------------------------


def infer(
    name: str, values: Values, declared: str | None = None, decimal_comma: bool = False
) -> ColumnType:
    """What a column is: as declared, by its dtype, or by its texts.

    Args:
        name: of the column.
        values: all of it.
        declared: "number" or "category", where the user says so.
        decimal_comma: whether 1,234 is rather a number with decimals than one of thousands.

    Returns:
        The type. A column of mostly numbers, or dates, is one of these: the other cells are errors.
    """
    if declared == "category" or values.dtype.kind != "O":
        kind = "date" if values.dtype.kind == "M" and declared is None else "number"
        return ColumnType(name, declared or kind)
    known = pd.unique(values[~is_missing(values)])
    if not len(known) or plain_numbers(values) is not None:
        return ColumnType(name, "number")
    distinct = np.array([str(cell).strip() for cell in known], object)
    units = ["", *(u for u in UNITS if sum(u in text for text in distinct) > len(distinct) / 2)]
    styles = (STYLES[0], *STYLES[2:], STYLES[1]) if decimal_comma else STYLES
    candidates = [ColumnType(name, "number", *style, unit) for unit in units for style in styles]
    # The first thousand rule most of them out.
    shares = [candidate._share(distinct[:1000]) for candidate in candidates]
    likely = [c for c, share in zip(candidates, shares, strict=True) if share == max(shares)]
    shares = [candidate._share(distinct) for candidate in likely]
    best, share = likely[int(np.argmax(shares))], max(shares)
    if share == 1 or declared == "number":
        return best
    if format := _date_format(distinct):
        return ColumnType(name, "date", format=format)
    mostly = len(distinct) > MOST_CODES and share > 0.5
    return best if mostly else ColumnType(name, "category")


def _date_format(distinct: Values) -> str | None:
    """The format that fits most of these texts, and the first of several that fit all."""
    likely = [text for text in distinct if _DATE.fullmatch(text)]
    if len(likely) < DATE_SHARE * len(distinct):
        return None
    shares = {}
    for format in FORMATS:
        if not np.isnat(_read_dates(likely[:50], format)).all():  # most formats fail at once
            shares[format] = 1 - np.isnat(_read_dates(likely, format)).mean()
    best = max(shares, key=lambda format: shares[format], default=None)
    enough = best is not None and shares[best] * len(likely) >= DATE_SHARE * len(distinct)
    return best if enough else None


def read_column(
    name: str, column: pd.Series, place: Place, declared: str | None, decimal_comma: bool
) -> tuple[ColumnType, Values]:
    """What a column of a table is, and its values; the arguments are those of `infer`.

    Raises:
        HdnnError: it holds cells that it should not.
    """
    values = as_values(name, column, place)
    if declared is None and isinstance(column.dtype, pd.CategoricalDtype):
        declared = "category"
    if declared != "category" and values.dtype.kind == "O":
        numbers = plain_numbers(values)
        values = values if numbers is None else numbers
    kind = infer(name, values, declared, decimal_comma)
    return kind, kind.parse(values, place)
