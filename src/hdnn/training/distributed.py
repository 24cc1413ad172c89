"""Training by several processes, on one machine or more, with the gradients of one process.

Every process holds all data and draws the same batches; of each batch it computes its share.
With S processes, rank r differentiates

    S sum_{i in share r} w_i loss_i / sum_{i in batch} w_i + penalties,

and the mean of these gradients over the ranks, which is what torch's DistributedDataParallel
forms, is the gradient of the penalized loss of the whole batch: exactly, for shares of any sizes.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hdnn.errors import HdnnError, LostRankError
from hdnn.training.group import Group
from hdnn.training.settings import TrainingConfig

T = TypeVar("T")

TIMEOUT = 300.0
"""Seconds to wait for a process that is there but silent; one that died is noticed at once."""


class Ranks(Group):
    """The processes of torch's process group.

    Args:
        rank, size: of this process, and how many there are.
        device: where this process computes.
        seconds: how long a process is waited for.
    """

    def __init__(self, rank: int, size: int, device: torch.device, seconds: float) -> None:
        super().__init__(rank, size)
        self.device, self.seconds = device, seconds
        own = (socket.gethostname(), os.getpid())
        self.peers: list[tuple[str, int]] = [own] * size
        with self.guard():
            dist.all_gather_object(self.peers, own)

    def check(self, config: TrainingConfig) -> None:
        if config.method != "joint":
            raise HdnnError(
                f"{self.size} processes train together with method='joint' only, got "
                f"{config.method!r}; use --method joint, or one process"
            )

    def device_for(self, asked: str, images: bool, dtype: torch.dtype) -> torch.device:
        if asked not in ("cpu", "auto", self.device.type):
            raise HdnnError(
                f"device={asked!r}, but these processes train on {self.device.type}: torchrun's "
                "take one GPU each where there are any; leave device out"
            )
        return self.device

    def rank_zero(self, work: Callable[[], T]) -> T:
        outcome = _attempt(work) if self.is_rank_zero else (None, None)
        found = [(outcome[0], _portable(outcome[1], 0))]
        with self.guard():
            dist.broadcast_object_list(found, src=0)
        if self.is_rank_zero and outcome[1] is not None:
            raise outcome[1]
        if found[0][1] is not None:
            raise found[0][1]
        return outcome[0] if self.is_rank_zero else found[0][0]  # type: ignore[return-value]

    def all_ranks(self, work: Callable[[], T]) -> T:
        value, error = _attempt(work)
        failures: list[HdnnError | None] = [None] * self.size
        with self.guard():
            dist.all_gather_object(failures, _portable(error, self.rank))
        failed = [rank for rank, failure in enumerate(failures) if failure is not None]
        if failed == [self.rank] and error is not None:
            raise error
        if failed:
            raise failures[failed[0]]  # type: ignore[misc]
        return value  # type: ignore[return-value]

    def sum(self, *numbers: float) -> tuple[float, ...]:
        total = torch.tensor(numbers, dtype=torch.float64)
        with self.guard():
            dist.all_reduce(total)
        return tuple(total.tolist())

    def collect(self, part: Tensor, count: int) -> Tensor:
        whole = part.new_zeros((count, *part.shape[1:]))
        whole[self.rows(count)] = part
        with self.guard():
            dist.all_reduce(whole)  # to each row zeros are added, so that no bit of it changes
        return whole

    def parallel(self, objective: nn.Module) -> nn.Module:
        synchronize(objective)
        chosen = [self.device.index] if self.device.type == "cuda" else None
        with self.guard():
            return DistributedDataParallel(objective, chosen)

    def guard(self) -> AbstractContextManager[None]:
        return self._guard()

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, dist.DistError) or "gloo" in str(error) or "NCCL" in str(error):
                raise LostRankError(self._loss(str(error))) from error
            raise

    def _loss(self, text: str) -> str:
        others = [rank for rank in range(self.size) if rank != self.rank]
        host = socket.gethostname()
        dead = [r for r in others if self.peers[r][0] == host and not _exists(self.peers[r][1])]
        named = dead or others
        who = " and ".join(
            f"rank {r} (process {self.peers[r][1]} on {self.peers[r][0]})" for r in named
        )
        who = f"one of {who}" if not dead and len(named) > 1 else who
        what = f"did not answer for {self.seconds:g} s" if "imed out" in text else "is gone"
        return (
            f"{who} {what}: rank {self.rank} of {self.size} ends too; go on from the last "
            "checkpoint with hdnn train --resume, with any number of processes"
        )


def _attempt(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error


def _portable(error: Exception | None, rank: int) -> HdnnError | None:
    """An error as other processes raise it."""
    if error is None or (isinstance(error, HdnnError) and rank == 0):
        return error
    if isinstance(error, HdnnError):
        return type(error)(f"rank {rank}: {error}")
    return LostRankError(f"rank {rank} failed with {type(error).__name__}: {error}")


def _exists(process: int) -> bool:
    """Whether a process of this machine runs: one that is dead but not waited for does not."""
    try:
        os.kill(process, 0)
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except ProcessLookupError:
        return False
    except OSError:  # no /proc, or another user's
        return True


@contextmanager
def join() -> Iterator[Ranks]:
    """The processes that torchrun started, or anything that sets the same variables."""
    rank, size, local = (_number(n) for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    if not 0 <= rank < size:
        raise HdnnError(f"RANK is an integer from 0 to WORLD_SIZE - 1 = {size - 1}, got {rank}")
    seconds = _seconds()
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.is_available():
        if local >= torch.cuda.device_count():
            raise HdnnError(
                f"there are {torch.cuda.device_count()} GPUs here for {local + 1} processes or "
                "more; start one for each, or hide the GPUs with CUDA_VISIBLE_DEVICES="
            )
        device, backend = torch.device("cuda", local), "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(device)
    try:
        dist.init_process_group(
            backend, rank=rank, world_size=size, timeout=timedelta(seconds=seconds)
        )
    except (RuntimeError, ValueError) as error:
        raise LostRankError(
            f"rank {rank} of {size} could not meet the others within {seconds:g} s at MASTER_ADDR="
            f"{os.environ.get('MASTER_ADDR')}, MASTER_PORT={os.environ.get('MASTER_PORT')}: {error}"
        ) from error
    try:
        yield Ranks(rank, size, device, seconds)
    except LostRankError:
        # Of what is left, never delete the group: that waits for its threads, and they may wait for
        # the interpreter's lock, which whoever deletes it holds.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))
        raise
    finally:
        dist.destroy_process_group()


def _number(name: str) -> int:
    """An environment variable of torchrun; the local rank is the rank where it is not given."""
    text = os.environ.get(name, os.environ.get("RANK", "") if name == "LOCAL_RANK" else "")
    if not text.isdecimal():
        raise HdnnError(f"{name} is an integer that torchrun sets, got {text!r}")
    return int(text)


def _seconds() -> float:
    text = os.environ.get("HDNN_TIMEOUT", str(TIMEOUT))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise HdnnError(f"HDNN_TIMEOUT is a number of seconds above 0, got {text!r}")
    return seconds


# --- batch normalization ------------------------------------------------------------------------


class _Total(torch.autograd.Function):
    """The sum over the processes; so is its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.clone()
        dist.all_reduce(total)
        return total


