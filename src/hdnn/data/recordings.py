"""Recordings of inputs and outputs, sampled evenly: what systems are identified from."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hdnn.data.columns import as_values, infer, read_column
from hdnn.data.readers import RawTable, read_raw, reading
from hdnn.data.tables import _check_names
from hdnn.errors import FetchError, HdnnError, finite_number, shown, unknown_name

Array = NDArray[np.float64]
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

LEAST = 20
"""Samples of a recording, at least."""
UNEVEN = 1e-2
"""By what share of the sampling time a difference of times may be another."""

LARGEST = 1e100
"""Values are smaller, and differ by more than 1 / `LARGEST`: their squares do not overflow."""
REMEDY = "correct it, interpolate, or name another column"


class Scaling(NamedTuple):
    """Mean and standard deviation of every input and output.

    Args:
        mean_u, std_u: of the inputs, ``(inputs,)``.
        mean_y, std_y: of the outputs, ``(outputs,)``.
    """

    mean_u: Array
    std_u: Array
    mean_y: Array
    std_y: Array


@dataclass(frozen=True, eq=False)
class Recordings:
    """One or several recordings of the same inputs and outputs, sampled evenly.

    y_t is measured when u_t begins to act, and may depend on it.

    Args:
        inputs: of every recording, ``(time, inputs)``.
        outputs: of every recording, ``(time, outputs)``.
        sampling_time: between two samples.
        input_names: of the columns; None: u, or u1, u2, ...
        output_names: of the columns; None: y, or y1, y2, ...
        skip: samples at the beginning of every recording that are not scored: they tell the
            initial state.

    Raises:
        HdnnError: they are no recordings: one axis, other lengths, values that are no numbers or
            constant, or too few samples.

    >>> import numpy as np
    >>> u = np.sin(np.arange(100.0))[:, None]
    >>> Recordings((u,), (2 * u,), sampling_time=0.1)
    Recordings(1 recording, 100 samples, sampling time 0.1, u -> y)
    """

    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    sampling_time: float = 1.0
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    skip: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        finite_number("sampling_time", self.sampling_time, positive=True)
        pairs = list(zip(self.inputs, self.outputs, strict=True))
        if not pairs:
            raise HdnnError("there is no recording: give at least one")
        for kind, parts in (("input", self.inputs), ("output", self.outputs)):
            names = getattr(self, f"{kind}_names")
            count = parts[0].shape[1]
            if not names:
                numbers = [""] if count == 1 else range(1, count + 1)
                names = tuple(f"{'u' if kind == 'input' else 'y'}{k}" for k in numbers)
                object.__setattr__(self, f"{kind}_names", names)
            for column, name in zip(np.concatenate(parts).T, names, strict=True):
                size, range_ = np.abs(column).max(), np.ptp(column / 2)
                if not range_ > 1e-12 * size / 2:
                    raise HdnnError(
                        f"the {kind} {shown(name)} is constant ({column[0]:g}) in all "
                        f"{len(column)} samples to learn from, so nothing can be learned of it; "
                        "leave it out, or record it while it changes"
                    )
                if not (size < LARGEST and range_ > 1 / LARGEST):
                    raise HdnnError(
                        f"the {kind} {shown(name)} has values of size {size:g}, too large or "
                        "too small to compute with; give it in another unit"
                    )
        if not self.skip:
            object.__setattr__(self, "skip", (0,) * len(pairs))

    @classmethod
    def of(cls, U: Any, Y: Any, sampling_time: float = 1.0) -> Recordings:
        """Recordings of arrays, checked.

        Args:
            U: ``(time, inputs)``, or a list of such arrays.
            Y: ``(time, outputs)``, or a list of as many.
            sampling_time: between two samples.

        Returns:
            The recordings.

        Raises:
            HdnnError: they are none.
        """
        inputs, outputs = arrays("U", U), arrays("Y", Y)
        if len(inputs) != len(outputs):
            raise HdnnError(
                f"U has {len(inputs)} recordings and Y has {len(outputs)}; give both as arrays "
                "(time, columns), or as lists with one array for every recording"
            )
        for k, (u, y) in enumerate(zip(inputs, outputs, strict=True)):
            which = f" of recording {k}" if len(inputs) > 1 else ""
            if len(u) != len(y):
                raise HdnnError(
                    f"U{which} has {len(u)} samples and Y{which} has {len(y)}; every input has "
                    "the output measured at the same time"
                )
            if len(u) < LEAST:
                raise HdnnError(
                    f"U{which} has {len(u)} samples, of {u.shape[1]} inputs; a recording has at "
                    f"least {LEAST}, and is an array (time, inputs): transpose it if time is last"
                )
        return cls(inputs, outputs, sampling_time)

    def __len__(self) -> int:
        """Samples of all recordings."""
        return sum(map(len, self.inputs))

    def __repr__(self) -> str:
        count = f"{len(self.inputs)} recording{'s' * (len(self.inputs) > 1)}"
        signals = f"{', '.join(self.input_names)} -> {', '.join(self.output_names)}"
        return (
            f"Recordings({count}, {len(self)} samples, sampling time {self.sampling_time:g}, "
            f"{signals})"
        )

    @property
    def scaling(self) -> Scaling:
        """Mean and standard deviation of inputs and outputs over all recordings."""
        u, y = np.concatenate(self.inputs), np.concatenate(self.outputs)
        return Scaling(u.mean(0), u.std(0), y.mean(0), y.std(0))

    def scaled(self, scaling: Scaling) -> Recordings:
        """The same with mean 0 and standard deviation 1, where the scaling is their own.

        Args:
            scaling: what is subtracted, and divided by.

        Returns:
            New recordings.
        """
        mean_u, std_u, mean_y, std_y = scaling
        return replace(
            self,
            inputs=tuple((u - mean_u) / std_u for u in self.inputs),
            outputs=tuple((y - mean_y) / std_y for y in self.outputs),
        )

    def split(self, share: float) -> tuple[Recordings, Recordings]:
        """Hold out the last part of every recording.

        Args:
            share: of the samples, in (0, 1).

        Returns:
            The first parts; and whole recordings of which the last parts are scored, as a free run
            comes there from the beginning.

        Raises:
            HdnnError: what is left is too short.
        """
        firsts = [round(len(u) * (1 - share)) for u in self.inputs]
        if min(firsts) < LEAST or min(
            len(u) - k for u, k in zip(self.inputs, firsts, strict=True)
        ) < max(2, LEAST // 10):
            shortest = min(map(len, self.inputs))
            raise HdnnError(
                f"a recording of {shortest} samples is too short to hold out a part of "
                f"{share:g}; record more, or hold out another part"
            )
        cut = [
            tuple(part[:k] for part, k in zip(parts, firsts, strict=True))
            for parts in (self.inputs, self.outputs)
        ]
        skip = tuple(min(own, k) for own, k in zip(self.skip, firsts, strict=True))
        start = replace(self, inputs=cut[0], outputs=cut[1], skip=skip)
        return start, replace(self, skip=tuple(firsts))


def arrays(name: str, values: Any) -> tuple[Array, ...]:
    """Arrays ``(time, columns)`` of one or a list of recordings.

    Args:
        name: of the argument, for messages.
        values: an array, a data frame, or a list or tuple of them.

    Returns:
        One array for every recording.

    Raises:
        HdnnError: it has another number of axes, or values that are no finite numbers.
    """
    several = isinstance(values, list | tuple) and bool(values) and np.ndim(values[0]) > 0
    found = []
    for k, value in enumerate(values if several else [values]):
        where = f"{name}[{k}]" if several else name
        try:
            array = np.array(value, dtype=np.float64)  # a copy, which nobody changes
        except (TypeError, ValueError) as error:
            raise HdnnError(
                f"{where} must hold numbers, as an array (time, columns), or a list of such arrays"
            ) from error
        if array.ndim != 2 or not array.shape[1]:
            hint = f"; use {where}.reshape(-1, 1) for one column" if array.ndim == 1 else ""
            raise HdnnError(f"{where} must have the shape (time, columns), got {array.shape}{hint}")
        bad = np.argwhere(~np.isfinite(array))
        if len(bad):
            row, column = bad[0]
            raise HdnnError(
                f"{where} holds {array[row, column]} at time {row}, column {column}; recordings "
                "have no gaps: interpolate, or split there and give a list"
            )
        if not len(array):
            raise HdnnError(f"{where} holds no samples")
        found.append(array)
    if len({array.shape[1] for array in found}) > 1:
        counts = ", ".join(str(array.shape[1]) for array in found)
        raise HdnnError(f"the recordings of {name} have {counts} columns; all have the same")
    return tuple(found)


# --- files ----------------------------------------------------------------------------------------


def read_recordings(
    paths: Paths,
    inputs: Sequence[str] | str,
    outputs: Sequence[str] | str,
    *,
    time: str | None = None,
    sampling_time: float | None = None,
    experiment: str | None = None,
) -> Recordings:
    r"""Read recordings from tables as `hdnn.data.read_table` reads them.

    Args:
        paths: a CSV, TSV or Parquet file, or several, each a recording.
        inputs: the columns of inputs.
        outputs: the columns of outputs.
        time: the column of times, numbers or dates; their differences are the sampling time.
        sampling_time: between two rows, where there is no such column; None is 1.
        experiment: a column that numbers or names the recordings of a file.

    Returns:
        The recordings.

    Raises:
        HdnnError: a file cannot be read, a column is missing, or samples are missing or uneven: by
            line.

    >>> path = getfixture("tmp_path") / "data.csv"
    >>> rows = "".join(f"{k / 10},{k % 7},{k % 5}\n" for k in range(40))
    >>> _ = path.write_text("t,u,y\n" + rows)
    >>> read_recordings(path, "u", "y", time="t")
    Recordings(1 recording, 40 samples, sampling time 0.1, u -> y)
    """
    many = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    names = [(part,) if isinstance(part, str) else tuple(part) for part in (inputs, outputs)]
    if not all(names) or not many:
        raise HdnnError("name at least one file, one input and one output")
    if repeated := [name for part in names for name in part if part.count(name) > 1]:
        raise HdnnError(f"{shown(repeated[0])} is given twice; name every column once")
    if both := set(names[0]) & set(names[1]):
        raise HdnnError(f"{shown(min(both))} is an input and an output; a column is one of them")
    if time is not None and sampling_time is not None:
        raise HdnnError("give a column of times or a sampling time, not both")
    found: list[tuple[Array, Array]] = []
    steps: list[tuple[float, str]] = []
    for path in many:
        raw = read_raw(path)
        wanted = (*names[0], *names[1], *(name for name in (time, experiment) if name))
        _check_names(raw, wanted, ())
        for part in experiments(raw, experiment):
            where = part.where
            u, y = (np.stack([numbers(part, name) for name in each], 1) for each in names)
            if len(u) < LEAST:
                raise HdnnError(f"{where} has {len(u)} rows; a recording has at least {LEAST}")
            if time is not None:
                steps.append((step_of(part, time), where))
            found.append((u, y))
    if steps:
        sampling_time, first = steps[0]
        for other, where in steps:
            if abs(other - sampling_time) > UNEVEN * sampling_time:
                raise HdnnError(
                    f"{where} has the sampling time {other:g}, {first} has {sampling_time:g}; "
                    "resample one of them"
                )
    u_parts, y_parts = zip(*found, strict=True)
    step = 1.0 if sampling_time is None else sampling_time
    return Recordings(u_parts, y_parts, step, names[0], names[1])


def experiments(raw: RawTable, column: str | None) -> list[RawTable]:
    """The rows of every experiment, in the order of their first rows.

    Args:
        raw: the table.
        column: that numbers or names them; None: all rows are one.

    Returns:
        A table for each.
    """
    if column is None:
        return [raw]
    groups = raw.frame.groupby(column, sort=False, dropna=False)
    return [
        replace(raw, frame=rows, where=f"{raw.where}, {column} {shown(key)}")
        for key, rows in groups
    ]


def numbers(raw: RawTable, name: str, gaps: bool = False) -> Array:
    """A column of numbers.

    Args:
        raw: the table.
        name: of the column.
        gaps: whether values may be missing.

    Returns:
        ``(rows,)``, NaN where a value is missing.

    Raises:
        HdnnError: a cell holds no number, or a value is missing: by line.
    """
    cells = as_values(name, raw.column(name), raw.row_name)
    try:
        values = infer(name, cells, "number").parse(cells, raw.row_name, REMEDY)
    except HdnnError as error:
        raise HdnnError(f"{raw.where}: {error}") from error
    missing = np.flatnonzero(np.isnan(values))
    if len(missing) and not gaps:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise HdnnError(
            f"{raw.where}: column {shown(name)} has no value in {raw.row_name(int(missing[0]))}"
            f"{more}; interpolate, or number the parts as experiments"
        )
    return values


def step_of(raw: RawTable, name: str) -> float:
    """The sampling time of a column of times.

    Args:
        raw: the table.
        name: of the column, of numbers or dates.

    Returns:
        The time between two rows, of dates in seconds.

    Raises:
        HdnnError: a time is missing, or they are not even: by line.
    """
    kind, values = read_column(name, raw.column(name), raw.row_name)
    if kind.kind == "category" or pd.isna(values).any():
        raise HdnnError(f"{raw.where}: column {shown(name)} must hold a time in every row")
    if kind.kind == "date":
        values = (values - values[0]) / np.timedelta64(1, "s")
    steps = np.diff(values)
    step = float(np.median(steps))
    wrong = np.flatnonzero(~(np.abs(steps - step) <= UNEVEN * abs(step)) | (steps <= 0))
    if len(wrong):
        row, given = int(wrong[0]) + 1, steps[wrong[0]]
        if given <= 0:
            raise HdnnError(
                f"{raw.where}: time does not increase at {raw.row_name(row)}: {given:g} after the "
                "row before; sort the rows by time, or number the parts as experiments"
            )
        what = "a gap" if given > 1.5 * step > 0 else "uneven sampling"
        raise HdnnError(
            f"{raw.where}: {what} at {raw.row_name(row)}: {given:g} after the row before, but the "
            f"sampling time is {step:g}, in {len(wrong)} of {len(steps)} places; resample, or "
            "number the parts as experiments"
        )
    return float(values[-1] - values[0]) / len(steps)


# --- data sets by name ----------------------------------------------------------------------------


class Source(NamedTuple):
    """A published recording, which is read from a file and never downloaded.

    Args:
        about: what it is.
        url: where it is published.
        columns: of the file.
        sha256: of the file.
        sampling_time: between two samples.
    """

    about: str
    url: str
    columns: tuple[str, ...]
    sha256: str
    sampling_time: float


SOURCES: dict[str, Source] = {
    "cascaded-tanks": Source(
        "two tanks with overflow, 1024 + 1024 samples (Schoukens, Mattsson, Wigren, Noel)",
        "https://doi.org/10.4121/12960104",
        ("uEst", "uVal", "yEst", "yVal", "Ts"),
        "7416cb2aeb97c0775f2d9fdd4be698024d49608f8b0a8e767755c5ecb2bb023c",
        4.0,
    ),
    "silverbox": Source(
        "an electronic oscillator with a cubic spring, 131,072 samples (Wigren, Schoukens)",
        "https://www.nonlinearbenchmark.org/benchmarks/silverbox",
        ("V1", "V2"),
        "ae62d5a91230c10f76e6dd02c8a4fac3c9d4d8a95fbf50e87cb0c4885003e0f1",
        1 / 610.35,
    ),
    "heat-exchanger": Source(
        "a liquid-saturated steam heat exchanger, 4000 samples (DaISy 97-002)",
        "https://homes.esat.kuleuven.be/~smc/daisy/daisydata.html",
        ("ts", "q", "th"),
        "3dfbb1e1c2f789a3593b460373c5c0a649647ab5548478ed0992c68d5b2c5f34",
        1.0,
    ),
    "robot-arm": Source(
        "a flexible robot arm, 1024 samples (DaISy 96-009)",
        "https://homes.esat.kuleuven.be/~smc/daisy/daisydata.html",
        ("u", "y"),
        "781d988c06d8f6c120985d135a204d290ee7e4f1f4067ad3f3338851b6202cf7",
        1.0,
    ),
}
"""Published recordings, by name."""


class Parts(NamedTuple):
    """What a model is identified from, and what it is tested on.

    Args:
        estimation: for fitting and validation.
        test: its first samples, `Recordings.skip`, are not scored.
    """

    estimation: Recordings
    test: Recordings


def load_recordings(name: str) -> Parts:
    """Recordings by name, in their usual parts for estimation and test.

    Args:
        name: "two-tanks" or "damped-pendulum", which are simulated; or one of `SOURCES`, read from
            ``identification/`` in the folder that HDNN_DATA names.

    Returns:
        Both parts.

    Raises:
        HdnnError: there is no such name or file, or the file is not the published one.

    >>> load_recordings("two-tanks").estimation
    Recordings(1 recording, 1024 samples, sampling time 4, pump -> level)
    """
    key = str(name).lower().replace("_", "-")
    if key in SIMULATED:
        return SIMULATED[key]()
    if key not in SOURCES:
        raise unknown_name("recording", name, [*SIMULATED, *SOURCES])
    source, table = SOURCES[key], _published(key)

    def part(
        columns: tuple[str, str], rows: slice, skip: int = 0, names: tuple[str, str] | None = None
    ) -> Recordings:
        (u, y), (u_name, y_name) = (table[[c]].to_numpy()[rows] for c in columns), names or columns
        time = source.sampling_time
        return Recordings((u,), (y,), time, (u_name,), (y_name,), (skip,))

    if key == "cascaded-tanks":
        every, names = slice(None), ("pump", "level")
        return Parts(
            part(("uEst", "yEst"), every, names=names), part(("uVal", "yVal"), every, 50, names)
        )
    if key == "silverbox":
        columns = ("V1", "V2")
        return Parts(part(columns, slice(52230, 127400)), part(columns, slice(40585), 60))
    columns, first = (("q", "th"), 3000) if key == "heat-exchanger" else (("u", "y"), 512)
    return Parts(part(columns, slice(first)), part(columns, slice(None), first))


def published_file(name: str) -> Path | None:
    """The file of a published recording below HDNN_DATA.

    Args:
        name: one of `SOURCES`.

    Returns:
        The path; None if there is no such file, or HDNN_DATA is not set.
    """
    folder = os.environ.get("HDNN_DATA")
    path = Path(folder or ".").expanduser() / "identification" / f"{name}.csv"
    return path if folder and path.is_file() else None


def _published(name: str) -> pd.DataFrame:
    """The table of a published file, whose checksum is right."""
    source, folder = SOURCES[name], os.environ.get("HDNN_DATA")
    expected = f"{name}.csv with the columns {', '.join(source.columns)}"
    path = published_file(name)
    if path is None:
        here = f"HDNN_DATA is {folder}, where it is not" if folder else "HDNN_DATA is not set"
        raise FetchError(
            f"{name} ({source.about}) is not downloaded: get it from {source.url}, save it as "
            f"{expected} in a folder identification/, and set HDNN_DATA to the folder above it "
            f"({here})"
        )
    with reading(path, "CSV"), open(path, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != source.sha256:
            raise FetchError(
                f"{path} is not the file whose results are published here: its SHA-256 is "
                f"another. Get it from {source.url}, as {expected}, or read yours as any other "
                "recording"
            )
        return pd.read_csv(path, usecols=source.columns, skipinitialspace=True).dropna(
            subset=[column for column in source.columns if column != "Ts"]
        )


def _steps(draw: np.random.Generator, count: int, low: float, high: float, hold: int) -> Array:
    """Random levels, held for 1 to 2 hold - 1 samples each."""
    holds = draw.integers(1, 2 * hold, count)
    return np.repeat(draw.uniform(low, high, count), holds)[:count, None]


def _two_tanks() -> Parts:
    """Two tanks above each other; each overflows at 10, partly from the first into the second.

    x1' = -0.05 sqrt(x1) + 0.04 u,     x2' = 0.05 sqrt(x1) - 0.05 sqrt(x2) + 0.3 overflow of x1
    """

    def simulate(seed: int) -> tuple[Array, Array]:
        draw = np.random.default_rng(seed)
        u, levels = _steps(draw, 1024, 0.5, 5.0, 40), np.empty((1024, 1))
        x1, x2, h = 4.0, 4.0, 4.0 / 20
        for t, pump in enumerate(u[:, 0]):
            levels[t] = x2
            for _ in range(20):
                out = 0.05 * np.sqrt(x1)
                x1 += h * (0.04 * pump - out)
                over, x1 = max(x1 - 10, 0.0), min(x1, 10.0)
                x2 = min(x2 + h * (out - 0.05 * np.sqrt(x2)) + 0.3 * over, 10.0)
        return u, levels + 0.02 * draw.standard_normal(levels.shape)

    return _simulated(simulate, 4.0, "pump", "level")


def _damped_pendulum() -> Parts:
    """A pendulum with viscous and dry friction, moved by a torque; its angle stays below pi / 2.

    angle'' = -4 sin(angle) - 0.3 angle' - 0.2 tanh(20 angle') + u
    """

    def simulate(seed: int) -> tuple[Array, Array]:
        draw = np.random.default_rng(seed)
        u, angles = _steps(draw, 1024, -2.0, 2.0, 8), np.empty((1024, 1))
        angle, speed, h = 0.0, 0.0, 0.1 / 20
        for t, torque in enumerate(u[:, 0]):
            angles[t] = angle
            for _ in range(20):
                friction = 0.3 * speed + 0.2 * np.tanh(20 * speed)
                speed += h * (torque - 4 * np.sin(angle) - friction)
                angle += h * speed
        return u, angles + 0.005 * draw.standard_normal(angles.shape)

    return _simulated(simulate, 0.1, "torque", "angle")


def _simulated(
    simulate: Callable[[int], tuple[Array, Array]], sampling_time: float, u: str, y: str
) -> Parts:
    parts = []
    for seed, skip in ((0, 0), (1, 50)):
        inputs, outputs = simulate(seed)
        parts.append(Recordings((inputs,), (outputs,), sampling_time, (u,), (y,), (skip,)))
    return Parts(*parts)


SIMULATED = {"two-tanks": _two_tanks, "damped-pendulum": _damped_pendulum}
"""Recordings that are simulated, by name, the same each time."""
