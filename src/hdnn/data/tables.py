"""Tables: features and target of a file, a data frame or arrays, checked."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hdnn.data.columns import ColumnType, Values, is_missing, read_column
from hdnn.data.labels import TASKS, Label, read_target
from hdnn.data.readers import BLOCK_ROWS, RawTable, raw_blocks, read_raw
from hdnn.errors import HdnnError, listed, shortened, shown, unknown_name

_MOST_NAMES, _MOST_PROBLEMS = 30, 10


@dataclass(frozen=True, eq=False)
class Table:
    """Features and target of one data set.

    Args:
        columns: the features by name: float64 (NaN where missing), datetime64 (NaT), or texts
            (None). `hdnn.data.ColumnEncoder` converts them to numbers.
        types: how each was read.
        targets: what a network is trained on: class numbers (int64), or values (float64),
            ``(rows,)``, of several targets ``(rows, targets)``; empty without one.
        target_names: the names of the targets.
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
    target_names: tuple[str, ...] = ()
    task: str | None = None
    classes: tuple[Label, ...] | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __repr__(self) -> str:
        goal = (
            "no target" if self.task is None else f"{self.task} of {', '.join(self.target_names)}"
        )
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
    """Read a table and check it; all problems are reported at once.

    Missing values are empty cells, NA, NaN, null, None, ?, - and the like. A column holds numbers
    (true and false are 1 and 0), dates, or categories. Rows without a target are left out. The task
    is classification if the target holds texts, booleans, or whole numbers with two distinct
    values, or with at most 20 and 5 rows each on average.

    Args:
        source: the path of a CSV file (header required; commas, semicolons, tabs or bars; UTF-8,
            UTF-16 or Latin-1; also .gz) or of a Parquet file; or a data frame, a dict of
            columns, or a 2-D array (columns x0, x1, ...).
        target: the column to predict; several for regression. None: there is none.
        task: "classification" or "regression"; None decides by the rule above.
        drop: columns to leave out.
        categorical: columns that are categories, whatever they look like.
        numeric: columns that are numbers; other cells are errors.
        classes: the labels that a model knows, to read data for it: these classes in this order,
            whatever labels occur.
        types: the columns that a model knows: only these are read, with these types.

    Returns:
        Features, target and notes.

    Raises:
        HdnnError: the table cannot be used as it is.

    >>> read_table({"age": [31, 42, None], "city": ["Rome", "Bern", "Rome"]}, target="city")
    Table(3 rows, 1 features, classification of city)
    """
    if task is not None and task not in TASKS:
        raise unknown_name("task", task, TASKS)
    raw = read_raw(source)
    goals = (target,) if isinstance(target, str) else tuple(target or ())
    notes = list(raw.notes)
    _check_names(raw, (*goals, *drop, *categorical, *numeric), types or ())
    raw = _rows_with_target(raw, goals, notes)

    declared: dict[str, Any]
    if types is None:
        kind_of = dict.fromkeys(categorical, "category") | dict.fromkeys(numeric, "number")
        declared = {name: kind_of.get(name) for name in raw.names if name not in {*goals, *drop}}
    else:
        declared = {kind.name: kind for kind in types}
    if not declared:
        raise HdnnError(f"{raw.where} has no feature columns beside {', '.join(goals)}")
    kinds, columns, problems = _read_columns(raw, declared)
    targets = []
    for name in goals:
        with _collected(problems):
            kind = "regression" if len(goals) > 1 else task
            targets.append(read_target(raw, name, kind, classes))
    _raise_all(raw.where, problems)

    missing = {name: int(pd.isna(values).sum()) for name, values in columns.items()}
    gaps = [f"{shortened(name)} {n}" for name, n in missing.items() if 0 < n < len(raw.frame)]
    notes += [f"missing values among {len(raw.frame)} rows: {listed(gaps)}"] if gaps else []
    if not goals:
        return Table(columns, kinds, np.empty(0), notes=tuple(notes))
    y, task, labels = targets[0]
    if len(goals) > 1:  # of several targets, all are numbers
        y = np.stack([values for values, _, _ in targets], 1)
    return Table(columns, kinds, y, goals, task, labels, tuple(notes))


def read_blocks(
    path: str | os.PathLike[str], types: Sequence[ColumnType], rows: int = BLOCK_ROWS
) -> Iterator[tuple[pd.DataFrame, dict[str, Values]]]:
    r"""Read a CSV or Parquet file for prediction, block by block in constant memory.

    Columns are found by name, in any order; others are ignored.

    Args:
        path: a CSV file with a header, or a Parquet file.
        types: the columns that a model knows.
        rows: most rows in a block.

    Yields:
        All columns as they are in the file, and those of the model, parsed. The first block may
        have no rows.

    Raises:
        HdnnError: the file cannot be read, or lacks columns, or cells are of another type.

    >>> path = getfixture("tmp_path") / "new.csv"
    >>> _ = path.write_text("id,b,a\nfirst,2,1\nsecond,,3\n")
    >>> for frame, values in read_blocks(path, [ColumnType("b", "number")]):
    ...     print(frame["id"].tolist(), values["b"])
    ['first', 'second'] [ 2. nan]
    """
    for raw in raw_blocks(Path(path), rows):
        _check_names(raw, (), types)
        _, columns, problems = _read_columns(raw, {kind.name: kind for kind in types})
        _raise_all(raw.where, problems)
        yield raw.frame, columns


def _read_columns(
    raw: RawTable, declared: Mapping[str, Any]
) -> tuple[tuple[ColumnType, ...], dict[str, Values], list[HdnnError]]:
    """Types and values of columns by name, and the errors of the columns that are left out."""
    problems: list[HdnnError] = []
    columns = {}
    for name, kind in declared.items():
        with _collected(problems):
            columns[name] = read_column(name, raw.column(name), raw.row_name, kind)
    kinds = tuple(kind for kind, _ in columns.values())
    return kinds, {name: values for name, (_, values) in columns.items()}, problems


def _rows_with_target(raw: RawTable, goals: Sequence[str], notes: list[str]) -> RawTable:
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
            f"{', '.join(map(shown, goals))}"
        )
    return replace(raw, frame=raw.frame[known])


# --- problems -------------------------------------------------------------------------------------


def _check_names(raw: RawTable, wanted: Sequence[str], types: Sequence[ColumnType]) -> None:
    """Raise where a column that the user names, or that a model knows, is absent."""
    problems = []
    for name in dict.fromkeys(wanted):
        if name not in raw.names and types:  # new data for a model: the target is all that it lacks
            problems.append(
                HdnnError(
                    f"it lacks the target {shown(name)}, to compare predictions with, and has "
                    f"{listed(raw.names)}; add the column, or name it (--target)"
                )
            )
        elif name not in raw.names:
            nearest = difflib.get_close_matches(name, raw.names, n=_MOST_NAMES, cutoff=0.0)
            problems.append(unknown_name("column", name, map(shortened, nearest)))
    if absent := [shown(kind.name) for kind in types if kind.name not in raw.names]:
        text = (
            f"it lacks {listed(absent)}, on which the model was trained, and has "
            f"{listed(raw.names)}; name the columns as in the training data, and where nothing is "
            "known of one, add it with empty cells"
        )
        problems.append(HdnnError(text))
    # So that the names of a file without a header, which are numbers, explain themselves.
    _raise_all(raw.where if raw.line is None else f"{raw.where}, line 1", problems)


@contextmanager
def _collected(problems: list[HdnnError]) -> Iterator[None]:
    """Keep the error of the block for later, so that all are reported at once."""
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
