"""Threads and forks at once: the same bits in every thread and every child, and no deadlock.

Promised: networks may be called from many threads, and a process may be forked at any moment; the
child computes what its parent does.
"""

from __future__ import annotations

import signal
import threading
import warnings
from random import Random

import torch

import hdnn
from attacks.children import judged
from attacks.interrupts import passes
from attacks.tally import HELD, Tally, tally
from processes import ended, forked

CALLERS, FORKS, SECONDS = 4, 5, 20


THREADS, CHILDREN = 0, 1
"""Copies of the passes: torch locks a tensor while it adds it to a graph, and a fork would find the
lock closed for ever where threads and children share tensors."""


def _differing(copy: int) -> int:
    """How many passes do not give the bits that they should."""
    same = (all(map(torch.equal, call(), expected)) for call, expected, _ in passes(copy))
    return sum(not found for found in same)


def _new_shapes(rng: Random) -> None:
    """Calls of shapes that were not seen before, so that room for them is made."""
    own = torch.Generator().manual_seed(0)  # a fork may find torch's default generator locked
    layers, samples = rng.randrange(1, 40), rng.randrange(1, 300)
    net = hdnn.network("H1", features=4, layers=layers, T=1.0, backend="fused", generator=own)
    net(torch.randn(samples, 4, generator=own, requires_grad=True)).sum().backward()


def _child(seed: str) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS)  # a child that waits for a lock dies of this
    _new_shapes(Random(seed))
    raise SystemExit(_differing(CHILDREN))


def judge(seed: int, number: int) -> str:
    """A storm: threads call networks, old and new ones, while the process is forked."""
    rng, over, wrong = Random(f"{seed} {number}"), threading.Event(), list[int]()
    torch.set_num_threads(rng.choice((1, 2, 4, 16)))

    def caller(own: Random) -> None:
        while not over.is_set():
            _new_shapes(own)
            wrong.append(_differing(THREADS))

    threads = [
        threading.Thread(target=caller, args=(Random(rng.random()),)) for _ in range(CALLERS)
    ]
    for thread in threads:
        thread.start()
    codes = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of what is tried here
        for fork in range(FORKS):
            _new_shapes(rng)
            codes.append(ended(forked(lambda fork=fork: _child(f"{seed} {number} {fork}"))))  # type: ignore[misc]
    over.set()
    for thread in threads:
        thread.join()
    if -signal.SIGALRM in codes:
        return f"deadlock in a child: {codes.count(-signal.SIGALRM)} of {FORKS} forks"
    if any(codes):
        return f"wrong bits or a crash in a child: exit codes {codes}"
    return f"wrong bits in a thread: {sum(wrong)} of {len(wrong)} rounds" if any(wrong) else HELD


def run(count: int, seed: int, start: int = 0) -> Tally:
    """Storms of threads and forks."""
    torch.set_num_threads(1)
    for copy in (THREADS, CHILDREN):
        passes(copy)
    numbers = range(start, start + count)
    verdicts = judged(lambda number, folder: judge(seed, number), numbers, batch=10, seconds=300)
    return tally("storms of threads and forks", verdicts)
