"""The works of `compare.py`: a worker for an environment with one version of hdnn.

It uses what versions share: the public interface.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import hdnn
from hdnn.data import split
from speed.cases import Case
from speed.peers import PEERS
from speed.timing import Work, repeat
from speed.training import train_one
from speed.worker import Record, serve


def function(work: str, case: Case, peer: str) -> Callable[[], Any]:
    """What is called: a training, sensitivities, or a step or forward pass of a case."""
    if work == "train":
        data = split("swiss-roll")
        return lambda: train_one(data)
    if work == "step":
        return PEERS[peer](case)
    net, y = case.network(), case.state()
    if work == "forward":
        return torch.no_grad()(lambda: net(y))
    return lambda: hdnn.analysis.sensitivities(net, y)


def prepare(request: Record) -> tuple[Work, Record]:
    """The work of that name; the answer says which version does it."""
    torch.manual_seed(0)
    work = repeat(function(request["work"], Case(**request["case"]), request["peer"]))
    work(1)
    return work, {"version": hdnn.__version__, "threads": torch.get_num_threads()}


if __name__ == "__main__":
    serve(prepare)
