"""Tables: features and targets from a file or from arrays, checked, with remarks."""

from __future__ import annotations

import difflib
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hdnn.data.columns import (
    PREDICTION_REMEDY,
    ColumnType,
    Values,
    as_values,
    is_missing,
    plain_numbers,
    read_column,
)
from hdnn.data.files import BLOCK_ROWS, RawTable, cut, listed, raw_parts, read_raw, short
from hdnn.data.labels import TASKS, Label, read_target
from hdnn.errors import FileFormatError, HdnnError, unknown_name

_MOST_NAMES, _MOST_PROBLEMS = 30, 10


@dataclass(frozen=True, eq=False)
class Table:
    """Features and target of one data set.

    Args:
        columns: the features by name: float64 (NaN where missing), datetime64 (NaT), or texts
            (None). `hdnn.data.ColumnEncoder` makes numbers of them.
        types: how each was read.
        targets: what a network is trained on: class numbers (int64), or values (float64),
            ``(rows,)``, of several targets ``(rows, targets)``; empty without one.
        target: the names of the targets.
        task: "classification" or "regression"; None without a target.
        classes: the distinct labels, sorted, for classification; else None.
        notes: remarks for people: missing values, rows left out.

    >>> import hdnn
    >>> columns = {"age": [31, 45, 28], "plan": ["a", "b", "a"], "left": ["no", "yes", "no"]}
    >>> table = hdnn.data.read_table(columns, "left")
    >>> table.task, table.classes, [column.kind for column in table.types]
    ('classification', ('no', 'yes'), ['number', 'category'])
    """

    columns: dict[str, Values]
    types: tuple[ColumnType, ...]
    targets: NDArray[Any]
    target: tuple[str, ...] = ()
    task: str | None = None
    classes: tuple[Label, ...] | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __repr__(self) -> str:
        goal = "no target" if self.task is None else f"{self.task} of {', '.join(self.target)}"
        return f"Table({len(self)} rows, {len(self.columns)} features, {goal})"


def read_table(
    source: Any,
    target: str | Sequence[str] | None = None,
    *,
    task: str | None = None,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    numeric: Sequence[str] = (),
    classes: Sequence[Label] | None = None,
    types: Sequence[ColumnType] | None = None,
) -> Table:
    """Read a table and check it; all problems are told at once.

    Missing values are empty cells, NA, NaN, null, None, ?, - and their like. A column is one of
    numbers (also 1,234.5 and 1.234,5, $5 and 12 %; true and false are 1 and 0), of dates, or of
    categories. Rows without a target are left out. The task is classification if the target holds
    texts, booleans, or whole numbers of two values, or of at most 20 with 5 rows each on average.

    Args:
        source: the path of a CSV file (header required; commas, semicolons, tabs or bars; UTF-8,
            UTF-16 or Latin-1; also .gz, .bz2, .xz), of a Parquet file, or of an NPZ file (columns
            by name; a 2-D array named X is columns x0, x1, ...); or a data frame, a dict of
            columns, or a 2-D array.
        target: the column to predict; several for regression. None: there is none.
        task: "classification" or "regression"; None decides by the rule above.
        drop: columns to leave out.
        categorical: columns that are categories, whatever they look like.
        numeric: columns that are numbers; a cell that is none is an error.
        classes: the labels that a model knows, to read data for it: these classes in this order,
            whatever labels occur.
        types: the columns that a model knows: these are read, as they say.

    Returns:
        Features and target, and what was noted about them.

    Raises:
        HdnnError: the table cannot be used as it is.

    >>> read_table({"age": [31, 42, None], "city": ["Rome", "Bern", "Rome"]}, target="city")
    Table(3 rows, 1 features, classification of city)
    """
    if task is not None and task not in TASKS:
        raise unknown_name("task", task, TASKS)
    if isinstance(drop, str):
        raise HdnnError(f"drop is a list of column names, got one text: {short(drop)}")
    if both := sorted({*categorical} & {*numeric}):
        raise HdnnError(
            f"columns cannot be both numeric and categorical: {short(both)}; name each once"
        )
    raw = read_raw(source)
    goals = (target,) if isinstance(target, str) else tuple(target or ())
    notes: list[str] = []
    if raw.csv is not None and raw.csv.encoding == "latin-1":
        notes.append("the file is not UTF-8 and was read as Latin-1; check letters with accents")
    asked = goals if types is not None else (*goals, *drop, *categorical, *numeric)
    names = [kind.name for kind in types or ()]
    _check_names(raw, asked, names)
    if types is None:
        names = _feature_names(raw, goals, drop, notes)
    raw = _known_rows(raw, goals, notes)

    problems: list[HdnnError] = []
    columns: dict[str, Values] = {}
    if types is None:
        declared = dict.fromkeys(categorical, "category") | dict.fromkeys(numeric, "number")
        types, comma = [], raw.has_decimal_comma
        for name in names:
            with _collected(problems):
                column = raw.frame[name], raw.place, declared.get(name), comma
                kind, columns[name] = read_column(name, *column)
                types.append(kind)
        units = [f"{cut(kind.name)} ({kind.unit})" for kind in types if kind.unit]
        notes += [f"read as numbers without their sign: {listed(units)}"] if units else []
    else:
        columns = _parse_columns(raw, types, problems)
    missing = {name: int(pd.isna(values).sum()) for name, values in columns.items()}
    gaps = [f"{cut(name)} {n}" for name, n in missing.items() if 0 < n < len(raw.frame)]
    notes += [f"missing values among {len(raw.frame)} rows: {listed(gaps)}"] if gaps else []

    task = "regression" if len(goals) > 1 else task
    targets = []
    for name in goals:
        with _collected(problems):
            values, task, classes = read_target(raw, name, task, classes)
            targets.append(values)
    _raise_all(raw.where, problems)
    if not goals:
        return Table(columns, tuple(types), np.empty(0), notes=tuple(notes))
    y = targets[0] if len(goals) == 1 else np.stack(targets, 1)
    known_classes = None if classes is None else tuple(classes)
    if alike := _spelled_differently(known_classes or ()):
        notes.append(f"labels that differ in case only are classes of their own: {listed(alike)}")
    return Table(columns, tuple(types), y, goals, task, known_classes, tuple(notes))


