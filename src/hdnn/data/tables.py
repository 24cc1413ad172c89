"""Tables: features and targets from a file or from arrays, checked, with remarks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hdnn.data.columns import (
    Block,
    ColumnType,
    Values,
    infer,
    objects,
    raise_all,
    refuse_infinite,
    typed_columns,
)
from hdnn.data.csv_reader import BLOCK, CsvSource
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
    typed_with_gaps,
)
from hdnn.data.reading import cut, find, reading, refuse_duplicates, short
from hdnn.data.sources import Source, open_source
from hdnn.errors import FileFormatError, HdnnError, unknown_name


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
        rows: the number of every row in its source, which ``unit`` ("line" or "row") counts.
        unit: "line" (of a file) or "row".

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
    rows: Sequence[int] = ()
    unit: str = "row"

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features."""
        return tuple(self.columns)

    @cached_property
    def X(self) -> NDArray[np.float64]:
        """``(rows, features)``: the features as numbers, NaN where missing.

        Raises:
            HdnnError: a column holds texts or dates; see `hdnn.data.ColumnEncoder`.
        """
        X = np.empty((len(self), len(self.columns)))
        for j, (name, values) in enumerate(self.columns.items()):
            X[:, j] = ColumnType(name, "number").parse(values, self.rows, self.unit)
        return X

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
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    numeric: Sequence[str] = (),
    classes: Sequence[Label] | None = None,
    types: Sequence[ColumnType] | None = None,
    file: BinaryIO | None = None,
) -> Table:
    """Read a table and check it; all problems are told at once.

    Missing values are empty cells, NA, NaN, null, None, ?, - and their like. A column is one of
    numbers (also 1.234,5 and 1,234.5; true and false are 1 and 0), of dates, or of categories.
    Rows without a target are left out. The task is classification if the target holds texts,
    booleans, or whole numbers of two values, or of at most 20 with 5 rows each on average.

    Args:
        source: the path of a CSV file (header required; commas, semicolons or tabs; UTF-8, UTF-16
            or Latin-1), of a Parquet file, or of an NPZ file (X and y, or 1-D columns by name); or
            a data frame, a dict of columns, a 2-D array (columns x0, x1, ...), or a pair (X, y).
        target: the column to predict; several for regression. None: y where the source has one.
        task: "classification" or "regression"; None decides by the rule above.
        features: the columns of X, by name and in this order, and no others; None takes all.
        drop: columns to leave out.
        categorical: columns that are categories, whatever they look like.
        numeric: columns that are numbers; a cell that is none is an error.
        classes: the labels that a model knows, to read data for it: these classes in this order,
            whatever labels occur.
        types: the columns that a model knows, instead of ``features``: read as they say.
        file: a CSV file that is open already, so that what was hashed is what is parsed.

    Returns:
        Features and target, and what was noted about them.

    Raises:
        HdnnError: the table cannot be used as it is.

    >>> read_table({"age": [31, 42, None], "city": ["Rome", "Bern", "Rome"]}, target="city")
    Table(3 rows, 1 features, 2 classes in 'city')
    """
    if task is not None and task not in TASKS:
        raise unknown_name("task", task, TASKS)
    is_path = isinstance(source, (str, os.PathLike))
    with (
        reading(source, "a table") if is_path else nullcontext(),
        closing(open_source(source, file)) as opened,
    ):
        wanted = features if types is None else [kind.name for kind in types]
        goals = _goals(opened, target)
        names = _feature_names(opened, goals, wanted, drop)
        declared = _declared(opened, names, categorical, numeric)
        texts = [name for name, kind in declared.items() if kind == "category"]
        whole = _read(opened, names, goals, [*texts, *_categories(types or ())])
        if types is None:
            comma = isinstance(opened, CsvSource) and opened.delimiter != ","
            types = [infer(n, whole.values[n], declared.get(n), comma) for n in names]
        return _checked(opened, whole, types, goals, task, classes)


def _categories(types: Sequence[ColumnType]) -> list[str]:
    return [kind.name for kind in types if kind.kind == "category"]


def _goals(source: Source, target: str | Sequence[str] | None) -> tuple[str, ...]:
    if target is None:
        return () if source.own_target is None else (source.own_target,)
    return (target,) if isinstance(target, str) else tuple(target)


