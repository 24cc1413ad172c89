"""Interrupts at any moment of forward and backward passes.

Promised: whatever exception leaves a call, nobody writes to its memory any more; so the process
lives, and the next call has the same bits as ever.
"""

from __future__ import annotations

import ctypes
import functools
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from random import Random
from types import FrameType
from typing import Any

import torch
from torch import Tensor

import hdnn
from attacks.children import judged
from attacks.tally import HELD, Tally, tally

THREADS = (2, 4, 16)
WAYS = ("SIGINT", "SIGALRM", "asynchronous exception")


class Interrupt(Exception):  # noqa: N818 (it is no error)
    """Raised by the handler of SIGALRM, as a timeout does, and by another thread."""


# --- passes ---------------------------------------------------------------------------------------


def _pass(
    gradients: bool, name: str, shape: tuple[int, ...], **options: Any
) -> Callable[[], list[Tensor]]:
    """A call with the results that must not change; ``shape`` is that of the states."""
    generator = torch.Generator().manual_seed(0)
    net = hdnn.network(
        name, T=1.0, scale=0.3, dtype=torch.float32, backend="fused", generator=generator, **options
    )
    y = torch.randn(shape, generator=generator, dtype=torch.float32, requires_grad=gradients)

    net.requires_grad_(gradients)  # torch.no_grad would itself be interrupted half-way

    def forward() -> list[Tensor]:
        return [net(y)]

    def backward() -> list[Tensor]:
        out = net(y)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), [y, *net.parameters()])]

    return backward if gradients else forward


@functools.cache
def passes(copy: int = 0) -> list[tuple[Callable[[], list[Tensor]], list[Tensor], float]]:
    """Calls large enough for threads and small ones with tapes; results and seconds on one.

    Every copy has tensors of its own, of the same values.
    """
    calls = [
        _pass(False, "H1", (4000, 8), features=8, layers=32),
        _pass(True, "H1", (2000, 8), features=8, layers=32),
        _pass(True, "MS1", (600, 16), features=16, layers=64),
        _pass(True, "MS3", (3, 400, 4), features=4, layers=48, ensemble=3),
        _pass(True, "H2", (6, 8, 14, 14), channels=8, layers=12),
        _pass(True, "H1", (125, 4), features=4, layers=16),
        _pass(True, "HS", (64, 4), features=4, layers=8),
    ]
    found = []
    for call in calls:
        torch.set_num_threads(1)
        call()
        start = time.perf_counter()
        found.append((call, call(), time.perf_counter() - start))
    return found


class Order:
    """One interrupt of the main thread.

    Args:
        way: of `WAYS`.
        seconds: from now.
    """

    def __init__(self, way: str, seconds: float) -> None:
        self.way, self.seconds, self.sent = way, seconds, False
        if way == "SIGALRM":
            signal.signal(signal.SIGALRM, self._handler)
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
        else:
            signal.signal(signal.SIGINT, self._handler)
            orders().put(self)

    def _handler(self, number: int, frame: FrameType | None) -> None:
        self.sent = True
        raise KeyboardInterrupt if number == signal.SIGINT else Interrupt

    def carry_out(self, victim: int) -> None:
        """Interrupt a thread, from another one."""
        time.sleep(self.seconds)
        if self.way == "SIGINT":
            signal.pthread_kill(victim, signal.SIGINT)
        else:
            raised = ctypes.py_object(Interrupt)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(victim), raised)
            self.sent = True


@functools.cache
def orders() -> SimpleQueue[Order]:
    """Orders to a thread of this process that carries them out."""
    queue: SimpleQueue[Order] = SimpleQueue()
    victim = threading.get_ident()

    def serve() -> None:
        while True:
            queue.get().carry_out(victim)

    threading.Thread(target=serve, daemon=True).start()
    return queue


def interrupted(call: Callable[[], object], way: str, seconds: float) -> None:
    """Call again and again until an interrupt has come."""
    orders()
    try:
        order = Order(way, seconds)
        while not order.sent:
            call()
        call()  # an exception in a destructor goes nowhere
    except BaseException:  # on its way, the interrupt may have become another error
        pass


def run(count: int, seed: int, start: int = 0) -> Tally:
    """Interrupts of forward and backward passes on 2, 4 and 16 threads."""
    torch.set_num_threads(1)
    prepared = passes()

    def judge(number: int, folder: Path) -> str:
        rng = Random(f"{seed} {number}")
        call, expected, seconds = rng.choice(prepared)
        threads, way = rng.choice(THREADS), rng.choice(WAYS)
        torch.set_num_threads(threads)
        interrupted(call, way, rng.uniform(0, 1.5 * seconds))
        same = map(torch.equal, call(), expected)
        return HELD if all(same) else f"wrong next result: {way}, {threads} threads"

    return tally("interrupted passes", judged(judge, range(start, start + count), batch=200))