def _spelled_differently(labels: Sequence[Label]) -> list[str]:
    """Labels that are alike but for upper and lower case, as Yes and yes."""
    count = Counter(str(label).casefold() for label in labels)
    return [short(label) for label in labels if count[str(label).casefold()] > 1]


def _parse_columns(
    raw: RawTable, types: Sequence[ColumnType], problems: list[HdnnError]
) -> dict[str, Values]:
    """Columns as a model knows them."""
    columns = {}
    for kind in types:
        with _collected(problems):
            values = as_values(kind.name, raw.frame[kind.name], raw.place)
            columns[kind.name] = kind.parse(values, raw.place, PREDICTION_REMEDY)
    return columns


def _known_rows(raw: RawTable, goals: Sequence[str], notes: list[str]) -> RawTable:
    """The rows that have a value in every target."""
    known = np.ones(len(raw.frame), bool)
    for name in goals:
        known &= ~is_missing(raw.frame[name].astype(object).to_numpy())
    rows = int(known.sum())
    if rows == 0:
        raise HdnnError(
            f"{raw.where} has no rows (those without a target do not count); add rows, or choose "
            "another target"
        )
    if rows < len(known):
        notes.append(
            f"{len(known) - rows} of {len(known)} rows left out: no value in the target "
            f"{', '.join(map(short, goals))}"
        )
    return replace(raw, frame=raw.frame[known])


# --- all problems at once -------------------------------------------------------------------------


@contextmanager
def _collected(problems: list[HdnnError]) -> Iterator[None]:
    """Keep the error of the block for later, so that all are told at once."""
    try:
        yield
    except HdnnError as error:
        problems.append(error)


def _raise_all(where: str, problems: Sequence[HdnnError]) -> None:
    """Raise all problems of a table as one error, which names it."""
    texts = [str(error) for error in problems[:_MOST_PROBLEMS]]
    if len(problems) > _MOST_PROBLEMS:
        texts.append(f"and {len(problems) - _MOST_PROBLEMS} more")
    if len(problems) == 1:
        raise HdnnError(f"{where}: {texts[0]}")
    if problems:
        raise HdnnError(f"{where}: {len(problems)} problems:\n  - " + "\n  - ".join(texts))


# --- columns by name ------------------------------------------------------------------------------


