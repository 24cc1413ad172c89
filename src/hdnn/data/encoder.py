"""The encoding of columns as numbers, which is saved with the model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import StrictBool, TypeAdapter, ValidationError

from hdnn.config import one_of
from hdnn.data.columns import KINDS, ColumnType, Values
from hdnn.errors import HdnnError, listed, shortened, shown

MOST_LEVELS = 32
"""Categories with a feature each; the others share one."""

ID_ROWS, ID_SHARE = 20, 0.9
"""Texts in at least this many rows, of which at least this share is distinct, are like an id."""

TEXT_SHARE = 0.5
"""Free text: more than `MOST_LEVELS` different ones, and more than this share of the rows."""

GAP_ROWS, GAP_SHARE = 50, 0.01
"""At least this many missing values, and this share of the rows, get an indicator column."""

PERIODS = {"year": 365.2425, "week": 7.0, "day": 1.0}
"""Periods of the sines and cosines of dates, in days."""

# The last two are what pandas calls an index without a name, in CSV and in Parquet.
_ID = re.compile(
    r"(?i:(^|[\W_])(id|uuid|guid|index|rowid|row))$|[a-z](Id|ID)$"
    r"|^Unnamed: 0$|^__index_level_0__$"
)


@dataclass(frozen=True)
class EncodedColumn(ColumnType):
    """How one column becomes numbers.

    Args:
        levels: the categories that have a feature each, the most frequent first.
        rare: whether the other categories share a feature.
        periods: of dates, names of `PERIODS`; each is a sine and a cosine.
        origin: of dates, the earliest one, in days since 1970, which is subtracted.
        indicator: whether a feature says where values are missing.
    """

    levels: tuple[str, ...] = ()
    rare: StrictBool = False
    periods: tuple[Annotated[str, one_of(*PERIODS)], ...] = ()
    origin: float = 0.0
    indicator: StrictBool = False

    @property
    def feature_names(self) -> list[str]:
        """Names of the features that it becomes."""
        if self.kind == "category":
            names = [f"{self.name}={level}" for level in self.levels]
            names += [f"{self.name}=(rare)"] if self.rare else []
        elif self.kind == "date":
            waves = [f"{self.name}.{p}.{f}" for p in self.periods for f in ("sin", "cos")]
            names = [f"{self.name}.days", *waves]
        else:
            names = [self.name]
        return [*names, *([f"{self.name} is missing"] if self.indicator else [])]

    def encode(self, values: Values, out: NDArray[np.float64]) -> None:
        """Write the numbers of a column, NaN where missing, to ``(rows, len(feature_names))``."""
        if self.kind == "category":
            codes = pd.Index(self.levels, dtype=object).get_indexer(values)  # -1: not a level
            if self.rare:
                codes[(codes < 0) & ~pd.isna(values)] = len(self.levels)
            known = np.flatnonzero(codes >= 0)
            out[:] = 0.0
            out[known, codes[known]] = 1.0
        elif self.kind == "date":
            days = as_days(values)
            out[:, 0] = days - self.origin
            for k, period in enumerate(self.periods):
                angle = 2 * np.pi * days / PERIODS[period]
                out[:, 1 + 2 * k], out[:, 2 + 2 * k] = np.sin(angle), np.cos(angle)
        else:
            out[:, 0] = values
        if self.indicator:
            out[:, -1] = pd.isna(values)


@dataclass(frozen=True)
class ColumnEncoder:
    """Encodes the columns of a table as numbers.

    Args:
        columns: the columns that are used, in order.
        notes: remarks for people: what was left out, and why; which texts share a feature.

    >>> table = {
    ...     "city": np.array(["Rome", "Bern", "Rome"], object),
    ...     "age": np.array([31, 42, np.nan]),
    ... }
    >>> types = ColumnType("city", "category"), ColumnType("age", "number")
    >>> encoder = ColumnEncoder.fit(table, types)
    >>> encoder.feature_names
    ['city=Rome', 'city=Bern', 'age']
    >>> encoder.transform(table)
    array([[ 1.,  0., 31.],
           [ 0.,  1., 42.],
           [ 1.,  0., nan]])
    """

    columns: tuple[EncodedColumn, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def fit(
        cls, values: Mapping[str, Values], types: Sequence[ColumnType], keep: Sequence[str] = ()
    ) -> ColumnEncoder:
        """Choose how to encode columns from training data.

        Args:
            values: the columns by name, as `hdnn.data.Table` has them.
            types: what they are.
            keep: columns that are used even if they look like an id.

        Returns:
            The encoder.

        Raises:
            HdnnError: no column is left.
        """
        columns: list[EncodedColumn] = []
        many: list[str] = []
        left_out: dict[str, list[str]] = {}
        for kind in types:
            column = values[kind.name]
            reason = _useless(kind, column, kind.name in keep)
            if reason is not None:
                left_out.setdefault(reason, []).append(kind.name)
                continue
            columns.append(_fit(kind, column))
            if columns[-1].rare:
                many.append(f"{shortened(kind.name)} ({pd.Series(column).nunique()} texts)")
        notes = [f"left out, {why}: {listed(names)}" for why, names in left_out.items()]
        if many:
            notes.append(
                f"a feature for each of the {MOST_LEVELS} most frequent texts, and one for the "
                f"others: {listed(many)}"
            )
        if not columns:
            raise HdnnError(
                f"no column is of use to predict from: {'; '.join(notes)}; take one nevertheless "
                "(--categorical, --numeric)"
            )
        return cls(tuple(columns), tuple(notes))

    @property
    def summary(self) -> str:
        """Which type every column has, on one line."""
        parts = []
        for kind, plural in zip(KINDS, ("numbers", "dates", "categories"), strict=True):
            names = [column.name for column in self.columns if column.kind == kind]
            if names:
                title = kind if len(names) == 1 else plural
                parts.append(f"{len(names)} {title} ({listed(names)})")
        return ", ".join(parts)

    @property
    def feature_names(self) -> list[str]:
        """Names of the columns of X."""
        return [name for column in self.columns for name in column.feature_names]

    @property
    def is_plain(self) -> bool:
        """Whether the features are the columns, all of them numbers."""
        return all(column == EncodedColumn(column.name, "number") for column in self.columns)

    def transform(self, values: Mapping[str, Values]) -> NDArray[np.float64]:
        """``(rows, len(feature_names))``: the columns as numbers, NaN where missing.

        Args:
            values: the columns by name, as `read_table` or `read_frame` gives them.

        Returns:
            One column for every name in ``feature_names``.
        """
        widths = [len(column.feature_names) for column in self.columns]
        rows = len(next(iter(values.values()), ()))
        X = np.empty((rows, sum(widths)))
        for column, end, width in zip(self.columns, np.cumsum(widths), widths, strict=True):
            column.encode(values[column.name], X[:, end - width : end])
        return X

    def read_frame(self, frame: Any) -> dict[str, Values]:
        """Read the columns of a data frame by name.

        Args:
            frame: a pandas DataFrame with at least the columns of the training data.

        Returns:
            The columns by name: float64, datetime64, or texts.

        Raises:
            HdnnError: columns are absent, or cells are of another type than in the training data.
        """
        from hdnn.data.tables import read_table  # which makes tables of types

        return read_table(frame, types=self.columns).columns

    def to_list(self) -> list[dict[str, Any]]:
        """Plain values, for JSON; what has its default is left out.

        Returns:
            One dictionary for every column.
        """
        plain: list[dict[str, Any]] = _STORED.dump_python(
            list(self.columns), mode="json", exclude_defaults=True
        )
        return plain

    @classmethod
    def from_list(cls, described: Any) -> ColumnEncoder:
        """The encoder of plain values.

        Args:
            described: what `to_list` gave.

        Returns:
            The encoder.

        Raises:
            HdnnError: they describe none.
        """
        try:
            return cls(tuple(_STORED.validate_python(described)))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "all"
            raise HdnnError(
                f"these describe no columns ({place}: {first['msg']}): {shown(described)}"
            ) from error


_STORED = TypeAdapter(list[EncodedColumn])
"""Columns as plain values, and back."""


# --- choices --------------------------------------------------------------------------------------


def _useless(kind: ColumnType, values: Values, keep: bool) -> str | None:
    """Why a column says nothing about other rows, if so."""
    known = values[~pd.isna(values)]
    if not len(known):
        return "without any value"
    distinct = pd.unique(known)
    if len(distinct) == 1 and len(known) == len(values):
        return "constant"
    if keep or len(values) < ID_ROWS:
        return None
    if kind.kind == "category" and len(distinct) > ID_SHARE * len(values):
        return "like an id (nearly every row has another text)"
    if kind.kind == "category" and len(distinct) > max(MOST_LEVELS, TEXT_SHARE * len(values)):
        return "free text (in fewer than two rows each, on average)"
    whole = kind.kind == "number" and len(distinct) == len(values) and bool(_ID.search(kind.name))
    if whole and np.array_equal(known, np.round(known)):
        return "like an id (by its name, and every row has another number)"
    return None


def _fit(kind: ColumnType, values: Values) -> EncodedColumn:
    missing = pd.isna(values)
    many = bool(missing.sum() >= max(GAP_ROWS, GAP_SHARE * len(values)))
    common = {**asdict(kind), "indicator": many}
    known = values[~missing]
    if kind.kind == "category":
        counts = pd.Series(known, dtype=object).value_counts(sort=False)
        order = sorted(counts.index, key=lambda text: (-counts[text], text))
        levels = tuple(order[:MOST_LEVELS])
        return EncodedColumn(**common, levels=levels, rare=len(order) > MOST_LEVELS)
    if kind.kind == "date":
        days = as_days(known)
        periods = [name for name, length in PERIODS.items() if _recurs(days, length)]
        return EncodedColumn(**common, periods=tuple(periods), origin=float(days.min()))
    return EncodedColumn(**common)


def _recurs(days: NDArray[np.float64], period: float) -> bool:
    """Whether dates differ within a period, and cover more than one."""
    # Otherwise its sine and cosine would be constant, or repeat the elapsed days.
    return bool(np.ptp(days) > period and np.ptp(days % period) > 0)


def as_days(dates: Values) -> NDArray[np.float64]:
    """Days since 1970, NaN where missing."""
    days = dates.astype("M8[us]").astype(np.int64) / 86_400e6
    return np.where(np.isnat(dates), np.nan, days)