class GlobalBatchNorm(nn.BatchNorm2d):
    """Batch normalization with mean and variance of the whole batch, over all processes.

    The same as one process computes, on any device (torch's SyncBatchNorm is for GPUs).
    """

    @classmethod
    def of(cls, given: nn.BatchNorm2d) -> GlobalBatchNorm:
        """One that shares all parameters and statistics with a plain one."""
        new = cls(given.num_features, given.eps, given.momentum)
        new._parameters, new._buffers = given._parameters, given._buffers
        return new.train(given.training)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, H, W)``, normalized; B may differ between the processes, and be 0."""
        if not self.training:
            return super().forward(x)
        here = x.new_tensor([x.numel() // x.shape[1]])
        sums: Tensor = _Total.apply(torch.cat([x.sum((0, 2, 3)), here]))
        count = sums[-1].detach()
        mean = sums[:-1] / count
        centered = x - mean[:, None, None]
        variance: Tensor = _Total.apply(centered.square().sum((0, 2, 3))) / count
        self._note(mean.detach(), variance.detach() * count / (count - 1))
        gain = self.weight / (variance + self.eps).sqrt()
        return centered * gain[:, None, None] + self.bias[:, None, None]

    @torch.no_grad()
    def _note(self, mean: Tensor, variance: Tensor) -> None:
        """Take the statistics of a batch into the running ones."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance, self.momentum)


def synchronize(module: nn.Module) -> None:
    """Put a `GlobalBatchNorm` in the place of every batch normalization."""
    for name, child in list(module.named_children()):
        if type(child) is nn.BatchNorm2d:
            setattr(module, name, GlobalBatchNorm.of(child))
        else:
            synchronize(child)
