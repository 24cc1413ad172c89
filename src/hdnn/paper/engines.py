"""Where tasks run: in this process, in several processes, or on the machines of a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, TypeVar

from hdnn.data.reading import reason_of
from hdnn.errors import HdnnError, LostRankError, unknown_name

ENGINES = ("local", "joblib", "dask", "ray")
Task = tuple[Any, Sequence[int]]
R = TypeVar("R")
TaskRunner = Callable[..., Iterable[list[R]]]
"""Takes a cell and its seeds; see `hdnn.paper.experiment.Experiment`."""


class LostClusterError(LostRankError):
    """A scheduler or a worker of a sweep is gone."""


@dataclass(frozen=True)
class Engine:
    """What runs tasks.

    Args:
        name: "local" (one process, threads share the networks of a task), "joblib" (processes),
            "dask" or "ray" (a cluster, through joblib's backends).
        workers: processes, for joblib; more than one of "local" are joblib's.
        address: of a Dask scheduler or a Ray cluster.

    Raises:
        HdnnError: there is no such engine, or it lacks its address.
    """

    name: str = "local"
    workers: int = 1
    address: str | None = None

    def __post_init__(self) -> None:
        if self.name not in ENGINES:
            raise unknown_name("engine", self.name, ENGINES)
        if self.name == "dask" and self.address is None:
            raise HdnnError("the engine dask needs --address, e.g. tcp://127.0.0.1:8786")

    @property
    def is_local(self) -> bool:
        """Whether tasks run one after the other in this process."""
        return self.name == "local" and self.workers <= 1

    def run_remotely(
        self, run: TaskRunner[R], tasks: Iterable[Task]
    ) -> Generator[list[R], None, None]:
        """The records of tasks as they end, in any order.

        Raises:
            LostClusterError: the engine failed, which each reports in its own way.
        """
        try:
            import joblib
        except ImportError as error:
            raise HdnnError(
                "sweeps over processes need joblib: pip install 'hdnn[cluster]'"
            ) from error
        try:
            with ExitStack() as stack:
                options = self._start(joblib, stack)
                # Unordered, so that a record is written as soon as its task ends.
                parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1, **options)
                calls = (joblib.delayed(_run_in_one_thread)(run, task) for task in tasks)
                yield from stack.enter_context(closing(parallel(calls)))
        except HdnnError:
            raise
        except Exception as error:
            raise LostClusterError(
                f"the engine {self.name} failed: {reason_of(error)}; the trainings that had ended "
                "are recorded: start it again, and repeat the command for the others"
            ) from error

    def _start(self, joblib: Any, stack: ExitStack) -> dict[str, Any]:
        """Connect to the cluster; what `joblib.Parallel` is called with."""
        if self.name in ("local", "joblib"):
            return {"n_jobs": self.workers, "backend": "loky"}
        if self.name == "dask":
            try:
                from distributed import Client
            except ImportError as error:
                raise HdnnError("the engine dask needs: pip install 'hdnn[cluster]'") from error
            try:
                stack.callback(Client(self.address, timeout="10s").close)
            except OSError as error:
                raise HdnnError(f"no Dask scheduler answers at {self.address}") from error
        else:
            try:
                import ray
                from ray.util.joblib import register_ray
            except ImportError as error:
                raise HdnnError("the engine ray needs: pip install 'ray[default]'") from error
            ray.init(address=self.address)
            register_ray()
        stack.enter_context(joblib.parallel_config(backend=self.name))
        return {"n_jobs": -1}


def _run_in_one_thread(run: TaskRunner[R], task: Task) -> list[R]:
    os.environ["HDNN_NUM_THREADS"] = "1"
    return [record for records in run(*task) for record in records]