def _check_names(raw: RawTable, asked: Sequence[str], known: Sequence[str] = ()) -> None:
    """Raise where a column that was asked for, or that a model knows, is absent or there twice."""
    names = raw.names
    if raw.csv is not None and not ({*asked, *known} <= {*names} and (asked or known)):
        _check_header(raw)
    problems = [_repeated(names, name) for name in known if names.count(name) > 1]
    if absent := [short(name) for name in known if name not in names]:
        text = (
            f"it lacks {listed(absent)}, on which the model was trained, and has {listed(names)}; "
            "name the columns as in the training data, and where nothing is known of one, add it "
            "with empty cells"
        )
        problems.append(HdnnError(text))
    for name in dict.fromkeys(asked):
        if names.count(name) > 1:
            problems.append(_repeated(names, name))
        elif name not in names:
            kind, nearest = "column", names
            if len(names) > _MOST_NAMES:
                kind += f" (of {len(names)}, of which the nearest are shown)"
                nearest = difflib.get_close_matches(str(name), names, n=_MOST_NAMES, cutoff=0.0)
            error = unknown_name(kind, name, map(cut, nearest))
            looks_like_data = any(
                "." in n and plain_numbers(np.array([n], object)) is not None for n in names
            )
            if raw.csv is not None and looks_like_data:
                error = HdnnError(
                    f"{error} (if the first line is a row, add a line of column names above it)"
                )
            problems.append(error)
    _raise_all(raw.where, problems)


def _repeated(names: Sequence[str], name: str) -> HdnnError:
    return HdnnError(f"{names.count(name)} columns are named {short(name)}; rename all but one")


def _check_header(raw: RawTable) -> None:
    """Raise an error where the first line holds numbers only, unless 0, 1, 2, ... as of pandas."""
    numbers = plain_numbers(np.array(raw.names, object))
    if numbers is None or np.isnan(numbers).all() or raw.names[:2] == ["0", "1"]:
        return
    raise FileFormatError(
        f"{raw.where} has no header: its first line is {short(','.join(raw.names))}; add a line "
        "of column names above it"
    )


def _feature_names(
    raw: RawTable, goals: Sequence[str], drop: Sequence[str], notes: list[str]
) -> list[str]:
    """The columns of X: all but the target, those to drop, and an index."""
    problems = []
    for number, name in enumerate(raw.names):
        if name or name in drop:
            continue
        if number == 0:  # as pandas and R write an index
            notes.append("the first column has no name: it is taken as an index and left out")
        elif not is_missing(raw.frame.iloc[:, number].astype(object).to_numpy()).all():
            problems.append(HdnnError(f"column {number + 1} has no name; name it or remove it"))
    names = [name for name in raw.names if name and name not in {*goals, *drop}]
    repeated = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    problems += [_repeated(names, name) for name in repeated]
    if not names:
        text = (
            f"it has no feature columns beside the target {short(', '.join(goals))}; add what it "
            "is predicted from"
        )
        problems.append(HdnnError(text))
    _raise_all(raw.where, problems)
    return names


# --- block by block -------------------------------------------------------------------------------


def iter_rows(
    path: str | os.PathLike[str],
    columns: Sequence[str | ColumnType],
    chunk: int = BLOCK_ROWS,
    skip: Sequence[str] = (),
) -> tuple[list[str], Iterator[tuple[list[list[Any]], dict[str, Values]]]]:
    r"""Read a CSV or Parquet file for prediction, block by block in constant memory.

    Columns are found by name, in any order; others are ignored. The header is checked at once, the
    rows as they are read.

    Args:
        path: a CSV file with a header, or a Parquet file.
        columns: names of columns of numbers, or types of any.
        chunk: most rows in a block.
        skip: columns that are not in ``rows`` unless the model takes them: earlier predictions.

    Returns:
        The names of the columns in ``rows``, and the blocks ``(rows, values)``: lists of cells, as
        they are in the file, and the columns of the model by name.

    Raises:
        HdnnError: the file cannot be read, or lacks columns.

    >>> path = getfixture("tmp_path") / "new.csv"
    >>> _ = path.write_text("id,b,a\nfirst,2,1\nsecond,,3\n")
    >>> header, blocks = iter_rows(path, ["a", "b"])
    >>> for rows, values in blocks:
    ...     print(rows[1], values["b"])
    ['second', '', '3'] [ 2. nan]
    """
    types = tuple(ColumnType(c, "number") if isinstance(c, str) else c for c in columns)
    used = [kind.name for kind in types]
    parts = raw_parts(Path(path), chunk)
    first = next(parts)
    _check_names(first, (), used)
    shown = [name in used or name not in skip for name in first.names]

    def blocks() -> Iterator[tuple[list[list[Any]], dict[str, Values]]]:
        for raw in itertools.chain([first], parts):
            problems: list[HdnnError] = []
            values = _parse_columns(raw, types, problems)
            _raise_all(raw.where, problems)
            if len(raw.frame):
                yield raw.frame.loc[:, shown].astype(object).to_numpy().tolist(), values

    return list(itertools.compress(first.names, shown)), blocks()
