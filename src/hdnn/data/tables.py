"""Tables: features and a target from a file or from arrays, checked, with remarks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import compress
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hdnn.data.cells import refuse_infinite
from hdnn.data.labels import (
    TASKS,
    Label,
    as_array,
    classes_of,
    decode,
    encode,
    guess_task,
    refuse_stray_text,
    regression_target,
)
from hdnn.data.names import find, refuse_duplicates
from hdnn.data.reading import cut, reading, short
from hdnn.data.sources import CsvSource, Source, TableRows, open_source
from hdnn.errors import FileFormatError, HdnnError, unknown_name


@dataclass(frozen=True, eq=False)
class Table:
    """Features and target of one data set.

    Args:
        X: ``(rows, p)`` float64, NaN where a value is missing (the model's scaler makes it the
            mean). Constant and empty columns are kept, and mentioned in the notes.
        y: ``(rows,)``: labels (texts, booleans, integers or floats) for classification, float64
            for regression; None without a target.
        feature_names: the names of X's columns.
        target: the name of the target; None without one.
        task: "classification" or "regression"; None without a target.
        classes: the distinct labels, sorted, for classification; else None.
        notes: remarks for people: missing values, constant columns, rows left out.
    """

    X: NDArray[np.float64]
    y: NDArray[Any] | None
    feature_names: tuple[str, ...]
    target: str | None = None
    task: str | None = None
    classes: tuple[Label, ...] | None = None
    notes: tuple[str, ...] = ()

    @property
    def targets(self) -> NDArray[Any]:
        """What a network is trained on: class numbers (int64), or values (float64), ``(rows,)``."""
        if self.y is None:
            raise HdnnError("this table was read without a target; read it with target=...")
        return self.y if self.classes is None else encode(self.y, self.classes)

    def __repr__(self) -> str:
        goal = "no target"
        if self.task == "classification":
            goal = f"{len(self.classes or ())} classes in {self.target!r}"
        elif self.task == "regression":
            goal = f"regression of {self.target!r}"
        return f"Table({len(self.X)} rows, {self.X.shape[1]} features, {goal})"


def read_table(
    source: Any,
    target: str | None = None,
    *,
    task: str | None = None,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    classes: Sequence[Label] | None = None,
    file: BinaryIO | None = None,
) -> Table:
    """Read a table and check it: every feature is a number or missing, every row has a target.

    Missing values are empty cells, NA, NaN, nan, null, None and ?. True and false are 1 and 0 in
    features. Rows without a target are left out. The task is classification if the target holds
    texts, booleans, or whole numbers of two values, or of at most 20 with 5 rows each on average.

    Args:
        source: the path of a CSV file (header required; commas, semicolons or tabs; UTF-8), of a
            Parquet file, or of an NPZ file (X and y, or 1-D columns by name); or a dict of
            columns, a 2-D array (columns x0, x1, ...), or a pair (X, y).
        target: the column to predict. None: y where the source has one, else no target.
        task: "classification" or "regression"; None decides by the rule above.
        features: the columns of X, by name and in this order, and no others; None takes all.
        drop: columns to leave out.
        classes: the labels that a model knows, to read data for it: these classes in this order,
            whatever labels occur.
        file: the file at the path, if it is open already: a CSV file is not opened once more.

    >>> read_table({"age": [31, 42, None], "city": ["Rome", "Bern", "Rome"]}, target="city")
    Table(3 rows, 1 features, 2 classes in 'city')
    """
    if task is not None and task not in TASKS:
        raise unknown_name("task", task, TASKS)
    is_path = isinstance(source, (str, os.PathLike))
    with reading(source, "a table") if is_path else nullcontext():
        opened = open_source(source, file)
        target = opened.own_target if target is None else target
        names = _feature_names(opened, target, features, drop)
        taken = opened.take(names, target)
        if target is None:
            _refuse_few(opened.where, len(taken.X), 1)
            return Table(taken.X, None, names, notes=tuple(_remarks(taken.X, names)))
        return _with_target(opened.where, taken, names, target, task, classes)


def _feature_names(
    source: Source, target: str | None, wanted: Sequence[str] | None, drop: Sequence[str]
) -> tuple[str, ...]:
    """The columns of X: those wanted, else all but the target and those to drop."""
    if isinstance(drop, str) or isinstance(wanted, str):
        raise HdnnError("features and drop are lists of column names, got one text")
    if isinstance(source, CsvSource) and target not in source.names and wanted is None:
        _refuse_no_header(source)
    if wanted is None:
        refuse_duplicates(source.where, source.names)
    for name in [*([] if target is None else [target]), *drop, *(wanted or ())]:
        find(source.names, name, source.where)
    left_out = {target, *drop}
    names = tuple(n for n in (source.names if wanted is None else wanted) if n not in left_out)
    if wanted is not None and len(names) < len(wanted):
        raise HdnnError(f"a feature may be neither the target nor dropped: {short(list(wanted))}")
    if not names:
        raise HdnnError(f"{source.where} has no feature columns beside the target {target!r}")
    return names


def _refuse_no_header(source: CsvSource) -> None:
    if source.file.looks_headless():
        first = source.file.delimiter.join(source.file.header[:60])
        raise FileFormatError(
            f"{source.where} has no header: its first line is {first[:60]!r}; add a line of column "
            "names above it"
        )


def _with_target(
    where: str,
    taken: TableRows,
    names: tuple[str, ...],
    target: str,
    task: str | None,
    classes: Sequence[Label] | None,
) -> Table:
    values = taken.target or []
    X, rows, notes = taken.X, taken.rows, []
    if None in values:
        known = [i for i, value in enumerate(values) if value is not None]
        count = len(values) - len(known)
        notes.append(f"{count} of {len(values)} rows left out: no value in the target {target!r}")
        X, rows, values = X[known], [rows[i] for i in known], [values[i] for i in known]
    _refuse_few(where, len(X), 2 if task is None and classes is None else 1)
    y = as_array(target, values)
    if y.dtype.kind == "f":
        refuse_infinite(target, y, rows, taken.unit)
    if task is None and classes is None:
        refuse_stray_text(target, y, rows, taken.unit)
        task = guess_task(y)
    notes += _remarks(X, names)
    if task == "regression":
        y = regression_target(target, y, rows, taken.unit)
        return Table(X, y, names, target, task, None, tuple(notes))
    if classes is None:
        classes = classes_of(y)
        _refuse_one_class(where, target, classes)
        notes += _rare(y, classes)
    else:
        y = decode(encode(y, classes), classes)  # of the type that the model knows
    return Table(X, y, names, target, "classification", tuple(classes), tuple(notes))


def _refuse_few(where: str, rows: int, least: int) -> None:
    if rows < least:
        raise HdnnError(
            f"{where} has too few rows: {rows}, and at least {least} are needed (rows without a "
            "target do not count)"
        )


def _refuse_one_class(where: str, target: str, classes: Sequence[Label]) -> None:
    if len(classes) < 2:
        raise HdnnError(
            f"{where}: every row has the label {short(classes[0])} in {short(target)}, and a "
            "classifier needs two classes or more; choose another target or add rows of other "
            "classes"
        )


def _remarks(X: NDArray[np.float64], names: Sequence[str]) -> list[str]:
    """Remarks on missing values, empty columns and constant columns."""
    counts, constant = np.zeros(len(names), int), np.zeros(len(names), bool)
    for j, column in enumerate(X.T):  # one at a time: X may fill half of the memory
        known = column[~np.isnan(column)]
        counts[j] = len(column) - len(known)
        constant[j] = len(known) > 0 and known.min() == known.max()
    empty = counts == len(X)
    partly = (counts > 0) & ~empty
    gaps = [f"{name} {count}" for name, count in zip(names, counts, strict=True)]
    remarks = [
        (f"missing values among {len(X)} rows, taken as the mean", gaps, partly),
        ("columns without any value", names, empty),
        ("constant columns", names, constant),
    ]
    return [
        f"{what}: {_listed(list(compress(of, which)))}"
        for what, of, which in remarks
        if which.any()
    ]


def _rare(y: NDArray[Any], classes: Sequence[Label]) -> list[str]:
    counts = np.bincount(encode(y, classes), minlength=len(classes))
    single = [short(label) for label in compress(classes, counts == 1)]
    return [f"classes with one row only: {_listed(single)}"] if single else []


def _listed(items: Sequence[str], most: int = 10) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(map(cut, items[:most])) + more
