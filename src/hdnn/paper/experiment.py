"""An experiment of the paper: cells x seeds -> records -> a frame for tables and figures."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Generic, NamedTuple, TypeVar

import joblib
import pandas as pd

from hdnn.errors import HdnnError, unknown_name
from hdnn.paper.records import Key, Record, Records
from hdnn.progress import Meter

C = TypeVar("C", bound=tuple[Any, ...])
KEY = ("data", "architecture", "layers", "protocol", "split")
"""With the seed, what identifies a record of Table 1; those of Table 2 have epochs besides."""


class Cell(NamedTuple):
    """A cell of Table 1 or Table 2; accuracies in per cent, None where the paper has none."""

    data: str
    architecture: str
    layers: int
    protocol: str
    split: str
    published: float | None
    published_train: float | None = None
    epochs: int | None = None  # of Table 2, where they are part of the key


@dataclass(frozen=True)
class Experiment(Generic[C]):
    """What is trained, and what tells one training from another.

    Args:
        cells: named tuples of network, data and settings; each is trained for every seed.
        key: fields of a cell that its records repeat; with the seed they identify a training.
        run: trains a cell for some seeds and returns a record for each: a JSON object that
            repeats the key and the seed. It is called in another process where joblib says so.
        together: how many seeds of a cell one call of ``run`` trains, side by side.

    >>> from typing import NamedTuple
    >>> class Square(NamedTuple):
    ...     side: int
    >>> def area(cell, seeds):
    ...     return [{"side": cell.side, "seed": seed, "area": cell.side**2} for seed in seeds]
    >>> squares = Experiment([Square(2), Square(3)], ("side",), area)
    >>> [record["area"] for record in squares.sweep(range(2))]
    [4, 9, 4, 9]
    """

    cells: Sequence[C]
    key: tuple[str, ...]
    run: Callable[[C, Sequence[int]], list[Record]]
    together: int = 1

    def missing(self, known: Collection[Key], seeds: Sequence[int]) -> list[tuple[C, list[int]]]:
        """The calls of `run` that are still to be made.

        Args:
            known: keys of the records that exist.
            seeds: what is wanted for every cell.

        Returns:
            Cells with the seeds they lack: a few seeds of all cells, then the next seeds.
        """
        tasks = []
        for start in range(0, len(seeds), self.together):
            for cell in self.cells:
                own = tuple(getattr(cell, name) for name in self.key)
                part = seeds[start : start + self.together]
                lacking = [seed for seed in part if (*own, seed) not in known]
                if lacking:
                    tasks.append((cell, lacking))
        return tasks

    def sweep(
        self, seeds: Sequence[int], store: Records | None = None, jobs: int | None = None
    ) -> list[Record]:
        """Train what has no record yet, and store the records of each call of `run` as it ends.

        Args:
            seeds: of the trainings.
            store: where the records are; without one, everything is trained.
            jobs: processes. None: this process, or what `joblib.parallel_config` sets up around
                the call, such as a Dask or Ray cluster.

        Returns:
            All records of the store, or those of this sweep.
        """
        tasks = self.missing({} if store is None else store.read(), seeds)
        total, records = sum(len(lacking) for _, lacking in tasks), list[Record]()
        meter = Meter("trainings")
        meter(0, total)
        # In order of completion and one by one: whatever has ended is stored when a sweep is
        # killed.
        parallel = joblib.Parallel(n_jobs=jobs, batch_size=1, return_as="generator_unordered")
        with closing(parallel(joblib.delayed(self.run)(*task) for task in tasks)) as results:
            for finished in results:
                if store is not None:
                    store.add(finished)
                records += finished
                meter(len(records), total)
        return records if store is None else list(store.read().values())


def frame(cells: Sequence[C], key: Sequence[str], records: Iterable[Record]) -> pd.DataFrame:
    """The records of some cells with the fields of the cells, in the order of the cells.

    Args:
        cells: of an experiment.
        key: of its `Experiment`.
        records: of any cells.
    """
    return pd.DataFrame(cells).merge(pd.DataFrame(records), on=[*key])


def select(table: str, hint: str, cells: Iterable[C], **filters: Sequence[Any]) -> list[C]:
    """The cells that filters leave.

    Args:
        table: its name, for messages.
        hint: which cells there are, for messages.
        cells: of the table.
        filters: by field, the values to keep, in upper or lower case; no values keep all.

    Raises:
        HdnnError: a value is in no cell, or no cell is left.
    """
    selected = cells = list(cells)
    for field, values in filters.items():
        known = {str(getattr(cell, field)).lower(): str(getattr(cell, field)) for cell in cells}
        wanted = [str(value).lower() for value in values]
        for value in wanted:
            if value not in known:
                raise unknown_name(f"{field} of {table}", value, known.values())
        selected = [c for c in selected if not wanted or str(getattr(c, field)).lower() in wanted]
    if not selected:
        wanted = [f"{field} {list(values)}" for field, values in filters.items() if values]
        raise HdnnError(f"no cell of {table} has {', '.join(wanted)}; {hint}")
    return selected


@functools.cache
def resource(name: str) -> dict[str, Any]:
    """A TOML file of the package."""
    return tomllib.loads(files("hdnn.paper").joinpath(name).read_text())