def _declared(
    source: Source, names: Sequence[str], categorical: Sequence[str], numeric: Sequence[str]
) -> dict[str, str]:
    declared = {
        **dict.fromkeys(getattr(source, "categorical", ()), "category"),
        **dict.fromkeys(categorical, "category"),
        **dict.fromkeys(numeric, "number"),
    }
    both = sorted(set(categorical) & set(numeric))
    if both:
        raise HdnnError(f"columns cannot be both numeric and categorical: {short(both)}")
    for name in (*categorical, *numeric):
        find(source.names, name, source.where)
    return {name: declared[name] for name in names if name in declared}


def _read(
    source: Source, names: Sequence[str], goals: Sequence[str], texts: Sequence[str]
) -> Block:
    """All rows; a second time where a column was numbers in one block and texts in another."""
    columns, kept = [*names, *goals], {*goals, *texts}
    for _ in range(2):
        parts = list(source.blocks(columns, [name for name in columns if name in kept]))
        mixed = {n for n in columns if len({_shape(p.values[n]) for p in parts} - {""}) > 1}
        if not mixed - kept:
            break
        kept |= mixed
    values = {name: _joined([part.values[name] for part in parts]) for name in columns}
    rows = np.concatenate([np.zeros(0, np.int64), *(np.asarray(p.rows, np.int64) for p in parts)])
    return Block(values, rows)  # type: ignore[arg-type]


def _shape(values: Values) -> str:
    """What a block holds; nothing where all of it is missing."""
    return "" if pd.isna(values).all() else values.dtype.kind


def _joined(parts: Sequence[Values]) -> Values:
    kinds = {_shape(part) for part in parts} - {""}
    if "O" in kinds:
        parts = [objects(part) for part in parts]
    elif "M" in kinds:
        parts = [
            part if part.dtype.kind == "M" else np.full(len(part), "NaT", "M8[us]")
            for part in parts
        ]
    else:
        parts = [part if part.dtype.kind == "f" else np.full(len(part), np.nan) for part in parts]
    return np.concatenate([*parts]) if parts else np.zeros(0)


@dataclass(frozen=True)
class NamedRows:
    r"""The rows of a file with the columns of a model, block by block; see `iter_rows`.

    Args:
        path: of the file.
        types: how the columns of the model are read.
        header: the names of all columns of the file.
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
        texts = _categories(self.types)
        with closing(open_source(self.path)) as source:
            names = [kind.name for kind in self.types]
            every = names if isinstance(source, CsvSource) else list(source.names)
            for block in source.blocks(every, texts, self.chunk):
                raw = block.raw
                if raw is None:
                    raw = pd.DataFrame(block.values).astype(object).values.tolist()
                columns, problems = typed_columns(block.values, self.types, block.rows, source.unit)
                raise_all(problems)
                yield raw, columns


def iter_rows(
    path: str | os.PathLike[str], columns: Sequence[str | ColumnType], chunk: int = BLOCK
) -> NamedRows:
    r"""Read a CSV or Parquet file for prediction, block by block in constant memory.

    Columns are found by name, in any order; others are ignored. The header is checked at once, the
    rows as they are read; iterating again reads the file again.

    Args:
        path: a CSV file with a header, or a Parquet file.
        columns: names of columns of numbers, or types of any.
        chunk: rows in a block.

    Returns:
        Something to iterate over, which gives ``(rows, values)``: up to ``chunk`` rows as lists of
        cells, as they are in the file, and the columns by name. Its ``header`` is the names of all
        columns of the file.

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
    if Path(path).suffix.lower() == ".npz":
        raise HdnnError(f"{path}: CSV and Parquet files are read row by row, not .npz")
    with closing(open_source(Path(path))) as source:
        for kind in types:
            find(source.names, kind.name, source.where)
        header = source.header if isinstance(source, CsvSource) else source.names
    return NamedRows(Path(path), types, header, chunk)


def _feature_names(
    source: Source, goals: Sequence[str], wanted: Sequence[str] | None, drop: Sequence[str]
) -> tuple[str, ...]:
    """The columns of X: those wanted, else all but the target and those to drop."""
    if isinstance(drop, str) or isinstance(wanted, str):
        raise HdnnError("features and drop are lists of column names, got one text")
    if isinstance(source, CsvSource) and not goals and wanted is None:
        _refuse_no_header(source)
    if isinstance(source, CsvSource) and wanted is None and not {*goals} <= {*source.names}:
        _refuse_no_header(source)
    if wanted is None:
        refuse_duplicates(source.where, source.names)
    problems = []
    for name in [*goals, *drop, *(wanted or ())]:
        try:
            find(source.names, name, source.where)
        except HdnnError as error:
            problems.append(error)
    raise_all(problems)
    left_out = {*goals, *drop}
    names = tuple(n for n in (source.names if wanted is None else wanted) if n not in left_out)
    if wanted is not None and len(names) < len(wanted):
        raise HdnnError(f"a feature may be neither the target nor dropped: {short(list(wanted))}")
    if not names:
        raise HdnnError(
            f"{source.where} has no feature columns beside the target {short(', '.join(goals))}"
        )
    return names


