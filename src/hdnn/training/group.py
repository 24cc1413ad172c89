"""The processes that train together: here one; several are in `hdnn.training.distributed`."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from hdnn.errors import HdnnError

if TYPE_CHECKING:  # the command line asks here who it is, before it needs torch
    import torch
    from torch import Tensor, nn

    from hdnn.training.settings import TrainingConfig

T = TypeVar("T")


class Group(ABC):
    """Processes that train one model; each has its rank, and rank 0 leads: it alone writes.

    Args:
        rank: of this process.
        size: the number of processes.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process writes and talks."""
        return self.rank == 0

    def rows(self, count: int) -> slice:
        """The rows of ``count`` that are this process's: contiguous, in order of rank.

        >>> SingleProcess().rows(5)
        slice(0, 5, None)
        """
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    @abstractmethod
    def check(self, config: TrainingConfig) -> None:
        """Refuse a training that these processes cannot share."""

    @abstractmethod
    def device_for(self, asked: str, images: bool, dtype: torch.dtype) -> torch.device:
        """Where this process trains a model; see `hdnn.training.devices.choose_device`."""

    @abstractmethod
    def rank_zero(self, work: Callable[[], T]) -> T:
        """What rank 0 finds by some work, in every process; its error is raised in all."""

    @abstractmethod
    def all_ranks(self, work: Callable[[], T]) -> T:
        """What this process finds by some work that all do; an error of one is raised in all."""

    @abstractmethod
    def sum(self, *numbers: float) -> tuple[float, ...]:
        """Each number, summed over the processes."""

    @abstractmethod
    def collect(self, part: Tensor, count: int) -> Tensor:
        """All ``count`` rows, of which this process has those of its `rows`."""

    @abstractmethod
    def parallel(self, objective: nn.Module) -> nn.Module:
        """An objective whose gradients are the mean of those of all processes."""

    @abstractmethod
    def guard(self) -> AbstractContextManager[None]:
        """Turns the failure of another process into a `LostRankError`."""


class SingleProcess(Group):
    """One process, which is what there is unless torchrun started several."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def check(self, config: TrainingConfig) -> None:
        refuse_distributed("a training of its own")

    def device_for(self, asked: str, images: bool, dtype: torch.dtype) -> torch.device:
        from hdnn.training.devices import choose_device  # loads torch

        return choose_device(asked, images, dtype)

    def rank_zero(self, work: Callable[[], T]) -> T:
        return work()

    def all_ranks(self, work: Callable[[], T]) -> T:
        return work()

    def sum(self, *numbers: float) -> tuple[float, ...]:
        return numbers

    def collect(self, part: Tensor, count: int) -> Tensor:
        return part

    def parallel(self, objective: nn.Module) -> nn.Module:
        return objective

    def guard(self) -> AbstractContextManager[None]:
        return nullcontext()


SINGLE_PROCESS = SingleProcess()


def is_distributed() -> bool:
    """Whether this process was started as one of several, as torchrun does it."""
    return "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def refuse_distributed(what: str) -> None:
    """Refuse what each of several processes would do once more, as an estimator would."""
    if is_distributed():
        raise HdnnError(
            f"torchrun started {os.environ['WORLD_SIZE']} processes, and {what} in each is hardly "
            "meant: they share the work of hdnn train with method='joint', and of "
            "Trainer(group=...); for everything else start one process, without torchrun"
        )


@contextmanager
def joined() -> Iterator[Group]:
    """The group that this process was started in."""
    if not is_distributed():
        yield SINGLE_PROCESS
        return
    from hdnn.training import distributed  # loads torch.distributed, which one process never needs

    with distributed.join() as group:
        yield group
