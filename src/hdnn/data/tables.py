"""Tables: features and targets from a file or from arrays, checked, with remarks."""

from __future__ import annotations

import difflib
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
    Place,
    Values,
    as_values,
    infer,
    is_missing,
    plain_numbers,
    raise_all,
)
from hdnn.data.files import RawTable, column_names, cut, listed, raw_parts, read_raw, short
from hdnn.data.labels import (
    MOST_CLASSES,
    TASKS,
    Label,
    check_labels,
    classes_of,
    encode,
    guess_task,
    read_target,
    regression_target,
)
from hdnn.errors import FileFormatError, HdnnError, unknown_name

BLOCK, BLOCK_CELLS = 20_000, 1_000_000
"""Rows and cells that are in memory at once where a file is read in blocks."""

_MOST_NAMES = 30


@dataclass(frozen=True, eq=False)
class Table:
    """Features and target of one data set.

    Args:
        columns: the features by name: float64 (NaN where missing), datetime64 (NaT), or texts
            (None). `hdnn.data.ColumnEncoder` makes numbers of them.
        types: how each was read.
        y: ``(rows,)``: labels (texts, booleans, integers or floats) for classification, float64
            for regression, ``(rows, targets)`` for several; None without a target.
        target: the name of the target, or those of several; None without one.
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
    y: NDArray[Any] | None = None
    target: str | tuple[str, ...] | None = None
    task: str | None = None
    classes: tuple[Label, ...] | None = None
    notes: tuple[str, ...] = ()

    @property
    def targets(self) -> NDArray[Any]:
        """What a network is trained on: class numbers (int64), or values (float64)."""
        if self.y is None:
            raise HdnnError("this table was read without a target; read it with target=...")
        return self.y if self.classes is None else encode(self.y, self.classes)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __repr__(self) -> str:
        goal = "no target"
        if self.task == "classification":
            goal = f"{len(self.classes or ())} classes in {self.target!r}"
        elif self.task == "regression":
            goal = f"regression of {self.target!r}"
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
            UTF-16 or Latin-1; also .gz, .bz2, .xz), of a Parquet file, or of an NPZ file (X and y,
            or 1-D columns by name); or a data frame, a dict of columns, a 2-D array (columns x0,
            x1, ...), or a pair (X, y).
        target: the column to predict; several for regression. None: y where the source has one.
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
    Table(3 rows, 1 features, 2 classes in 'city')
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
    if target is None:
        target = () if raw.own_target is None else raw.own_target
    goals = (target,) if isinstance(target, str) else tuple(target)
    notes: list[str] = []
    if raw.csv is not None and raw.csv.encoding == "latin-1":
        notes.append("the file is not UTF-8 and was read as Latin-1; check letters with accents")
    if types is None:
        _check_asked(raw, [*goals, *drop, *categorical, *numeric])
        names = _feature_names(raw, goals, drop, notes)
    else:
        _check_asked(raw, goals, [kind.name for kind in types])
    problems: list[HdnnError] = []
    found, known = _read_targets(raw, goals, problems)
    rows = np.flatnonzero(known)
    least = 2 if goals and task is None and classes is None else 1
    _check_count(raw.where, len(rows), len(known) - len(rows), least)
    if len(rows) < len(known):
        notes.append(
            f"{len(known) - len(rows)} of {len(known)} rows left out: no value in the target "
            f"{', '.join(map(short, goals))}"
        )
    raw = replace(raw, frame=raw.frame.iloc[rows])
    if types is None:
        declared = dict.fromkeys(categorical, "category") | dict.fromkeys(numeric, "number")
        columns, types = _infer_columns(raw, names, declared, problems)
        notes += _unit_notes(types)
    else:
        columns = _parse_columns(raw, types, problems)
    notes += _gaps(columns)
    y, goal = None, goals[0] if len(goals) == 1 else goals or None
    task = "regression" if len(goals) > 1 else task
    parts = []
    for name, values in found.items():
        with _collected(problems):
            part, name_task, classes = _target(name, values[rows], raw.place, task, classes, notes)
            parts.append(part)
    raise_all(raw.where, problems)
    if not parts:
        return Table(columns, tuple(types), notes=tuple(notes))
    y = parts[0] if len(parts) == 1 else np.stack(parts, 1)
    known_classes = None if classes is None else tuple(classes)
    return Table(columns, tuple(types), y, goal, name_task, known_classes, tuple(notes))


@contextmanager
def _collected(problems: list[HdnnError]) -> Iterator[None]:
    """Keep the error of the block for later, so that all are told at once."""
    try:
        yield
    except HdnnError as error:
        problems.append(error)


def _infer_columns(
    raw: RawTable, names: Sequence[str], declared: dict[str, str], problems: list[HdnnError]
) -> tuple[dict[str, Values], list[ColumnType]]:
    """Columns with their types, for training."""
    columns, types = {}, []
    for name in names:
        with _collected(problems):
            column = raw.frame[name]
            values = as_values(name, column, raw.place)
            kind = declared.get(name)
            if kind is None and isinstance(column.dtype, pd.CategoricalDtype):
                kind = "category"
            if kind != "category" and values.dtype.kind == "O":
                numbers = plain_numbers(values)
                values = values if numbers is None else numbers
            types.append(infer(name, values, kind, raw.has_decimal_comma))
            columns[name] = types[-1].parse(values, raw.place)
    return columns, types


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


def _read_targets(
    raw: RawTable, goals: Sequence[str], problems: list[HdnnError]
) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]:
    """The columns to predict by name, and where all of them are known."""
    found, known = {}, np.ones(len(raw.frame), bool)
    for name in goals:
        with _collected(problems):
            texts = raw.csv is not None
            args = name, raw.frame[name], raw.place, texts, raw.has_decimal_comma
            values, here = read_target(*args)
            found[name] = np.zeros(len(known), values.dtype)
            found[name][here] = values
            known &= here
    return found, known


def _unit_notes(types: Sequence[ColumnType]) -> list[str]:
    units = [f"{cut(kind.name)} ({kind.unit})" for kind in types if kind.unit]
    return [f"read as numbers without their sign: {listed(units)}"] if units else []


# --- columns by name ------------------------------------------------------------------------------


def _lacking(names: Sequence[str], wanted: Sequence[str]) -> list[HdnnError]:
    """One error for all columns of a model that are not there, and one for each that is twice."""
    absent = [short(name) for name in wanted if name not in names]
    problems = [_repeated(names, name) for name in wanted if names.count(name) > 1]
    if absent:
        text = (
            f"it lacks {listed(absent)}, on which the model was trained, and has {listed(names)}; "
            "name the columns as in the training data, and where nothing is known of one, add it "
            "with empty cells"
        )
        problems.append(HdnnError(text))
    return problems


def _repeated(names: Sequence[str], name: str) -> HdnnError:
    return HdnnError(f"{names.count(name)} columns are named {short(name)}; rename all but one")


def _check_asked(raw: RawTable, asked: Sequence[str], known: Sequence[str] = ()) -> None:
    """Raise an error for every column that was asked for, or that a model knows, and is absent."""
    if raw.csv is not None and not {*asked, *known} <= {*raw.names}:
        _check_header(raw)
    problems = _lacking(raw.names, known)
    for name in dict.fromkeys(asked):
        if name not in raw.names:
            kind, names = "column", raw.names
            if len(names) > _MOST_NAMES:
                kind += f" (of {len(names)}, of which the nearest are shown)"
                names = difflib.get_close_matches(str(name), names, n=_MOST_NAMES, cutoff=0.0)
            error = _unknown_column(raw, unknown_name(kind, name, map(cut, names)))
            if known:
                error = HdnnError(f"{error}; to measure a model, add the values that it predicts")
            problems.append(error)
        elif raw.names.count(name) > 1:
            problems.append(_repeated(raw.names, name))
    raise_all(raw.where, problems)


def _unknown_column(raw: RawTable, error: HdnnError) -> HdnnError:
    """The error for an absent column, with a word on a first line that looks like data."""
    numbers = [name for name in raw.names if plain_numbers(np.array([name], object)) is not None]
    if raw.csv is None or not [name for name in numbers if name and not name.isdigit()]:
        return error
    return HdnnError(f"{error} (if the first line is a row, add a line of column names above it)")


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
    """The columns of X: all but the target and those to drop."""
    if not goals and raw.csv is not None:
        _check_header(raw)
    names = [name for name in raw.names if name and name not in {*goals, *drop}]
    if "" not in drop:
        _note_unnamed(raw, notes)
    repeated = [name for name in dict.fromkeys(names) if raw.names.count(name) > 1]
    raise_all(raw.where, [_repeated(raw.names, name) for name in repeated])
    if not names:
        raise HdnnError(
            f"{raw.where} has no feature columns beside the target {short(', '.join(goals))}; add "
            "what it is predicted from"
        )
    return names


def _note_unnamed(raw: RawTable, notes: list[str]) -> None:
    """A first column without a name is an index, as pandas and R write it; others are errors."""
    for number, name in enumerate(raw.names):
        if name:
            continue
        if number == 0:
            notes.append("the first column has no name: it is taken as an index and left out")
        elif not is_missing(raw.frame.iloc[:, number].astype(object).to_numpy()).all():
            raise HdnnError(f"{raw.where}: column {number + 1} has no name; name it or remove it")


# --- checks ---------------------------------------------------------------------------------------


def _target(
    name: str,
    y: NDArray[Any],
    place: Place,
    task: str | None,
    classes: Sequence[Label] | None,
    notes: list[str],
) -> tuple[NDArray[Any], str, Sequence[Label] | None]:
    """The values to predict, the task, and the classes."""
    if y.dtype.kind == "f":
        ColumnType(name, "number").parse(y, place)  # which raises where one is infinite
    if task is None and classes is None:
        check_labels(name, y, place)
        task = guess_task(y)
    if task == "regression":
        return regression_target(name, y, place), task, None
    if classes is not None:
        # of the type that the model knows
        return np.asarray(classes)[encode(y, classes)], "classification", classes
    labels = classes_of(y)
    if len(labels) < 2:
        raise HdnnError(
            f"every row has the label {short(labels[0])} in {short(name)}, and a classifier needs "
            "two classes or more; choose another target or add rows of other classes"
        )
    if len(labels) == len(y) > MOST_CLASSES:
        raise HdnnError(
            f"every row has a label of its own in {short(name)}, such as {short(labels[0])}: "
            "nothing can be learned from one row of a class; choose another target"
        )
    counts = np.bincount(encode(y, labels), minlength=len(labels))
    single = [short(label) for label, count in zip(labels, counts, strict=True) if count == 1]
    if single:
        notes.append(f"classes with one row only: {listed(single)}")
    if alike := _spelled_differently(labels):
        notes.append(f"labels that differ in case only are classes of their own: {listed(alike)}")
    return y, "classification", labels


def _spelled_differently(labels: Sequence[Label]) -> list[str]:
    """Labels that are alike but for upper and lower case, as Yes and yes."""
    count = Counter(str(label).casefold() for label in labels)
    return [short(label) for label in labels if count[str(label).casefold()] > 1]


def _check_count(where: str, rows: int, without: int, least: int) -> None:
    if rows < least:
        more = f" beside {without} without a value in the target" if without else ""
        raise HdnnError(
            f"{where} has too few rows: {rows}{more}, and at least {least} are needed; add rows, "
            "or choose another target"
        )


def _gaps(columns: dict[str, Values]) -> list[str]:
    counts = {name: int(pd.isna(values).sum()) for name, values in columns.items()}
    gaps = [f"{cut(name)} {n}" for name, n in counts.items() if 0 < n < len(columns[name])]
    rows = len(next(iter(columns.values()), ()))
    return [f"missing values among {rows} rows: {listed(gaps)}"] if gaps else []


# --- block by block -------------------------------------------------------------------------------


@dataclass(frozen=True)
class NamedRows:
    r"""The rows of a file with the columns of a model, block by block; see `iter_rows`.

    Args:
        path: of the file.
        types: how the columns of the model are read.
        header: the names of the columns that the rows have.
        chunk: rows in a block.

    >>> import tempfile, pathlib, hdnn
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "rows.csv"
    >>> _ = path.write_text("a,b\n1,x\n2,y\n")
    >>> rows = hdnn.data.iter_rows(path, (hdnn.data.ColumnType("a", "number"),))
    >>> rows.header
    ('a', 'b')
    """

    path: Path
    types: tuple[ColumnType, ...]
    header: tuple[str, ...]
    chunk: int = BLOCK

    def __iter__(self) -> Iterator[tuple[list[list[Any]], dict[str, Values]]]:
        for raw in raw_parts(self.path, self.chunk):
            problems: list[HdnnError] = []
            columns = _parse_columns(raw, self.types, problems)
            raise_all(raw.where, problems)
            kept = [name in self.header for name in raw.names]
            if len(raw.frame):
                yield raw.frame.loc[:, kept].astype(object).to_numpy().tolist(), columns


def iter_rows(
    path: str | os.PathLike[str],
    columns: Sequence[str | ColumnType],
    chunk: int = BLOCK,
    skip: Sequence[str] = (),
) -> NamedRows:
    r"""Read a CSV or Parquet file for prediction, block by block in constant memory.

    Columns are found by name, in any order; others are ignored. The header is checked at once, the
    rows as they are read; iterating again reads the file again.

    Args:
        path: a CSV file with a header, or a Parquet file.
        columns: names of columns of numbers, or types of any.
        chunk: rows in a block.
        skip: columns that are not in ``rows`` unless the model takes them: earlier predictions.

    Returns:
        Something to iterate over, which gives ``(rows, values)``: up to ``chunk`` rows as lists of
        cells, as they are in the file, and the columns by name. Its ``header`` is the names of the
        columns in ``rows``.

    Raises:
        HdnnError: the file cannot be read block by block, or lacks columns.

    >>> path = getfixture("tmp_path") / "new.csv"
    >>> _ = path.write_text("id,b,a\nfirst,2,1\nsecond,,3\n")
    >>> for rows, values in iter_rows(path, ["a", "b"]):
    ...     print(rows[1], values["b"])
    ['second', '', '3'] [ 2. nan]
    """
    if chunk < 1:
        raise HdnnError(f"chunk is a positive number of rows, got {chunk}")
    types = tuple(ColumnType(c, "number") if isinstance(c, str) else c for c in columns)
    used = [kind.name for kind in types]
    names = column_names(Path(path))
    raise_all(str(path), _lacking(names, used))
    header = tuple(name for name in names if name in used or name not in skip)
    return NamedRows(Path(path), types, header, min(chunk, 1 + BLOCK_CELLS // len(names)))
