"""An experiment of the paper: cells x seeds -> tasks -> records -> groups for tables and figures.

A sweep does only what has no record yet, so one that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Generic, TypeVar

import numpy as np

from hdnn.errors import HdnnError, unknown_name
from hdnn.paper.engines import Engine
from hdnn.paper.store import Key, Keyed, Store
from hdnn.training import TrainingConfig

C = TypeVar("C")
R = TypeVar("R", bound=Keyed)
V = TypeVar("V")
Say = Callable[[str], None]
"""Takes a few words on how far a training is."""
Progress = Callable[[int, int, str], None]
"""Takes the trainings done, all of them, and a few words on the one under way, or none."""
REMOTE_SEEDS = 5
"""Seeds of a task on other processes: fewer, so that all have work and little is lost with one."""


def silent(*_: object) -> None:
    """Report nothing."""


def never(*_: object) -> bool:
    """No training is repeated."""
    return False


@dataclass(frozen=True)
class SeedGroup(Generic[C, R]):
    """A cell with its records, one for every seed."""

    cell: C
    records: tuple[R, ...]

    @property
    def seeds(self) -> int:
        return len(self.records)

    def column(self, name: str) -> np.ndarray:
        """A field of all records: ``(seeds, ...)``."""
        values = [getattr(record, name) for record in self.records]
        if len({np.shape(value) for value in values}) > 1:
            raise HdnnError(
                f"the records of {self.cell} differ in the length of {name}; remove those that are "
                "wrong from records.jsonl"
            )
        return np.array(values)

    def percent(self, name: str) -> np.ndarray:
        """A field of fractions, in per cent."""
        return 100 * self.column(name)

    def deviation(self, name: str) -> float | None:
        """The standard deviation of a field of fractions in per cent; one seed has none."""
        return float(self.percent(name).std(ddof=1)) if self.seeds > 1 else None


@dataclass(frozen=True)
class Experiment(Generic[C, R]):
    """What is trained, and how.

    Args:
        cells: networks, data and settings; each is trained for every seed.
        key: of the records of a cell, without the seed, which comes last in `Keyed.key`.
        run: trains seeds of a cell and yields lists of records. Each list is in the store before
            the next is asked for. A third argument takes a few words on how far it is.
        together: seeds of a cell that one call of `run` trains.
        due: whether a seed of a cell is trained though it has a record.
    """

    cells: Sequence[C]
    key: Callable[[C], Key]
    run: Callable[..., Iterable[list[R]]]
    together: int = 1
    due: Callable[[C, int], bool] = never

    def missing(
        self, known: Container[Key], seeds: Sequence[int], together: int
    ) -> list[tuple[C, tuple[int, ...]]]:
        """The tasks that are still to be done: some seeds of all cells, then the next seeds."""
        tasks = []
        for start in range(0, len(seeds), together):
            for cell in self.cells:
                lacking = tuple(
                    seed
                    for seed in seeds[start : start + together]
                    if (*self.key(cell), seed) not in known or self.due(cell, seed)
                )
                if lacking:
                    tasks.append((cell, lacking))
        return tasks

    def sweep(
        self,
        seeds: Sequence[int],
        store: Store[R] | None = None,
        engine: Engine | None = None,
        progress: Progress = silent,
    ) -> list[R]:
        """Do what is missing; the records of every task are stored when it ends.

        Args:
            seeds: of the trainings.
            store: where the records are; without one everything is trained.
            engine: where the tasks run; here, unless it is given.
            progress: is told how far it is.

        Returns:
            All records of the store, or those of this sweep.
        """
        engine = engine or Engine()
        known = {} if store is None else store.read()
        together = self.together if engine.is_local else min(self.together, REMOTE_SEEDS)
        tasks = self.missing(known, seeds, together)
        total, records = sum(len(seeds) for _, seeds in tasks), list[R]()

        def say(words: str) -> None:
            progress(len(records), total, words)

        say("")
        results = (
            self._run_here(tasks, say) if engine.is_local else engine.run_remotely(self.run, tasks)
        )
        with closing(results):
            for finished in results:
                if store is not None:
                    store.add(finished)
                records += finished
                say("")
        return records if store is None else list(store.read().values())

    def _run_here(
        self, tasks: Iterable[tuple[C, tuple[int, ...]]], say: Say
    ) -> Generator[list[R], None, None]:
        for cell, seeds in tasks:
            yield from self.run(cell, seeds, say)

    def groups(self, records: Iterable[R]) -> list[SeedGroup[C, R]]:
        """The cells that have records, with these."""
        return group(self.cells, self.key, records)


def group(
    cells: Sequence[C], key: Callable[[C], Key], records: Iterable[R]
) -> list[SeedGroup[C, R]]:
    """The cells that have records, with these; `key` as in `Experiment`."""
    by_cell: dict[Key, list[R]] = {}
    for record in records:
        by_cell.setdefault(record.key[:-1], []).append(record)
    keys = [(cell, key(cell)) for cell in cells]
    return [SeedGroup(cell, tuple(by_cell[name])) for cell, name in keys if name in by_cell]


def select(table: str, hint: str, cells: Sequence[C], **filters: Sequence[Any]) -> list[C]:
    """The cells that filters leave: of every field the values to keep, names in any case.

    Args:
        table: its name, for messages.
        hint: which cells there are, for messages.
        cells: of the table.
        filters: by field; no values keep all.

    Raises:
        HdnnError: a name is in no cell, or no cell is left.
    """
    kept = list(cells)
    for field, values in filters.items():
        known = {str(getattr(cell, field)).lower(): str(getattr(cell, field)) for cell in cells}
        wanted = {str(value).lower() for value in values}
        for value in values:
            if isinstance(value, str) and value.lower() not in known:
                raise unknown_name(f"{field} of {table}", value, known.values())
        kept = [c for c in kept if not wanted or str(getattr(c, field)).lower() in wanted]
    if not kept:
        given = ", ".join(f"{field} {list(values)}" for field, values in filters.items() if values)
        raise HdnnError(f"no cell of {table} has {given}; {hint}")
    return kept


@dataclass(frozen=True)
class Protocol:
    """How every cell of a table is trained.

    Args:
        name: in records.
        summary: for people: the deviations from the paper.
        training: settings that all cells share.
        choices: what tuning may choose from, by setting; one value means that it is given.
        restarts: initializations trained side by side, of which the one with the lowest training
            loss is kept.
    """

    name: str
    summary: str
    training: TrainingConfig
    choices: Mapping[str, Sequence[Any]]
    restarts: int


def protocols(table: str, **training: Any) -> dict[str, Protocol]:
    """The protocols of a table by name, from protocols.toml.

    Args:
        table: its name there.
        training: what its protocols set unless they say otherwise.
    """
    entries = resource("protocols.toml")[table]
    found = {}
    for name, own in entries.items():
        entry = {"choices": {}, "restarts": 1} | entries.get(own.get("like"), {}) | own
        config = TrainingConfig(**training | entry["training"])
        summary, choices, restarts = entry["summary"], entry["choices"], entry["restarts"]
        found[name] = Protocol(name, summary, config, choices, restarts)
    return found


def find(kind: str, name: str, catalogue: Mapping[str, V]) -> V:
    """An entry of a catalogue by name.

    Raises:
        HdnnError: there is none; the message has the nearest name.
    """
    if name not in catalogue:
        raise unknown_name(kind, name, catalogue)
    return catalogue[name]


@functools.cache
def resource(name: str) -> dict[str, Any]:
    """A TOML file of the package."""
    return tomllib.loads(files("hdnn.paper").joinpath(name).read_text())