def _refuse_no_header(source: CsvSource) -> None:
    if source.looks_headless():
        first = source.delimiter.join(source.header[:60])
        raise FileFormatError(
            f"{source.where} has no header: its first line is {first[:60]!r}; add a line of column "
            "names above it"
        )


def _checked(
    source: Source,
    whole: Block,
    types: Sequence[ColumnType],
    goals: tuple[str, ...],
    task: str | None,
    classes: Sequence[Label] | None,
) -> Table:
    """The table of all rows; problems of target and features are told at once."""
    notes, known = list(source.notes), np.ones(len(whole.rows), bool)
    cells = {n: typed_with_gaps(whole.values[n].tolist(), source.unit == "line") for n in goals}
    for name in goals:
        known &= np.array([value is not None for value in cells[name]], bool)
    if not known.all():
        count = len(known) - int(known.sum())
        notes.append(
            f"{count} of {len(known)} rows left out: no value in the target "
            f"{', '.join(map(short, goals))}"
        )
    least = 2 if goals and task is None and classes is None else 1
    _refuse_few(source.where, int(known.sum()), least)
    rows = np.asarray(whole.rows)[known]
    values = {kind.name: whole.values[kind.name][known] for kind in types}
    columns, problems = typed_columns(values, types, rows, source.unit)  # type: ignore[arg-type]
    parts: list[_Target] = []
    for name in goals:
        given = list(compress(cells[name], known))
        try:
            at = source.where, source.unit, rows
            parts.append(
                _target(*at, name, given, task if len(goals) == 1 else "regression", classes)
            )
        except HdnnError as error:
            problems.append(error)
    raise_all(problems)
    notes += [*_gaps(columns), *(note for part in parts for note in part.notes)]
    places = tuple(rows.tolist())
    if not parts:
        return Table(columns, tuple(types), notes=tuple(notes), rows=places, unit=source.unit)
    y = parts[0].y if len(parts) == 1 else np.stack([part.y for part in parts], 1)
    return Table(
        columns,
        tuple(types),
        y,
        goals[0] if len(goals) == 1 else goals,
        parts[0].task,
        parts[0].classes,
        tuple(notes),
        places,
        source.unit,
    )


@dataclass(frozen=True)
class _Target:
    y: NDArray[Any]
    task: str
    classes: tuple[Label, ...] | None = None
    notes: tuple[str, ...] = ()


def _target(
    where: str,
    unit: str,
    rows: Any,
    name: str,
    values: list[Any],
    task: str | None,
    classes: Sequence[Label] | None,
) -> _Target:
    y = as_array(name, values)
    if y.dtype.kind == "f":
        refuse_infinite(name, y, rows, unit)
    if task is None and classes is None:
        refuse_stray_text(name, y, rows, unit)
        task = guess_task(y)
    if task == "regression":
        return _Target(regression_target(name, y, rows, unit), task)
    if classes is not None:
        y = decode(encode(y, classes), classes)  # of the type that the model knows
        return _Target(y, "classification", tuple(classes))
    labels = classes_of(y)
    _refuse_one_class(where, name, labels)
    return _Target(y, "classification", labels, tuple(_rare(y, labels)))


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
            f"classifier needs two classes or more; choose another target or add rows of other "
            "classes"
        )


def _gaps(columns: dict[str, Values]) -> list[str]:
    counts = {name: int(pd.isna(values).sum()) for name, values in columns.items()}
    gaps = [f"{name} {n}" for name, n in counts.items() if 0 < n < len(columns[name])]
    rows = len(next(iter(columns.values()), ()))
    return [f"missing values among {rows} rows: {_listed(gaps)}"] if gaps else []


def _rare(y: NDArray[Any], classes: Sequence[Label]) -> list[str]:
    counts = np.bincount(encode(y, classes), minlength=len(classes))
    single = [short(label) for label in compress(classes, counts == 1)]
    return [f"classes with one row only: {_listed(single)}"] if single else []


def _listed(items: Sequence[str], most: int = 10) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(map(cut, items[:most])) + more
