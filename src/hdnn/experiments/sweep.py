"""Sweeps: the missing records of a table, cell by cell, here or on other machines."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import hdnn
from hdnn.data.reading import reason_of
from hdnn.errors import HdnnError, unknown_name
from hdnn.experiments.cells import train
from hdnn.experiments.records import Record, Store
from hdnn.experiments.specs import Cell, check_split, protocol, settings
from hdnn.training.group import LostRankError

ENGINES = ("local", "joblib", "dask", "ray")
Progress = Callable[[int, int], None]


class LostClusterError(LostRankError):
    """A scheduler or a worker of a sweep is gone."""


@dataclass(frozen=True)
class Task:
    """Seeds of one cell that are trained side by side in one call."""

    cell: Cell
    protocol: str
    split: str
    seeds: tuple[int, ...]


def run_task(task: Task, threads: int | None = None) -> list[Record]:
    """The records of a task: a pure function of it, wherever it runs."""
    if threads is not None:
        os.environ["HDNN_NUM_THREADS"] = str(threads)
    chosen = settings(task.protocol, task.cell)
    found = train(task.cell, protocol(task.protocol), chosen, task.split, task.seeds)
    cell = task.cell
    return [
        Record(
            cell.data,
            cell.architecture,
            cell.layers,
            task.protocol,
            task.split,
            seed,
            chosen.T,
            found.train_accuracy[k],
            found.test_accuracy[k],
            round(found.seconds, 4),
            hdnn.__version__,
        )
        for k, seed in enumerate(task.seeds)
    ]


def missing(
    store: Store[Record],
    cells: Sequence[Cell],
    name: str,
    split: str,
    seeds: Sequence[int],
    chunk: int,
) -> list[Task]:
    """What is still to be done, in tasks of at most ``chunk`` seeds."""
    done = store.read()
    tasks = []
    for cell in cells:
        lacking = [
            seed
            for seed in seeds
            if (cell.data, cell.architecture, cell.layers, name, split, seed) not in done
        ]
        for start in range(0, len(lacking), chunk):
            tasks.append(Task(cell, name, split, tuple(lacking[start : start + chunk])))
    return tasks


def sweep(
    store: Store[Record],
    cells: Sequence[Cell],
    name: str,
    split: str,
    seeds: Sequence[int],
    *,
    engine: str = "local",
    workers: int = 1,
    address: str | None = None,
    progress: Progress = lambda done, total: None,
) -> None:
    """Do what is missing; every task's records are written when it ends.

    Args:
        store: where the records are.
        cells, name, split, seeds: which trainings.
        engine: "local" (one process, threads share the networks of a task), "joblib" (processes),
            "dask" or "ray" (a cluster, through joblib's backends).
        workers: processes, for joblib.
        address: of a Dask scheduler or a Ray cluster.
        progress: called with the trainings done and all of them.
    """
    protocol(name)
    check_split(split)
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    if engine == "local" and workers > 1:
        engine = "joblib"
    tasks = missing(store, cells, name, split, seeds, chunk=20 if engine == "local" else 5)
    total, done = sum(len(task.seeds) for task in tasks), 0
    progress(0, total)
    results = _results(tasks, engine, workers, address)
    with closing(results if engine == "local" else _survived(results, engine, store)) as finished:
        for records in finished:
            store.add(records)
            done += len(records)
            progress(done, total)


def _survived(
    results: Generator[list[Record], None, None], engine: str, store: Store[Record]
) -> Generator[list[Record], None, None]:
    """Results of a cluster; its loss, which every engine reports in its own way, is one error."""
    try:
        with closing(results):
            yield from results
    except HdnnError:
        raise
    except Exception as error:
        raise LostClusterError(
            f"the engine {engine} failed: {reason_of(error)}; the records of all trainings that "
            f"had ended are in {store.path}: start it again, and repeat the command for the others"
        ) from error


def _results(
    tasks: list[Task], engine: str, workers: int, address: str | None
) -> Generator[list[Record], None, None]:
    if engine == "local":
        yield from map(run_task, tasks)
        return
    try:
        import joblib
    except ImportError as error:
        raise HdnnError("sweeps over processes need joblib: pip install 'hdnn[cluster]'") from error
    with _backend(joblib, engine, workers, address) as options:
        # Unordered, so that a record is written as soon as its task ends.
        parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1, **options)
        yield from parallel(joblib.delayed(run_task)(task, 1) for task in tasks)


class _backend:  # noqa: N801 (a context manager that reads like a function)
    """joblib's configuration for an engine."""

    def __init__(self, joblib: Any, engine: str, workers: int, address: str | None) -> None:
        self.joblib, self.engine, self.workers, self.address = joblib, engine, workers, address
        self.client: Any = None

    def __enter__(self) -> dict[str, Any]:
        if self.engine == "joblib":
            return {"n_jobs": self.workers, "backend": "loky"}
        if self.engine == "dask":
            try:
                from distributed import Client
            except ImportError as error:
                raise HdnnError("the engine dask needs: pip install 'hdnn[cluster]'") from error
            if self.address is None:
                raise HdnnError("the engine dask needs --address, e.g. tcp://127.0.0.1:8786")
            try:
                self.client = Client(self.address, timeout="10s")
            except OSError as error:
                raise HdnnError(f"no Dask scheduler answers at {self.address}") from error
            self.context = self.joblib.parallel_config(backend="dask")
        else:
            try:
                import ray
                from ray.util.joblib import register_ray
            except ImportError as error:
                raise HdnnError("the engine ray needs: pip install 'ray[default]'") from error
            ray.init(address=self.address)
            register_ray()
            self.context = self.joblib.parallel_config(backend="ray")
        self.context.__enter__()
        return {"n_jobs": -1}

    def __exit__(self, *error: object) -> None:
        if self.engine == "joblib":
            return
        self.context.__exit__(*error)
        if self.client is not None:
            self.client.close()
